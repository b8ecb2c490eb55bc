"""Who may go ahead of the first in the queue without making that one wait longer.

When the first in the queue does not fit now, the place that will be free for it soonest is *held*:
those behind may go ahead, in order, but only outside it, or if they are surely gone before it could
be used.  So a big shape is not starved (the moment at which its place is surely empty never moves
back), and no slice idles that the first in the queue could not use anyway.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from miglab_pool.gpu.geometry import Geometry, Placed
from miglab_pool.model.gpu import UNKNOWN, Choice, GpuState, Ground, clash, own_first
from miglab_pool.model.queue import ALL_EQUAL, Ahead, Grant, Standing, Waiting
from miglab_pool.rules.placement.placement import place
from miglab_pool.rules.queue_order import in_line

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


def any_fits(wanted: Iterable[tuple[tuple[str, ...], str]], grounds: Sequence[Ground]) -> bool:
    """Whether anything has room now, whoever's turn it is: if nothing has, nobody can go.

    Args:
        wanted: the profiles and the course of each who waits.
        grounds: every GPU.
    """
    decision = _Decision(grounds, None)
    return any(decision.fits(profiles, course) for profiles, course in wanted)


class _Decision:
    """One walk along the line.  Room only shrinks meanwhile: what did not fit once never does."""

    def __init__(self, grounds: Sequence[Ground], ahead: Ahead | None) -> None:
        self._grounds, self._ahead = grounds, ahead
        self._owners = {one.course for one in grounds}
        self._first: Waiting | None = None
        self._aside = NOTHING
        self._states: dict[tuple[str, bool], list[GpuState]] = {}
        self._refused: set[tuple[tuple[str, ...], str, bool]] = set()

    def fits(self, profiles: tuple[str, ...], course: str) -> bool:
        """Whether a course finds room for a shape, what is set aside counted as room."""
        return self._try(profiles, course, is_on_it=True) is not None

    def place(self, one: Waiting) -> tuple[Choice, ...] | None:
        """Where the next in line may go now; who is the first to go nowhere gets a place."""
        choices = self._try(one.profiles, one.course, is_on_it=False)
        if choices is None and self._is_let_by(one):
            choices = self._try(one.profiles, one.course, is_on_it=True)
        if choices is None and self._first is None:
            mine = own_first(self._grounds, one.course)
            self._first, self._aside = one, aside(one.profiles, mine)
            self._states.clear()
        return choices

    def _try(
        self, profiles: tuple[str, ...], course: str, *, is_on_it: bool
    ) -> tuple[Choice, ...] | None:
        whose = course if course in self._owners else ""  # all others are alike
        key = (profiles, whose, is_on_it)
        if key in self._refused:
            return None
        choices = place(profiles, self._open(whose, is_on_it))
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


def _without(state: GpuState, kept: tuple[Placed, ...]) -> GpuState:
    if not kept:
        return state
    warm = tuple(item for item in state.warm if not any(clash(item, keep) for keep in kept))
    return replace(state, live=(*state.live, *kept), warm=warm)
