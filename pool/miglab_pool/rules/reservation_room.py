"""Whether what is reserved at the same time fits.  Pure: counts and rules in, verdicts out."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from miglab_pool.gpu.geometry import Geometry
from miglab_pool.gpu.shapes import FULL
from miglab_pool.model.gpu import GpuOccupancy
from miglab_pool.model.schedule import Occurrence, Schedule, occurrences
from miglab_pool.rules.placement.placement import packs
from miglab_pool.rules.slot_choice import SlotCandidate, choose_slots

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Room:
    """The GPUs, all empty.

    Attributes:
        geometries: of each GPU that is cut on demand.
        whole: how many GPUs are leased whole.
        layout_slices: the slices, by profile, of GPUs that a layout cuts.
    """

    geometries: tuple[Geometry, ...]
    whole: int = 0
    layout_slices: Mapping[str, int] = field(default_factory=dict)

    def holds(self, profiles: Mapping[str, int]) -> bool:
        """Whether so many of each profile (``full`` for a whole GPU) fit together.

        What layouts have cut is taken from them first, as each serves only its own profile.  The
        rest by the closed form where it holds; for GPUs of several kinds and ``+me`` slices by
        choosing slots on them.
        """
        wanted = dict(
            Counter({n: k for n, k in profiles.items() if n != FULL}) - Counter(self.layout_slices)
        )
        if profiles.get(FULL, 0) > self.whole:
            return False
        if not wanted:
            return True
        kinds = set(self.geometries)
        if not wanted.keys() <= {name for kind in kinds for name in kind.by_name}:
            return False
        has_media = any(
            kind.by_name[name].has_media
            for kind in kinds
            for name in wanted
            if name in kind.by_name
        )
        if len(kinds) == 1 and not has_media:
            return packs(wanted, len(self.geometries), self.geometries[0])
        candidates = [
            SlotCandidate(GpuOccupancy(str(index), kind))
            for index, kind in enumerate(self.geometries)
        ]
        names = list(Counter(wanted).elements())
        if len(names) > sum(kind.memory_slices for kind in self.geometries):
            return False
        return len(choose_slots([(name,) for name in names], candidates)) == len(names)


def times(profiles: Iterable[str], count: int) -> Counter[str]:
    """The profiles of ``count`` leases."""
    return Counter({name: n * count for name, n in Counter(profiles).items()})


def first_clash(
    rule: Schedule,
    others: Mapping[Name, Schedule],
    span: tuple[float, float],
    fits: Callable[[frozenset[Name]], bool],
) -> tuple[float, frozenset[Name]] | None:
    """The first moment at which a class and those held at the same time do not fit.

    Args:
        rule: of the class that is to be reserved.
        others: the rules of those that are, by name.
        span: between which moments to look.
        fits: whether the class fits beside these.

    Returns:
        The moment and who clashes; None if it fits always.
    """
    held = {name: list(occurrences(other, *span)) for name, other in others.items()}
    known: dict[frozenset[Name], bool] = {}
    for mine in occurrences(rule, *span):
        near = {name: met for name, every in held.items() if (met := _meeting(mine, every))}
        for at in _moments(mine, near.values()):
            beside = frozenset(name for name, met in near.items() if _is_held(met, at))
            if beside not in known:
                known[beside] = fits(beside)
            if not known[beside]:
                return at, beside
    return None


def _meeting(mine: Occurrence, every: Sequence[Occurrence]) -> list[Occurrence]:
    """Those of an ordered list that overlap with one."""
    found = []
    for one in every[max(0, bisect_left(every, (mine.starts_at,)) - 1) :]:
        if one.starts_at >= mine.ends_at:
            break
        if one.overlaps(mine):
            found.append(one)
    return found


def _moments(mine: Occurrence, near: Iterable[Sequence[Occurrence]]) -> list[float]:
    """When something begins during an occurrence: the sum can only grow then."""
    starts = {max(mine.starts_at, one.starts_at) for met in near for one in met}
    return sorted(starts | {mine.starts_at})


def _is_held(met: Sequence[Occurrence], at: float) -> bool:
    return any(one.starts_at <= at < one.ends_at for one in met)
