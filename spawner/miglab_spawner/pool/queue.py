"""Who is next.  Pure: those who wait, the GPUs and everybody's standing in, one grant out at most.

The order: holders of a reservation in force; then those who have waited for `Standing.ageing_s`,
in order of arrival; then fair share, first of courses and within a course of users; then arrival.
Each place in line is charged to its course and user as if it were served, so that courses, and
within them users, take turns.  Once somebody has aged, only reservations and those who came
earlier go before: so nobody starves.

When the first in line does not fit now, the place that will be free for it soonest (fewest leases
lie in it) is *set aside*: those behind may go ahead, in order, but only outside it.  So a big
shape is not starved (what is set aside only empties), and no slice idles that the first in line
could not use anyway.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from miglab_spawner.gpu.geometry import Geometry, Placed
from miglab_spawner.pool.placement import Choice, GpuState, place

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
    """

    ticket: int
    profiles: tuple[str, ...]
    since: float
    course: str = ""
    user: str = ""
    reserved: bool = False
    size: int = 1


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
    ageing_s: float = float("inf")

    def has_aged(self, one: Waiting) -> bool:
        """Whether it has waited so long that fair share no longer puts it back."""
        return self.now - one.since >= self.ageing_s


ALL_EQUAL = Standing()


@dataclass(frozen=True)
class Ground:
    """A GPU, and what on it will not become free by a lease's end.

    Attributes:
        state: the GPU as placement sees it.
        fixed: the part of ``state.live`` that is foreign, quarantined, or kept by a reservation.
    """

    state: GpuState
    fixed: tuple[Placed, ...] = ()


@dataclass(frozen=True)
class Grant:
    """The decision: this ticket gets these slices now."""

    ticket: int
    choices: tuple[Choice, ...]


# -- the order ------------------------------------------------------------------------------------


def in_line(waiting: Iterable[Waiting], standing: Standing = ALL_EQUAL) -> list[Waiting]:
    """The line, first in front; a ticket's position is its place here."""
    reserved: list[Waiting] = []
    aged: list[Waiting] = []
    others: list[Waiting] = []
    for one in sorted(waiting, key=lambda one: (one.since, one.ticket)):
        group = reserved if one.reserved else aged if standing.has_aged(one) else others
        group.append(one)
    turns = _Turns(standing)
    return [*turns.take(reserved), *turns.charged(aged), *turns.take(others)]


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


def first_that_fits(line: Iterable[Waiting], grounds: Sequence[Ground]) -> Grant | None:
    """The decision for a line whose order is known; as `next_in_line`."""
    refused: set[tuple[str, ...]] = set()  # room only shrinks within one call
    kept: dict[str, tuple[Placed, ...]] = {}
    for one in line:
        if one.profiles in refused:
            continue
        choices = place(one.profiles, _states(grounds, kept))
        if choices is not None:
            return Grant(one.ticket, choices)
        if not refused:
            kept = _keep(one.profiles, grounds)
        refused.add(one.profiles)
    return None


def set_aside(profiles: Sequence[str], grounds: Sequence[Ground]) -> list[GpuState]:
    """The GPUs as those behind may use them: without the place kept for ``profiles``.

    Args:
        profiles: what the first in line wants.
        grounds: every GPU.

    Returns:
        The states, the place kept counted as live; unchanged for what no usable GPU can hold.
    """
    return _states(grounds, _keep(profiles, grounds))


def _states(grounds: Sequence[Ground], kept: Mapping[str, tuple[Placed, ...]]) -> list[GpuState]:
    return [_without(ground.state, kept.get(ground.state.gpu, ())) for ground in grounds]


def _keep(profiles: Sequence[str], grounds: Sequence[Ground]) -> dict[str, tuple[Placed, ...]]:
    kept: dict[str, tuple[Placed, ...]] = {}
    for name in sorted(profiles, key=lambda name: -_size(name, grounds)):
        best = min(_seats(name, grounds, kept), default=None, key=lambda seat: seat[0])
        if best is None:
            break
        _, gpu, placed = best
        kept[gpu] = (*kept.get(gpu, ()), placed)
    return kept


def _size(name: str, grounds: Iterable[Ground]) -> int:
    sizes = [g.state.geometry.by_name[name].size for g in grounds if _has(g, name)]
    return max(sizes, default=0)


def _has(ground: Ground, name: str) -> bool:
    return name in ground.state.geometry.by_name


def _seats(
    name: str, grounds: Sequence[Ground], kept: dict[str, tuple[Placed, ...]]
) -> Iterable[tuple[tuple[int, int, int, int], str, Placed]]:
    for index, ground in enumerate(grounds):
        if not ground.state.usable or not _has(ground, name):
            continue
        gpu, geometry = ground.state.gpu, ground.state.geometry
        taken = (*ground.fixed, *kept.get(gpu, ()))
        live = [(item.placement.mask, item.profile.has_media) for item in ground.state.live]
        has_media = geometry.by_name[name].has_media
        for placed in _legal(geometry, name, taken):
            mask = placed.placement.mask
            leased = sum(1 for other, media in live if mask & other or (media and has_media))
            same = 0 if gpu in kept else 1
            yield (leased, same, index, placed.placement.start), gpu, placed


def _legal(geometry: Geometry, name: str, taken: Sequence[Placed]) -> Iterable[Placed]:
    profile = geometry.by_name[name]
    for placement in profile.placements:
        placed = Placed(profile, placement)
        if not any(clash(placed, other) for other in taken):
            yield placed


def clash(one: Placed, other: Placed) -> bool:
    """Whether two slices cannot be on one GPU: they overlap, or both are ``+me``."""
    both_media = one.profile.has_media and other.profile.has_media
    return both_media or bool(one.placement.mask & other.placement.mask)


def _without(state: GpuState, kept: tuple[Placed, ...]) -> GpuState:
    if not kept:
        return state
    warm = tuple(item for item in state.warm if not any(clash(item, keep) for keep in kept))
    return replace(state, live=(*state.live, *kept), warm=warm)
