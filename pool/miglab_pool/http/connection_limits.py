"""How many connections a listener keeps, and how long it waits for a request on one.

A connection costs a descriptor before anybody has said who they are.  So each peer has its share of
a listener, the listener has its share of the process, and a connection on which no whole request
arrives is closed.  Both listeners share one process, so whoever asks without pause is read from
later: at 2,000 requests a second to the student listener, the spawner's own took 40 times as long.
"""

import ipaddress
import math
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0  # from a connection, or a request's first byte, to its last
MOST_DESCRIPTORS = 65_536
A_PEER = 64  # a student's server needs one or two
A_PEER_PER_S, IN_ALL_PER_S = 20.0, 400.0  # a student's server asks every few seconds
BURST_S = 2.0  # of the requests at that rate, so many may come at once
LONGEST_PAUSE_S = 5.0


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


@dataclass
class ConnectionLimits:
    """What one listener keeps open.

    Attributes:
        in_all: connections of all peers.
        a_peer: connections of one peer.
        at_once: connections that are accepted before the next is looked at: asyncio takes all that
            wait, and each holds a descriptor until it can be closed.
        request_s: how long a request may take to arrive.
        a_peer_per_s: requests of one peer a second; more are read later.
        in_all_per_s: the same for all peers together.
        is_shared: whether an address has no limit of its own.
        clock: seconds that never jump.
        paid_until: up to when each peer's requests use up its rate; under "" those of all peers.
        now_open: connections there are, by peer.
    """

    in_all: int = MOST_DESCRIPTORS
    a_peer: int = MOST_DESCRIPTORS
    at_once: int = 1024
    request_s: float = REQUEST_S
    a_peer_per_s: float = math.inf
    in_all_per_s: float = math.inf
    is_shared: Callable[[str], bool] = is_shared
    clock: Callable[[], float] = time.monotonic
    paid_until: dict[str, float] = field(default_factory=dict)
    now_open: Counter[str] = field(default_factory=Counter)

    def take(self, peer: str) -> bool:
        """Count a connection of the peer; False, and not counted, if there are too many."""
        has_room = self.is_shared(peer) or self.now_open[peer] < self.a_peer
        if not has_room or self.now_open.total() >= self.in_all:
            return False
        self.now_open[peer] += 1
        return True

    def give(self, peer: str) -> None:
        """Count no more a connection that was taken."""
        self.now_open[peer] -= 1
        if not self.now_open[peer]:
            del self.now_open[peer]

    def count_request(self, peer: str) -> None:
        """Count a request that was answered."""
        now = self.clock()
        if len(self.paid_until) > MOST_DESCRIPTORS:
            self.paid_until = {one: until for one, until in self.paid_until.items() if until > now}
        for payer, per_s in (("", self.in_all_per_s), (peer, self._rate_of(peer))):
            if per_s < math.inf:
                paid = max(now, self.paid_until.get(payer, now)) + 1 / per_s
                self.paid_until[payer] = min(paid, now + BURST_S + LONGEST_PAUSE_S)

    def pause_s(self, peer: str) -> float:
        """How long nothing is to be read from the peer; 0 while it keeps its rate."""
        payers = ("", peer) if self._rate_of(peer) < math.inf else ("",)
        paid = max(self.paid_until.get(payer, 0.0) for payer in payers)
        return max(0.0, paid - BURST_S - self.clock())

    def _rate_of(self, peer: str) -> float:
        has_one = self.a_peer_per_s < math.inf and not self.is_shared(peer)
        return self.a_peer_per_s if has_one else math.inf


def students_limits(descriptors: int) -> ConnectionLimits:
    """Those of the student listener: half of the process's descriptors are left to all else."""
    return ConnectionLimits(
        descriptors // 2,
        A_PEER,
        at_once=_at_once(descriptors),
        a_peer_per_s=A_PEER_PER_S,
        in_all_per_s=IN_ALL_PER_S,
    )


def management_limits(descriptors: int) -> ConnectionLimits:
    """Those of the management listener, where the hub's proxy is one peer for everybody."""
    in_all = descriptors // 4
    return ConnectionLimits(in_all, in_all, at_once=_at_once(descriptors))


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
        self._peer: str | None = None
        self._deadline: Any = None
        self._resumption: Any = None

    def connection_made(self, transport: Any) -> None:
        """Take the connection, or close it at once."""
        super().connection_made(transport)
        peer = self.client[0] if self.client else ""
        if not self._limits.take(peer):
            transport.abort()
            return
        self._peer = peer
        self._wait()
        self._pause()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the room to another connection."""
        self._rest()
        if self._resumption is not None:
            self._resumption.cancel()
        if self._peer is not None:
            self._limits.give(self._peer)
            self._peer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a request, but not for ever."""
        if self._peer is None:
            return
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Between requests uvicorn's own limit for idle connections holds."""
        if self._peer is not None:
            self._limits.count_request(self._peer)
        super().on_response_complete()
        self._look()
        self._pause()

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

    def _pause(self) -> None:
        """Read nothing for as long as the peer is ahead of its rate."""
        pause_s = 0.0 if self._peer is None else self._limits.pause_s(self._peer)
        if pause_s and self._resumption is None and not self.transport.is_closing():
            self.transport.pause_reading()
            self._resumption = self.loop.call_later(pause_s, self._resume)

    def _resume(self) -> None:
        self._resumption = None
        if not self.transport.is_closing():
            self.transport.resume_reading()
