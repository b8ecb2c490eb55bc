"""The pool's client: what it sends, what it understands, when it tries again."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest
from tests.pool_sender import over

from miglab_api.tickets import TicketRequest
from miglab_spawner.backends import (
    BackendMisunderstood,
    BackendUnreachable,
    PoolClient,
    RefusedByBackend,
)

ASK = TicketRequest(user="ada", course="ml", shape="1g.5gb")
TICKET = {
    "id": 4, "user": "ada", "server": "", "course": "ml", "shape": "1g.5gb", "state": "waiting",
    "position": 1, "waiting": 1, "created_at": 1.0,
}  # fmt: skip


class FakeNetwork:
    """Answers each request with the next of what it was given, the last one again and again."""

    def __init__(self, *answers: httpx.Response | type[httpx.TransportError]) -> None:
        self.answers, self.requests = list(answers), list[httpx.Request]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
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
    (sent_request,) = network.requests
    assert sent_request.headers["Authorization"] == "Bearer s3cret"
    assert str(sent_request.url) == "http://pool/services/pool/api/tickets"
    await pool(network).attend(4, wait_s=20)
    assert network.requests[1].extensions["timeout"]["read"] > 20
    assert network.requests[1].url.params["wait_s"] == "20"


REFUSED = {"reason": "queue-full", "message": "200 wait already."}


@pytest.mark.parametrize(
    ("answers", "error", "message", "attempts"),
    [
        ([httpx.ConnectError, httpx.ConnectError, httpx.Response(200, json=TICKET)], None, "", 3),
        ([httpx.ConnectError], BackendUnreachable, "no pool service at", 4),
        ([httpx.ReadError], BackendUnreachable, "did not answer", 1),
        ([httpx.Response(429, json=REFUSED)], RefusedByBackend, "200 wait already.", 1),
        ([httpx.Response(200, text="{}")], BackendMisunderstood, ".", 1),
        ([httpx.Response(200, text="<html>")], BackendMisunderstood, ".", 1),
        ([httpx.Response(404, text="<html>")], BackendMisunderstood, ".", 1),
        ([httpx.Response(502, text="<html>")], BackendUnreachable, ".", 1),
    ],
)
async def test_what_comes_of_a_call(pool, answers, error, message, attempts):
    """Connecting is tried again, and nothing that was sent; what is no answer is told apart."""
    network = FakeNetwork(*answers)
    with pytest.raises(error, match=message) if error else nullcontext() as failed:
        assert (await pool(network).request(ASK)).id == 4
    assert len(network.requests) == attempts
    if error is RefusedByBackend:
        assert (failed.value.reason, failed.value.status) == ("queue-full", 429)


async def test_a_missing_secret_says_so(tmp_path: Path):
    """No secret file: the message names it and what to look at."""
    with pytest.raises(BackendUnreachable, match="pool_secret_file"):
        await PoolClient("http://pool", tmp_path / "none").lease(1)
