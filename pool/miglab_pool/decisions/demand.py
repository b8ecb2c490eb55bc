"""Who waits for what a lease would free.  Reads only; worked out once for all leases.

A ticket waits for it if one of its slices could lie where the lease's slices lie now, beside
everything else that is leased; and the first in the queue, if its hold lies there.  So does
a class whose reservation has a slot there: it counts as one more.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from miglab_pool.decisions import queue, reserved_slots
from miglab_pool.gpu.geometry import Geometry, Placed, Profile, occupied_mask
from miglab_pool.model.gpu import GpuOccupancy, open_to
from miglab_pool.model.once import once
from miglab_pool.model.rows import FULL, LeaseRow, SliceRow
from miglab_pool.rules.backfill import outside_hold
from miglab_pool.state.view import PoolView

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
    def shapes(self) -> frozenset[tuple[str, ...]]:
        """The profiles that are waited for, whoever waits."""
        return frozenset(profiles for profiles, _ in self.wanted)


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
    after = reserved_slots.open_gpus(view) if is_reserving else []
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
    helped = {
        profiles: {room.course for room in rooms if _helps(profiles, room)}
        for profiles in wanted.shapes
    }
    count = sum(
        users.total() - users[lease.user]
        for (profiles, course), users in wanted.wanted.items()
        if not helped[profiles].isdisjoint(("", course))
    )
    is_first = wanted.first not in ("", lease.user) and _any(wanted.held, rows)
    return max(count, int(is_first)) + int(_any(wanted.reserved, rows))


def _room(wanted: Demand, row: SliceRow, freed: list[SliceRow]) -> "_Room | None":
    """The place of a slice, all of its lease freed; None if nobody could get it."""
    occupancy = wanted.gpus.get(row.gpu)
    if occupancy is None or not occupancy.usable:
        return None
    gone = {(one.start, one.profile) for one in freed if one.gpu == row.gpu}
    stays = [one for one in occupancy.live if (one.placement.start, one.profile.name) not in gone]
    media = any(one.profile.has_media for one in stays)
    return _Room(occupancy.geometry, occupied_mask(stays), media, _mask(row), occupancy.course)


class _Room(NamedTuple):
    geometry: Geometry
    occupied: int
    has_media: bool
    mask: int
    course: str


def _helps(profiles: tuple[str, ...], room: _Room) -> bool:
    """Whether one of the profiles could lie there."""
    names = (room.geometry.by_name.get(name) for name in set(profiles))
    return any(
        profile is not None
        and not (profile.has_media and room.has_media)
        and _fits(profile, room.occupied, room.mask)
        for profile in names
    )


def _fits(profile: Profile, occupied: int, room: int) -> bool:
    return any(mask & room and not mask & occupied for mask in _masks(profile))


@lru_cache(maxsize=1024)
def _masks(profile: Profile) -> tuple[int, ...]:
    return tuple(placement.mask for placement in profile.placements)


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
