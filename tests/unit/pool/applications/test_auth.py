"""Signing in with a browser: the state, the cookie, the XSRF token; what guessed tokens cost."""

import logging
from dataclasses import replace
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tests.refusals import because
from tests.unit.pool.conftest import World

from miglab_hub.service.process import RepeatFilter
from miglab_pool.applications.management_app import management_app
from miglab_pool.applications.pool_runner import PoolRunner
from miglab_pool.applications.student_app import student_app
from miglab_pool.http.access.auth import Sessions, SignIn, server_of
from miglab_pool.http.access.hub_tokens import (
    GUESSES_IN_ALL,
    GUESSES_OF_AN_ADDRESS,
    SERVER_TOKEN,
    WINDOW_S,
    HubTokens,
)
from miglab_pool.http.errors import DeniedError
from miglab_pool.reclaim.activity import SignalBoard

from .conftest import as_, visiting
from .fakes import ACCESS, BOOK, OWNERS, PREFIX, SECRET, FakeTokens


async def begin(
    client: httpx.AsyncClient, page: str = "/", **headers: str
) -> tuple[str, SimpleCookie, dict]:
    """Open the page; returns the state, the cookie that was set, and the query to the hub."""
    answer = await client.get(page, headers=headers)
    assert answer.status_code == 302
    target = urlsplit(answer.headers["location"])
    assert target.path == "/hub/api/oauth2/authorize"
    query = {key: values[0] for key, values in parse_qs(target.query).items()}
    return query["state"], SimpleCookie(answer.headers["set-cookie"]), query


async def signed_in(client: httpx.AsyncClient, code: str, page: str = "/") -> httpx.Response:
    """Go the whole way, back to the page; the client keeps the session's cookie."""
    state, _, _ = await begin(client, page)
    answer = await client.get("/oauth_callback", params={"state": state, "code": code})
    assert (answer.status_code, answer.headers["location"]) == (303, f"{PREFIX}{page}")
    return answer


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


async def test_a_session_after_the_hub(client: httpx.AsyncClient) -> None:
    """On the page asked for the browser has a session: HttpOnly, without the hub's token in it."""
    answer = await signed_in(client, "alice-token", "/class?course=ml")
    assert "alice-token" not in str(answer.headers)
    assert "service-pool-session=" in answer.headers["set-cookie"]
    assert "HttpOnly" in answer.headers["set-cookie"]
    line = (await client.get("/api/line")).json()
    assert [place["shape"] for place in line["standings"]] == ["1g.5gb", "1g.5gb"]


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


async def test_a_write_needs_the_pages_token(client: httpx.AsyncClient, world: World) -> None:
    """A cookie alone writes nothing: another page on the site could have sent it.

    With the page's token the holder releases, and the ledger is told who it was.
    """
    await signed_in(client, "alice-token")
    path, body = "/api/leases/1/release", {"reason": "done"}
    for headers in ({}, *({"X-XSRFToken": token.encode()} for token in ("", "guessed", "é"))):
        answer = await client.post(path, json=body, headers=headers)
        assert (answer.status_code, answer.json()["reason"]) == (403, "xsrf")
    assert world.pool.leases.find(1).state == "running"
    page = (await client.get("/")).text
    token = page.split('name="miglab-xsrf" content="')[1].split('"')[0]
    answer = await client.post(path, json=body, headers={"X-XSRFToken": token})
    assert answer.status_code == 200
    step = world.ledger.history("lease", "1")[0]
    assert (step["to_state"], step["by"], step["reason"]) == ("releasing", "person:alice", "done")


async def test_a_session_is_what_its_token_is(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad bearer token is not mended by a good cookie, so a write cannot slip past XSRF.

    When the hub no longer knows the session's token, the browser is sent to sign in.
    """
    await signed_in(client, "alice-token")
    answer = await client.post("/api/leases/1/release", json={}, headers=as_("wrong"))
    assert answer.status_code == 401
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
    sessions = Sessions(limit=4, limit_per_person=2)
    ina, *mallorys = [sessions.open(name, "token") for name in ("ina", *["mallory"] * 5)]
    assert sessions.get(ina) is not None
    assert [sessions.get(s) is not None for s in mallorys] == [False, False, False, True, True]


def test_many_who_sign_in_often_sign_out_nobody_with_fewer_sessions() -> None:
    """Accounts whose sessions fill the set end one another's, and no student's."""
    sessions = Sessions(limit=100, limit_per_person=4)
    students = [sessions.open(f"student{number % 10}", "token") for number in range(20)]
    mallorys = [sessions.open(f"mallory{number % 30}", "token") for number in range(30 * 4)]
    assert all(sessions.get(name) for name in students)
    assert sum(sessions.get(name) is not None for name in mallorys) == 80


def test_the_oldest_session_goes_when_everybody_has_as_many() -> None:
    """More people than sessions, or sessions that are over: who signs in always gets one."""
    at = [0.0]
    sessions = Sessions(lives_s=10, limit=2, now=lambda: at[0])
    names = [sessions.open(f"person-{number}", "token") for number in range(3)]
    at[0] = 9.0
    late = sessions.open("person-3", "token")
    assert [sessions.get(name) is not None for name in (*names, late)] == [False, False, True, True]
    at[0] = 11.0
    sessions.open("person-4", "token")
    assert sessions.get(late) is not None, "the one whose time was over made room"


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
    for token in ("the-spawners-own-secre", "the-spawners-own-secretx", "é", ""):
        headers = {"Authorization": f"Bearer {token}".encode()}
        assert (await client.get("/api/pool", headers=headers)).status_code == 401


HUB, OWN = "https://lab.test", "https://pool--service.lab.test"


async def test_the_hubs_origin_and_ours(runner: PoolRunner) -> None:
    """With a domain for each user addresses are absolute: relative ones stay on the host they
    are read on.  Cookies are bound to the host as `__Host-` demands, also where the state's is
    deleted.
    """
    access = replace(ACCESS, hub_origin=HUB, origin=OWN)
    sign_in = SignIn(access, SECRET, BOOK, FakeTokens(access))
    app = management_app(runner, sign_in, default_course="everyone", notices=())
    async with visiting(app, f"{OWN}{PREFIX}") as client:
        refused = await client.get("/oauth_callback", params={"state": "forged", "code": "x"})
        redirect = await client.get("/")
        hub_url = urlsplit(redirect.headers["location"])
        query = parse_qs(hub_url.query)
        params = {"state": query["state"][0], "code": "alice-token"}
        signed_in_page = await client.get("/oauth_callback", params=params)
        names = [cookie.name for cookie in client.cookies.jar]
    assert f'href="{HUB}/hub/home"' in refused.text
    assert f"{hub_url.scheme}://{hub_url.netloc}" == HUB
    assert query["redirect_uri"] == [f"{OWN}{PREFIX}/oauth_callback"]
    assert signed_in_page.status_code == 303
    for text in (
        *redirect.headers.get_list("set-cookie"),
        *signed_in_page.headers.get_list("set-cookie"),
    ):
        ((name, cookie),) = SimpleCookie(text).items()
        assert name.startswith("__Host-service-pool-")
        assert (cookie["path"], cookie["secure"], cookie["domain"]) == ("/", True, "")
    assert names == ["__Host-service-pool-session"]


GUESSER = "10.0.0.9"


class CountingTokens(HubTokens):
    """Over a hub that knows `OWNERS`, and counts how often it is asked."""

    def __init__(self, **limits: Any) -> None:
        self.at = 0.0
        super().__init__(ACCESS, now=lambda: self.at, **limits)
        self.lookups: list[str] = []
        self.oauth.user_for_token = self._look_up

    async def _look_up(self, token: str, **_: Any) -> dict[str, Any] | None:
        self.lookups.append(token)
        return OWNERS.get(token)


async def guess(tokens: HubTokens, address: str = GUESSER, count: int = 20) -> None:
    """As many invented tokens, each another."""
    for number in range(count):
        await tokens.owner(f"{address}-invented-{number}", address)


async def test_what_the_hub_cannot_have_made_is_not_asked_about() -> None:
    """A server's token has one form; a garbage one costs the hub nothing."""
    tokens = CountingTokens(form=SERVER_TOKEN)
    for garbage in ("", "x" * 32, "0" * 31, "0" * 33, "A" * 32, "é" * 32):
        assert await tokens.owner(garbage, GUESSER) is None
    assert tokens.lookups == []
    assert await tokens.owner("0123456789abcdef" * 2, GUESSER) is None
    assert len(tokens.lookups) == 1


@pytest.mark.parametrize("is_student", [True, False], ids=["student", "management"])
async def test_an_invented_token_asks_the_hub_once_a_minute(
    runner: PoolRunner, is_student: bool
) -> None:
    """At either listener, however often it is sent."""
    tokens = CountingTokens()
    app = (
        student_app(runner, tokens, SignalBoard())
        if is_student
        else management_app(runner, SignIn(ACCESS, SECRET, BOOK, tokens), default_course="")
    )
    path = "http://lab/api/server" if is_student else "/api/pool"
    async with visiting(app) as client:
        for at in (0.0, 1.0, WINDOW_S - 1, WINDOW_S):
            tokens.at = at
            assert (await client.get(path, headers=as_("0" * 32))).status_code == 401
    assert len(tokens.lookups) == 2


async def test_a_known_token_from_a_guessers_address_is_served() -> None:
    """Only tokens that the hub has not known are counted, and refused when they are too many: a
    class behind one address signs in within a minute.

    In the next minute the address is heard again; others do not wait, nor one that stands for many.
    """
    tokens = CountingTokens()
    for name in OWNERS.keys() - {"bob-token", "alice-token"}:
        assert await tokens.owner(name, GUESSER)
    await guess(tokens)
    await guess(tokens, "127.0.0.1", 30)
    lookups = len(tokens.lookups)
    with pytest.raises(DeniedError, check=because("too-often")):
        await tokens.owner("bob-token", GUESSER)
    assert len(tokens.lookups) == lookups
    assert await tokens.owner("alice-server", GUESSER)
    assert await tokens.owner("bob-token", "10.0.0.8")
    tokens.at = WINDOW_S
    assert await tokens.owner("alice-token", GUESSER)


async def test_guesses_from_many_addresses_shut_out_nobody_else() -> None:
    """A token that the hub vouches for passes, from an address that has not failed in the minute.

    Guessers who change addresses are heard once from each; so is whoever shares the host with them.
    """
    tokens = CountingTokens()
    for number in range(GUESSES_IN_ALL // GUESSES_OF_AN_ADDRESS):
        await guess(tokens, f"10.0.1.{number}")
    assert await tokens.owner("bob-token", "10.0.0.8")
    await guess(tokens, "127.0.0.1")
    assert await tokens.owner("alice-token", "127.0.0.1")
    count = len(tokens.lookups)
    for number in range(GUESSES_OF_AN_ADDRESS):
        address = f"10.0.2.{number}"
        assert await tokens.owner(f"first-{number}", address) is None
        with pytest.raises(DeniedError, check=because("too-often")):
            await tokens.owner(f"second-{number}", address)
    assert len(tokens.lookups) == count + GUESSES_OF_AN_ADDRESS


async def test_a_shared_address_has_a_limit_too() -> None:
    """From local students together the hub hears as much in a minute as from all strangers."""
    tokens = CountingTokens()
    await guess(tokens, "127.0.0.1", GUESSES_IN_ALL)
    with pytest.raises(DeniedError, check=because("too-often")):
        await tokens.owner("one-more", "127.0.0.1")
    assert await tokens.owner("bob-token", "10.0.0.8")


def test_a_warning_that_strangers_cause_is_written_once_a_minute() -> None:
    """By its words, whatever the values in them; others' warnings are written each time."""
    at = [0.0]
    once_a_minute = RepeatFilter({"sign-in"}, lambda: at[0])

    def is_written(text: str, value: str, logger: str = "sign-in") -> bool:
        record = logging.LogRecord(logger, logging.WARNING, "", 1, text, (value,), None)
        return bool(once_a_minute.filter(record))

    assert [is_written("no user for %s", name) for name in "ab"] == [True, False]
    assert is_written("silent: %s", "a")
    assert all(is_written("GPU %s is hot", "0", "health") for _ in range(2))
    at[0] = 60.0
    assert is_written("no user for %s", "a")
