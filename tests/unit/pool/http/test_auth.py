"""Signing in with a browser: the state, the cookie, the XSRF token."""

from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlparse

import httpx
import pytest
from tests.unit.pool.conftest import World

from miglab_pool.http.access.auth import Sessions, SignIn, server_of

from .fakes import OWNERS, PREFIX


async def begin(client: httpx.AsyncClient, **headers: str) -> tuple[str, SimpleCookie, dict]:
    """Open the page; returns the state, the cookie that was set, and the query to the hub."""
    answer = await client.get("/", headers=headers)
    assert answer.status_code == 302
    target = urlparse(answer.headers["location"])
    assert target.path == "/hub/api/oauth2/authorize"
    query = {key: values[0] for key, values in parse_qs(target.query).items()}
    return query["state"], SimpleCookie(answer.headers["set-cookie"]), query


async def signed_in(client: httpx.AsyncClient, code: str) -> httpx.Response:
    """Go the whole way; the client keeps the session's cookie."""
    state, _, _ = await begin(client)
    answer = await client.get("/oauth_callback", params={"state": state, "code": code})
    assert (answer.status_code, answer.headers["location"]) == (303, f"{PREFIX}/")
    return answer


def xsrf(page: str) -> str:
    return page.split('name="miglab-xsrf" content="')[1].split('"')[0]


async def test_the_way_to_the_hub(client: httpx.AsyncClient) -> None:
    """The hub is asked with a state and a PKCE challenge, as this service and for this address."""
    _, _, query = await begin(client)
    assert query["client_id"] == "service-pool"
    assert query["redirect_uri"] == f"{PREFIX}/oauth_callback"
    assert query["response_type"] == "code"
    assert query["code_challenge_method"] == "S256"
    assert len(query["code_challenge"]) == 43


async def test_the_state_cookie_is_bound_to_browser_and_path(client: httpx.AsyncClient) -> None:
    """The state's cookie is HttpOnly, SameSite, on the service's path, and short-lived."""
    _, cookies, _ = await begin(client)
    (cookie,) = cookies.values()
    assert (cookie["path"], cookie["httponly"], cookie["samesite"]) == (f"{PREFIX}/", True, "lax")
    assert int(cookie["max-age"]) <= 600
    assert not cookie["secure"]


async def test_behind_tls_cookies_are_secure(client: httpx.AsyncClient) -> None:
    """When the browser came by HTTPS, the cookie stays on HTTPS."""
    _, cookies, _ = await begin(client, **{"X-Forwarded-Proto": "https,http"})
    assert all(cookie["secure"] for cookie in cookies.values())


async def test_a_session_after_the_hub(client: httpx.AsyncClient) -> None:
    """After the hub the browser has a session: HttpOnly, and without the hub's token in it."""
    answer = await signed_in(client, "alice-token")
    assert "alice-token" not in str(answer.headers)
    cookie = SimpleCookie(answer.headers["set-cookie"].split("Max-Age=0", 1)[-1])
    assert "service-pool-session=" in answer.headers["set-cookie"]
    assert "HttpOnly" in answer.headers["set-cookie"] and cookie is not None
    assert "You hold 1g.5gb" in (await client.get("/")).text


async def test_another_browsers_state_is_refused(client: httpx.AsyncClient) -> None:
    """Who brings a state without its cookie gets no session (login CSRF)."""
    state, _, _ = await begin(client)
    client.cookies.clear()
    answer = await client.get("/oauth_callback", params={"state": state, "code": "alice-token"})
    assert answer.status_code == 403
    assert "session" not in answer.headers.get("set-cookie", "")


async def test_a_state_serves_once(client: httpx.AsyncClient) -> None:
    """The same way back cannot be gone twice."""
    state, cookies, _ = await begin(client)
    for status in (303, 403):
        for name, cookie in cookies.items():
            client.cookies.set(name, cookie.value, domain="lab", path=f"{PREFIX}/")
        answer = await client.get("/oauth_callback", params={"state": state, "code": "bob-token"})
        assert answer.status_code == status


async def test_two_tabs_sign_in_side_by_side(client: httpx.AsyncClient) -> None:
    """A second sign-in does not spoil the first."""
    first, _, _ = await begin(client)
    second, _, _ = await begin(client)
    for state in (first, second):
        answer = await client.get("/oauth_callback", params={"state": state, "code": "bob-token"})
        assert answer.status_code == 303


async def test_no_session_without_access(client: httpx.AsyncClient) -> None:
    """The hub knows the person, but they may not use the service: no session."""
    state, _, _ = await begin(client)
    answer = await client.get("/oauth_callback", params={"state": state, "code": "outsider-token"})
    assert answer.status_code == 403
    assert "session" not in answer.headers.get("set-cookie", "")


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
