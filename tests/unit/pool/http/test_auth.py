"""Signing in with a browser: the state, the cookie, the XSRF token."""

from collections.abc import AsyncIterator
from dataclasses import replace
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlparse, urlsplit

import httpx
import pytest
from tests.unit.pool.conftest import World

from miglab_pool.http.access.auth import Sessions, SignIn, server_of
from miglab_pool.http.management_app import management_app
from miglab_pool.http.pool_runner import PoolRunner

from .fakes import ACCESS, BOOK, OWNERS, PREFIX, SECRET, FakeTokens


async def begin(
    client: httpx.AsyncClient, page: str = "/", **headers: str
) -> tuple[str, SimpleCookie, dict]:
    """Open the page; returns the state, the cookie that was set, and the query to the hub."""
    answer = await client.get(page, headers=headers)
    assert answer.status_code == 302
    target = urlparse(answer.headers["location"])
    assert target.path == "/hub/api/oauth2/authorize"
    query = {key: values[0] for key, values in parse_qs(target.query).items()}
    return query["state"], SimpleCookie(answer.headers["set-cookie"]), query


async def signed_in(client: httpx.AsyncClient, code: str, page: str = "/") -> httpx.Response:
    """Go the whole way, back to the page; the client keeps the session's cookie."""
    state, _, _ = await begin(client, page)
    answer = await client.get("/oauth_callback", params={"state": state, "code": code})
    assert (answer.status_code, answer.headers["location"]) == (303, f"{PREFIX}{page}")
    return answer


def xsrf(page: str) -> str:
    return page.split('name="miglab-xsrf" content="')[1].split('"')[0]


@pytest.mark.parametrize(
    ("headers", "secure"), [({}, ""), ({"X-Forwarded-Proto": "https,http"}, True)], ids=["", "TLS"]
)
async def test_the_way_to_the_hub(
    client: httpx.AsyncClient, headers: dict[str, str], secure: object
) -> None:
    """As this service, with a PKCE challenge and a state whose cookie is this browser's alone."""
    _, cookies, query = await begin(client, **headers)
    assert query["client_id"] == "service-pool"
    assert query["redirect_uri"] == f"{PREFIX}/oauth_callback"
    assert query["response_type"] == "code"
    assert query["code_challenge_method"] == "S256"
    assert len(query["code_challenge"]) == 43
    (cookie,) = cookies.values()
    assert (cookie["path"], cookie["httponly"], cookie["samesite"]) == (f"{PREFIX}/", True, "lax")
    assert int(cookie["max-age"]) <= 600
    assert cookie["secure"] == secure


async def test_the_page_asked_for_comes_after_the_hub(client: httpx.AsyncClient) -> None:
    """With what its address asks for: a link to a class or a week is sent around."""
    await signed_in(client, "alice-token", "/class?course=ml")


async def test_a_session_after_the_hub(client: httpx.AsyncClient) -> None:
    """After the hub the browser has a session: HttpOnly, and without the hub's token in it."""
    answer = await signed_in(client, "alice-token")
    assert "alice-token" not in str(answer.headers)
    assert "service-pool-session=" in answer.headers["set-cookie"]
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "You hold 1g.5gb" in (await client.get("/")).text


@pytest.mark.parametrize(
    ("code", "is_theirs"),
    [("alice-token", False), ("outsider-token", True)],
    ids=["a state without its cookie (login CSRF)", "a person who may not use the service"],
)
async def test_no_session(client: httpx.AsyncClient, code: str, is_theirs: bool) -> None:
    """The way back is refused, and no cookie set."""
    state, _, _ = await begin(client)
    if not is_theirs:
        client.cookies.clear()
    answer = await client.get("/oauth_callback", params={"state": state, "code": code})
    assert answer.status_code == 403
    assert "session" not in answer.headers.get("set-cookie", "")


async def test_a_state_serves_once(client: httpx.AsyncClient) -> None:
    """The same way back cannot be gone twice; a second sign-in beside it spoils nothing."""
    state, cookies, _ = await begin(client)
    second, _, _ = await begin(client)
    for status in (303, 403):
        for name, cookie in cookies.items():
            client.cookies.set(name, cookie.value, domain="lab", path=f"{PREFIX}/")
        answer = await client.get("/oauth_callback", params={"state": state, "code": "bob-token"})
        assert answer.status_code == status
    answer = await client.get("/oauth_callback", params={"state": second, "code": "bob-token"})
    assert answer.status_code == 303


@pytest.mark.parametrize("query", ["", "?state=&code=x", "?error=access_denied", "?state=%C3%A9"])
async def test_a_strange_way_back(client: httpx.AsyncClient, query: str) -> None:
    """Anything else at the callback is refused with a page."""
    answer = await client.get(f"/oauth_callback{query}")
    assert answer.status_code == 403
    assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("sent", [None, "", "guessed", "é"])
async def test_a_write_needs_the_pages_token(
    client: httpx.AsyncClient, world: World, sent: str | None
) -> None:
    """A cookie alone writes nothing: another page on the site could have sent it."""
    await signed_in(client, "alice-token")
    headers = {} if sent is None else {"X-XSRFToken": sent.encode()}
    answer = await client.post("/api/leases/1/release", json={}, headers=headers)
    assert (answer.status_code, answer.json()["reason"]) == (403, "xsrf")
    assert world.pool.leases.find(1).state == "running"


async def test_the_page_can_write(client: httpx.AsyncClient, world: World) -> None:
    """With the page's token the holder releases, and the ledger is told who it was."""
    await signed_in(client, "alice-token")
    headers = {"X-XSRFToken": xsrf((await client.get("/")).text)}
    answer = await client.post("/api/leases/1/release", json={"reason": "done"}, headers=headers)
    assert answer.status_code == 200
    step = world.ledger.history("lease", "1")[0]
    assert (step["to_state"], step["by"], step["reason"]) == ("releasing", "person:alice", "done")


async def test_a_bearer_token_goes_before_the_cookie(client: httpx.AsyncClient) -> None:
    """A bad bearer token is not mended by a good cookie, so a write cannot slip past XSRF."""
    await signed_in(client, "alice-token")
    headers = {"Authorization": "Bearer wrong"}
    answer = await client.post("/api/leases/1/release", json={}, headers=headers)
    assert answer.status_code == 401


async def test_a_revoked_session_ends(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the hub no longer knows the session's token, the browser is sent to sign in."""
    await signed_in(client, "alice-token")
    monkeypatch.delitem(OWNERS, "alice-token")
    assert (await client.get("/api/pool")).status_code == 401
    assert (await client.get("/")).status_code == 302


def test_sessions_end_and_are_bounded() -> None:
    """A session ends with its time; the oldest goes when there are too many."""
    at = [0.0]
    sessions = Sessions(lives_s=10, limit=2, now=lambda: at[0])
    names = [sessions.open(f"person-{number}", "token") for number in range(3)]
    assert [sessions.get(name) is None for name in names] == [True, False, False]
    at[0] = 10.0
    assert sessions.get(names[2]) is None
    assert sessions.get("") is None


def test_who_signs_in_often_signs_out_nobody_else() -> None:
    """A person has so many sessions; the oldest of their own goes, nobody else's."""
    sessions = Sessions(limit=4, each=2)
    ina, *own = [sessions.open(name, "token") for name in ("ina", *["mallory"] * 5)]
    assert sessions.get(ina) is not None
    assert [sessions.get(name) is not None for name in own] == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("token", "server"),
    [
        ("alice-server", ("alice", "")),
        ("alice-lab2", ("alice", "lab2")),
        ("alice-two", None),
        ("forged-server", None),
        ("user-wide", None),
        ("alice-token", None),
        ("service-token-alice", None),
    ],
)
def test_whose_server_a_token_is(token: str, server: tuple[str, str] | None) -> None:
    """Only a token whose lease scope the hub limits to one server of its owner is a server's."""
    assert server_of(OWNERS[token]) == server


async def test_the_secret_is_not_a_prefix(client: httpx.AsyncClient, sign_in: SignIn) -> None:
    """Neither a part of the secret nor an empty token passes for the spawner."""
    for token in ("the-spawners-own-secre", "the-spawners-own-secretx", "é"):
        headers = {"Authorization": f"Bearer {token}".encode()}
        assert (await client.get("/api/pool", headers=headers)).status_code == 401
    assert (await client.get("/api/pool", headers={"Authorization": "Bearer "})).status_code == 401


# -- on an origin of its own -----------------------------------------------------------------------


HUB, OWN = "https://lab.test", "https://pool--service.lab.test"


@pytest.fixture
async def own_origin(runner: PoolRunner) -> AsyncIterator[httpx.AsyncClient]:
    """A browser at the service of a lab with per-user domains."""
    access = replace(ACCESS, hub_origin=HUB, origin=OWN)
    sign_in = SignIn(access, SECRET, BOOK, FakeTokens(access))
    app = management_app(runner, sign_in, default_course="everyone", notices=())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url=f"{OWN}{PREFIX}") as client:
        yield client


async def test_the_hubs_origin_and_ours(own_origin: httpx.AsyncClient) -> None:
    """Addresses are absolute: a relative one would stay on the host it is read on.

    Cookies are bound to the host as `__Host-` demands, also where the state's is deleted.
    """
    refused = await own_origin.get("/oauth_callback", params={"state": "forged", "code": "x"})
    assert f'href="{HUB}/hub/home"' in refused.text
    begun = await own_origin.get("/")
    where = urlsplit(begun.headers["location"])
    query = parse_qs(where.query)
    assert f"{where.scheme}://{where.netloc}" == HUB
    assert query["redirect_uri"] == [f"{OWN}{PREFIX}/oauth_callback"]
    sent = {"state": query["state"][0], "code": "alice-token"}
    done = await own_origin.get("/oauth_callback", params=sent)
    assert done.status_code == 303
    for text in (*begun.headers.get_list("set-cookie"), *done.headers.get_list("set-cookie")):
        ((name, cookie),) = SimpleCookie(text).items()
        assert name.startswith("__Host-service-pool-")
        assert (cookie["path"], cookie["secure"], cookie["domain"]) == ("/", True, "")
    names = [cookie.name for cookie in own_origin.cookies.jar]
    assert names == ["__Host-service-pool-session"]
