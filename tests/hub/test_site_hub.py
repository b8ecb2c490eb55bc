"""A site's own hub, of JupyterHub 6 and 5: miglab is added as the page says, used, and taken out.

The hub has an idle culler, roles of its own, a `base_url` and named servers.  The commands,
lab.toml and the hub's lines are the page's, as printed; `Site.replaced` says what a test must have
otherwise.
"""

import shlex
import sqlite3
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.added_page import PROXY, answers, as_here, printed, running
from tests.conftest import HUB5
from tests.hubs import STUDENT

from miglab_api.leases import LeaseView
from miglab_bench.harness.processes import free_ports, logs_below
from miglab_bench.harness.student import STEP_S, Student, wait_for
from miglab_hub import lab_secrets
from miglab_hub.doctor import examine_hub
from miglab_hub.settings.lab_toml import Settings, load

FRONT = Path(__file__).with_name("buffering_front.py")
PASSWORD = "a-password-for-all"
BEFORE = """
c.JupyterHub.bind_url = "http://127.0.0.1:{port}/jupyter/"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{port_of_proxy}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = {password!r}
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {{"root"}}
c.JupyterHub.allow_named_servers = True
c.JupyterHub.spawner_class = "simple"
c.JupyterHub.hub_port = {port_of_hub}
c.Spawner.cmd = [{python!r}, "-S", {student!r}]
c.Spawner.args = []
c.JupyterHub.load_roles = [
    {{"name": "user", "scopes": ["self", "list:groups"]}},
    {{
        "name": "culler",
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
        "services": ["culler"],
    }},
]
"""
"""What this hub had, in the part of its configuration before our lines."""
AFTER = """
c.JupyterHub.services = [
    {{
        "name": "culler",
        "command": [
            {hub_python!r}, "-m", "jupyterhub_idle_culler", "--timeout={cull_s}", "--cull-every=1",
        ],
    }},
]
"""
"""And in the part after them."""
SELF_SIGNED = (
    *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
    *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
)
KEPT = {
    "roles": "SELECT name, description, scopes FROM roles ORDER BY name",
    "services": "SELECT name, admin FROM services ORDER BY name",
    "holders": "SELECT users.name, roles.name FROM user_role_map JOIN users ON users.id = user_id "
    "JOIN roles ON roles.id = role_id ORDER BY 1, 2",
    "clients": "SELECT identifier FROM oauth_clients WHERE identifier NOT LIKE 'jupyterhub-user-%' "
    "ORDER BY 1",
    "states": "SELECT spawners.name, state FROM spawners WHERE state NOT IN ('{}', 'null')",
}


@dataclass
class Site:
    """A site's folder, with its hub of one version."""

    folder: Path
    hub_python: Path
    port: int = field(default_factory=free_ports)
    cull_s: int = 86400

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/jupyter"

    @property
    def replaced(self) -> dict[str, str]:
        """What a test must have otherwise: the host's addresses, GPUs, Docker, domains."""
        return {
            "/srv/miglab": str(self.folder),
            "port = 8000": f"port = {self.port}",
            "8002": str(self.port + 2),
            "8003": str(self.port + 3),
            "8004": str(self.port + 4),
            "172.16.77.1": "127.0.0.1",
            'uuids = ["GPU-…"]': 'simulate = ["A100-40GB"]',
            'spawner = "docker"': 'spawner = "local"',
            "mig-docker": "mig-local",
            "MIGDockerSpawner": "MIGLocalSpawner",
            'subdomain_host = "https://hub.example.edu"': "",
            "[authentication]": '[authentication]\ninstructors = ["ina"]',
            'shapes = ["1g.5gb", "2x1g.5gb", "cpu"]': 'shapes = ["1g.5gb", "7g.40gb", "cpu"]\n'
            "[accept_risk]\nstudents_can_act_as_staff = true",
        }

    def configuration(self, *, with_miglab: bool) -> Path:
        """The hub's configuration file."""
        environment = {
            "port": self.port,
            "port_of_proxy": self.port + 1,
            "port_of_hub": self.port + 2,
            "proxy": str(PROXY),
            "password": PASSWORD,
            "python": sys.executable,
            "student": str(STUDENT),
            "hub_python": str(self.hub_python),
            "cull_s": self.cull_s,
        }
        [printed_config] = printed("python")
        lines = as_here(printed_config, self.replaced) if with_miglab else ""
        homes = f'c.MIGLocalSpawner.homes_dir = "{self.folder}/homes"\n' if with_miglab else ""
        file = self.folder / "jupyterhub_config.py"
        file.write_text(BEFORE.format(**environment) + lines + homes + AFTER.format(**environment))
        return file

    @contextmanager
    def hub(self, *, with_miglab: bool) -> Iterator[None]:
        """The hub, while it runs."""
        file = self.configuration(with_miglab=with_miglab)
        command = (self.hub_python, "-m", "jupyterhub", "-f", file)
        with running(self.folder / "hub.log", *command):
            wait_for(lambda: answers(f"{self.url}/hub/health"), "the hub")
            yield

    @contextmanager
    def pool(self) -> Iterator[Settings]:
        """The page's lab.toml and pool service."""
        [toml] = printed("toml")
        file = self.folder / "lab.toml"
        file.write_text(as_here(toml, self.replaced), encoding="utf-8")
        settings = load(file, {})
        _, commands, *_ = printed("")
        *_, command = as_here(commands, self.replaced).splitlines()
        with running(self.folder / "pool.log", sys.executable, *shlex.split(command)[1:]):
            wait_for(lambda: answers(f"{settings.pool_url}/api/health"), "the pool")
            yield settings

    def kept(self) -> dict[str, list[tuple[Any, ...]]]:
        """What the hub keeps in its database about roles, services and servers."""
        with closing(sqlite3.connect(self.folder / "jupyterhub.sqlite")) as database:
            return {name: database.execute(query).fetchall() for name, query in KEPT.items()}


class SiteStudent(Student):
    """A student of a hub with named servers."""

    def server(self, name: str) -> dict[str, Any]:
        """The hub's own word on one of the student's servers; empty if there is none."""
        answer = self._api("GET", f"/hub/api/users/{self.name}").json()
        return dict(answer["servers"].get(name, {}))

    def start_named(self, name: str, **options: object) -> httpx.Response:
        """Ask for a named server through the hub's API."""
        return self._api("POST", f"/hub/api/users/{self.name}/servers/{name}", options)

    def stop_named(self, name: str) -> None:
        """Stop it, and forget it."""
        self._api("DELETE", f"/hub/api/users/{self.name}/servers/{name}", {"remove": True})

    def environment(self, name: str = "") -> dict[str, str]:
        """A server's own."""
        path = f"/user/{self.name}/{name and name + '/'}environment"
        return dict(self._api("GET", path).json())


@contextmanager
def student_of(site: Site, name: str) -> Iterator[SiteStudent]:
    """Somebody's browser, signed in."""
    with closing(SiteStudent(site.url, name, PASSWORD)) as student:
        student.sign_in()
        yield student


def operator(settings: Settings, method: str, path: str, **body: object) -> Any:
    """The pool's answer to its operator."""
    headers = {"Authorization": f"Bearer {lab_secrets.read(settings.pool_secret)}"}
    options = {"headers": headers, "trust_env": False, "timeout": STEP_S}
    url = f"{settings.pool_url}/api/{path}"
    return httpx.request(method, url, json=body or None, **options).raise_for_status().json()


def leases(settings: Settings) -> list[LeaseView]:
    """The live leases."""
    return [LeaseView.model_validate(lease) for lease in operator(settings, "GET", "leases")]


def answer_to_server(environment: dict[str, str]) -> int:
    """The pool's status for a server that asks, by its own token, for its lease."""
    token = environment["JUPYTERHUB_API_TOKEN"]
    headers = {"Authorization": f"token {token}"}
    url = f"{environment['MIGLAB_API']}/api/lease"
    return httpx.get(url, headers=headers, trust_env=False, timeout=STEP_S).status_code


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(Path(sys.executable), id="JupyterHub 6"),
        pytest.param(HUB5, id="JupyterHub 5", marks=pytest.mark.hub5),
    ],
)
def hub_python(request: pytest.FixtureRequest) -> Path:
    """The Python of the hub's environment."""
    python: Path = request.param
    return python


@pytest.fixture
def site(hub_python: Path, tmp_path: Path) -> Iterator[Site]:
    """A site of its own, in an empty folder."""
    with logs_below(tmp_path):
        yield Site(tmp_path, hub_python)


def test_it_is_added_and_taken_out_again(site: Site) -> None:
    """Slices are leased, reported on, reclaimed; people open the pool's pages; then all is gone."""
    with site.hub(with_miglab=False), student_of(site, "ada"), student_of(site, "ina"):
        pass
    before = site.kept()
    with (
        site.pool() as settings,
        site.hub(with_miglab=True),
        student_of(site, "ina") as ina,
        student_of(site, "ada") as ada,
    ):
        ada.ask("1g.5gb")
        ada.wait_until_ready()
        assert ada.start_named("two", shape="1g.5gb").status_code in (201, 202)
        wait_for(lambda: ada.server("two").get("ready"), "the named server")
        assert {lease.server for lease in leases(settings)} == {"", "two"}
        for server in ("", "two"):  # from the moment when the pool has heard where the hub is
            env = ada.environment(server)
            wait_for(lambda env=env: answer_to_server(env) == 200, "the server's own lease")
        ada.page("/services/pool/")  # signs in
        assert ada.page("/services/pool/api/line").count('"holding"') == 2
        assert "Health" in ina.page("/services/pool/")
        assert not [finding for finding in examine_hub(settings) if finding.is_wrong]
        (lease,) = [lease for lease in leases(settings) if not lease.server]
        operator(settings, "POST", f"leases/{lease.id}/release", reason="the lesson is over")
        wait_for(lambda: len(leases(settings)) == 1, "the slice to be released")
        assert not ada.is_ready() and ada.server("two")["ready"]
        ada.stop_named("two")
        wait_for(lambda: not leases(settings), "the other slice to be released")
        wait_for(ada.has_no_server, "the servers to be gone")
    log = (site.folder / "hub.log").read_text()
    assert "(culler@" in log and "403 GET" not in log
    with site.hub(with_miglab=False), student_of(site, "ada") as ada:
        ada.ask_by_api()
        ada.wait_until_ready()
        ada.leave()
    assert site.kept() == before


def test_two_tabs_start_one_server(site: Site) -> None:
    """At the same moment: the hub takes one, and says to the other that it is starting."""
    with (
        site.pool() as settings,
        site.hub(with_miglab=True),
        student_of(site, "ada") as one_tab,
        student_of(site, "ada") as other_tab,
    ):
        with ThreadPoolExecutor() as tabs:
            statuses = list(
                tabs.map(lambda tab: tab.ask_by_api(shape="1g.5gb"), (one_tab, other_tab))
            )
        assert set(statuses) <= {201, 202, 400}, statuses
        one_tab.wait_until_ready()
        assert len(leases(settings)) == 1
        one_tab.leave()
        wait_for(lambda: not leases(settings), "the slice to be released")


OPTIONS = [
    ({"shape": "1g.5gb", "course": "everyone"}, "1g.5gb"),
    ({"image": "of-another-form"}, "cpu"),
    ({"shape": ["1g.5gb"]}, "1g.5gb"),  # as a form sends it
    ({"shape": {"no": "text"}}, None),
    ({"shape": "9g.80gb"}, None),
    ({"shape": "1g.5gb", "course": "of-others"}, None),
]


def test_options_by_the_api(site: Site) -> None:
    """They mean what the spawn page's mean; what makes no sense starts nothing."""
    with site.pool() as settings, site.hub(with_miglab=True), student_of(site, "ada") as ada:
        for options, shape in OPTIONS:
            ada.ask_by_api(**options)
            if shape is not None:
                ada.wait_until_ready()
                assert ada.environment()["MIGLAB_SHAPE"] == shape, options
                ada.leave()
            wait_for(ada.has_no_server, "the start to be over")
            wait_for(lambda: not leases(settings), "no lease")


def test_a_hub_that_restarts_while_somebody_waits(site: Site) -> None:
    """Who has a slice keeps server and lease; who waits keeps the position, and asks again."""
    with site.pool() as settings:
        with site.hub(with_miglab=True), student_of(site, "ada") as ada:
            ada.ask("7g.40gb")
            ada.wait_until_ready()
            with student_of(site, "bo") as bo:
                bo.ask("7g.40gb")
                (ticket,) = waiting(settings)
        assert [lease.user for lease in leases(settings)] == ["ada"]
        with site.hub(with_miglab=True), student_of(site, "bo") as bo:
            assert waiting(settings) == [ticket]
            with student_of(site, "ada") as ada:
                assert ada.is_ready()
                bo.ask("7g.40gb")
                wait_for(bo.waiting, "bo to wait again")
                assert waiting(settings) == [ticket]
                ada.leave()
            bo.wait_until_ready()
            assert [lease.user for lease in leases(settings)] == ["bo"]
            bo.leave()
            wait_for(lambda: not leases(settings), "the slice to be released")


def test_the_idle_culler_gives_slices_back(site: Site) -> None:
    """It stops a server that it finds idle, as it does any other, and the slice is free."""
    site.cull_s = 2
    with site.pool() as settings, site.hub(with_miglab=True), student_of(site, "ada") as ada:
        ada.ask("1g.5gb")
        wait_for(lambda: leases(settings), "the lease")
        wait_for(lambda: not leases(settings), "the culler to stop the server")
        wait_for(ada.has_no_server, "the server to be gone")
    assert "Culling server" in (site.folder / "hub.log").read_text()


def test_behind_a_proxy_that_ends_tls_and_buffers(site: Site, tmp_path: Path) -> None:
    """Signing in, waiting, the pool's page and its buttons, with every answer held until whole."""
    certificate, key = tmp_path / "front.pem", tmp_path / "front.key"
    subprocess.run(
        [*SELF_SIGNED, "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    trusted = ssl.create_default_context(cafile=str(certificate))
    port = free_ports()
    command = (sys.executable, FRONT, port, site.port, certificate, key)
    with (
        site.pool() as settings,
        site.hub(with_miglab=True),
        running(tmp_path / "front.log", *command),
        student_of(site, "bo") as bo,
    ):
        bo.ask("7g.40gb")
        bo.wait_until_ready()
        url, way = f"https://127.0.0.1:{port}/jupyter", httpx.HTTPTransport(verify=trusted)
        with closing(SiteStudent(url, "ada", PASSWORD, way)) as ada:
            wait_for(lambda: ada.page("/hub/login"), "the proxy in front")
            ada.sign_in()
            ada.ask("7g.40gb")
            wait_for(ada.waiting, "ada to wait")
            assert 'name="miglab-xsrf"' in ada.page("/services/pool/")
            bo.leave()
            ada.wait_until_ready()
            assert answer_to_server(ada.environment()) == 200
            (lease,) = leases(settings)
            assert ada.press(f"leases/{lease.id}/release") == 200
            wait_for(lambda: not leases(settings), "the slice to be released")


def waiting(settings: Settings) -> list[int]:
    """The numbers of the tickets that wait."""
    return [ticket["id"] for ticket in operator(settings, "GET", "pool")["waiting"]]
