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
    "id": 4, "user": "ada", "server": "", "course": "ml", "shape": "1g.5gb", "state": "waiting",
    "position": 1, "waiting": 1, "created_at": 1.0,
}  # fmt: skip


class FakeNetwork:
    """Answers each request with the next of what it was given, the last one again and again."""

    def __init__(self, *answers: httpx.Response | type[httpx.TransportError]) -> None:
        self.answers, self.seen = list(answers), list[httpx.Request]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, httpx.Response):
            return answer
        raise answer("in vain", request=request)


async def at_once(_: float) -> None:
    """Wait for nothing."""


@pytest.fixture
def pool(tmp_path: Path) -> Callable[[FakeNetwork], PoolClient]:
    (tmp_path / "secret").write_text("s3cret\n")

    def make(network: FakeNetwork) -> PoolClient:
        http = httpx.AsyncClient(transport=httpx.MockTransport(network))
        return PoolClient("http://pool/services/pool/", tmp_path / "secret", over(http), at_once)

    return make


async def test_a_call_carries_the_secret(pool):
    """The file's content without its line end; and the time-out of an attend covers its wait."""
    network = FakeNetwork(httpx.Response(201, json=TICKET))
    assert (await pool(network).request(ASK)).id == 4
    (asked,) = network.seen
    assert asked.headers["Authorization"] == "Bearer s3cret"
    assert str(asked.url) == "http://pool/services/pool/api/tickets"
    await pool(network).attend(4, wait_s=20)
    assert network.seen[1].extensions["timeout"]["read"] > 20
    assert network.seen[1].url.params["wait_s"] == "20"


async def test_a_refusal_keeps_its_words(pool):
    """Reason, message and status reach the spawner as the pool said them."""
    body = {"reason": "queue-full", "message": "200 wait already."}
    with pytest.raises(RefusedByBackend) as refused:
        await pool(FakeNetwork(httpx.Response(429, json=body))).request(ASK)
    said = refused.value
    assert (said.reason, said.message, said.status) == ("queue-full", "200 wait already.", 429)


async def test_connecting_is_tried_again(pool):
    """Nobody at the door twice: the third attempt counts."""
    refused = httpx.ConnectError
    network = FakeNetwork(refused, refused, httpx.Response(200, json=TICKET))
    assert (await pool(network).request(ASK)).id == 4
    assert len(network.seen) == 3


@pytest.mark.parametrize(
    ("error", "words", "attempts"),
    [(httpx.ConnectError, "no pool service at", 4), (httpx.ReadError, "did not answer", 1)],
)
async def test_trying_again_has_an_end(pool, error, words, attempts):
    """What was sent may have done something: a connection lost after that is not tried again."""
    network = FakeNetwork(error)
    with pytest.raises(BackendUnreachable, match=words):
        await pool(network).request(ASK)
    assert len(network.seen) == attempts


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
        await pool(FakeNetwork(httpx.Response(status, text=body))).request(ASK)


async def test_a_missing_secret_says_so(tmp_path: Path):
    """No secret file: the message names it and what to look at."""
    with pytest.raises(BackendUnreachable, match="pool_secret_file"):
        await PoolClient("http://pool", tmp_path / "none").lease(1)
