"""Signing in through a real JupyterHub: browsers by OAuth, command lines and servers by token."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from jupyterhub.httpclient import JupyterHubHTTPClient

from miglab_bench.harness.ports import free_ports
from miglab_bench.harness.student import STEP_S
from miglab_pool.course_roles import CourseStaff, RoleBook
from miglab_pool.http.access.auth import SignIn, principal_from, server_of
from miglab_pool.http.access.hub_tokens import HubAccess, HubTokens
from miglab_pool.http.access.principal import Principal, PrincipalKind
from miglab_pool.http.management_app import management_app
from miglab_pool.http.metrics import Metrics
from miglab_pool.http.pool_runner import PoolRunner

BOOK = RoleBook({"everyone": CourseStaff(), "ml": CourseStaff()})
PREFIX = "/services/pool"
CONFIG = '''
import asyncio
from jupyterhub.proxy import Proxy
from jupyterhub.spawner import Spawner

class NoProxy(Proxy):
    """The hub is spoken to directly."""
    should_start = False
    async def add_route(self, routespec, target, data): pass
    async def delete_route(self, routespec): pass
    async def get_all_routes(self): return {}
    async def check_routes(self, *args, **kwargs): pass

class TokenSpawner(Spawner):
    """Starts nothing; writes its token down, which is all that is asked of it."""
    async def start(self):
        name = f"{self.user.name}-{self.name}.token"
        open(name, "w").write(self.api_token)
        await asyncio.Event().wait()
    async def stop(self, now=False): pass
    async def poll(self): return None

c.JupyterHub.proxy_class = NoProxy
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}
c.JupyterHub.spawner_class = TokenSpawner
c.JupyterHub.bind_url = "http://127.0.0.1:%(public)d"
c.JupyterHub.hub_port = %(port)d
c.JupyterHub.db_url = "sqlite://"
c.JupyterHub.cookie_secret = b"0" * 32
c.JupyterHub.authenticator_class = "dummy"
c.JupyterHub.allow_named_servers = True
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {"root"}
c.JupyterHub.services = [{
    "name": "pool", "url": "http://127.0.0.1:1", "api_token": "service-token-of-the-pool",
    "oauth_client_allowed_scopes": ["access:services!service=pool", "custom:miglab:staff",
        "custom:miglab:admin"],
    "oauth_no_confirm": True,
}]
c.JupyterHub.custom_scopes = {
    "custom:miglab:lease": {"description": "lease"},
    "custom:miglab:staff": {"description": "staff"},
    "custom:miglab:admin": {"description": "admin"},
}
c.JupyterHub.extra_user_scopes = {"access:services!service=pool", "custom:miglab:lease!user"}
c.JupyterHub.load_roles = [
    {"name": "staff", "scopes": ["custom:miglab:staff"], "users": ["ina"]},
    {"name": "site", "scopes": ["custom:miglab:admin"], "users": ["sam"]},
]
c.JupyterHub.load_groups = {
    "ml": {"users": ["gina"]},
    "ml-instructors": {"users": ["gina"]},
    "everyone-assistants": {"users": ["gina", "timo"]},
}
c.Spawner.server_token_scopes = ["users:activity!server", "custom:miglab:lease!server"]
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the hub runs, and its spawner leaves what it was given."""
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def hub_url(folder: Path) -> Iterator[str]:
    """A real hub, in a process of its own, without a proxy."""
    port = free_ports()
    Path(folder, "config.py").write_text(CONFIG % {"port": port, "public": port + 1})
    command = [sys.executable, "-m", "jupyterhub", "-f", "config.py"]
    with Path(folder, "log").open("w") as log:
        hub = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            _wait_for(f"http://127.0.0.1:{port}/hub/health", hub, folder)
            yield f"http://127.0.0.1:{port}"
        finally:
            hub.terminate()
            hub.wait()


def _wait_for(url: str, hub: subprocess.Popen[bytes], folder: Path) -> None:
    """Ask until the hub answers; its end is seen at once."""
    transport = httpx.HTTPTransport(retries=12)  # pauses of 0, 0.5, 1, 2 … s between connects
    with httpx.Client(transport=transport, trust_env=False, timeout=60) as client:
        try:
            client.get(url).raise_for_status()
        except httpx.HTTPError:
            pytest.fail(f"hub ended: {hub.poll()}\n" + Path(folder, "log").read_text())


@pytest.fixture
def access(hub_url: str) -> HubAccess:
    return HubAccess(f"{hub_url}/hub/api", "/hub/", PREFIX, "pool", "service-token-of-the-pool", 0)


@pytest.fixture(autouse=True)
async def hub_client() -> AsyncIterator[None]:
    """JupyterHub keeps a client open for each event loop; the test's ends with its loop."""
    yield
    await JupyterHubHTTPClient.loop_instance().close()


class _NoLeases:
    """Nobody holds any."""

    def live(self, user: str | None = None) -> list[object]:
        return []

    def warned(self) -> frozenset[int]:
        return frozenset()


class _NoPool:
    """The pool is not asked."""

    version = 1
    leases = _NoLeases()

    def snapshot(self) -> object:
        from miglab_api.gpus import PoolSnapshot

        return PoolSnapshot(at=0.0, simulated=True, gpus=(), waiting=())


@pytest.fixture
async def pool(access: HubAccess) -> AsyncIterator[httpx.AsyncClient]:
    """The service, signed up with the real hub."""
    runner = PoolRunner(_NoPool(), Metrics())  # type: ignore[arg-type]
    app = management_app(runner, SignIn(access, "s" * 32, BOOK), default_course="everyone")
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://lab") as client:
        yield client
    await runner.stop()


@pytest.fixture
async def browser(hub_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """What a browser keeps about the hub."""
    async with httpx.AsyncClient(base_url=hub_url, trust_env=False, timeout=STEP_S) as client:
        yield client


async def log_in(browser: httpx.AsyncClient, user: str) -> None:
    """Log in at the hub as a person does."""
    page = await browser.get("/hub/login")
    found = re.search(r'name="_xsrf"\s+value="([^"]+)"', page.text)
    assert found, page.text
    form = {"username": user, "password": "x", "_xsrf": found[1].replace("&#x3d;", "=")}
    answer = await browser.post("/hub/login", data=form)
    assert answer.status_code == 302, answer.text


async def way_back(browser: httpx.AsyncClient, pool: httpx.AsyncClient) -> str:
    """Open the pool's page; returns the address to which the hub sends the browser back."""
    target = (await pool.get(f"{PREFIX}/")).headers["location"]
    answer = await browser.get(target)
    assert answer.status_code == 302, answer.text
    back: str = urljoin(PREFIX, answer.headers["location"])
    assert back.startswith(f"{PREFIX}/oauth_callback?"), back
    return back


async def test_a_browser_signs_in(browser: httpx.AsyncClient, pool: httpx.AsyncClient) -> None:
    """Page, hub, way back, page: the person is known, and is not staff."""
    await log_in(browser, "alice")
    answer = await pool.get(await way_back(browser, pool))
    assert answer.status_code == 303, answer.text
    page = await pool.get(f"{PREFIX}/")
    assert page.status_code == 200
    assert "You hold no GPU slice" in page.text
    assert (await pool.get(f"{PREFIX}/api/invariants")).json()["reason"] == "forbidden"


@pytest.mark.parametrize(
    ("name", "admin", "instructs"),
    [("ina", False, set(BOOK.courses)), ("sam", True, set()), ("gina", False, {"ml"})],
)
async def test_staff_sign_in_with_their_role(
    browser: httpx.AsyncClient, pool: httpx.AsyncClient, name: str, admin: bool, instructs: set[str]
) -> None:
    """Scopes of staff and groups travel through OAuth."""
    await log_in(browser, name)
    await pool.get(await way_back(browser, pool))
    principal = await pool._transport.app.state.sign_in.principal(_request(pool))  # type: ignore[attr-defined]
    assert (principal.name, principal.admin, principal.instructs) == (name, admin, instructs)


async def test_another_browser_cannot_finish_it(
    browser: httpx.AsyncClient, pool: httpx.AsyncClient
) -> None:
    """A way back that was begun elsewhere gives no session."""
    await log_in(browser, "mallory")
    back = await way_back(browser, pool)
    pool.cookies.clear()
    assert (await pool.get(back)).status_code == 403
    assert (await pool.get(f"{PREFIX}/")).status_code == 302


async def test_a_code_serves_once(browser: httpx.AsyncClient, pool: httpx.AsyncClient) -> None:
    """A made-up code is refused by the hub, and the refusal is a page."""
    await log_in(browser, "alice")
    back = await way_back(browser, pool)
    answer = await pool.get(re.sub(r"code=[^&]+", "code=made-up", back))
    assert answer.status_code == 403
    assert "session" not in answer.headers.get("set-cookie", "")


async def new_token(browser: httpx.AsyncClient, user: str, **more: object) -> str:
    """A hub API token, as people make them on the hub's token page."""
    xsrf = browser.cookies.get("_xsrf", path="/hub/")
    answer = await browser.post(
        f"/hub/api/users/{user}/tokens", json=more, headers={"X-XSRFToken": xsrf or ""}
    )
    assert answer.status_code == 201, answer.text
    token: str = answer.json()["token"]
    return token


ASKERS = {
    "alice": Principal(PrincipalKind.PERSON, "alice"),
    "ina": Principal(PrincipalKind.PERSON, "ina", instructs=frozenset(BOOK.courses)),
    "sam": Principal(PrincipalKind.PERSON, "sam", admin=True),
    "root": Principal(PrincipalKind.PERSON, "root", admin=True),
    "timo": Principal(
        PrincipalKind.PERSON,
        "timo",
        assists=frozenset({"everyone"}),
        course_names=("everyone-assistants",),
    ),
    "gina": Principal(
        PrincipalKind.PERSON,
        "gina",
        instructs=frozenset({"ml"}),
        assists=frozenset({"everyone"}),
        course_names=("ml", "ml-instructors", "everyone-assistants"),
    ),
}


@pytest.mark.parametrize("principal", ASKERS.values(), ids=ASKERS)
async def test_a_token_on_the_command_line(
    browser: httpx.AsyncClient, access: HubAccess, principal: Principal
) -> None:
    """A person's own hub token says who it is, and its roles, by scope and by group."""
    await log_in(browser, principal.name)
    tokens = HubTokens(access)
    model = await tokens.owner(await new_token(browser, principal.name), "10.0.0.1")
    assert model is not None and tokens.lets_in(model)
    found = principal_from(model, BOOK)
    assert sorted(found.course_names) == sorted(principal.course_names)
    assert replace(found, course_names=principal.course_names) == principal


async def test_a_servers_token_is_that_servers(
    browser: httpx.AsyncClient, access: HubAccess, folder: Path
) -> None:
    """The hub limits a server's token to the server, whatever its name, and to nothing else."""
    await log_in(browser, "alice")
    token = await new_token(browser, "alice")
    tokens = HubTokens(access)
    for server in ("", "lab2"):
        path = f"/hub/api/users/alice/servers/{server}" if server else "/hub/api/users/alice/server"
        answer = await browser.post(path, headers={"Authorization": f"token {token}"})
        assert answer.status_code == 202, answer.text
        model = await tokens.owner(await _appears(folder / f"alice-{server}.token"), "10.0.0.1")
        assert model is not None
        assert server_of(model) == ("alice", server)
        assert not tokens.lets_in(model)


async def test_an_unknown_token_and_a_hub_that_is_not_there(access: HubAccess) -> None:
    """Unknown is nobody; silent is an error, never a no."""
    assert await HubTokens(access).owner("no-such-token", "10.0.0.1") is None
    nowhere = HubAccess("http://127.0.0.1:1/hub/api", "/hub/", PREFIX, "pool", "t")
    with pytest.raises(Exception, match="does not answer") as raised:
        await HubTokens(nowhere).owner("any", "10.0.0.1")
    assert raised.value.status == 503  # type: ignore[attr-defined]


def _request(client: httpx.AsyncClient) -> object:
    from fastapi import Request

    cookie = "; ".join(f"{item.name}={item.value}" for item in client.cookies.jar)
    headers = [(b"cookie", cookie.encode())]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": headers})


async def _appears(file: Path) -> str:
    """What is in the file, as soon as there is something in it."""
    async with asyncio.timeout(STEP_S):
        while not (file.exists() and file.stat().st_size):
            await asyncio.sleep(0.02)
    return file.read_text()
