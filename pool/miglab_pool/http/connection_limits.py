"""The limits of a listener on open connections and on requests per second.

A connection costs a file descriptor before its client has identified itself.  So each address has a
share of a listener, and the listener a share of the process; a connection on which no whole request
arrives is closed.  An address with more than its share loses its oldest connection on which no
known token came, so that several clients behind one address are served.

Both listeners share one process, so each request waits for its turn before it reaches the
application.  Turns are counted by the token that a request carries, if it is known, else by its
address.  uvicorn begins no request on a connection before the last is answered, so pipelined
requests wait too, and nothing is read meanwhile.  The listeners start and end together.
"""

import asyncio
import contextlib
import ipaddress
import math
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0  # from a connection, or a request's first byte, to its last byte
MOST_DESCRIPTORS = 65_536
CONNECTIONS_A_PAYER = 64  # a student's server needs one or two
A_SERVER_PER_S, IN_ALL_PER_S = 20.0, 400.0  # a student's server asks every few seconds
A_PERSON_PER_S = 50.0  # a page asks for a few dozen files at once
BURST_S = 2.0  # the requests of so many seconds may come at once
LONGEST_PAUSE_S = 5.0
TOO_OFTEN = {"reason": "too-often", "message": "That was a lot at once. Wait a minute."}
GRACE_S = 5
KEEP_ALIVE_S = 75  # longer than any client's (httpx: 5 s), so that the client closes first


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files as far as it may; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return max(soft, limit)


def is_shared(peer: str) -> bool:
    """Whether many clients may share an address: loopback, from which all local students come."""
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False


def peer_of(request: HTTPConnection) -> str:
    """Return the address at the other end of the connection."""
    return request.client.host if request.client else ""


def forwarded_for(request: HTTPConnection) -> str:
    """Return the address of a management request, as the proxy saw it if it came through the proxy.

    Only the lab's own processes reach this listener otherwise.  The proxy appends its peer to the
    header; what stands before it was sent by the client.
    """
    return request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip() or peer_of(request)


@dataclass
class ConnectionLimits:
    """The limits of one listener.  A *payer* is a known token, or else an address.

    Attributes:
        in_all: connections of all payers.
        a_payer: connections of one payer.
        at_once: connections that are accepted before the first of them is handled: asyncio accepts
            all that wait, and each holds a descriptor until it is closed.
        request_s: how long a request may take to arrive.
        a_payer_per_s: requests of one payer a second; more wait for their turn.
        in_all_per_s: requests of all known tokens a second, and of all addresses.
        known_payer: returns a name of the known token of a request; "" has no limit.
        address: returns the address of a request.
        is_shared: whether an address has no limit of its own.
        clock: seconds that never jump.
        paid_until: up to when each payer's requests use up its rate.
        now_open: the open connections, by payer, the oldest first.
        payer_of: the payer of each connection.
    """

    in_all: int = MOST_DESCRIPTORS
    a_payer: int = MOST_DESCRIPTORS
    at_once: int = 1024
    request_s: float = REQUEST_S
    a_payer_per_s: float = math.inf
    in_all_per_s: float = math.inf
    known_payer: Callable[[HTTPConnection], str | None] = lambda _: None
    address: Callable[[HTTPConnection], str] = peer_of
    is_shared: Callable[[str], bool] = is_shared
    clock: Callable[[], float] = time.monotonic
    paid_until: dict[str, float] = field(default_factory=dict)
    now_open: dict[str, dict["LimitedProtocol", None]] = field(default_factory=dict)
    payer_of: dict["LimitedProtocol", str] = field(default_factory=dict)

    def add(self, payer: str, connection: "LimitedProtocol") -> bool:
        """Count a connection, closing the payer's oldest if needed; False if there are too many."""
        if len(self.payer_of) >= self.in_all:
            return False
        self._count(payer, connection)
        return True

    def move(self, payer: str, connection: "LimitedProtocol") -> None:
        """Count a connection for another payer."""
        if self.payer_of.get(connection, payer) != payer:
            self.remove(connection)
            self._count(payer, connection)

    def remove(self, connection: "LimitedProtocol") -> None:
        """Stop counting a connection."""
        payer = self.payer_of.pop(connection, None)
        if payer is not None:
            del self.now_open[payer][connection]
            if not self.now_open[payer]:
                del self.now_open[payer]

    def _count(self, payer: str, connection: "LimitedProtocol") -> None:
        connections = self.now_open.setdefault(payer, {})
        connections[connection], self.payer_of[connection] = None, payer
        if len(connections) > self.a_payer and not self.is_shared(payer):
            oldest = next(iter(connections))
            self.remove(oldest)
            oldest.close_now()

    def turn_in_s(self, payer: str, is_known: bool) -> float | None:
        """Take the next turn, and return in how many seconds it is; None if that is too long."""
        now = self.clock()
        if len(self.paid_until) > MOST_DESCRIPTORS:
            self.paid_until = {account: at for account, at in self.paid_until.items() if at > now}
        rates = {"known" if is_known else "unknown": self.in_all_per_s}
        if not self.is_shared(payer):
            rates[payer] = self.a_payer_per_s
        paid_until = {
            account: max(now, self.paid_until.get(account, now)) + 1 / r
            for account, r in rates.items()
        }
        turn_in_s = max(0.0, max(paid_until.values()) - BURST_S - now)
        if turn_in_s > LONGEST_PAUSE_S:
            return None
        self.paid_until |= paid_until
        return turn_in_s


def student_limits(
    descriptors: int, known_payer: Callable[[HTTPConnection], str | None] = lambda _: None
) -> ConnectionLimits:
    """Return the limits of the student listener: half of the process's descriptors at most."""
    return ConnectionLimits(
        descriptors // 2,
        CONNECTIONS_A_PAYER,
        at_once=_accepted_at_once(descriptors),
        a_payer_per_s=A_SERVER_PER_S,
        in_all_per_s=IN_ALL_PER_S,
        known_payer=known_payer,
    )


def management_limits(
    descriptors: int, known_payer: Callable[[HTTPConnection], str | None] = lambda _: None
) -> ConnectionLimits:
    """Return the limits of the management listener, reached by all through the hub's proxy."""
    in_all = descriptors // 4
    return ConnectionLimits(
        in_all,
        in_all,
        at_once=_accepted_at_once(descriptors),
        a_payer_per_s=A_PERSON_PER_S,
        in_all_per_s=IN_ALL_PER_S,
        known_payer=known_payer,
        address=forwarded_for,
    )


def _accepted_at_once(descriptors: int) -> int:
    return min(1024, max(16, descriptors // 32))


class LimitedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 within limits; uvicorn has none for silent or slow connections.

    Args:
        limits: shared by all connections of the listener.
        options: uvicorn's own arguments.
    """

    def __init__(self, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._served, self.app = self.app, self._in_turn
        self._is_taken = False
        self._is_lost = asyncio.Event()
        self._deadline: Any = None

    def connection_made(self, transport: Any) -> None:
        """Count the connection, or close it at once."""
        super().connection_made(transport)
        self._is_taken = self._limits.add(self.client[0] if self.client else "", self)
        if self._is_taken:
            self._start_deadline()
        else:
            transport.abort()

    def close_now(self) -> None:
        """Close the connection, as room is needed for another."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection."""
        self._cancel_deadline()
        self._is_taken = False
        self._is_lost.set()
        self._limits.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read data, and limit the time until the request is complete."""
        if self._is_taken:
            super().data_received(data)
            self._set_deadline()

    def on_response_complete(self) -> None:
        """End the time limit: between requests, uvicorn's own limit for idle connections holds."""
        super().on_response_complete()
        self._set_deadline()

    async def _in_turn(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on when its payer has its turn."""
        request = HTTPConnection(scope)
        payer = self._limits.known_payer(request)
        turn_in_s: float | None = 0.0
        if payer != "":
            turn_in_s = self._limits.turn_in_s(
                payer or self._limits.address(request), payer is not None
            )
        if payer:
            self._limits.move(payer, self)
        if turn_in_s != 0:
            await self._pause(LONGEST_PAUSE_S if turn_in_s is None else turn_in_s)
        if turn_in_s is None:
            await JSONResponse(TOO_OFTEN, 429)(scope, receive, send)
        elif not self._is_lost.is_set():
            await self._served(scope, receive, send)

    async def _pause(self, pause_s: float) -> None:
        """Read nothing for a while, or until the connection is lost."""
        self.flow.pause_reading()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_lost.wait(), pause_s)
        self.flow.resume_reading()

    def _set_deadline(self) -> None:
        is_begun = self.conn.their_state is h11.SEND_BODY or bool(self.conn.trailing_data[0])
        is_read = self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)
        if is_begun and not is_read:
            self._start_deadline()
        else:
            self._cancel_deadline()

    def _start_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._limits.request_s, self.transport.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class PortInUseError(Exception):
    """Another program listens at the address; the message names it and the key to change."""


class Listener(uvicorn.Server):
    """A server that leaves the process's signals to its caller, which runs several servers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


def bind(host: str, port: int, key: str) -> socket.socket:
    """Listen on an address before anything else is opened.

    Raises:
        PortInUseError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets that name their protocol; without it the body of each
    # answer waits 40 ms for the acknowledgement of its head (measured; CPython 3.11 to 3.14).
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise PortInUseError(
            f"{host}:{port} cannot be listened on ({error.strerror}): stop what listens there, "
            f"or change {key}"
        ) from error
    return listening


def listener(app: FastAPI, limits: ConnectionLimits | None = None) -> Listener:
    """Return a server for an application; the hub's proxy says which scheme the browser used.

    Args:
        app: the application.
        limits: the limits of its connections; None for a time limit alone.
    """
    limits = limits or ConnectionLimits()
    config = uvicorn.Config(
        app,
        http=partial(LimitedProtocol, limits),  # type: ignore[arg-type]
        backlog=limits.at_once,
        lifespan="off",
        log_config=None,  # this process's own handler writes what it says
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    return Listener(config)


async def serve(pairs: list[tuple[Listener, socket.socket]], stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set or one of the listeners ends."""
    running = [
        asyncio.create_task(listener.serve(sockets=[listening])) for listener, listening in pairs
    ]
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({*running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    for listener, _ in pairs:
        listener.should_exit = True
    await asyncio.gather(*running)


def stop_on_signals(stop: asyncio.Event) -> None:
    """Set ``stop`` at SIGTERM and SIGINT, so that the service ends in order."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
