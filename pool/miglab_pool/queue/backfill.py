"""Who may start ahead of the first in the queue without making that one wait longer.

When the first in the queue does not fit now, the room that is free soonest by the ends that are set
is held for it.  Those behind may start, in order, outside of it: a big shape is not starved, and no
slice idles that the first in the queue could not use anyway.

It follows who waits for what a lease would free, worked out once for all leases.  A ticket waits
for it if one of its slices could lie where the lease's slices lie now, beside everything else that
is leased; and the first in the queue, if its hold lies there.  So does a class whose reservation
has a slot there: it counts as one more.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import NamedTuple

from miglab_pool import reservations
from miglab_pool.gpu.geometry import Geometry, Placed, occupied_mask
from miglab_pool.leases.rules import guaranteed_s
from miglab_pool.ledger.rows import FULL, LeaseRow, SliceRow
from miglab_pool.queue import order as queue
from miglab_pool.queue.rules import Grant, Waiting
from miglab_pool.state.placement import SOON, Choice, GpuOccupancy, clash, open_to, own_first, place
from miglab_pool.state.view import PoolView, once

# -- the decision ---------------------------------------------------------------------------------


def first_that_fits(
    queue: Iterable[Waiting],
    gpus: Sequence[GpuOccupancy],
    view: PoolView | None = None,
) -> Grant | None:
    """Decide who gets slices now.

    Args:
        queue: who waits, first in front.
        gpus: every GPU.
        view: the pool whose reservations no grant may break; None: there are none.

    Returns:
        The grant, or None when nobody can go now.
    """
    decision = _Decision(gpus, view if view and view.reservations else None)
    for one in queue:
        choices = decision.place(one)
        if choices is not None:
            return Grant(one.ticket, choices)
    return None


def any_fits(wanted: Iterable[tuple[tuple[str, ...], str]], gpus: Sequence[GpuOccupancy]) -> bool:
    """Whether anything has room now, whoever's turn it is: if nothing has, nobody can go.

    Args:
        wanted: the profiles and the course of each who waits.
        gpus: every GPU.
    """
    decision = _Decision(gpus)
    return any(decision.fits(profiles, course) for profiles, course in wanted)


_Opened = tuple[str, tuple[str, str] | None]


class _Decision:
    """One walk along the queue.  Room only shrinks meanwhile: what did not fit once never does."""

    def __init__(self, gpus: Sequence[GpuOccupancy], view: PoolView | None = None) -> None:
        self._gpus, self._view = gpus, view
        self._owners = {one.course for one in gpus}
        self._hold: Hold | None = None  # for the first that did not fit
        self._opened: dict[_Opened, list[GpuOccupancy]] = {}
        self._refused: set[tuple[tuple[str, ...], str, tuple[str, str] | None]] = set()

    def fits(self, profiles: tuple[str, ...], course: str) -> bool:
        """Whether a course finds room for a shape."""
        return self._try(profiles, course) is not None

    def place(self, one: Waiting) -> tuple[Choice, ...] | None:
        """Where the next in the queue may go now; for the first to go nowhere room is held."""
        choices = self._try(one.profiles, one.course)
        if choices is not None:
            return self._promised(one, choices)
        if self._hold is None:
            self._hold = hold(one.profiles, own_first(self._gpus, one.course))
            self._opened.clear()
        return None

    def _promised(self, one: Waiting, choices: tuple[Choice, ...]) -> tuple[Choice, ...] | None:
        """Where it breaks no reservation, or there for as long as it breaks none; else nowhere."""
        view, key = self._view, (one.course, one.shape)
        if view is None:
            return choices
        mine = reservations.claimable(view, one.user, key)
        beside = self._try(one.profiles, one.course, mine)
        if beside is not None:
            return beside
        until = view.at + guaranteed_s(view.settings, view.tickets[one.ticket])
        found = reservations.grant_limit(view, one.user, key, choices, until)
        return choices if found.is_enough else None

    def _try(
        self,
        profiles: tuple[str, ...],
        course: str,
        key: tuple[str, str] | None = None,
    ) -> tuple[Choice, ...] | None:
        """Where a shape fits; ``key``: beside what is promised to others."""
        whose = course if course in self._owners else ""  # all others are alike
        known = (profiles, whose, key)
        if known in self._refused:
            return None
        choices = place(profiles, self._open(whose, key))
        if choices is None:
            self._refused.add(known)
        return choices

    def _open(self, course: str, key: tuple[str, str] | None) -> list[GpuOccupancy]:
        """The GPUs as a course may use them; ``key``: without what is promised to others."""
        known = (course, key)
        if known not in self._opened:
            gpus = self._gpus
            if key is not None and self._view is not None:
                gpus = reservations.without_promised(self._view, gpus, key)
            self._opened[known] = without_hold(own_first(gpus, course), self._hold or {})
        return self._opened[known]


# -- the hold -------------------------------------------------------------------------------------


Hold = Mapping[str, tuple[Placed, ...]]
"""Room that is kept free for the first in the queue: the placements, by GPU."""


def without_hold(gpus: Sequence[GpuOccupancy], held: Hold) -> list[GpuOccupancy]:
    """The GPUs for those who may not use what is held."""
    return [_without(one, held.get(one.gpu, ())) for one in gpus]


def hold(profiles: Sequence[str], gpus: Sequence[GpuOccupancy]) -> Hold:
    """Choose the room for a shape: large slices first, each where it is free soonest.

    Args:
        profiles: what the first in the queue wants.
        gpus: every GPU.

    Returns:
        The hold; nothing for what no usable GPU can hold.
    """
    held: dict[str, tuple[Placed, ...]] = {}
    for name in sorted(profiles, key=lambda name: -_size(name, gpus)):
        candidates = [
            ((best.frees_at, best.leases, one.gpu not in held, index), one.gpu, best.placed)
            for index, one in enumerate(gpus)
            if (best := _best_on(one, name, held.get(one.gpu, ()))) is not None
        ]
        if not candidates:
            break
        _, gpu, placed = min(candidates, key=lambda one: one[0])
        held[gpu] = (*held.get(gpu, ()), placed)
    return held


def outside_hold(profiles: Sequence[str], gpus: Sequence[GpuOccupancy]) -> list[GpuOccupancy]:
    """The GPUs as those behind may use them: without the room held for ``profiles``.

    Args:
        profiles: what the first in the queue wants.
        gpus: every GPU.

    Returns:
        The GPUs, the hold counted as live; unchanged for what no usable GPU can hold.
    """
    return without_hold(gpus, hold(profiles, gpus))


class _Candidate(NamedTuple):
    """The placement on one GPU that is free soonest, when, and after how many ends."""

    frees_at: float
    leases: int
    start: int
    placed: Placed


def _size(name: str, gpus: Iterable[GpuOccupancy]) -> int:
    sizes = [g.geometry.by_name[name].size for g in gpus if _has(g, name)]
    return max(sizes, default=0)


def _has(occupancy: GpuOccupancy, name: str) -> bool:
    return name in occupancy.geometry.by_name


@once
def _best_on(occupancy: GpuOccupancy, name: str, held: tuple[Placed, ...]) -> _Candidate | None:
    """Where on a GPU a slice might be held beside these; kept with the GPU, for every decision."""
    if not occupancy.usable or not _has(occupancy, name):
        return None
    has_media = occupancy.geometry.by_name[name].has_media
    live = [(one.placement.mask, one.profile.has_media and has_media) for one in occupancy.live]
    found = []
    for placed in _legal(occupancy.geometry, name, (*occupancy.fixed, *held)):
        mask = placed.placement.mask
        there = [
            occupancy.frees_at.get(other, inf) for other, media in live if media or mask & other
        ]
        key = (max(there, default=SOON), len(there), placed.placement.start)
        found.append(_Candidate(*key, placed))
    return min(found, default=None, key=lambda one: one[:3])


def _legal(geometry: Geometry, name: str, taken: Sequence[Placed]) -> Iterator[Placed]:
    profile = geometry.by_name[name]
    for placement in profile.placements:
        placed = Placed(profile, placement)
        if not any(clash(placed, other) for other in taken):
            yield placed


def _without(gpu: GpuOccupancy, held: tuple[Placed, ...]) -> GpuOccupancy:
    if not held:
        return gpu
    warm = tuple(item for item in gpu.warm if not any(clash(item, keep) for keep in held))
    return replace(gpu, live=(*gpu.live, *held), warm=warm)


Wanted = tuple[tuple[str, ...], str]  # profiles, course


@dataclass(frozen=True)
class Demand:
    """What is waited for.

    Attributes:
        wanted: who waits for it, how often.
        whole: who waits for a whole GPU.
        first: who is the first in the queue.
        held: the memory slices of what is held for the first, by GPU, as bits.
        reserved: those of the reserved slots.
        gpus: the GPUs that are cut.
    """

    wanted: Mapping[Wanted, Counter[str]]
    whole: Counter[str]
    first: str
    held: Mapping[str, int]
    reserved: Mapping[str, int]
    gpus: Mapping[str, GpuOccupancy]

    @cached_property
    def by_shape(self) -> dict[tuple[str, ...], dict[str, "_Waiting"]]:
        """Who waits for some profiles, by the course whose GPUs would help; ``""``: all of them."""
        users: defaultdict[tuple[str, ...], dict[str, Counter[str]]] = defaultdict(dict)
        for (profiles, course), waiting in self.wanted.items():
            everyone = users[profiles].setdefault("", Counter())
            everyone.update(waiting)
            users[profiles][course] = waiting
        return {
            profiles: {course: _Waiting(one, one.total()) for course, one in of_course.items()}
            for profiles, of_course in users.items()
        }


class _Waiting(NamedTuple):
    users: Counter[str]
    total: int


@once
def demand(view: PoolView) -> Demand:
    """What is waited for now."""
    everyone = () if view.paused else queue.served(view)
    queued = [one for one in everyone if one.profiles != (FULL,)]
    wanted: defaultdict[Wanted, Counter[str]] = defaultdict(Counter)
    for one in queued:
        wanted[one.profiles, one.course][one.user] += 1
    is_reserving = bool(view.reservations)
    gpus = view.occupancies if queued or is_reserving else []
    states = outside_hold(queued[0].profiles, open_to(gpus, queued[0].course)) if queued else []
    after = reservations.open_gpus(view) if is_reserving else []
    return Demand(
        wanted=wanted,
        whole=Counter(one.user for one in everyone if one.profiles == (FULL,)),
        first=queued[0].user if queued else "",
        held=_more(gpus, states),
        reserved=_more(gpus, after),
        gpus={occupancy.gpu: occupancy for occupancy in gpus},
    )


def others_waiting(view: PoolView, lease: LeaseRow) -> int:
    """How many tickets of other users wait for what this lease would free."""
    if not lease.is_held:
        return 0
    wanted, rows = demand(view), view.slices_of(lease)
    if any(row.profile == FULL for row in rows):
        return wanted.whole.total() - wanted.whole[lease.user]
    if not (wanted.wanted or wanted.reserved):
        return 0
    rooms = [room for row in rows if (room := _room(wanted, row, rows)) is not None]
    helped = (
        waiting
        for profiles, of_course in wanted.by_shape.items()
        for waiting in _helped(profiles, of_course, rooms)
    )
    count = sum(waiting.total - waiting.users[lease.user] for waiting in helped)
    is_first = wanted.first not in ("", lease.user) and _any(wanted.held, rows)
    return max(count, int(is_first)) + int(_any(wanted.reserved, rows))


class _Room(NamedTuple):
    """The place of a slice, all of its lease freed; what is taken beside it as `Placed.bits`."""

    geometry: Geometry
    taken: int
    mask: int
    course: str


def _room(wanted: Demand, row: SliceRow, freed: list[SliceRow]) -> _Room | None:
    """The place of a slice; None if nobody could get it."""
    occupancy = wanted.gpus.get(row.gpu)
    if occupancy is None or not occupancy.usable:
        return None
    gone = {(one.start, one.profile) for one in freed if one.gpu == row.gpu}
    taken = 0
    for one in occupancy.live:
        if (one.placement.start, one.profile.name) not in gone:
            taken |= one.bits
    return _Room(occupancy.geometry, taken, _mask(row), occupancy.course)


def _helped(
    profiles: tuple[str, ...], of_course: Mapping[str, _Waiting], rooms: Iterable[_Room]
) -> list[_Waiting]:
    """Those who wait for these profiles and could have one in one of the rooms."""
    courses = {room.course for room in rooms if _helps(profiles, room)}
    helped = {""} if "" in courses else courses
    return [of_course[course] for course in helped if course in of_course]


def _helps(profiles: tuple[str, ...], room: _Room) -> bool:
    """Whether one of the profiles could lie there."""
    places = room.geometry.placements
    return any(
        bits & room.mask and not bits & room.taken
        for name in profiles
        for bits, _ in places.get(name, ())
    )


def _any(held: Mapping[str, int], rows: Iterable[SliceRow]) -> bool:
    """Whether anything of what is kept lies where these slices are."""
    return any(held.get(row.gpu, 0) & _mask(row) for row in rows)


def _mask(row: SliceRow) -> int:
    return ((1 << row.size) - 1) << row.start


def _more(gpus: Sequence[GpuOccupancy], states: Sequence[GpuOccupancy]) -> dict[str, int]:
    """The memory slices of each GPU that are live in ``states`` beyond ``gpus``, as bits."""
    more = {}
    for occupancy, state in zip(gpus, states, strict=False):  # no states: nothing is kept
        added: tuple[Placed, ...] = state.live[len(occupancy.live) :]
        if added:
            more[state.gpu] = occupied_mask(added)
    return more
