"""Who is next: the order of the queue.  Pure: those who wait and everybody's recent use.

The order: holders of a reservation in force; then those whom staff put in front; then those who
have waited for `FairShareUsage.ageing_s`, in order of arrival; then fair share, first of courses
and within a course of users; then arrival.  Each position is charged to its course and user as if
it were served, so that courses, and within them users, take turns.  Once somebody has aged, only
reservations, staff's choice and those who came earlier go before: so nobody starves.
"""

import heapq
from collections.abc import Iterable, Iterator

from miglab_pool.model.queue import ALL_EQUAL, FairShareUsage, Waiting

CHARGE_H = 1.0  # what a grant costs at once, hours: else one course would take all of one moment
GRAIN_H = 0.25  # smaller differences of use, in slice-hours, decide nothing: arrival does


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
