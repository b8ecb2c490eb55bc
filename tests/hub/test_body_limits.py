"""What the hub reads of a body before it knows whose it is."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlparse

import pytest
from tests.hubs import Hub, hub_config_for, running_hub
from tornado.httpserver import HTTPServer

from miglab_hub import configure

LONG = configure.STRANGERS_BYTES + 1
RUNS = "/hub/api/miglab/runs/ada/"


@pytest.fixture
def _limited(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(configure, "STRANGERS_S", 0.2)
    before = HTTPServer._save_configuration()  # type: ignore[no-untyped-call]
    configure.limit_bodies()
    yield
    HTTPServer._restore_configuration(before)  # type: ignore[no-untyped-call]


@pytest.fixture
async def hub(_limited: None) -> AsyncIterator[Hub]:
    async with running_hub(hub_config_for("mig-local")) as hub:
        hub.user("ada")
        hub.user("bob")
        yield hub


async def answer_to(hub: Hub, path: str, length: str, body: bytes = b"x", token: str = "") -> bytes:
    """The first line of the answer to a request whose body does not come to its end."""
    address = urlparse(hub.app.hub.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{length}\r\n"
    if token:
        head += f"Authorization: token {token}\r\n"
    writer.write(head.encode() + b"\r\n" + body)
    async with asyncio.timeout(60):
        line = await reader.readline()
    writer.close()
    return line


@pytest.mark.parametrize(
    ("path", "no"), [("/hub/login", b"400"), ("/hub/api/users", b"400"), (RUNS, b"403")]
)
async def test_a_strangers_long_body_is_refused_before_it_is_read(
    hub: Hub, path: str, no: bytes
) -> None:
    """On our routes and JupyterHub's, with a length and in chunks, and with an invented token."""
    assert no in await answer_to(hub, path, f"Content-Length: {LONG}")
    assert no in await answer_to(hub, path, f"Content-Length: {LONG}", token="invented")
    chunk = f"{LONG:x}\r\n".encode() + b"x" * LONG
    assert no in await answer_to(hub, path, "Transfer-Encoding: chunked", chunk)


async def test_a_strangers_body_that_does_not_come_is_not_waited_for(hub: Hub) -> None:
    """The connection is closed without an answer."""
    assert await answer_to(hub, "/hub/api/users", "Content-Length: 100") == b""


async def test_whom_the_hub_knows_may_send_more(hub: Hub) -> None:
    """As much as JupyterHub takes: it is refused for what is in it."""
    answer = await hub.ask("ada", "POST", "api/users/ada/tokens", content=b"x" * LONG)
    assert (answer.status_code, answer.json()["message"]) == (
        400,
        "Invalid JSON in body of request",
    )


async def test_a_run_is_refused_before_its_job_is_read(hub: Hub) -> None:
    """Whoever may not measure on that server reads so while the body is still to come."""
    token = hub.user("bob").new_api_token()
    length = f"Content-Length: {LONG}"
    assert b"403" in await answer_to(hub, RUNS, length, token=token)
