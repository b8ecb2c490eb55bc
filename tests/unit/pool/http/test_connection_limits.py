"""What a peer can keep open, over real sockets: idle connections close and leave room."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest
from fastapi import FastAPI, Request
from tests.polling import until

from miglab_pool.http.connection_limits import ConnectionLimits, students_limits
from miglab_pool.http.listeners import bind, listener, serve

WHOLE = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = b"GET /health HTTP/1.1\r\nHost: x\r\n"
LONG = b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"


class ConnectedStudent:
    """A listener with limits, and connections to it."""

    def __init__(
        self, limits: ConnectionLimits, taken: socket.socket, connections: Collection[Any]
    ) -> None:
        self.limits = limits
        self.address = taken.getsockname()
        self.connections = connections

    async def connect(self, say: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address)
        with contextlib.suppress(ConnectionError):
            writer.write(say)
            await writer.drain()
        return reader, writer


@pytest.fixture
async def student() -> AsyncIterator[ConnectedStudent]:
    """Two connections a peer, and a fifth of a second for a request."""
    limits = ConnectionLimits(in_all=9, a_peer=2, request_s=0.2, is_shared=lambda _: False)
    app, stop = FastAPI(), asyncio.Event()

    @app.api_route("/health", methods=["GET", "POST"])
    async def health(request: Request) -> str:
        await request.body()
        return "ok"

    with bind("127.0.0.1", 0, "a test") as taken:
        server = listener(app, limits)
        serving = asyncio.create_task(serve([(server, taken)], stop))
        async with asyncio.timeout(60):
            await until(lambda: server.started, "the listener to listen")
            yield ConnectedStudent(limits, taken, server.server_state.connections)
            stop.set()
            await serving


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What came until the other side closed."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.parametrize("say", [b"", HALF, LONG], ids=["nothing", "half a head", "half a body"])
async def test_a_connection_without_a_whole_request_is_closed(
    student: ConnectedStudent, say: bytes
) -> None:
    """After its time, without an answer, and its place is free again."""
    reader, writer = await student.connect(say)
    assert await ended(reader) == b""
    assert not student.limits.now_open
    writer.close()


async def test_a_second_request_that_stays_half_is_closed(student: ConnectedStudent) -> None:
    """A whole request buys no more than its answer."""
    reader, writer = await student.connect(WHOLE + HALF)
    assert (await ended(reader)).count(b"200 OK") == 1
    writer.close()


async def test_a_peer_has_its_share(student: ConnectedStudent) -> None:
    """The third connection is closed at once; when one ends, the next is served."""
    held = [await student.connect(WHOLE) for _ in range(2)]
    for reader, _ in held:
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    third, writer = await student.connect(WHOLE)
    assert await ended(third) == b""
    writer.close()
    held[0][1].close()
    await until(lambda: student.limits.now_open.total() < 2, "one to be closed")
    fourth, writer = await student.connect(WHOLE)
    assert b"200 OK" in await fourth.readuntil(b"\r\n\r\n")
    for _, one in (*held, (fourth, writer)):
        one.close()


def test_all_together_leave_half_of_the_descriptors() -> None:
    """However many peers there are; loopback, which stands for all local students, has no share."""
    limits = students_limits(1024)
    assert sum(limits.take(f"10.0.{number // 250}.{number % 250}") for number in range(2000)) == 512
    limits = students_limits(1024)
    assert sum(limits.take("127.0.0.1") for _ in range(2000)) == 512
    limits = students_limits(1024)
    assert sum(limits.take("10.0.0.1") for _ in range(2000)) == limits.a_peer


def test_who_asks_without_pause_is_read_from_later() -> None:
    """A burst is free; then each request costs its share of the rate, for one peer and for all."""
    now = 100.0
    limits = ConnectionLimits(
        a_peer_per_s=10, in_all_per_s=1000, is_shared=lambda peer: peer == "", clock=lambda: now
    )
    for _ in range(20):
        limits.count_request("ada")
    assert limits.pause_s("ada") == pytest.approx(0)
    limits.count_request("ada")
    assert limits.pause_s("ada") == pytest.approx(0.1)
    assert limits.pause_s("bo") == 0
    now += 1
    assert limits.pause_s("ada") == 0


def test_all_peers_together_have_a_rate_too() -> None:
    """Many who each keep their own rate; nobody waits longer than the longest pause."""
    limits = ConnectionLimits(in_all_per_s=10, clock=lambda: 100.0)
    for number in range(500):
        limits.count_request(f"peer{number}")
    assert limits.pause_s("another") == pytest.approx(5)


async def test_nothing_is_read_from_a_peer_ahead_of_its_rate(student: ConnectedStudent) -> None:
    """Neither from a connection after its answer, nor from a new one; both stay open."""
    student.limits.a_peer_per_s, student.limits.clock = 10.0, lambda: 0.0
    reader, writer = await student.connect(WHOLE)
    await reader.readuntil(b'"ok"')
    (asked,) = student.connections
    assert asked.transport.is_reading()
    student.limits.paid_until["127.0.0.1"] = 3600.0
    writer.write(WHOLE)
    await reader.readuntil(b'"ok"')
    _, late = await student.connect(WHOLE)
    await until(
        lambda: not any(one.transport.is_reading() for one in student.connections),
        "nothing to be read any more",
    )
    assert len(student.connections) == 2
    writer.close()
    late.close()
