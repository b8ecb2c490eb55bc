"""lab.toml as JupyterHub's configuration."""

import asyncio
import json
import sqlite3
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jupyterhub.utils import exponential_backoff
from sqlalchemy import create_engine, text
from tornado.ioloop import IOLoop
from traitlets.config import Config

from labkit.notebook import handing_in as fresh
from miglab_api.scopes import ADMIN_SCOPE, LEASE_SCOPE, SERVICE_SCOPE, STAFF_SCOPE
from miglab_hub import lab_secrets
from miglab_hub.authenticator import LabAuthenticator
from miglab_hub.checkout import checkout
from miglab_hub.configure import configure, set_pragmas, wait_by_a_steady_clock
from miglab_hub.static_files import HubStaticFiles
from miglab_spawner.docker import MIGDockerSpawner
from miglab_spawner.local import MIGLocalSpawner

from .conftest import lab_with

COURSE = '[courses.everyone]\nshapes = ["1g.5gb", "cpu"]\nmembers = ["ada"]\n'
TEACHES = COURSE + 'instructors = ["Ina"]\nassistants = ["timo", "admin"]\n'
DOMAINS = 'lab.subdomain_host = "https://lab.test"\n'
DOCKER = DOMAINS + '[servers]\nspawner = "docker"\n[limits.cpu]\nmemory_gib = 3\n' + COURSE
PAM = '[authentication]\nclass = "pam"\n[authentication.config.PAMAuthenticator]\n'
NOT_REAL = "simulated GPUs"
THE_POOL = {
    "pool_url": "http://127.0.0.1:8003/services/pool", "pool_secret_file": "HERE/.lab/pool.secret",
    "student_api_url": "http://127.0.0.1:8004", "http_timeout": 120,
    "default_url": "/lab/tree/notebooks", "says_simulated": False,
}  # fmt: skip

SETS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a hub that stops ends no server, and who waits locks nobody out": (
        COURSE, "JupyterHub",
        {"cleanup_servers": False, "cleanup_proxy": False, "concurrent_spawn_limit": 0},
    ),
    "nor the proxy": (COURSE, "ConfigurableHTTPProxy", {"should_start": False}),
    "what the hub remembers outlives it, wherever it is started": (
        COURSE, "JupyterHub",
        {
            "db_url": "sqlite:///HERE/.lab/jupyterhub.sqlite",
            "cookie_secret_file": "HERE/.lab/jupyterhub_cookie_secret",
        },
    ),
    "each course is a group": (
        COURSE, "JupyterHub", {"load_groups": {"everyone": {"users": ["ada"]}}},
    ),
    "who teaches is in it, and no role comes of a group that the hub would never empty": (
        TEACHES, "JupyterHub",
        {"load_groups": {"everyone": {"users": ["ada", "timo", "admin", "Ina"]}}},
    ),
    "who teaches may sign in": (
        TEACHES, "Authenticator",
        {"allowed_users": {"ada", "timo", "Ina", "instructor", "admin"}, "admin_users": {"admin"}},
    ),
    "an authenticator that manages groups keeps them": (
        f"{DOMAINS}{PAM}manage_groups = true\n{COURSE}", "JupyterHub",
        {"load_groups": None, "authenticator_class": "pam"},
    ),
    "any authenticator has its traits": (
        f'{DOMAINS}{PAM}service = "login"\n{COURSE}', "PAMAuthenticator", {"service": "login"},
    ),
    "and no staff of its own": (
        DOMAINS + PAM + COURSE, "Authenticator", {"allowed_users": {"ada"}},
    ),
    "local servers": (COURSE, "JupyterHub", {"spawner_class": "mig-local"}),
    "local servers find the pool": (COURSE, "MIGLocalSpawner", THE_POOL),
    "containers": (DOCKER, "JupyterHub", {"spawner_class": "mig-docker"}),
    "containers find the pool": (DOCKER, "MIGDockerSpawner", THE_POOL),
    "limits reach the containers, by shape": (
        DOCKER, "MIGDockerSpawner",
        {"shape_limits": {"cpu": {"mem_gib": 3.0, "cpus": 2, "pids": 1024, "shm_gib": 1}}},
    ),
    "with domains cookies are bound to their host": (
        DOMAINS + COURSE, "JupyterHub",
        {
            "subdomain_host": "https://lab.test", "cookie_host_prefix_enabled": True,
            "bind_url": "http://127.0.0.1:8000/",
        },
    ),
    "without TLS they cannot be": (
        DOMAINS.replace("https", "http") + COURSE, "JupyterHub",
        {"subdomain_host": "http://lab.test", "cookie_host_prefix_enabled": False},
    ),
    "on one host a cookie with this prefix would be sent to every student's server": (
        COURSE, "JupyterHub", {"cookie_host_prefix_enabled": False},
    ),
    "every page says what is not real": (
        COURSE, "JupyterHub",
        {"template_vars": {
            "lab_title": "miglab", "lab_notices": [NOT_REAL, "no isolation: trial only"],
        }},
    ),
    "and of containers less": (
        DOCKER, "JupyterHub",
        {"template_vars": {"lab_title": "miglab", "lab_notices": [NOT_REAL]}},
    ),
}  # fmt: skip


def hub_config(folder: Path, text: str = COURSE) -> Any:
    settings = lab_with(folder, text)
    lab_secrets.make_all(settings)
    c = Config()
    configure(c, settings)
    return c


@pytest.mark.parametrize(("text", "of", "traits"), SETS.values(), ids=SETS)
def test_what_is_set(tmp_path: Path, text: str, of: str, traits: dict[str, Any]) -> None:
    """Each key of lab.toml reaches the trait that it is for."""
    values = hub_config(tmp_path, text)[of]
    text_of_values = json.dumps({name: values.get(name) for name in traits}, default=sorted)
    assert json.loads(text_of_values.replace(str(tmp_path), "HERE")) == json.loads(
        json.dumps(traits, default=sorted)
    )


def test_everybody_has_the_least_scopes(tmp_path: Path) -> None:
    """The pool ends servers; users reach its page and their leases; each staff role has its own."""
    text = '[authentication]\nadmins = ["root"]\ninstructors = ["prof"]\n' + COURSE
    hub = hub_config(tmp_path, text).JupyterHub
    service, _ = hub.services
    assert (service["name"], service["url"]) == ("pool", "http://127.0.0.1:8003")
    assert "command" not in service
    assert set(service["oauth_client_allowed_scopes"]) == {SERVICE_SCOPE, STAFF_SCOPE, ADMIN_SCOPE}
    assert hub.extra_user_scopes == {SERVICE_SCOPE, f"{LEASE_SCOPE}!user"}
    assert set(hub.custom_scopes) == {LEASE_SCOPE, STAFF_SCOPE, ADMIN_SCOPE}
    roles = {role.pop("name"): role for role in hub.load_roles}
    scopes = [
        "read:servers",
        "delete:servers",
        LEASE_SCOPE,
        "read:groups",
        "list:users",
        "read:users:groups",
    ]
    assert roles["miglab-pool"] == {"scopes": scopes, "services": ["pool"]}
    assert roles["miglab-staff"] == {"scopes": [STAFF_SCOPE, SERVICE_SCOPE], "users": ["prof"]}
    assert roles["miglab-admin"] == {"scopes": [ADMIN_SCOPE, SERVICE_SCOPE], "users": ["root"]}


def test_jobs_are_told_the_site(tmp_path: Path) -> None:
    """On Slurm the spawner gets the site's table and the wait; the traits exist and take it."""
    from miglab_slurm.spawner import MIGSlurmSpawner

    text = DOMAINS + '[servers]\nspawner = "slurm"\n[slurm]\npartition = "lab"\n'
    text += 'accounts = {everyone = "cs101"}\n[slurm.shapes."1g.5gb"]\ngres = "gpu:1g.5gb:1"\n'
    c = hub_config(tmp_path, text + "[slurm.shapes.cpu]\n" + COURSE)
    assert c.JupyterHub.spawner_class == "mig-slurm"
    assert set(c.MIGSlurmSpawner) <= set(MIGSlurmSpawner.class_traits(config=True))
    site = MIGSlurmSpawner(config=c).site
    assert site.accounts == {"everyone": "cs101"}
    assert set(site.shapes) == {"1g.5gb", "cpu"}
    assert c.MIGSlurmSpawner.default_url == "/lab"


def test_every_trait_exists(tmp_path: Path) -> None:
    """What is set on the spawners are traits that they have."""
    c = hub_config(tmp_path)
    for cls in (MIGDockerSpawner, MIGLocalSpawner, LabAuthenticator):
        unknown = set(c[cls.__name__]) - set(cls.class_traits(config=True))
        assert unknown == set(), cls.__name__


def test_the_hub_bears_the_labs_name_and_logo(tmp_path: Path) -> None:
    """Without a logo of its own, miglab's."""
    (tmp_path / "logo.png").touch()
    config = hub_config(tmp_path, '[lab]\ntitle = "GPU lab"\nlogo = "logo.png"\n' + COURSE)
    assert config.JupyterHub.template_vars["lab_title"] == "GPU lab"
    assert config.JupyterHub.logo_file == str(tmp_path / "logo.png")
    assert Path(hub_config(tmp_path).JupyterHub.logo_file).is_file()


@pytest.mark.parametrize(
    ("person", "groups", "is_staff"),
    [
        ("ada", (), False),
        ("root", (), True),
        ("prof", (), True),
        ("ina", (), True),
        ("tom", (), True),
        ("gus", ("everyone-instructors",), True),
        ("gus", ("somewhere-instructors",), False),
    ],
)
def test_staff_land_on_the_pools_page(
    tmp_path: Path, person: str, groups: tuple[str, ...], is_staff: bool
) -> None:
    """Whether lab.toml or a hub group says that they teach; students go to their server."""
    staff = 'instructors = ["ina"]\nassistants = ["tom"]\n'
    sign_in = '[authentication]\nclass = "pam"\nadmins = ["root"]\ninstructors = ["prof"]\n'
    c = hub_config(tmp_path, DOMAINS + COURSE + staff + sign_in)
    user = SimpleNamespace(
        name=person, admin=False, groups=[SimpleNamespace(name=name) for name in groups]
    )
    landed = c.JupyterHub.default_url(SimpleNamespace(current_user=user))
    assert landed == ("https://pool--service.lab.test/services/pool/" if is_staff else "")
    assert c.JupyterHub.default_url(SimpleNamespace(current_user=None)) == ""


@pytest.mark.parametrize("is_lazy", [False, True])
def test_static_files_are_compressed_beside_what_a_site_has_set(
    tmp_path: Path, is_lazy: bool
) -> None:
    """A site's own settings of the hub's web server stay, assigned or added."""
    settings = lab_with(tmp_path, COURSE)
    lab_secrets.make_all(settings)
    c = Config()
    if is_lazy:
        c.JupyterHub.tornado_settings.update({"headers": {"X-Site": "ours"}})
    else:
        c.JupyterHub.tornado_settings = {"headers": {"X-Site": "ours"}}
    configure(c, settings)
    assert c.JupyterHub.tornado_settings == {
        "headers": {"X-Site": "ours"},
        "static_handler_class": HubStaticFiles,
    }


def test_jupyterlab_opens_the_notebooks_and_asks_nothing(tmp_path: Path) -> None:
    """The folder of notebooks opens; no news, no update check, no search for language servers.

    Nor what the lab's own notebooks are made with: the student image does not have it.
    """
    c = hub_config(tmp_path)
    folder = Path(c.MIGLocalSpawner.environment["JUPYTER_CONFIG_PATH"])
    server_config = json.loads((folder / "jupyter_server_config.json").read_text(encoding="utf-8"))
    page = json.loads((folder / "labconfig/page_config.json").read_text(encoding="utf-8"))
    themes = json.loads(
        (folder / "labconfig/default_setting_overrides.json").read_text(encoding="utf-8")
    )["@jupyterlab/apputils-extension:themes"]
    assert themes == {"adaptive-theme": True}  # light or dark, as the hub's pages
    disabled = ("@jupyterlab/apputils-extension:announcements", "jupyterlab-jupytext")
    assert page["disabledExtensions"] == dict.fromkeys(disabled, True)
    assert server_config["LanguageServerManager"] == {"autodetect": False}


def test_servers_report_as_often_as_the_lab_says(tmp_path: Path) -> None:
    """Whichever way they are started, and 15 s where lab.toml says nothing."""
    c = hub_config(tmp_path)
    for spawner in (c.MIGDockerSpawner, c.MIGLocalSpawner):
        assert spawner.environment["MIGLAB_REPORT_S"] == "15"
    c = hub_config(tmp_path, "[testing]\nreclaim.report_s = 2.5\n" + COURSE)
    assert c.MIGLocalSpawner.environment["MIGLAB_REPORT_S"] == "2.5"


def test_local_students_find_fresh_copies(tmp_path: Path) -> None:
    """labkit copies from where the spawner does; in the image both know /opt/miglab/notebooks."""
    c = hub_config(tmp_path)
    assert fresh.VARIABLE in c.MIGLocalSpawner.environment
    assert c.MIGLocalSpawner.environment[fresh.VARIABLE] == c.MIGLocalSpawner.notebooks_dir
    dockerfile = (checkout() / "images/student/Dockerfile").read_text(encoding="utf-8")
    assert f"/own{fresh.DELIVERED}" in dockerfile


def test_secrets_are_private_and_stay(tmp_path: Path) -> None:
    """Only their owner may read them, and a second start makes no new ones."""
    settings = lab_with(tmp_path, COURSE)
    lab_secrets.make_all(settings)
    files = (settings.passwords, settings.pool_secret, settings.service_token, settings.proxy_token)
    before = [file.read_text() for file in files]
    lab_secrets.make_all(settings)
    assert [file.read_text() for file in files] == before
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


OPENS = {
    "ada": "student", "ina": "instructor", "Ina": "instructor", "timo": "instructor",
    "instructor": "instructor", "admin": "admin",
}  # fmt: skip


@pytest.mark.parametrize(("name", "opens"), OPENS.items())
async def test_a_password_opens_accounts_of_its_kind(tmp_path: Path, name: str, opens: str) -> None:
    """Students' is none of staff's, however lab.toml writes their names; nor is another."""
    door = LabAuthenticator(config=hub_config(tmp_path, TEACHES))
    passwords = lab_secrets.read_passwords(lab_with(tmp_path, TEACHES))
    for kind in ("student", "instructor", "admin"):
        data = {"username": name, "password": getattr(passwords, kind)}
        account = await door.authenticate(None, data)
        assert bool(account) is (kind == opens)
        if account:
            assert (account["name"], account["admin"]) == (name.lower(), kind == "admin")


@pytest.mark.parametrize(
    "name, is_usable",
    [("ada", True), ("ädä", True), ("o'brien@x.y", True), ("a\x00b", False), ("x" * 129, False)],
)
def test_a_name_can_be_shown_and_stored(name: str, is_usable: bool) -> None:
    """Where people choose their names, control characters and endless ones open nothing."""
    assert LabAuthenticator(allow_all=True).validate_username(name) is is_usable


@pytest.mark.parametrize("password", ["", "ü", "日本", "x" * 100_000])
async def test_odd_passwords_are_wrong_and_no_error(password: str) -> None:
    """Empty, unicode and over-long passwords open nothing, even where none is set."""
    authenticator = LabAuthenticator(
        allow_all=True, instructor_users={"prof"}, user_password="y" * 32
    )
    for name in ("ada", "prof"):
        data = {"username": name, "password": password}
        assert await authenticator.authenticate(None, data) is None


async def test_a_clock_set_back_lengthens_no_wait_of_the_hub(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It gives up after its timeout though the clock went back by an hour while it waited."""
    before = time.time()
    monkeypatch.setattr(IOLoop, "time", IOLoop.time)  # put back afterwards
    wait_by_a_steady_clock()

    def answers() -> bool:
        monkeypatch.setattr(time, "time", lambda: before - 3600)
        return False

    with pytest.raises(TimeoutError, match="gave up"):
        async with asyncio.timeout(10):
            await exponential_backoff(answers, "gave up", start_wait=0.001, timeout=0.01)


def test_the_hub_opens_its_database_with_a_write_ahead_log(tmp_path: Path) -> None:
    """As JupyterHub opens it: it waits for no disk in the thread that answers everybody."""
    hub = hub_config(tmp_path).JupyterHub
    engine = create_engine(hub.db_url, **hub.db_kwargs)
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 1  # NORMAL
    engine.dispose()


def test_a_database_made_before_is_kept(tmp_path: Path) -> None:
    """A lab from before goes on with its people."""
    with sqlite3.connect(tmp_path / "jupyterhub.sqlite") as connection:
        connection.execute("CREATE TABLE users (name)")
        connection.execute("INSERT INTO users VALUES ('ada')")
    set_pragmas(connection, None)
    assert connection.execute("SELECT name FROM users").fetchall() == [("ada",)]
    connection.close()
