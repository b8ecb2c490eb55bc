"""Who is next.  Pure: those who wait, the GPUs and everybody's standing in, one grant out at most.

The order: holders of a reservation in force; then those whom staff put in front; then those who
have waited for `Standing.ageing_s`, in order of arrival; then fair share, first of courses and
within a course of users; then arrival.  Each place in line is charged to its course and user as if
it were served, so that courses, and within them users, take turns.  Once somebody has aged, only
reservations, staff's choice and those who came earlier go before: so nobody starves.

When the first in line does not fit now, the place that will be free for it soonest is *set aside*
(aside.py): those behind may go ahead, in order, but only outside it, or if they are surely gone
before it could be used.  So a big shape is not starved (the moment at which its place is surely
empty never moves back), and no slice idles that the first in line could not use anyway.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from miglab_spawner.pool.placing.placement import Choice, GpuState, place

from .aside import (
    NOTHING,
    Ahead,
    Ground,
    Stay,
    aside,
    clash,
    open_to,
    own_first,
    set_aside,
)

__all__ = [
    "Ahead", "Grant", "Ground", "Standing", "Stay", "Waiting", "clash", "open_to", "own_first",
    "set_aside",
]  # fmt: skip

CHARGE_H = 1.0  # what a grant costs at once, hours: else one course would take all of one moment
GRAIN_H = 0.25  # smaller differences of use, in slice-hours, decide nothing: arrival does


@dataclass(frozen=True)
class Waiting:
    """A ticket in line.

    Attributes:
        ticket: its id.
        profiles: the profile of each slice wanted.
        since: when it was made; the id breaks ties.
        reserved: whether its course has a reservation in force for it.
        size: the memory slices it asks for, all its slices together.
        front: when staff put it in front of all but reservations; None if nobody did.
        lasts_s: how long its place would be taken at most, if it were served now: until it was
            handed over, used, extended as often as may be, and cleared; infinite for no limit.
    """

    ticket: int
    profiles: tuple[str, ...]
    since: float
    course: str = ""
    user: str = ""
    reserved: bool = False
    size: int = 1
    front: float | None = None
    lasts_s: float = inf


@dataclass(frozen=True)
class Standing:
    """What courses and users have used lately, and the rule's measures.

    Attributes:
        now: seconds since the epoch.
        courses: slice-hours used lately, decayed (shares.py), divided by the course's weight.
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


ALL_EQUAL = Standing()


@dataclass(frozen=True)
class Grant:
    """The decision: this ticket gets these slices now."""

    ticket: int
    choices: tuple[Choice, ...]


# -- the order ------------------------------------------------------------------------------------


def in_line(waiting: Iterable[Waiting], standing: Standing = ALL_EQUAL) -> list[Waiting]:
    """The line, first in front; a ticket's position is its place here."""
    reserved: list[Waiting] = []
    fronts: list[tuple[float, int, Waiting]] = []
    aged: list[Waiting] = []
    others: list[Waiting] = []
    for one in sorted(waiting, key=lambda one: (one.since, one.ticket)):
        if one.front is not None and not one.reserved:
            fronts.append((one.front, one.ticket, one))
            continue
        group = reserved if one.reserved else aged if standing.has_aged(one) else others
        group.append(one)
    turns = _Turns(standing)
    first = [*turns.take(reserved), *turns.charged(one for _, _, one in sorted(fronts))]
    return [*first, *turns.charged(aged), *turns.take(others)]


class _Turns:
    """What everybody's use would be if the line so far had been served."""

    def __init__(self, standing: Standing) -> None:
        self._courses = dict(standing.courses)
        self._users = dict(standing.users)
        self._weights = standing.weights

    def charged(self, group: Iterable[Waiting]) -> Iterator[Waiting]:
        """The same order; each is charged."""
        for one in group:
            self._charge(one)
            yield one

    def take(self, group: Iterable[Waiting]) -> Iterator[Waiting]:
        """By share of the course, share of the user, arrival.

        One heap per course, whose entries are put right when they reach the top: a charge only
        ever makes them worse.
        """
        heaps: dict[str, list[tuple[int, float, int, Waiting]]] = {}
        for one in group:
            heaps.setdefault(one.course, []).append(self._entry(one))
        for heap in heaps.values():
            heapq.heapify(heap)
        while heaps:
            course = min(heaps, key=lambda name: (self._share(name), self._top(heaps[name])[:3]))
            one = heapq.heappop(heaps[course])[3]
            if not heaps[course]:
                del heaps[course]
            self._charge(one)
            yield one

    def _top(self, heap: list[tuple[int, float, int, Waiting]]) -> tuple[int, float, int, Waiting]:
        while heap[0][0] < _grains(self._users.get(heap[0][3].user, 0.0)):
            heapq.heapreplace(heap, self._entry(heap[0][3]))
        return heap[0]

    def _entry(self, one: Waiting) -> tuple[int, float, int, Waiting]:
        return _grains(self._users.get(one.user, 0.0)), one.since, one.ticket, one

    def _share(self, course: str) -> int:
        return _grains(self._courses.get(course, 0.0))

    def _charge(self, one: Waiting) -> None:
        cost = one.size * CHARGE_H
        weighted = cost / self._weights.get(one.course, 1.0)
        self._courses[one.course] = self._courses.get(one.course, 0.0) + weighted
        self._users[one.user] = self._users.get(one.user, 0.0) + cost


def _grains(slice_hours: float) -> int:
    return int(slice_hours / GRAIN_H)


# -- the decision ---------------------------------------------------------------------------------


def next_in_line(
    waiting: Iterable[Waiting], grounds: Sequence[Ground], standing: Standing = ALL_EQUAL
) -> Grant | None:
    """Decide who gets slices now.

    Args:
        waiting: who waits, in any order.
        grounds: every GPU.
        standing: what everybody has used lately.

    Returns:
        The grant, or None when nobody can go now.
    """
    return first_that_fits(in_line(waiting, standing), grounds)


def first_that_fits(
    line: Iterable[Waiting], grounds: Sequence[Ground], ahead: Ahead | None = None
) -> Grant | None:
    """The decision for a line whose order is known; as `next_in_line`.

    Args:
        line: who waits, first in front.
        grounds: every GPU.
        ahead: what is known of the time ahead; without, nothing begins on what is set aside.
    """
    decision = _Decision(grounds, ahead)
    for one in line:
        choices = decision.place(one)
        if choices is not None:
            return Grant(one.ticket, choices)
    return None


class _Decision:
    """One walk along the line.  Room only shrinks meanwhile: what did not fit once never does."""

    def __init__(self, grounds: Sequence[Ground], ahead: Ahead | None) -> None:
        self._grounds, self._ahead = grounds, ahead
        self._owners = {one.course for one in grounds}
        self._first: Waiting | None = None
        self._aside = NOTHING
        self._states: dict[tuple[str, bool], list[GpuState]] = {}
        self._refused: set[tuple[tuple[str, ...], str, bool]] = set()

    def place(self, one: Waiting) -> tuple[Choice, ...] | None:
        """Where the next in line may go now; who is the first to go nowhere gets a place."""
        choices = self._try(one, is_on_it=False)
        if choices is None and self._is_let_by(one):
            choices = self._try(one, is_on_it=True)
        if choices is None and self._first is None:
            mine = own_first(self._grounds, one.course)
            self._first, self._aside = one, aside(one.profiles, mine)
            self._states.clear()
        return choices

    def _try(self, one: Waiting, *, is_on_it: bool) -> tuple[Choice, ...] | None:
        whose = one.course if one.course in self._owners else ""  # all others are alike
        key = (one.profiles, whose, is_on_it)
        if key in self._refused:
            return None
        choices = place(one.profiles, self._open(whose, is_on_it))
        if choices is None:
            self._refused.add(key)
        return choices

    def _open(self, course: str, is_on_it: bool) -> list[GpuState]:
        """The GPUs as a course may use them, with or without what is set aside."""
        if (course, is_on_it) not in self._states:
            taken = NOTHING if is_on_it else self._aside
            self._states[course, is_on_it] = taken.states(own_first(self._grounds, course))
        return self._states[course, is_on_it]

    def _is_let_by(self, one: Waiting) -> bool:
        """Whether it is over before the place of the first can be used."""
        if self._first is None or self._ahead is None:
            return False
        return self._aside.lets_by(one.lasts_s, self._first.ticket, self._ahead)
