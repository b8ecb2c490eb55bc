"""The order of the queue.  Pure: waiting tickets and recent use in.

The order: tickets for a reservation in force; then those that staff put in front; then those that
have waited for `FairShareUsage.ageing_s`, by arrival; then by fair share, first of courses and
within a course of users; then by arrival.  Each position is charged to its course and user as if it
were served, so that courses, and within them users, take turns.  Only reservations, staff's choice
and earlier tickets go before a ticket that has aged, so no ticket starves.
"""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from miglab_pool.state.fair_share import ALL_EQUAL, CHARGE_H, FairShareUsage
from miglab_pool.state.placement import Choice

GRAIN_H = 0.25  # smaller differences of use, in slice-hours, decide nothing: arrival does


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
class Grant:
    """The decision that a ticket gets these slices now."""

    ticket: int
    choices: tuple[Choice, ...]


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
        group = reserved if ticket.reserved else aged if usage.has_aged(ticket.since) else unaged
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
