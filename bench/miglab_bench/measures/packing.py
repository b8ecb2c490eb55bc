"""Packing policies that the placement benchmark compares.  Pure: requests in, accepted or not out.

Ours is the pool's own decision function.  The others know a GPU only as a bit mask of its occupied
memory slices; slices they get back are simply free.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Protocol

from miglab_pool.gpu.geometry import Geometry, Placed
from miglab_pool.state.placement import Choice, GpuOccupancy, place

Held = Any  # what a policy wants back at release; only that policy looks into it
Option = tuple[float, int]  # what a placement scores (least wins), and its memory slices as bits
Choose = Callable[[int, str], Option | None]


class Policy(Protocol):
    """Decides arrival by arrival; it never learns how long a lease will last."""

    def take(self, profile: str) -> Held | None:
        """Take room for one slice, or None if the policy has none."""

    def give_back(self, held: Held) -> None:
        """Take back what `take` returned."""


class MiglabPacking:
    """The pool's decision over live and warm slices: a slice given back stays warm."""

    def __init__(self, geometry: Geometry, n_gpus: int) -> None:
        self._gpus = [GpuOccupancy(str(index), geometry) for index in range(n_gpus)]

    def take(self, profile: str) -> tuple[int, Placed] | None:
        """As `Policy.take`."""
        choices = place([profile], self._gpus)
        if choices is None:
            return None
        index, made = int(choices[0].gpu), Placed(choices[0].profile, choices[0].placement)
        self._gpus[index] = _with_lease(self._gpus[index], made, choices[0])
        return index, made

    def give_back(self, held: tuple[int, Placed]) -> None:
        """As `Policy.give_back`."""
        index, slice_ = held
        gpu = self._gpus[index]
        live = tuple(item for item in gpu.live if item is not slice_)
        self._gpus[index] = GpuOccupancy(gpu.gpu, gpu.geometry, live, (*gpu.warm, slice_))


def _with_lease(gpu: GpuOccupancy, made: Placed, choice: Choice) -> GpuOccupancy:
    gone = {item.placement for item in choice.destroy} | {made.placement}
    warm = tuple(item for item in gpu.warm if item.placement not in gone)
    return GpuOccupancy(gpu.gpu, gpu.geometry, (*gpu.live, made), warm)


class Scored:
    """Take the placement of the lowest score; the first GPU wins ties."""

    def __init__(self, n_gpus: int, choose: Choose) -> None:
        self._masks = [0] * n_gpus
        self._choose = choose

    def take(self, profile: str) -> tuple[int, int] | None:
        """As `Policy.take`."""
        options = ((self._choose(mask, profile), gpu) for gpu, mask in enumerate(self._masks))
        scored = [(option[0], gpu, option[1]) for option, gpu in options if option]
        if not scored:
            return None
        _, gpu, taken = min(scored)
        self._masks[gpu] |= taken
        return gpu, taken

    def give_back(self, held: tuple[int, int]) -> None:
        """As `Policy.give_back`."""
        gpu, taken = held
        self._masks[gpu] &= ~taken


def packs(counts: Mapping[str, int], n_gpus: int, geometry: Geometry) -> bool:
    """Whether slices fit on empty GPUs if each may lie anywhere: a closed form, no search.

    Largest profiles first, among equals those with the fewest starts, each at the highest start
    that is left: the upper end of a GPU hosts least (no 2g at 6, no 1g at 7).  So 7g take a GPU
    each, 4g and then 3g fill halves, then come 2g, double-memory 1g and 1g.

    Args:
        counts: how many of each profile, by name.
        n_gpus: how many GPUs of this geometry.
        geometry: their geometry; its placements must be aligned runs of 1, 2, 4 … memory slices.

    Raises:
        ValueError: for a ``+me`` profile, which the closed form does not cover.
    """
    wanted = [geometry.by_name[name] for name, count in counts.items() if count]
    if any(profile.has_media for profile in wanted):
        raise ValueError("packs() has no closed form for +me profiles; ask place() instead")
    wanted.sort(key=lambda profile: (-profile.size, len(profile.starts)))
    size, free = geometry.memory_slices, {0: n_gpus}
    for profile in wanted:
        while size > profile.size:
            size //= 2
            free = {start + half: n for start, n in free.items() for half in (0, size)}
        if not _fill(free, profile.starts, counts[profile.name]):
            return False
    return True


def _fill(free: dict[int, int], starts: Iterable[int], count: int) -> bool:
    for start in sorted(starts, reverse=True):
        taken = min(count, free.get(start, 0))
        count -= taken
        if taken:
            free[start] -= taken
    return count == 0


class Repack:
    """The reference: any live slice may move, so a slice fits if the whole multiset packs."""

    def __init__(self, geometry: Geometry, n_gpus: int) -> None:
        self._counts = dict.fromkeys(geometry.by_name, 0)
        self._geometry = geometry
        self._n_gpus = n_gpus

    def take(self, profile: str) -> str | None:
        """As `Policy.take`."""
        self._counts[profile] += 1
        if packs(self._counts, self._n_gpus, self._geometry):
            return profile
        self._counts[profile] -= 1
        return None

    def give_back(self, held: str) -> None:
        """As `Policy.give_back`."""
        self._counts[held] -= 1


def scored(score: Callable[[int, int], float]) -> Callable[[Geometry, int], Policy]:
    """A policy by what a placement scores, from the memory slices taken before and by it.

    The least score wins, then the first GPU, then the lowest start.
    """
    return lambda geometry, n_gpus: Scored(n_gpus, _choose(geometry, score))


def mfi_like(geometry: Geometry, n_gpus: int) -> Policy:
    """The least rise of the fragmentation score, after MFI (arXiv 2511.18906).

    A GPU's score is the sum, over the placements of every profile small enough for the free memory
    slices in sum, of the profile's size where something is in the way.
    """
    placements = [p for q in geometry.profiles if not q.has_media for p in q.placements]

    def fragmentation(mask: int) -> int:
        free = geometry.memory_slices - mask.bit_count()
        return sum(p.size for p in placements if p.size <= free and p.mask & mask)

    def rise(before: int, taken: int) -> float:
        return fragmentation(before | taken) - fragmentation(before)

    return Scored(n_gpus, _choose(geometry, rise))


def _choose(geometry: Geometry, score: Callable[[int, int], float]) -> Choose:
    @cache
    def choose(mask: int, profile: str) -> Option | None:
        taken = [p.mask for p in geometry.by_name[profile].placements if not p.mask & mask]
        return min(((score(mask, bits), bits) for bits in taken), default=None)

    return choose


POLICIES: dict[str, Callable[[Geometry, int], Policy]] = {
    "miglab": MiglabPacking,
    "first-fit": scored(lambda before, taken: 0),
    "best-fit": scored(lambda before, taken: -before.bit_count()),  # the fullest GPU with room
    "mfi-like": mfi_like,
    # The emptiest GPU, at its highest start: spreads.
    "worst-fit": scored(lambda before, taken: before.bit_count() - taken / 1000),
    "repack": Repack,
}
