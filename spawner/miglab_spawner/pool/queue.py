"""Who is next.  Pure: those who wait and the GPUs in, at most one grant out.

First come, first served.  When the first in line does not fit now, the place that will be free
for it soonest (fewest leases lie in it) is *set aside*: those behind may go ahead, in order, but
only outside it.  So nobody's turn is put off by someone who came later, a big shape is not starved
(what is set aside only empties), and no slice idles that the first in line could not use anyway.
A fairer rule replaces `next_in_line` and nothing else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from miglab_spawner.gpu.geometry import Geometry, Placed
from miglab_spawner.pool.placement import Choice, GpuState, place


@dataclass(frozen=True)
class Waiting:
    """A ticket in line.

    Attributes:
        ticket: its id.
        profiles: the profile of each slice wanted.
        since: when it was made; the line's order, the id breaks ties.
    """

    ticket: int
    profiles: tuple[str, ...]
    since: float


@dataclass(frozen=True)
class Ground:
    """A GPU, and what on it will not become free by a lease's end.

    Attributes:
        state: the GPU as placement sees it.
        fixed: the part of ``state.live`` that is foreign or quarantined.
    """

    state: GpuState
    fixed: tuple[Placed, ...] = ()


@dataclass(frozen=True)
class Grant:
    """The decision: this ticket gets these slices now."""

    ticket: int
    choices: tuple[Choice, ...]


def in_line(waiting: Iterable[Waiting]) -> list[Waiting]:
    """The line, first in front; a ticket's position is its place here."""
    return sorted(waiting, key=lambda one: (one.since, one.ticket))


def next_in_line(waiting: Iterable[Waiting], grounds: Sequence[Ground]) -> Grant | None:
    """Decide who gets slices now.

    Args:
        waiting: who waits, in any order.
        grounds: every GPU.

    Returns:
        The grant, or None when nobody can go now.
    """
    states = [ground.state for ground in grounds]
    refused: set[tuple[str, ...]] = set()  # room only shrinks within one call
    for one in in_line(waiting):
        if one.profiles in refused:
            continue
        choices = place(one.profiles, states)
        if choices is not None:
            return Grant(one.ticket, choices)
        if not refused:
            states = set_aside(one.profiles, grounds)
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
    kept: dict[str, tuple[Placed, ...]] = {}
    for name in sorted(profiles, key=lambda name: -_size(name, grounds)):
        best = min(_seats(name, grounds, kept), default=None, key=lambda seat: seat[0])
        if best is None:
            break
        _, gpu, placed = best
        kept[gpu] = (*kept.get(gpu, ()), placed)
    return [_without(ground.state, kept.get(ground.state.gpu, ())) for ground in grounds]


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
        for placed in _legal(geometry, name, taken):
            leased = sum(clash(placed, other) for other in ground.state.live)
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
