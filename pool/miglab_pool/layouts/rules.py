"""How a GPU is to be cut by a layout.  Pure, like a table.

A *cut* is the names of the profiles a GPU is to have, in any order; where each lies is chosen here
(`arrange`), so that the fewest leases block it and the most slices can stay.  `change` says
what is to be done; nothing in it ever ends a lease.  Knows neither ledger, clock nor NVML.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from miglab_api.wording import partition_in_words
from miglab_pool.gpu.geometry import Geometry, Placed, Profile
from miglab_pool.state.placement import Layout, clash, layouts_beside


class PartitionError(ValueError):
    """A cut that cannot be read, or that a GPU cannot have; says what would fit."""


def resolve(names: Iterable[str], geometry: Geometry) -> tuple[str, ...]:
    """The cut, sorted, if an empty GPU can have it.

    Raises:
        PartitionError: there is no such profile, or they do not fit; the message says what would.
    """
    found = tuple(sorted(names))
    for name in found:
        if name not in geometry.by_name:
            known = ", ".join(profile.name for profile in geometry.profiles) or "nothing"
            raise PartitionError(f"it has no {_brief(name)}; it can be cut into {known}")
    if not is_possible(found, geometry):
        raise PartitionError(_what_fits(tuple(reversed(found)), geometry))
    return found


def is_possible(names: Sequence[str], geometry: Geometry) -> bool:
    """Whether an empty GPU can be cut into all of them."""
    return bool(arrangements(geometry, tuple(sorted(names))))


def _what_fits(names: Sequence[str], geometry: Geometry) -> str:
    """The most of them that fit, the largest first, and what is one too many."""
    kept: list[str] = []
    left: list[str] = []
    for name in names:
        fits = name not in left and is_possible([*kept, name], geometry)
        (kept if fits else left).append(name)
    return (
        f"{partition_in_words(names)} do not fit on it: beside {partition_in_words(kept)}, which "
        f"would fit, there is no place for {partition_in_words(left)}"
    )


def _brief(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


# -- where the slices go ------------------------------------------------------------------------


class Kind(StrEnum):
    """What a slice that lies on a GPU is to a layout."""

    FREE = "free"
    HELD = "held"
    COMING = "coming"  # being made, for nobody
    GRANTED = "granted"  # being made for a lease
    GOING = "going"  # being destroyed
    FIXED = "fixed"  # foreign, quarantined, or drained by hand


HELD = frozenset({Kind.HELD, Kind.GRANTED})


@dataclass(frozen=True, slots=True)
class PresentSlice:
    """A slice on a GPU, by the ledger's number."""

    number: int
    placed: Placed
    kind: Kind

    @property
    def where(self) -> tuple[int, str]:
        """Start and profile: what makes it the slice that a layout wants."""
        return where(self.placed)


def where(placed: Placed) -> tuple[int, str]:
    """The start and profile of a slice."""
    return placed.placement.start, placed.profile.name


@dataclass(frozen=True)
class Change:
    """What is to be done to a GPU so that it has its cut.

    Attributes:
        wanted: the slices of the cut, each with its placement.
        keeps: slices that are there and stay.
        makes: wanted slices that are not there and not under way.
        comes: slices that are being made where they are wanted.
        removes: free slices that are not wanted.
        drains: leased slices that are not wanted: their leases run on, then they are removed.
        goes: slices that are being destroyed, or made though not wanted.
        fixed: foreign, quarantined or drained slices: a person's to decide.
    """

    wanted: tuple[Placed, ...]
    keeps: tuple[PresentSlice, ...] = ()
    makes: tuple[Placed, ...] = ()
    comes: tuple[PresentSlice, ...] = ()
    removes: tuple[PresentSlice, ...] = ()
    drains: tuple[PresentSlice, ...] = ()
    goes: tuple[PresentSlice, ...] = ()
    fixed: tuple[PresentSlice, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether the GPU has exactly the slices wanted, all of them usable."""
        return len(self.keeps) == len(self.wanted) and not (
            self.removes or self.drains or self.goes or self.fixed
        )

    @property
    def ready(self) -> tuple[Placed, ...]:
        """The wanted slices that can be made as soon as ``removes`` are gone."""
        others = (*self.keeps, *self.comes, *self.drains, *self.goes, *self.fixed)
        return tuple(
            placed
            for placed in self.makes
            if not any(clash(placed, other.placed) for other in others)
        )


@lru_cache(maxsize=1024)
def arrangements(geometry: Geometry, names: tuple[str, ...]) -> tuple[Layout, ...]:
    """Every way to lay the slices, sorted by name, on an empty GPU; none if they do not fit."""
    profiles = [geometry.by_name[name] for name in names]
    if sum(profile.size for profile in profiles) > geometry.memory_slices:
        return ()
    return tuple(layouts_beside(profiles, 0))


def arrange(geometry: Geometry, names: Sequence[str], present: Sequence[PresentSlice]) -> Layout:
    """Choose where the slices are to lie.

    Args:
        geometry: the GPU's.
        names: the cut, resolved (`resolve`).
        present: what is on the GPU.

    Returns:
        Of all arrangements the one with the fewest slices under what nobody may remove, then the
        fewest leases on slices not wanted, then the most slices that stay, then the lowest starts.
    """
    found = arrangements(geometry, tuple(sorted(names)))
    return min(found, key=lambda layout: _how_bad(layout, present))


def _how_bad(
    layout: Layout, present: Sequence[PresentSlice]
) -> tuple[int, int, int, tuple[int, ...]]:
    wanted = {where(placed) for placed in layout}
    fixed = [item.placed for item in present if item.kind is Kind.FIXED]
    under = sum(any(clash(placed, other) for other in fixed) for placed in layout)
    drained = sum(item.kind in HELD and item.where not in wanted for item in present)
    stays = sum(item.kind is not Kind.FIXED and item.where in wanted for item in present)
    return under, drained, -stays, tuple(placed.placement.start for placed in layout)


def change(geometry: Geometry, names: Sequence[str], present: Sequence[PresentSlice]) -> Change:
    """What is to be done so that the GPU has its cut.  Guarantees: nothing leased is removed."""
    wanted = arrange(geometry, names, present)
    wanted_at = {where(placed) for placed in wanted}
    there = {item.where for item in present if item.kind in (*HELD, Kind.FREE, Kind.COMING)}

    def some(*kinds: Kind, is_wanted: bool | None = None) -> tuple[PresentSlice, ...]:
        return tuple(
            item
            for item in present
            if item.kind in kinds and is_wanted in (None, item.where in wanted_at)
        )

    return Change(
        wanted=wanted,
        keeps=some(Kind.FREE, Kind.HELD, is_wanted=True),
        makes=tuple(placed for placed in wanted if where(placed) not in there),
        comes=some(Kind.COMING, Kind.GRANTED, is_wanted=True),
        removes=some(Kind.FREE, is_wanted=False),
        drains=some(*HELD, is_wanted=False),
        goes=(*some(Kind.GOING), *some(Kind.COMING, is_wanted=False)),
        fixed=some(Kind.FIXED),
    )


# -- what may be granted meanwhile --------------------------------------------------------------


@lru_cache(maxsize=1024)
def only(geometry: Geometry, wanted: Layout) -> Geometry:
    """The GPU as it may be used while the layout is in force: its profiles at its starts alone.

    What is placed there fits the layout, so no new lease is ever in its way.
    """
    return Geometry(geometry.memory_slices, tuple(_wanted_profiles(geometry, wanted)))


def _wanted_profiles(geometry: Geometry, wanted: Layout) -> Iterator[Profile]:
    for profile in geometry.profiles:
        mine = (placed for placed in wanted if placed.profile.name == profile.name)
        starts = tuple(sorted(placed.placement.start for placed in mine))
        if starts:
            yield replace(profile, max_count=len(starts), starts=starts)
