"""How requests travel to the pool: over real sockets, to servers that answer, hang up or hang."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from miglab_spawner import backends

Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ENDS = """
import asyncio
from miglab_spawner import backends

async def answer(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
    await writer.drain()

async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    print((await backends.send_request(backends.PoolRequest("GET", url, {}, 60))).status)

loop = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.close()
"""
OK = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    await backends.close_connections()


@asynccontextmanager
async def server(answering: Answering) -> AsyncIterator[str]:
    """A server that treats each connection so; its address."""

    async def answer_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answering(reader, writer)
        finally:
            writer.close()

    listener = await asyncio.start_server(answer_and_close, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/api"
    finally:
        listener.close()


async def hangs_up(*_: object) -> None:
    """Answer nothing: the connection is closed at once."""


def request_to(url: str, **options: object) -> backends.PoolRequest:
    return backends.PoolRequest("POST", url, {"Authorization": "Bearer s"}, 30, **options)


async def test_a_request_arrives_whole():
    """Line, parameters, headers and body; its answer comes back with status and content."""
    received: list[bytes] = []

    async def answering(reader, writer):
        received.append(await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(9))
        writer.write(OK)
        await writer.drain()

    body = json.dumps({"a": "ö"}, ensure_ascii=False).encode()[:9]
    async with server(answering) as url:
        params = (("user", "ada b"), ("course", "x"), ("course", "y"))
        answer = await backends.send_request(request_to(url, params=params, body=body))
    assert answer == backends.PoolAnswer(201, b"{}", "Created")
    assert received[0].startswith(b"POST /api?user=ada+b&course=x&course=y HTTP/1.1\r\n")
    assert b"Authorization: Bearer s\r\n" in received[0]
    assert received[0].endswith(body)


async def test_nobody_there_is_told_from_no_answer():
    """Only what was never sent may be sent again."""
    async with server(hangs_up) as url:
        with pytest.raises(backends.NoAnswer):
            await backends.send_request(request_to(url))
    with pytest.raises(backends.NotConnected):
        await backends.send_request(request_to(url))


async def test_a_silent_pool_is_not_waited_for_beyond_the_time_limit():
    """The time limit covers the whole request."""
    over = asyncio.Event()

    async def silent(*_):
        await over.wait()

    async with server(silent) as url:
        with pytest.raises(backends.NoAnswer):
            await backends.send_request(backends.PoolRequest("GET", url, {}, 0.05))
        over.set()


def test_a_hub_that_ends_says_nothing_of_open_connections():
    """JupyterHub ends its loop without asking the spawners; the hub's log stays clean."""
    process = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True)
    assert (process.returncode, process.stdout.strip(), process.stderr) == (0, "200", "")
