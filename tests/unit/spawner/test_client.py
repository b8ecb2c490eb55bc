"""The pool's client: what it sends, what it understands, when it tries again."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.pool_sender import over

from miglab_api.tickets import TicketRequest
from miglab_spawner.backends.base import BackendMisunderstood, BackendUnreachable, RefusedByBackend
from miglab_spawner.backends.pool import PoolClient

ASK = TicketRequest(user="ada", course="ml", shape="1g.5gb")
TICKET = {
    "id": 4,
    "user": "ada",
    "server": "",
    "course": "ml",
    "shape": "1g.5gb",
    "state": "waiting",
    "position": 1,
    "waiting": 1,
    "created_at": 1.0,
}
Answer = Callable[[httpx.Request], httpx.Response]


async def at_once(_: float) -> None:
    """Wait for nothing."""


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("s3cret\n")
    return path


@pytest.fixture
def pool(secret_file: Path) -> Callable[[Answer], PoolClient]:
    def make(answer: Answer) -> PoolClient:
        http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        return PoolClient("http://pool/services/pool/", secret_file, over(http), at_once)

    return make


async def test_a_call_carries_the_secret(pool):
    """The secret file's content, without its line end, goes along as bearer token."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(201, json=TICKET)

    assert (await pool(answer).request(ASK)).id == 4
    assert seen[0].headers["Authorization"] == "Bearer s3cret"
    assert str(seen[0].url) == "http://pool/services/pool/api/tickets"


async def test_a_refusal_keeps_its_words(pool):
    """Reason, message and status reach the spawner as the pool said them."""
    body = {"reason": "queue-full", "message": "200 wait already."}
    client = pool(lambda _: httpx.Response(429, json=body))
    with pytest.raises(RefusedByBackend) as refused:
        await client.request(ASK)
    said = refused.value
    assert (said.reason, said.message, said.status) == ("queue-full", "200 wait already.", 429)


async def test_connecting_is_tried_again(pool):
    """Nobody at the door twice: the third attempt counts."""
    attempts: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        attempts.append(request.method)
        if len(attempts) < 3:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(200, json=TICKET)

    assert (await pool(answer).request(ASK)).id == 4
    assert len(attempts) == 3


async def test_trying_again_has_an_end(pool):
    """A pool that is not there is unreachable after a few attempts."""
    attempts: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        attempts.append(request.method)
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(BackendUnreachable, match="no pool service at"):
        await pool(answer).request(ASK)
    assert len(attempts) == 4


async def test_a_call_that_was_sent_is_not_sent_again(pool):
    """A connection lost after sending might have done something: it is not repeated here."""
    attempts: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        attempts.append(request.method)
        raise httpx.ReadError("lost", request=request)

    with pytest.raises(BackendUnreachable, match="did not answer"):
        await pool(answer).request(ASK)
    assert len(attempts) == 1


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, "{}", BackendMisunderstood),
        (200, "<html>", BackendMisunderstood),
        (404, "<html>", BackendMisunderstood),
        (502, "<html>", BackendUnreachable),
    ],
)
async def test_what_is_no_message_is_no_answer(pool, status, body, error):
    """Another service at the address, another version, a proxy's error page: each is named."""
    with pytest.raises(error):
        await pool(lambda _: httpx.Response(status, text=body)).request(ASK)


async def test_a_missing_secret_says_so(tmp_path: Path):
    """No secret file: the message names it and what to look at."""
    with pytest.raises(BackendUnreachable, match="pool_secret_file"):
        await PoolClient("http://pool", tmp_path / "none").lease(1)


async def test_the_long_poll_gets_longer_time(pool):
    """The time-out of an attend covers its wait."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=TICKET)

    await pool(answer).attend(4, wait_s=20)
    assert seen[0].extensions["timeout"]["read"] > 20
    assert seen[0].url.params["wait_s"] == "20"
