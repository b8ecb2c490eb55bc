"""How a layout partitions a GPU, and what must change for it.  Pure.

A *partition* is the names of the profiles that a GPU is to have, in any order.  `arrange` chooses
their placements, so that the fewest leases block them and the most slices can stay.  `plan_change`
lists the steps; none of them ends a lease.  Knows neither ledger, clock nor NVML.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from miglab_api.wording import partition_in_words
from miglab_pool.gpu.geometry import Geometry, Profile, ProfilePlacement
from miglab_pool.state.placement import Layout, clash, layouts_beside


class PartitionError(ValueError):
    """A partition that a GPU cannot have; the message says what would fit."""


def resolve(names: Iterable[str], geometry: Geometry) -> tuple[str, ...]:
    """Return the partition, sorted, if an empty GPU can have it.

    Raises:
        PartitionError: there is no such profile, or they do not fit; the message says what would.
    """
    partition = tuple(sorted(names))
    for name in partition:
        if name not in geometry.by_name:
            available = ", ".join(profile.name for profile in geometry.profiles) or "nothing"
            raise PartitionError(f"it has no {_excerpt(name)}; it can be cut into {available}")
    if not is_possible(partition, geometry):
        raise PartitionError(_misfit_in_words(tuple(reversed(partition)), geometry))
    return partition


def is_possible(names: Sequence[str], geometry: Geometry) -> bool:
    """Whether an empty GPU can be cut into all of them."""
    return bool(arrangements(geometry, tuple(sorted(names))))


def _misfit_in_words(names: Sequence[str], geometry: Geometry) -> str:
    """Why the profiles do not fit: the most of them that do, largest first, and those left over."""
    fitting: list[str] = []
    refused: list[str] = []
    for name in names:
        fits = name not in refused and is_possible([*fitting, name], geometry)
        (fitting if fits else refused).append(name)
    return (
        f"{partition_in_words(names)} do not fit on it: beside {partition_in_words(fitting)}, "
        f"which would fit, there is no place for {partition_in_words(refused)}"
    )


def _excerpt(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


# -- where the slices go ------------------------------------------------------------------------


class LayoutRole(StrEnum):
    """What a slice on a GPU means for its layout."""

    FREE = "free"
    HELD = "held"
    COMING = "coming"  # being made, for nobody
    GRANTED = "granted"  # being made for a lease
    GOING = "going"  # being destroyed
    FIXED = "fixed"  # foreign, quarantined, or drained by hand


HELD = frozenset({LayoutRole.HELD, LayoutRole.GRANTED})


@dataclass(frozen=True, slots=True)
class PresentSlice:
    """A slice on a GPU, by the ledger's number."""

    number: int
    placed_slice: ProfilePlacement
    role: LayoutRole

    @property
    def key(self) -> tuple[int, str]:
        """Its start and profile, by which it is compared with the slices of a layout."""
        return slice_key(self.placed_slice)


def slice_key(placed_slice: ProfilePlacement) -> tuple[int, str]:
    """The start and profile of a slice."""
    return placed_slice.placement.start, placed_slice.profile.name


@dataclass(frozen=True)
class Change:
    """The steps that give a GPU its partition.

    Attributes:
        target: the slices of the partition, each with its placement.
        keeps: slices that are there and stay.
        makes: wanted slices that are not there and not under way.
        comes: slices that are being made where they are wanted.
        removes: free slices that are not wanted.
        drains: leased slices that are not wanted: their leases run on, then they are removed.
        goes: slices that are being destroyed, or made though not wanted.
        immovable: foreign, quarantined or drained slices: a person's to decide.
    """

    target: tuple[ProfilePlacement, ...]
    keeps: tuple[PresentSlice, ...] = ()
    makes: tuple[ProfilePlacement, ...] = ()
    comes: tuple[PresentSlice, ...] = ()
    removes: tuple[PresentSlice, ...] = ()
    drains: tuple[PresentSlice, ...] = ()
    goes: tuple[PresentSlice, ...] = ()
    immovable: tuple[PresentSlice, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether the GPU has exactly the slices wanted, all of them usable."""
        return len(self.keeps) == len(self.target) and not (
            self.removes or self.drains or self.goes or self.immovable
        )

    @property
    def ready(self) -> tuple[ProfilePlacement, ...]:
        """The wanted slices that can be made as soon as ``removes`` are gone."""
        occupants = (*self.keeps, *self.comes, *self.drains, *self.goes, *self.immovable)
        return tuple(
            placed_slice
            for placed_slice in self.makes
            if not any(clash(placed_slice, occupant.placed_slice) for occupant in occupants)
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
        names: the partition, resolved (`resolve`).
        present: what is on the GPU.

    Returns:
        Of all arrangements the one with the fewest slices under what nobody may remove, then the
        fewest leases on slices not wanted, then the most slices that stay, then the lowest starts.
    """
    candidates = arrangements(geometry, tuple(sorted(names)))
    return min(candidates, key=lambda layout: _arrangement_cost(layout, present))


def _arrangement_cost(
    layout: Layout, present: Sequence[PresentSlice]
) -> tuple[int, int, int, tuple[int, ...]]:
    target_keys = {slice_key(placed_slice) for placed_slice in layout}
    immovable = [
        present_slice.placed_slice
        for present_slice in present
        if present_slice.role is LayoutRole.FIXED
    ]
    blocked = sum(any(clash(placed_slice, other) for other in immovable) for placed_slice in layout)
    drained = sum(
        present_slice.role in HELD and present_slice.key not in target_keys
        for present_slice in present
    )
    stays = sum(
        present_slice.role is not LayoutRole.FIXED and present_slice.key in target_keys
        for present_slice in present
    )
    return blocked, drained, -stays, tuple(placed_slice.placement.start for placed_slice in layout)


def plan_change(
    geometry: Geometry, names: Sequence[str], present: Sequence[PresentSlice]
) -> Change:
    """Plan the steps that give the GPU its partition; none of them removes a leased slice."""
    target = arrange(geometry, names, present)
    target_keys = {slice_key(placed_slice) for placed_slice in target}
    existing_keys = {
        item.key for item in present if item.role in (*HELD, LayoutRole.FREE, LayoutRole.COMING)
    }

    def some(*roles: LayoutRole, is_target: bool | None = None) -> tuple[PresentSlice, ...]:
        return tuple(
            present_slice
            for present_slice in present
            if present_slice.role in roles and is_target in (None, present_slice.key in target_keys)
        )

    return Change(
        target=target,
        keeps=some(LayoutRole.FREE, LayoutRole.HELD, is_target=True),
        makes=tuple(
            placed_slice for placed_slice in target if slice_key(placed_slice) not in existing_keys
        ),
        comes=some(LayoutRole.COMING, LayoutRole.GRANTED, is_target=True),
        removes=some(LayoutRole.FREE, is_target=False),
        drains=some(*HELD, is_target=False),
        goes=(*some(LayoutRole.GOING), *some(LayoutRole.COMING, is_target=False)),
        immovable=some(LayoutRole.FIXED),
    )


# -- what may be granted meanwhile --------------------------------------------------------------


@lru_cache(maxsize=1024)
def restrict_geometry(geometry: Geometry, target: Layout) -> Geometry:
    """Restrict a geometry to a layout's profiles at the layout's starts.

    Whatever is placed on it fits the layout, so no new lease ever blocks the layout.
    """
    return Geometry(geometry.memory_slices, tuple(_restricted_profiles(geometry, target)))


def _restricted_profiles(geometry: Geometry, target: Layout) -> Iterator[Profile]:
    for profile in geometry.profiles:
        matching = (
            placed_slice for placed_slice in target if placed_slice.profile.name == profile.name
        )
        starts = tuple(sorted(placed_slice.placement.start for placed_slice in matching))
        if starts:
            yield replace(profile, max_count=len(starts), starts=starts)
