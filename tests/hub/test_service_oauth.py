"""Signing in through a real JupyterHub: browsers by OAuth, command lines and servers by token."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from fastapi import Request
from jupyterhub.httpclient import JupyterHubHTTPClient
from jupyterhub.spawner import Spawner
from tests.hubs import Hub, hub_config_for, running_hub

from miglab_bench.harness.student import STEP_S
from miglab_pool.course_roles import CourseStaff, RoleBook
from miglab_pool.http.access.auth import SignIn, principal_from, server_of
from miglab_pool.http.access.hub_tokens import HubAccess, HubTokens
from miglab_pool.http.access.principal import Principal, PrincipalKind

from .spawner.lab import PoolLab

BOOK = RoleBook({"everyone": CourseStaff(), "ml": CourseStaff()})
PREFIX = "/services/pool"
TOKEN = "service-token-of-the-pool"
STAFF = ("custom:miglab:staff", "custom:miglab:admin")
GROUPS = {
    "ml": {"users": ["gina"]},
    "ml-instructors": {"users": ["gina"]},
    "everyone-assistants": {"users": ["gina", "timo"]},
}


class NothingSpawner(Spawner):  # type: ignore[misc]  # base is untyped
    """Starts nothing; its token is all that is asked of it."""

    async def start(self) -> None:
        await asyncio.Event().wait()

    async def stop(self, now: bool = False) -> None:
        pass

    async def poll(self) -> None:
        return None


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    """A real hub with the pool as its service, and staff by scope and by group."""
    c = hub_config_for("simple")
    c.JupyterHub.spawner_class = NothingSpawner
    c.Authenticator.admin_users = {"root"}
    c.JupyterHub.services = [
        {
            "name": "pool",
            "oauth_redirect_uri": f"{PREFIX}/oauth_callback",
            "api_token": TOKEN,
            "oauth_client_allowed_scopes": ["access:services!service=pool", *STAFF],
            "oauth_no_confirm": True,
        }
    ]
    c.JupyterHub.custom_scopes = {scope: {"description": "staff"} for scope in STAFF}
    c.JupyterHub.load_roles = [
        {"name": "user", "scopes": ["self", "access:services!service=pool"]},
        {"name": "staff", "scopes": [STAFF[0]], "users": ["ina"]},
        {"name": "site", "scopes": [STAFF[1]], "users": ["sam"]},
    ]
    c.JupyterHub.load_groups = GROUPS
    c.Spawner.server_token_scopes = ["users:activity!server", "custom:miglab:lease!server"]
    async with running_hub(c) as hub:
        yield hub


@pytest.fixture
def access(hub: Hub) -> HubAccess:
    return HubAccess(f"{hub.app.hub.url}api", "/hub/", PREFIX, "pool", TOKEN, 0)


@pytest.fixture(autouse=True)
async def hub_client() -> AsyncIterator[None]:
    """JupyterHub keeps a client open for each event loop; the test's ends with its loop."""
    yield
    await JupyterHubHTTPClient.loop_instance().close()


@pytest.fixture
def sign_in(access: HubAccess) -> SignIn:
    """Of the service, at the real hub."""
    return SignIn(access, "s" * 32, BOOK)


@pytest.fixture
async def pool(sign_in: SignIn, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """What a browser keeps about the service."""
    async with (
        PoolLab(tmp_path, sign_in=sign_in) as lab,
        httpx.AsyncClient(transport=lab.way, base_url="http://lab") as client,
    ):
        yield client


@pytest.fixture
async def browser(hub: Hub) -> AsyncIterator[httpx.AsyncClient]:
    """What a browser keeps about the hub."""
    url = hub.app.hub.url.removesuffix("/hub/")
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=STEP_S) as client:
        yield client


async def way_back(browser: httpx.AsyncClient, pool: httpx.AsyncClient) -> str:
    """Open the pool's page; returns the address to which the hub sends the browser back."""
    target = (await pool.get(f"{PREFIX}/")).headers["location"]
    answer = await browser.get(target)
    assert answer.status_code == 302, answer.text
    back: str = urljoin(PREFIX, answer.headers["location"])
    assert back.startswith(f"{PREFIX}/oauth_callback?"), back
    return back


async def test_a_browser_signs_in(
    hub: Hub, browser: httpx.AsyncClient, pool: httpx.AsyncClient
) -> None:
    """Page, hub, way back, page: the person is known, and is not staff."""
    await hub.sign_in(browser, "alice")
    answer = await pool.get(await way_back(browser, pool))
    assert answer.status_code == 303, answer.text
    page = await pool.get(f"{PREFIX}/")
    assert page.status_code == 200
    assert (await pool.get(f"{PREFIX}/api/line")).json()["standings"] == []
    assert (await pool.get(f"{PREFIX}/api/invariants")).json()["reason"] == "forbidden"


@pytest.mark.parametrize(
    ("name", "admin", "instructs"),
    [("ina", False, set(BOOK.courses)), ("sam", True, set()), ("gina", False, {"ml"})],
)
async def test_staff_sign_in_with_their_role(
    hub: Hub,
    browser: httpx.AsyncClient,
    pool: httpx.AsyncClient,
    sign_in: SignIn,
    name: str,
    admin: bool,
    instructs: set[str],
) -> None:
    """Scopes of staff and groups travel through OAuth."""
    await hub.sign_in(browser, name)
    await pool.get(await way_back(browser, pool))
    principal = await sign_in.principal(_request(pool))
    assert (principal.name, principal.admin, principal.instructs) == (name, admin, instructs)


async def test_a_code_serves_once(
    hub: Hub, browser: httpx.AsyncClient, pool: httpx.AsyncClient
) -> None:
    """A made-up code is refused by the hub, and the refusal is a page."""
    await hub.sign_in(browser, "alice")
    back = await way_back(browser, pool)
    answer = await pool.get(re.sub(r"code=[^&]+", "code=made-up", back))
    assert answer.status_code == 403
    assert "session" not in answer.headers.get("set-cookie", "")


ASKERS = (
    Principal(PrincipalKind.PERSON, "alice"),
    Principal(PrincipalKind.PERSON, "ina", instructs=frozenset(BOOK.courses)),
    Principal(PrincipalKind.PERSON, "sam", admin=True),
    Principal(PrincipalKind.PERSON, "root", admin=True),
    Principal(
        PrincipalKind.PERSON,
        "timo",
        assists=frozenset({"everyone"}),
        course_names=("everyone-assistants",),
    ),
    Principal(
        PrincipalKind.PERSON,
        "gina",
        instructs=frozenset({"ml"}),
        assists=frozenset({"everyone"}),
        course_names=("ml", "ml-instructors", "everyone-assistants"),
    ),
)


async def test_a_token_on_the_command_line(hub: Hub, access: HubAccess) -> None:
    """A person's own hub token says who it is, and its roles, by scope and by group."""
    tokens = HubTokens(access)
    for principal in ASKERS:
        token = hub.user(principal.name).new_api_token()
        model = await tokens.owner(token, "10.0.0.1")
        assert model is not None and tokens.lets_in(model)
        answered = principal_from(model, BOOK)
        assert sorted(answered.course_names) == sorted(principal.course_names)
        assert answered.user_id.startswith(f"{hub.user(principal.name).id}t")
        expected = replace(principal, course_names=answered.course_names, user_id=answered.user_id)
        assert answered == expected


async def test_a_servers_token_is_that_servers(hub: Hub, access: HubAccess) -> None:
    """The hub limits a server's token to the server, whatever its name, and to nothing else."""
    tokens = HubTokens(access)
    for server in ("", "lab2"):
        assert (await hub.begin("alice", server)).status_code == 202
        model = await tokens.owner(hub.spawner("alice", server).api_token, "10.0.0.1")
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


def _request(client: httpx.AsyncClient) -> Request:
    cookie = "; ".join(f"{item.name}={item.value}" for item in client.cookies.jar)
    headers = [(b"cookie", cookie.encode())]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": headers})
