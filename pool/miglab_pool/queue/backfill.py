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
from math import inf
from typing import NamedTuple

from miglab_pool.gpu.geometry import Geometry, Placed, occupied_mask
from miglab_pool.leases.rules import guaranteed_s
from miglab_pool.ledger.rows import FULL, LeaseRow, SliceRow
from miglab_pool.queue import order as queue
from miglab_pool.queue.rules import Grant, Waiting
from miglab_pool.reservations import promises, slots
from miglab_pool.state.placement import (
    SOON,
    Choice,
    GpuOccupancy,
    Kept,
    beside,
    by_gpu,
    clash,
    own_first,
    place,
)
from miglab_pool.state.view import GpuSnapshot, PoolView, once

_Opened = tuple[str, tuple[str, str] | None]

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


class _Decision:
    """One walk along the queue.  Room only shrinks meanwhile: what did not fit once never does."""

    def __init__(self, gpus: Sequence[GpuOccupancy], view: PoolView | None = None) -> None:
        self._gpus, self._view = gpus, view
        self._owners = {one.course for one in gpus}
        self._hold: Kept | None = None  # for the first that did not fit
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
            self._hold = hold_for(one, self._gpus)
            self._opened.clear()
        return None

    def _promised(self, one: Waiting, choices: tuple[Choice, ...]) -> tuple[Choice, ...] | None:
        """Where it breaks no reservation, or there for as long as it breaks none; else nowhere."""
        view, key = self._view, (one.course, one.shape)
        if view is None:
            return choices
        mine = promises.claimable(view, one.user, key)
        beside = self._try(one.profiles, one.course, mine)
        if beside is not None:
            return beside
        until = view.at + guaranteed_s(view.settings, view.tickets[one.ticket])
        found = promises.grant_limit(view, one.user, key, choices, until)
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
                gpus = promises.without_promised(self._view, gpus, key)
            self._opened[known] = beside(own_first(gpus, course), self._hold or {})
        return self._opened[known]


# -- the hold -------------------------------------------------------------------------------------


def hold_for(first: Waiting | None, gpus: Sequence[GpuOccupancy]) -> Kept:
    """The room that is kept free for the first in the queue; nothing where nobody is."""
    return hold(first.profiles, own_first(gpus, first.course)) if first else {}


def hold(profiles: Sequence[str], gpus: Sequence[GpuOccupancy]) -> Kept:
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


# -- who waits for a lease ------------------------------------------------------------------------


class Demand(NamedTuple):
    """What is waited for.

    Attributes:
        wanted: who waits, how often, by profiles and course.
        names: the profiles that are waited for.
        first: who is the first in the queue.
        held: the memory slices of what is held for the first, by GPU, as bits.
        reserved: those of the reserved slots.
    """

    wanted: Mapping[tuple[tuple[str, ...], str], Counter[str]]
    names: frozenset[str]
    first: str
    held: Mapping[str, int]
    reserved: Mapping[str, int]


@once
def demand(view: PoolView) -> Demand:
    """What is waited for now."""
    served = () if view.paused else queue.served(view)
    wanted: defaultdict[tuple[tuple[str, ...], str], Counter[str]] = defaultdict(Counter)
    for one in served:
        wanted[one.profiles, one.course][one.user] += 1
    first = next((one for one in served if one.profiles != (FULL,)), None)
    reserved = (slot for _, slot in slots.slots_with_reservation(view))
    return Demand(
        wanted,
        frozenset(name for names, _ in wanted for name in names),
        first.user if first else "",
        _masks(hold_for(first, view.occupancies)),
        _masks(by_gpu(reserved)),
    )


def _masks(kept: Kept) -> dict[str, int]:
    return {gpu: occupied_mask(tuple(places)) for gpu, places in kept.items()}


def others_waiting(view: PoolView, lease: LeaseRow) -> int:
    """How many tickets of other users wait for what this lease would free."""
    asked, rows = demand(view), view.slices_of(lease)
    if not lease.is_held or not (asked.wanted or asked.reserved):
        return 0
    rooms = [(view.gpus[row.gpu].course, _names_there(view, row, rows, asked)) for row in rows]
    count = sum(
        users.total() - users[lease.user]
        for (names, course), users in asked.wanted.items()
        if any(whose in ("", course) and not there.isdisjoint(names) for whose, there in rooms)
    )
    is_first = asked.first not in ("", lease.user) and _any(asked.held, rows)
    return max(count, int(is_first)) + int(_any(asked.reserved, rows))


def _names_there(
    view: PoolView, row: SliceRow, freed: Sequence[SliceRow], asked: Demand
) -> frozenset[str]:
    """The profiles waited for that could lie where a slice does, all of its lease freed."""
    occupancy = view.gpus[row.gpu].occupancy
    if row.profile == FULL or occupancy is None or not occupancy.usable:
        return frozenset({FULL} if row.profile == FULL else ())
    mine = {view.placed(one).bits for one in freed if one.gpu == row.gpu}
    taken = 0
    for bits in _live_bits(view.gpus[row.gpu]) - mine:
        taken |= bits
    places, mask = occupancy.geometry.placements, _mask(row)
    return frozenset(
        name
        for name in asked.names
        if any(bits & mask and not bits & taken for bits, _ in places.get(name, ()))
    )


@once
def _live_bits(gpu: GpuSnapshot) -> frozenset[int]:
    """What cannot be used of a GPU, as `Placed.bits`."""
    return frozenset(item.bits for item in gpu.occupancy.live) if gpu.occupancy else frozenset()


def _any(held: Mapping[str, int], rows: Iterable[SliceRow]) -> bool:
    """Whether anything of what is kept lies where these slices are."""
    return any(held.get(row.gpu, 0) & _mask(row) for row in rows)


def _mask(row: SliceRow) -> int:
    return ((1 << row.size) - 1) << row.start
