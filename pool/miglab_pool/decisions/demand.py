"""Who waits for what a lease would free.  Reads only; worked out once per version of the pool.

A ticket waits for it if one of its slices could lie where the lease's slices lie now, beside
everything else that is leased; and the first in line, if the place kept for it lies there.  So does
a class whose reservation keeps a place there: it counts as one more.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from miglab_pool.decisions import queue, reserved_places
from miglab_pool.gpu.geometry import Geometry, Placed, Profile, occupied_mask
from miglab_pool.model.gpu import GpuState, Ground, open_to
from miglab_pool.model.rows import FULL, LeaseRow, SliceRow
from miglab_pool.rules.backfill import set_aside
from miglab_pool.state.store import Store

Wanted = tuple[tuple[str, ...], str]  # profiles, course


class Demand:
    """What is waited for, at one version of the pool."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._version = 0
        self._wanted: dict[Wanted, Counter[str]] = {}  # who waits for it, how often
        self._whole: Counter[str] = Counter()
        self._kept: dict[str, int] = {}
        self._reserved: dict[str, int] = {}
        self._first = ""
        self._grounds: dict[str, Ground] = {}

    def others(self, lease: LeaseRow) -> int:
        """How many tickets of other users wait for what this lease would free."""
        if not lease.is_held:
            return 0
        if self._version != self._store.version:
            self._look()
            self._version = self._store.version
        rows = self._store.state.slices_of(lease)
        if any(row.profile == FULL for row in rows):
            return self._whole.total() - self._whole[lease.user]
        if not (self._wanted or self._reserved):
            return 0
        rooms = [room for row in rows if (room := self._room(row, rows)) is not None]
        count = sum(
            users.total() - users[lease.user]
            for (profiles, course), users in self._wanted.items()
            if any(_helps(profiles, room) for room in rooms if room.course in ("", course))
        )
        is_first = self._first not in ("", lease.user) and _any(self._kept, rows)
        return max(count, int(is_first)) + int(_any(self._reserved, rows))

    def _look(self) -> None:
        store = self._store
        everyone = [] if store.paused else queue.served(store)
        line = [one for one in everyone if one.profiles != (FULL,)]
        self._wanted = {(one.profiles, one.course): Counter() for one in line}
        for one in line:
            self._wanted[one.profiles, one.course][one.user] += 1
        self._whole = Counter(one.user for one in everyone if one.profiles == (FULL,))
        is_reserving = bool(store.state.reservations)
        grounds = store.grounds() if line or is_reserving else []
        self._grounds = {ground.state.gpu: ground for ground in grounds}
        self._first = line[0].user if line else ""
        states = set_aside(line[0].profiles, open_to(grounds, line[0].course)) if line else []
        self._kept = _more(grounds, states)
        after = reserved_places.grounds(store, store.now()) if is_reserving else []
        self._reserved = _more(grounds, [ground.state for ground in after])

    def _room(self, row: SliceRow, freed: list[SliceRow]) -> "_Room | None":
        """The place of a slice, all of its lease freed; None if nobody could get it."""
        ground = self._grounds.get(row.gpu)
        if ground is None or not ground.state.usable:
            return None
        gone = {(one.start, one.profile) for one in freed if one.gpu == row.gpu}
        stays = [
            one for one in ground.state.live if (one.placement.start, one.profile.name) not in gone
        ]
        media = any(one.profile.has_media for one in stays)
        return _Room(ground.state.geometry, occupied_mask(stays), media, _mask(row), ground.course)


class _Room(NamedTuple):
    geometry: Geometry
    occupied: int
    has_media: bool
    place: int
    course: str


def _helps(profiles: tuple[str, ...], room: _Room) -> bool:
    """Whether one of the profiles could lie there."""
    names = (room.geometry.by_name.get(name) for name in set(profiles))
    return any(
        profile is not None
        and not (profile.has_media and room.has_media)
        and _fits(profile, room.occupied, room.place)
        for profile in names
    )


def _fits(profile: Profile, occupied: int, place: int) -> bool:
    return any(mask & place and not mask & occupied for mask in _masks(profile))


@lru_cache(maxsize=1024)
def _masks(profile: Profile) -> tuple[int, ...]:
    return tuple(placement.mask for placement in profile.placements)


def _any(kept: Mapping[str, int], rows: Iterable[SliceRow]) -> bool:
    """Whether anything of what is kept lies where these slices are."""
    return any(kept.get(row.gpu, 0) & _mask(row) for row in rows)


def _mask(row: SliceRow) -> int:
    return ((1 << row.size) - 1) << row.start


def _more(grounds: Sequence[Ground], states: Sequence[GpuState]) -> dict[str, int]:
    """The memory slices of each GPU that are live in ``states`` beyond ``grounds``, as bits."""
    more = {}
    for ground, state in zip(grounds, states, strict=False):  # no states: nothing is kept
        added: tuple[Placed, ...] = state.live[len(ground.state.live) :]
        if added:
            more[state.gpu] = occupied_mask(added)
    return more
