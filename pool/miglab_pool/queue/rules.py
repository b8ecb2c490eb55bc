"""Who is next: the order of the queue.  Pure: those who wait and everybody's recent use in.

The order: holders of a reservation in force; then those whom staff put in front; then those who
have waited for `FairShareUsage.ageing_s`, in order of arrival; then fair share, first of courses
and within a course of users; then arrival.  Each position is charged to its course and user as if
it were served, so that courses, and within them users, take turns.  Once somebody has aged, only
reservations, staff's choice and those who came earlier go before: so nobody starves.

The formulas of recent use, which fades, are behind a fair turn.
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

Asker = int | tuple[str, ...]
"""Who is told an estimate: a ticket, or whoever would ask for some profiles now."""
CHARGE_H = 1.0  # what a grant costs at once, hours: else one course would take all of one moment
GRAIN_H = 0.25  # smaller differences of use, in slice-hours, decide nothing: arrival does
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
WEEK_S = 7 * DAY_S
FORGOTTEN_AFTER = 10  # half-lives: then a thousandth is left


class Waiting(NamedTuple):
    """A ticket in the queue.

    Attributes:
        ticket: its id.
        profiles: the profile of each slice wanted.
        since: when it was made; the id breaks ties.
        reserved: whether its course has a reservation in force for it.
        size: the memory slices it asks for, all its slices together.
        front: when staff put it in front of all but reservations; None if nobody did.
        is_borrow: whether a measurement waits, and not a server.
        shape: what it asks for, as its reservation would name it.
    """

    ticket: int
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
    """What courses and users have used lately, and the rule's measures.

    Attributes:
        now: seconds since the epoch.
        courses: slice-hours used lately, decayed (see `decayed`), divided by the course's weight.
        users: the same of users, unweighted, in all their courses together.
        weights: the courses' weights; 1 for who is not named.
        ageing_s: who has waited for so long goes before all who have not.
    """

    now: float = 0.0
    courses: Mapping[str, float] = field(default_factory=dict)
    users: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    ageing_s: float = inf

    def has_aged(self, one: Waiting) -> bool:
        """Whether it has waited so long that fair share no longer puts it back."""
        return self.now - one.since >= self.ageing_s


ALL_EQUAL = FairShareUsage()


@dataclass(frozen=True)
class Grant:
    """The decision: this ticket gets these slices now."""

    ticket: int
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class WaitEstimates:
    """The pool's last estimates, when they were made, and when the first of each ticket ends."""

    at: float = 0.0
    of: Mapping[Asker, WaitEstimate] = field(default_factory=dict)
    due: Mapping[Asker, float] = field(default_factory=dict)


# -- the order ------------------------------------------------------------------------------------


def in_order(waiting: Iterable[Waiting], usage: FairShareUsage = ALL_EQUAL) -> list[Waiting]:
    """The queue, the first in front; a ticket's position is its index here, from 1."""
    reserved: list[Waiting] = []
    fronts: list[tuple[float, int, Waiting]] = []
    aged: list[Waiting] = []
    others: list[Waiting] = []
    for one in sorted(waiting, key=lambda one: (one.since, one.ticket)):
        if one.front is not None and not one.reserved:
            fronts.append((one.front, one.ticket, one))
            continue
        group = reserved if one.reserved else aged if usage.has_aged(one) else others
        group.append(one)
    turns = _Turns(usage)
    first = [*turns.take(reserved), *turns.charged(one for _, _, one in sorted(fronts))]
    return [*first, *turns.charged(aged), *turns.take(others)]


_Entry = tuple[int, float, int, Waiting]  # of a course's heap: share of the user, arrival


class _Turns:
    """What everybody's use would be if the line so far had been served."""

    def __init__(self, usage: FairShareUsage) -> None:
        self._courses = dict(usage.courses)
        self._users = dict(usage.users)
        self._weights = usage.weights

    def charged(self, group: Iterable[Waiting]) -> Iterator[Waiting]:
        """The same order; each is charged."""
        for one in group:
            self._charge(one)
            yield one

    def take(self, group: Iterable[Waiting]) -> Iterator[Waiting]:
        """By share of the course, share of the user, arrival.

        One heap per course, and one of the courses.  Entries are put right when they reach the
        top: a charge only ever makes them worse.
        """
        heaps: dict[str, list[_Entry]] = {}
        for one in group:
            heaps.setdefault(one.course, []).append(self._entry(one))
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
                one = heapq.heappop(heap)[-1]
                self._charge(one)
                yield one

    def _turn(self, heap: list[_Entry]) -> tuple[int, int, float, int, str]:
        """What decides when it is a course's turn: its share, then its first."""
        while heap[0][0] < _grains(self._users.get(heap[0][-1].user, 0.0)):
            heapq.heapreplace(heap, self._entry(heap[0][-1]))
        course = heap[0][-1].course
        return _grains(self._courses.get(course, 0.0)), *heap[0][:3], course

    def _entry(self, one: Waiting) -> _Entry:
        return _grains(self._users.get(one.user, 0.0)), one.since, one.ticket, one

    def _charge(self, one: Waiting) -> None:
        cost = one.size * CHARGE_H
        weighted = cost / self._weights.get(one.course, 1.0)
        self._courses[one.course] = self._courses.get(one.course, 0.0) + weighted
        self._users[one.user] = self._users.get(one.user, 0.0) + cost


def _grains(slice_hours: float) -> int:
    return int(slice_hours / GRAIN_H)


@dataclass(frozen=True, slots=True)
class Use:
    """Slices that a lease held.

    Attributes:
        size: its memory slices.
        began: when a server was attached; None if none was (yet).
        ended: when it was over; None while it lives.
        server: the server's name.
    """

    lease: int
    user: str
    course: str
    server: str
    size: int
    began: float | None
    ended: float | None
    shape: str = ""

    @property
    def is_borrow(self) -> bool:
        """Whether measurements held them, and not a server."""
        return is_borrower(self.server)

    def slice_hours(self, since: float, until: float) -> float:
        """What was used between two moments, undecayed."""
        if self.began is None:
            return 0.0
        ended = until if self.ended is None else min(self.ended, until)
        return self.size * max(0.0, ended - max(self.began, since)) / HOUR_S


def over_by(use: Use, now: float) -> Use:
    """As if it had ended by now, if it ended later: the clock was ahead then."""
    later_s = 0.0 if use.ended is None else max(0.0, use.ended - now)
    if not later_s or use.began is None or use.ended is None:
        return use
    return replace(use, began=use.began - later_s, ended=use.ended - later_s)


def decayed(use: Use, now: float, half_life_s: float) -> float:
    """The slice-hours of a lease as they count now.

    The integral of ``size · 2^(-(now - t) / half_life)`` over the time t in which it was held.

    Args:
        use: the lease; one that lives counts until now.
        now: seconds since the epoch.
        half_life_s: after which time use counts half, seconds.
    """
    if use.began is None:
        return 0.0
    ended = now if use.ended is None else use.ended
    return use.size * _integral(use.began - now, ended - now, half_life_s) / HOUR_S


def _integral(begin_s: float, end_s: float, half_life_s: float) -> float:
    """Of ``2^(t / half_life)`` from begin to end; 0 if it begins later than it ends."""
    begin_s = min(begin_s, end_s)
    grown = math.exp2(end_s / half_life_s) - math.exp2(begin_s / half_life_s)
    return max(0.0, grown) * half_life_s / math.log(2)


@dataclass(frozen=True, eq=False)
class UsageTotals:
    """What leases have used lately, at a moment of the ledger.

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
    over: tuple[Use, ...] = ()
    live: tuple[Use, ...] = ()

    @property
    def all(self) -> list[Use]:
        """Every lease that counts, live ones last."""
        return [*self.over, *self.live]

    def plus(self, more: Iterable[Use]) -> "UsageTotals":
        """The same with more leases that are over."""
        over = tuple(more)
        sums = defaultdict(float, self.sums)
        for use in over:
            add(sums, use, decayed(use, self.summed_at, self.half_life_s))
        return replace(self, sums=sums, over=(*self.over, *over))

    def fair_share(
        self, now: float, weights: Mapping[str, float], ageing_s: float
    ) -> FairShareUsage:
        """What courses and users have used lately, for the order of the queue."""
        faded = math.exp2(min(0.0, self.summed_at - now) / self.half_life_s)
        sums = defaultdict(float, {key: value * faded for key, value in self.sums.items()})
        for use in self.live:
            add(sums, use, max(use.size * CHARGE_H, decayed(use, now, self.half_life_s)))
        courses = {name: n / weights.get(name, 1.0) for (what, name), n in sums.items() if what}
        users = {name: value for (what, name), value in sums.items() if not what}
        return FairShareUsage(now, courses, users, weights, ageing_s)


def add(sums: dict[tuple[str, str], float], use: Use, counted: float) -> None:
    """Count a lease's use for its course and its user."""
    sums["course", use.course] += counted
    sums["", use.user] += counted
