"""What a peer can keep open, over real sockets: idle connections close and leave room."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import FastAPI, Request
from starlette.requests import HTTPConnection
from tests.polling import until

from miglab_pool.http.connection_limits import (
    KEEP_ALIVE_S,
    ConnectionLimits,
    bind,
    forwarded_for,
    listener,
    serve,
    student_limits,
)

WHOLE = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = b"GET /health HTTP/1.1\r\nHost: x\r\n"
LONG = b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"


@dataclass
class ConnectedStudent:
    """A listener with limits, and connections to it."""

    limits: ConnectionLimits
    address: tuple[str, int]
    connections: Collection[Any]

    async def connect(self, say: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address)
        with contextlib.suppress(ConnectionError):
            writer.write(say)
            await writer.drain()
        return reader, writer


@pytest.fixture
async def student() -> AsyncIterator[ConnectedStudent]:
    """Two connections a peer, and a fifth of a second for a request."""
    limits = ConnectionLimits(in_all=9, a_payer=2, request_s=0.2, is_shared=lambda _: False)
    app, stop = FastAPI(), asyncio.Event()

    @app.api_route("/health", methods=["GET", "POST"])
    async def health(request: Request) -> str:
        await request.body()
        return "ok"

    with bind("127.0.0.1", 0, "a test") as listening:
        server = listener(app, limits)
        serving = asyncio.create_task(serve([(server, listening)], stop))
        async with asyncio.timeout(60):
            await until(lambda: server.started, "the listener to listen")
            yield ConnectedStudent(limits, listening.getsockname(), server.server_state.connections)
            stop.set()
            await serving


async def read_until_closed(reader: asyncio.StreamReader) -> bytes:
    """What came until the other side closed."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.parametrize(
    "say",
    [b"", HALF, LONG, WHOLE + HALF],
    ids=["nothing", "half a head", "half a body", "half a second one"],
)
async def test_a_connection_without_a_whole_request_is_closed(
    student: ConnectedStudent, say: bytes
) -> None:
    """After its time, with no answer but to whole ones, and its place is free again."""
    reader, writer = await student.connect(say)
    assert (await read_until_closed(reader)).count(b"200 OK") == say.count(WHOLE)
    assert not student.limits.now_open
    writer.close()


class OpenConnection:
    """A connection that tells whether it was ended."""

    is_open = True

    def close_now(self) -> None:
        self.is_open = False


async def test_a_peer_has_its_share(student: ConnectedStudent) -> None:
    """The third connection is served, and the first is closed for it."""
    connections = [await student.connect(WHOLE) for _ in range(3)]
    for reader, _ in connections[1:]:
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    await read_until_closed(connections[0][0])
    for _, writer in connections:
        writer.close()


def test_a_connection_with_a_known_token_does_not_make_room() -> None:
    """Whoever fills an address closes only connections that no known token came on."""
    limits = ConnectionLimits(a_payer=2)
    alice, *mallory = (OpenConnection() for _ in range(5))
    for connection in (alice, *mallory):
        limits.add("10.0.0.9", connection)
        if connection is alice:
            limits.move("alice's token", alice)
    assert [c.is_open for c in (alice, *mallory)] == [True, False, False, True, True]
    for connection in (alice, *mallory):
        limits.remove(connection)
    assert not limits.now_open and not limits.payer_of


def test_all_together_leave_half_of_the_descriptors() -> None:
    """However many peers there are; loopback, which stands for all local students, has no share."""
    limits = student_limits(1024)
    names = (f"10.0.{number // 250}.{number % 250}" for number in range(2000))
    assert sum(limits.add(name, OpenConnection()) for name in names) == 512
    limits = student_limits(1024)
    assert sum(limits.add("127.0.0.1", OpenConnection()) for _ in range(2000)) == 512
    limits = student_limits(1024)
    for _ in range(2000):
        limits.add("10.0.0.1", OpenConnection())
    assert len(limits.payer_of) == limits.a_payer


def test_a_payer_ahead_of_its_rate_waits_for_its_turn() -> None:
    """Two seconds' requests at once, then each when it is due; others do not wait for it."""
    now = 100.0
    limits = ConnectionLimits(
        a_payer_per_s=10, in_all_per_s=1000, is_shared=lambda peer: peer == "", clock=lambda: now
    )
    turns = [limits.turn_in_s("ada", is_known=False) for _ in range(22)]
    assert turns == [0] * 20 + [pytest.approx(0.1), pytest.approx(0.2)]
    assert limits.turn_in_s("bo", is_known=False) == 0
    assert {limits.turn_in_s("", is_known=False) for _ in range(100)} == {0}
    now += 1
    assert limits.turn_in_s("ada", is_known=False) == 0


def test_what_waits_too_long_is_refused_and_takes_no_turn() -> None:
    """All addresses together have a rate; known tokens have another, and do not wait for it."""
    limits = ConnectionLimits(in_all_per_s=10, clock=lambda: 100.0)
    turns = [limits.turn_in_s(f"peer{number}", is_known=False) for number in range(500)]
    assert sum(turn is not None for turn in turns) == 70
    assert limits.turn_in_s("alice's token", is_known=True) == 0


async def test_pipelined_requests_wait_for_their_turn(student: ConnectedStudent) -> None:
    """Of a hundred on one connection so many are answered at once as of a hundred connections."""
    student.limits.a_payer_per_s, student.limits.clock = 0.5, lambda: 0.0
    student.limits.request_s = 60.0
    reader, writer = await student.connect(WHOLE * 100)
    await reader.readuntil(b'"ok"')
    (connection,) = student.connections
    await until(lambda: not connection.transport.is_reading(), "nothing to be read any more")
    assert connection.server_state.total_requests == 1
    connection.close_now()
    writer.close()


async def test_a_known_token_does_not_wait_for_its_address(student: ConnectedStudent) -> None:
    """The address is far ahead of its rate; the token has one of its own, the spawner none."""
    student.limits.a_payer_per_s, student.limits.clock = 0.5, lambda: 0.0
    student.limits.known_payer = lambda request: request.headers.get("X-Known")
    student.limits.paid_until["127.0.0.1"] = 3600.0
    for name in (b"alice", b"", b"", b""):
        request = b"GET /health HTTP/1.1\r\nX-Known: " + name + b"\r\n\r\n"
        reader, writer = await student.connect(request.replace(b"1.1\r\n", b"1.1\r\nHost: x\r\n"))
        assert b"200 OK" in await reader.readuntil(b'"ok"')
        writer.close()
    assert set(student.limits.paid_until) == {"127.0.0.1", "alice", "known"}


def test_the_address_is_the_one_that_the_proxy_saw() -> None:
    """What the sender wrote stands before it, and counts for nothing."""

    def address(*headers: tuple[bytes, bytes]) -> str:
        scope = {"type": "http", "headers": headers, "client": ("10.0.0.2", 1)}
        return forwarded_for(HTTPConnection(scope))

    assert address((b"x-forwarded-for", b"1.2.3.4, 192.0.2.7")) == "192.0.2.7"
    assert address() == "10.0.0.2"


HTTPX_KEEP_ALIVE_S = 5


def test_what_a_socket_is_told() -> None:
    """That it is TCP, or asyncio leaves Nagle's algorithm on; and that the client closes first, or
    a request could meet a connection that the service is just closing.
    """
    with bind("127.0.0.1", 0, "[pool] port") as listening:
        assert listening.proto == socket.IPPROTO_TCP
    assert listener(FastAPI()).config.timeout_keep_alive == KEEP_ALIVE_S > HTTPX_KEEP_ALIVE_S
