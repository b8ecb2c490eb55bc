"""What fits on one GPU, and at what cost: tables, worked out once per geometry.  Pure.

A GPU is known here by a bit mask of its occupied memory slices and by whether its one ``+me``
slice is taken.  Which GPU to choose, and what is warm, is placement.py's concern.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from miglab_pool.gpu.geometry import Geometry, Placed, Profile, occupied_mask

Layout = tuple[Placed, ...]


class Fit(NamedTuple):
    """The best ways to put some slices on one GPU.

    Attributes:
        cost: how many still-legal placements they destroy.
        layouts: every layout of that cost, lowest starts first.
    """

    cost: int
    layouts: tuple[Layout, ...]


class Fits:
    """What one geometry's decisions look up, worked out once for each state of a GPU."""

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        # A +me slice can lie exactly where its plain twin can: counting both would count the
        # same room twice (measured: .750 instead of .752 of the slices on the teaching mix).
        masks = [p.mask for q in geometry.profiles if not q.has_media for p in q.placements]
        self._legal = [
            sum(not mask & placement for placement in masks)
            for mask in range(1 << geometry.memory_slices)
        ]
        self._fits: dict[tuple[int, bool, tuple[str, ...]], Fit | None] = {}

    def best(self, mask: int, has_media: bool, names: tuple[str, ...]) -> Fit | None:
        """The cheapest ways to place all of ``names`` (sorted) on a GPU, None if it has no room."""
        key = (mask, has_media, names)
        if key not in self._fits:
            self._fits[key] = self._work_out(mask, has_media, names)
        return self._fits[key]

    def _work_out(self, mask: int, has_media: bool, names: tuple[str, ...]) -> Fit | None:
        if any(name not in self._geometry.by_name for name in names):
            return None
        wanted = [self._geometry.by_name[name] for name in names]
        media = sum(profile.has_media for profile in wanted)
        if media > (0 if has_media else 1):
            return None
        layouts = list(layouts_beside(wanted, mask))
        if not layouts:
            return None
        costs = [self._legal[mask] - self._legal[mask | occupied_mask(item)] for item in layouts]
        best = min(costs)
        return Fit(
            best, tuple(item for item, cost in zip(layouts, costs, strict=True) if cost == best)
        )


def layouts_beside(wanted: Sequence[Profile], mask: int, least: int = 0) -> Iterator[Layout]:
    """Every way to lay ``wanted`` beside ``mask``; equal neighbours only in rising order."""
    if not wanted:
        yield ()
        return
    first, rest = wanted[0], wanted[1:]
    for placement in first.placements:
        if placement.start < least or placement.mask & mask:
            continue
        after = placement.start + 1 if rest and rest[0] is first else 0
        for layout in layouts_beside(rest, mask | placement.mask, after):
            yield (Placed(first, placement), *layout)


@lru_cache(maxsize=64)
def _of_equal(geometry: Geometry) -> Fits:
    return Fits(geometry)


_known: dict[int, tuple[Geometry, Fits]] = {}
_KNOWN_MAX = 1024


def fits(geometry: Geometry) -> Fits:
    """The tables of a geometry; equal geometries share them.

    They are found by identity, as hashing 64 geometries costs more than a decision.  The entry
    holds the geometry, so its id cannot become another's.
    """
    entry = _known.get(id(geometry))
    if entry is None:
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        entry = _known[id(geometry)] = (geometry, _of_equal(geometry))
    return entry[1]
