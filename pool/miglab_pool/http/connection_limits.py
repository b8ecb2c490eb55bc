"""What a listener keeps open, and how often it serves whom.

A connection costs a descriptor before anybody has said who they are.  So each peer has its share of
a listener, the listener has its share of the process, and a connection on which no whole request
arrives is closed.  A peer with more than its share loses its oldest connection that no known token
came on, so that whoever shares an address is heard beside one who holds it.

Both listeners share one process, so each request waits for its turn before it reaches the
application: by the token that it carries where that is known, else by the address that it comes
from.  uvicorn begins no request on a connection before the last is answered, so pipelining waits
too; nothing is read meanwhile.  The listeners start together and end together.
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

REQUEST_S = 10.0  # from a connection, or a request's first byte, to its last
MOST_DESCRIPTORS = 65_536
A_PAYER = 64  # a student's server needs one or two
A_SERVER_PER_S, IN_ALL_PER_S = 20.0, 400.0  # a student's server asks every few seconds
A_PERSON_PER_S = 50.0  # a page asks for a few dozen files at once
BURST_S = 2.0  # of the requests at that rate, so many may come at once
LONGEST_PAUSE_S = 5.0
TOO_OFTEN = {"reason": "too-often", "message": "That was a lot at once. Wait a minute."}
GRACE_S = 5
KEEP_ALIVE_S = 75  # longer than any client's (httpx: 5 s): who closes first must be who asks


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files as far as it may; returns what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


def is_shared(peer: str) -> bool:
    """Whether an address may stand for many: loopback, from which all local students come."""
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False


def peer_of(request: HTTPConnection) -> str:
    """The other end of the connection."""
    return request.client.host if request.client else ""


def forwarded_for(request: HTTPConnection) -> str:
    """Whence a request to the management listener comes: what the proxy saw, if it came by that.

    Nobody but the lab's own processes reaches this listener otherwise.  The proxy adds its peer at
    the header's end; whatever stands before was sent.
    """
    return request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip() or peer_of(request)


@dataclass
class ConnectionLimits:
    """What one listener keeps open and serves.  A payer is a known token, or else an address.

    Attributes:
        in_all: connections of all payers.
        a_payer: connections of one payer.
        at_once: connections that are accepted before the next is looked at: asyncio takes all that
            wait, and each holds a descriptor until it can be closed.
        request_s: how long a request may take to arrive.
        a_payer_per_s: requests of one payer a second; more wait for their turn.
        in_all_per_s: the same of all known tokens together, and of all addresses.
        known: names the known token that a request carries; "" has no limit.
        address: whence a request comes.
        is_shared: whether an address has no limit of its own.
        clock: seconds that never jump.
        paid_until: up to when each payer's requests use up its rate.
        now_open: connections there are, by payer, the oldest first.
        payer_of: who pays for each.
    """

    in_all: int = MOST_DESCRIPTORS
    a_payer: int = MOST_DESCRIPTORS
    at_once: int = 1024
    request_s: float = REQUEST_S
    a_payer_per_s: float = math.inf
    in_all_per_s: float = math.inf
    known: Callable[[HTTPConnection], str | None] = lambda _: None
    address: Callable[[HTTPConnection], str] = peer_of
    is_shared: Callable[[str], bool] = is_shared
    clock: Callable[[], float] = time.monotonic
    paid_until: dict[str, float] = field(default_factory=dict)
    now_open: dict[str, dict["LimitedProtocol", None]] = field(default_factory=dict)
    payer_of: dict["LimitedProtocol", str] = field(default_factory=dict)

    def take(self, payer: str, connection: "LimitedProtocol") -> bool:
        """Count a connection; the payer's oldest makes room.  False if all have too many."""
        if len(self.payer_of) >= self.in_all:
            return False
        self._count(payer, connection)
        return True

    def move(self, payer: str, connection: "LimitedProtocol") -> None:
        """Count a connection that was taken for another payer."""
        if self.payer_of.get(connection, payer) != payer:
            self.give(connection)
            self._count(payer, connection)

    def give(self, connection: "LimitedProtocol") -> None:
        """Count a connection no more."""
        payer = self.payer_of.pop(connection, None)
        if payer is not None:
            del self.now_open[payer][connection]
            if not self.now_open[payer]:
                del self.now_open[payer]

    def _count(self, payer: str, connection: "LimitedProtocol") -> None:
        held = self.now_open.setdefault(payer, {})
        held[connection], self.payer_of[connection] = None, payer
        if len(held) > self.a_payer and not self.is_shared(payer):
            oldest = next(iter(held))
            self.give(oldest)
            oldest.close_now()

    def turn_in_s(self, payer: str, is_known: bool) -> float | None:
        """Take the next turn: how long until then; None, and not taken, if that is too long."""
        now = self.clock()
        if len(self.paid_until) > MOST_DESCRIPTORS:
            self.paid_until = {name: at for name, at in self.paid_until.items() if at > now}
        rates = {"known" if is_known else "unknown": self.in_all_per_s}
        if not self.is_shared(payer):
            rates[payer] = self.a_payer_per_s
        paid = {name: max(now, self.paid_until.get(name, now)) + 1 / r for name, r in rates.items()}
        turn_in_s = max(0.0, max(paid.values()) - BURST_S - now)
        if turn_in_s > LONGEST_PAUSE_S:
            return None
        self.paid_until |= paid
        return turn_in_s


def students_limits(
    descriptors: int, known: Callable[[HTTPConnection], str | None] = lambda _: None
) -> ConnectionLimits:
    """Those of the student listener: half of the process's descriptors are left to all else."""
    return ConnectionLimits(
        descriptors // 2,
        A_PAYER,
        at_once=_at_once(descriptors),
        a_payer_per_s=A_SERVER_PER_S,
        in_all_per_s=IN_ALL_PER_S,
        known=known,
    )


def management_limits(
    descriptors: int, known: Callable[[HTTPConnection], str | None] = lambda _: None
) -> ConnectionLimits:
    """Those of the management listener, where the hub's proxy brings everybody's connections."""
    in_all = descriptors // 4
    return ConnectionLimits(
        in_all,
        in_all,
        at_once=_at_once(descriptors),
        a_payer_per_s=A_PERSON_PER_S,
        in_all_per_s=IN_ALL_PER_S,
        known=known,
        address=forwarded_for,
    )


def _at_once(descriptors: int) -> int:
    return min(1024, max(16, descriptors // 32))


class LimitedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 within limits; it has none for connections that say nothing, or little.

    Args:
        limits: shared by all connections of the listener.
        given: what uvicorn gives.
    """

    def __init__(self, limits: ConnectionLimits, **given: Any) -> None:
        super().__init__(**given)
        self._limits = limits
        self._served, self.app = self.app, self._in_turn
        self._is_taken = False
        self._is_lost = asyncio.Event()
        self._deadline: Any = None

    def connection_made(self, transport: Any) -> None:
        """Take the connection, or close it at once."""
        super().connection_made(transport)
        self._is_taken = self._limits.take(self.client[0] if self.client else "", self)
        if self._is_taken:
            self._wait()
        else:
            transport.abort()

    def close_now(self) -> None:
        """Make room for another connection."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the room to another connection."""
        self._rest()
        self._is_taken = False
        self._is_lost.set()
        self._limits.give(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a request, but not for ever."""
        if self._is_taken:
            super().data_received(data)
            self._look()

    def on_response_complete(self) -> None:
        """Between requests uvicorn's own limit for idle connections holds."""
        super().on_response_complete()
        self._look()

    async def _in_turn(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass each request on when it is its payer's turn."""
        request = HTTPConnection(scope)
        known = self._limits.known(request)
        turn_in_s: float | None = 0.0
        if known != "":
            turn_in_s = self._limits.turn_in_s(
                known or self._limits.address(request), known is not None
            )
        if known:
            self._limits.move(known, self)
        if turn_in_s != 0:
            await self._pause(LONGEST_PAUSE_S if turn_in_s is None else turn_in_s)
        if turn_in_s is None:
            await JSONResponse(TOO_OFTEN, 429)(scope, receive, send)
        elif not self._is_lost.is_set():
            await self._served(scope, receive, send)

    async def _pause(self, pause_s: float) -> None:
        """Read nothing until then, or until the connection is lost."""
        self.flow.pause_reading()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_lost.wait(), pause_s)
        self.flow.resume_reading()

    def _look(self) -> None:
        is_begun = self.conn.their_state is h11.SEND_BODY or bool(self.conn.trailing_data[0])
        is_read = self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)
        if is_begun and not is_read:
            self._wait()
        else:
            self._rest()

    def _wait(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._limits.request_s, self.transport.abort)

    def _rest(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class PortInUseError(Exception):
    """Another program listens there; the message names the address and the key to change."""


class Listener(uvicorn.Server):
    """A server that leaves the process's signals to whoever runs several of them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def bind(host: str, port: int, key: str) -> socket.socket:
    """Take an address before anything else is opened.

    Raises:
        PortInUseError: it cannot be taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets that name their protocol; without it the body of each
    # answer waits 40 ms for the acknowledgement of its head (measured; CPython 3.11 to 3.14).
    taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
        taken.listen(1024)
    except OSError as error:
        taken.close()
        raise PortInUseError(
            f"{host}:{port} cannot be listened on ({error.strerror}): stop what listens there, "
            f"or change {key}"
        ) from error
    return taken


def listener(app: FastAPI, limits: ConnectionLimits | None = None) -> Listener:
    """A server for one application; the hub's proxy says which scheme the browser used.

    Args:
        app: the application.
        limits: of its connections; None for a limit of time alone.
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
    running = [asyncio.create_task(one.serve(sockets=[taken])) for one, taken in pairs]
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({*running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    for one, _ in pairs:
        one.should_exit = True
    await asyncio.gather(*running)


def stop_on_signals(stop: asyncio.Event) -> None:
    """SIGTERM and SIGINT end the service, without haste."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
