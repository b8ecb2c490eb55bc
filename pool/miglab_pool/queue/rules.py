"""The order of the queue and fair-share usage.  Pure: waiting tickets and recent use in.

The order: tickets for a reservation in force; then those that staff put in front; then those that
have waited for `FairShareUsage.ageing_s`, by arrival; then by fair share, first of courses and
within a course of users; then by arrival.  Each position is charged to its course and user as if it
were served, so that courses, and within them users, take turns.  Only reservations, staff's choice
and earlier tickets go before a ticket that has aged, so no ticket starves.

Fair share counts recent use with a half-life; its formulas are here too.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from miglab_api.tickets import WaitEstimate, is_borrower
from miglab_pool.state.placement import Choice

EstimateKey = int | tuple[str, ...]
"""What an estimate is for: a ticket by its number, or profiles that a newcomer could ask for."""
CHARGE_H = 1.0  # hours that a grant costs at once: else one course could take all slices at once
GRAIN_H = 0.25  # smaller differences of use, in slice-hours, decide nothing: arrival does
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
WEEK_S = 7 * DAY_S
FORGOTTEN_AFTER = 10  # half-lives, after which a thousandth is left


class WaitingTicket(NamedTuple):
    """A ticket in the queue.

    Attributes:
        id: the number of its row in the ledger.
        profiles: the profile of each slice wanted.
        since: when it was made; the id breaks ties.
        reserved: whether its course has a reservation in force for it.
        size: the memory slices it asks for, all its slices together.
        front: when staff put it in front of all but reservations; None if nobody did.
        is_borrow: whether a measurement waits, and not a server.
        shape: what it asks for, as its reservation would name it.
    """

    id: int
    profiles: tuple[str, ...]
    since: float
    course: str = ""
    user: str = ""
    reserved: bool = False
    size: int = 1
    front: float | None = None
    is_borrow: bool = False
    shape: str = ""


@dataclass(frozen=True)
class FairShareUsage:
    """What courses and users have used lately, with the weights and the ageing time.

    Attributes:
        now: seconds since the epoch.
        courses: slice-hours used lately, decayed (see
            `decayed_slice_hours`), divided by the course's weight.
        users: the same of users, unweighted, in all their courses together.
        weights: the courses' weights; 1 for a course that is not named.
        ageing_s: tickets that have waited for so long go before all others.
    """

    now: float = 0.0
    courses: Mapping[str, float] = field(default_factory=dict)
    users: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    ageing_s: float = inf

    def has_aged(self, ticket: WaitingTicket) -> bool:
        """Whether a ticket has waited so long that fair share no longer counts for it."""
        return self.now - ticket.since >= self.ageing_s


ALL_EQUAL = FairShareUsage()


@dataclass(frozen=True)
class Grant:
    """The decision that a ticket gets these slices now."""

    ticket: int
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class WaitEstimates:
    """The last wait estimates.

    Attributes:
        at: when they were made, seconds since the epoch.
        of: the estimates.
        due: by when the first estimate of each ticket said that its wait would be over.
    """

    at: float = 0.0
    of: Mapping[EstimateKey, WaitEstimate] = field(default_factory=dict)
    due: Mapping[EstimateKey, float] = field(default_factory=dict)


# -- the order ------------------------------------------------------------------------------------


def queue_order(
    waiting: Iterable[WaitingTicket], usage: FairShareUsage = ALL_EQUAL
) -> list[WaitingTicket]:
    """Return the tickets in the order of the queue; a position is the index here, from 1."""
    reserved: list[WaitingTicket] = []
    fronts: list[tuple[float, int, WaitingTicket]] = []
    aged: list[WaitingTicket] = []
    unaged: list[WaitingTicket] = []
    for ticket in sorted(waiting, key=lambda ticket: (ticket.since, ticket.id)):
        if ticket.front is not None and not ticket.reserved:
            fronts.append((ticket.front, ticket.id, ticket))
            continue
        group = reserved if ticket.reserved else aged if usage.has_aged(ticket) else unaged
        group.append(ticket)
    turns = _Turns(usage)
    first = [
        *turns.take_turns(reserved),
        *turns.charge_all(ticket for _, _, ticket in sorted(fronts)),
    ]
    return [*first, *turns.charge_all(aged), *turns.take_turns(unaged)]


_HeapEntry = tuple[int, float, int, WaitingTicket]  # of a course's heap: share of the user, arrival


class _Turns:
    """The use of courses and users if the tickets that were yielded so far had been served."""

    def __init__(self, usage: FairShareUsage) -> None:
        self._courses = dict(usage.courses)
        self._users = dict(usage.users)
        self._weights = usage.weights

    def charge_all(self, group: Iterable[WaitingTicket]) -> Iterator[WaitingTicket]:
        """Yield the tickets in their order, and charge each to its course and user."""
        for ticket in group:
            self._charge(ticket)
            yield ticket

    def take_turns(self, group: Iterable[WaitingTicket]) -> Iterator[WaitingTicket]:
        """Yield the tickets by share of the course, share of the user, and arrival; charge each.

        There is one heap per course, and one of the courses.  An entry is updated when it reaches
        the top, which suffices because a charge only ever moves it back.
        """
        heaps: dict[str, list[_HeapEntry]] = {}
        for ticket in group:
            heaps.setdefault(ticket.course, []).append(self._heap_entry(ticket))
        for heap in heaps.values():
            heapq.heapify(heap)
        turns = [self._turn(heap) for heap in heaps.values()]
        heapq.heapify(turns)
        while turns:
            heap = heaps[turns[0][-1]]
            if not heap:
                heapq.heappop(turns)
            elif (turn := self._turn(heap)) != turns[0]:
                heapq.heapreplace(turns, turn)
            else:
                ticket = heapq.heappop(heap)[-1]
                self._charge(ticket)
                yield ticket

    def _turn(self, heap: list[_HeapEntry]) -> tuple[int, int, float, int, str]:
        """Return what decides when a course has its turn: its share, then its first ticket."""
        while heap[0][0] < _grains(self._users.get(heap[0][-1].user, 0.0)):
            heapq.heapreplace(heap, self._heap_entry(heap[0][-1]))
        course = heap[0][-1].course
        return _grains(self._courses.get(course, 0.0)), *heap[0][:3], course

    def _heap_entry(self, ticket: WaitingTicket) -> _HeapEntry:
        return _grains(self._users.get(ticket.user, 0.0)), ticket.since, ticket.id, ticket

    def _charge(self, ticket: WaitingTicket) -> None:
        cost = ticket.size * CHARGE_H
        weighted = cost / self._weights.get(ticket.course, 1.0)
        self._courses[ticket.course] = self._courses.get(ticket.course, 0.0) + weighted
        self._users[ticket.user] = self._users.get(ticket.user, 0.0) + cost


def _grains(slice_hours: float) -> int:
    return int(slice_hours / GRAIN_H)


@dataclass(frozen=True, slots=True)
class LeaseUse:
    """What fair share and quotas need to know of a lease.

    Attributes:
        size: its memory slices.
        began_at: when a server was attached; None if none was (yet).
        ended_at: when it was over; None while it lives.
        server: the server's name.
        granted_at: from when its slices were nobody else's; None if it was not granted (yet).
    """

    lease: int
    user: str
    course: str
    server: str
    size: int
    began_at: float | None
    ended_at: float | None
    shape: str = ""
    granted_at: float | None = None

    @property
    def is_borrow(self) -> bool:
        """Whether measurements held the slices, and not a server."""
        return is_borrower(self.server)

    @property
    def occupied_s(self) -> float:
        """How long it kept its slices from others: creating them and starting on them included."""
        kept_from = self.began_at if self.granted_at is None else self.granted_at
        return (self.ended_at or 0.0) - (kept_from or 0.0)

    def slice_hours(self, since: float, until: float) -> float:
        """Return the slice-hours that were used between two moments, undecayed."""
        if self.began_at is None:
            return 0.0
        ended = until if self.ended_at is None else min(self.ended_at, until)
        return self.size * max(0.0, ended - max(self.began_at, since)) / HOUR_S


def shifted_to_end_by(use: LeaseUse, now: float) -> LeaseUse:
    """Return the use, moved back in time if it ended after ``now``: the clock was ahead then."""
    later_s = 0.0 if use.ended_at is None else max(0.0, use.ended_at - now)
    if not later_s or use.began_at is None or use.ended_at is None:
        return use
    granted_at = None if use.granted_at is None else use.granted_at - later_s
    return replace(
        use,
        granted_at=granted_at,
        began_at=use.began_at - later_s,
        ended_at=use.ended_at - later_s,
    )


def decayed_slice_hours(use: LeaseUse, now: float, half_life_s: float) -> float:
    """Return the slice-hours of a lease as they count now.

    They are the integral of ``size · 2^(-(now - t) / half_life)`` over the time t in which it was
    held.

    Args:
        use: the lease; one that lives counts until now.
        now: seconds since the epoch.
        half_life_s: the time after which use counts half.
    """
    if use.began_at is None:
        return 0.0
    ended = now if use.ended_at is None else use.ended_at
    return use.size * _integral(use.began_at - now, ended - now, half_life_s) / HOUR_S


def _integral(begin_s: float, end_s: float, half_life_s: float) -> float:
    """Return the integral of ``2^(t / half_life)``; 0 if it begins later than it ends."""
    begin_s = min(begin_s, end_s)
    grown = math.exp2(end_s / half_life_s) - math.exp2(begin_s / half_life_s)
    return max(0.0, grown) * half_life_s / math.log(2)


@dataclass(frozen=True, eq=False)
class UsageTotals:
    """What leases have used lately, as of a moment of the ledger.

    Attributes:
        half_life_s: after which time use counts half, seconds.
        summed_at: the moment at which ``sums`` count as they stand.
        sums: of the leases that are over, by ``("course", name)`` and ``("", user)``.
        over: the leases that are over, and still count.
        live: the live leases.
    """

    half_life_s: float
    summed_at: float
    sums: Mapping[tuple[str, str], float]
    over: tuple[LeaseUse, ...] = ()
    live: tuple[LeaseUse, ...] = ()

    @property
    def uses(self) -> list[LeaseUse]:
        """Every lease use that counts, live ones last."""
        return [*self.over, *self.live]

    def with_ended(self, ended: Iterable[LeaseUse]) -> "UsageTotals":
        """Return the totals with more leases that are over."""
        over = tuple(ended)
        sums = defaultdict(float, self.sums)
        for use in over:
            add_use(sums, use, decayed_slice_hours(use, self.summed_at, self.half_life_s))
        return replace(self, sums=sums, over=(*self.over, *over))

    def fair_share(
        self, now: float, weights: Mapping[str, float], ageing_s: float
    ) -> FairShareUsage:
        """Return what courses and users have used lately, for the order of the queue."""
        faded = math.exp2(min(0.0, self.summed_at - now) / self.half_life_s)
        sums = defaultdict(float, {key: value * faded for key, value in self.sums.items()})
        for use in self.live:
            add_use(
                sums, use, max(use.size * CHARGE_H, decayed_slice_hours(use, now, self.half_life_s))
            )
        courses = {name: n / weights.get(name, 1.0) for (kind, name), n in sums.items() if kind}
        users = {name: value for (kind, name), value in sums.items() if not kind}
        return FairShareUsage(now, courses, users, weights, ageing_s)


def add_use(sums: dict[tuple[str, str], float], use: LeaseUse, slice_hours: float) -> None:
    """Add slice-hours of a lease to its course and its user."""
    sums["course", use.course] += slice_hours
    sums["", use.user] += slice_hours
