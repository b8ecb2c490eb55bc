"""The place set aside for the first in line, and who may go ahead on it.  Pure.

When the first in line does not fit now, the place that is surely empty soonest is set aside for it:
by the ends that leases have now, of equals where the fewest lie.  Nothing new begins there, except
what surely is over before that moment (`Aside.lets_by`).  So that moment never moves back, unless
somebody extends a lease there.
Knows neither ledger nor clock: moments are seconds since the epoch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from miglab_spawner.gpu.geometry import Geometry, Placed
from miglab_spawner.pool.placing.placement import GpuState

_SOON = -inf  # what is being scrubbed, or cut for nobody yet


class Stay(NamedTuple):
    """Until when something lies on its place.

    Attributes:
        ends_at: its end as it is set now; infinite if none is.
        not_before: it is surely there until then, if nobody leaves early; minus infinity for what
            is being given back, or was warned.
    """

    ends_at: float
    not_before: float


UNKNOWN = Stay(inf, -inf)
SOON = Stay(_SOON, _SOON)


@dataclass(frozen=True)
class Ground:
    """A GPU, and what on it will not become free by a lease's end.

    Attributes:
        state: the GPU as placement sees it.
        fixed: the part of ``state.live`` that is foreign, quarantined, or kept by a reservation.
        stays: how long the rest of ``state.live`` stays, by `Placement.mask`; `UNKNOWN` for what
            is not named.
        course: the only course that gets leases there; empty: every course.
    """

    state: GpuState
    fixed: tuple[Placed, ...] = ()
    stays: Mapping[int, Stay] = field(default_factory=dict)
    course: str = ""


def open_to(grounds: Sequence[Ground], course: str) -> list[Ground]:
    """Every GPU as a course may use it: another course's own takes nothing of it."""
    return [one if one.course in ("", course) else _shut(one) for one in grounds]


def own_first(grounds: Sequence[Ground], course: str) -> list[Ground]:
    """As `open_to`, a course's own in front: of equal places room for all is left to others."""
    return sorted(open_to(grounds, course), key=lambda one: one.course != course)


def _shut(ground: Ground) -> Ground:
    return replace(ground, state=replace(ground.state, usable=False))


@dataclass(frozen=True)
class Ahead:
    """What is known of the time ahead, for those who would go ahead.

    Attributes:
        now: the moment of the decision.
        not_before: by ticket: it is hardly ever served before then, as leases lasted lately.  For
            whom nothing is named nobody goes ahead: people leave early, and nothing says when.
    """

    now: float
    not_before: Mapping[int, float]


@dataclass(frozen=True)
class Aside:
    """What is set aside.

    Attributes:
        kept: the places, by GPU.
        until: when they are surely empty by the ends that are set; infinite if some lease on them
            has none.
        not_before: before when they are surely not, if nobody leaves early.
    """

    kept: Mapping[str, tuple[Placed, ...]] = field(default_factory=dict)
    until: float = inf
    not_before: float = -inf

    def states(self, grounds: Sequence[Ground]) -> list[GpuState]:
        """The GPUs for those who may not use what is set aside."""
        return [_without(one.state, self.kept.get(one.state.gpu, ())) for one in grounds]

    def lets_by(self, lasts_s: float, ticket: int, ahead: Ahead) -> bool:
        """Whether a lease may begin on it: it is gone before the place could be used.

        Args:
            lasts_s: how long it would lie there at most, seconds.
            ticket: whom the place is set aside for.
            ahead: what is known.
        """
        by_history = ahead.not_before.get(ticket, -inf)
        return bool(self.kept) and ahead.now + lasts_s <= min(self.not_before, by_history)


NOTHING = Aside()


def aside(profiles: Sequence[str], grounds: Sequence[Ground]) -> Aside:
    """Choose the place for a shape: large slices first, each where it is empty soonest.

    Args:
        profiles: what the first in line wants.
        grounds: every GPU.

    Returns:
        The place; nothing for what no usable GPU can hold.
    """
    kept: dict[str, tuple[Placed, ...]] = {}
    found: list[_Seat] = []
    for name in sorted(profiles, key=lambda name: -_size(name, grounds)):
        best = min(_seats(name, grounds, kept), default=None, key=lambda seat: seat.key)
        if best is None:
            break
        found.append(best)
        kept[best.gpu] = (*kept.get(best.gpu, ()), best.placed)
    until = max((seat.key[0] for seat in found), default=inf)
    sure = max((seat.not_before for seat in found), default=-inf)
    return Aside(kept, until, sure if until < inf else -inf)


def set_aside(profiles: Sequence[str], grounds: Sequence[Ground]) -> list[GpuState]:
    """The GPUs as those behind may use them: without the place kept for ``profiles``.

    Args:
        profiles: what the first in line wants.
        grounds: every GPU.

    Returns:
        The states, the place kept counted as live; unchanged for what no usable GPU can hold.
    """
    return aside(profiles, grounds).states(grounds)


class _Seat(NamedTuple):
    """A place that might be set aside; of several the one with the least key is."""

    key: tuple[float, int, int, int, int]
    gpu: str
    placed: Placed
    not_before: float


def _size(name: str, grounds: Iterable[Ground]) -> int:
    sizes = [g.state.geometry.by_name[name].size for g in grounds if _has(g, name)]
    return max(sizes, default=0)


def _has(ground: Ground, name: str) -> bool:
    return name in ground.state.geometry.by_name


def _seats(
    name: str, grounds: Sequence[Ground], kept: Mapping[str, tuple[Placed, ...]]
) -> Iterator[_Seat]:
    for index, ground in enumerate(grounds):
        if not ground.state.usable or not _has(ground, name):
            continue
        gpu, geometry = ground.state.gpu, ground.state.geometry
        has_media = geometry.by_name[name].has_media
        live = [
            (item.placement.mask, item.profile.has_media and has_media)
            for item in ground.state.live
        ]
        same = 0 if gpu in kept else 1
        for placed in _legal(geometry, name, (*ground.fixed, *kept.get(gpu, ()))):
            mask = placed.placement.mask
            there = [
                ground.stays.get(other, UNKNOWN) for other, media in live if media or mask & other
            ]
            until = max((stay.ends_at for stay in there), default=-inf)
            sure = max((stay.not_before for stay in there), default=-inf)
            key = (until, len(there), same, index, placed.placement.start)
            yield _Seat(key, gpu, placed, sure)


def _legal(geometry: Geometry, name: str, taken: Sequence[Placed]) -> Iterator[Placed]:
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
