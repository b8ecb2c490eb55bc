"""MIG geometry: profiles, placements, what still fits.  Pure: no NVML, no clock, no files.

A *placement* ``{start}:size`` counts **memory slices** (8 on A100, H100 and H200; 4 on A30).
Two slices are possible on one GPU if their placements do not overlap and the GPU has enough media
engines for both; docs/explanation/mig.md gives the source, and the counts that check it.  Both
conditions are bits (`ProfilePlacement.bits`): two slices that share one cannot both be on a GPU.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

FIELD = 16  # bits for the memory slices of one GPU, and again for each kind of engine


class Engines(NamedTuple):
    """Media engines of a profile; the copy engines come with the compute slices."""

    decoders: int = 0
    encoders: int = 0
    jpeg: int = 0
    ofa: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """A run of memory slices on one GPU.

    Attributes:
        start: first memory slice, counted from 0.
        size: how many memory slices.
    """

    start: int
    size: int

    @property
    def mask(self) -> int:
        """The memory slices it covers, as bits."""
        return ((1 << self.size) - 1) << self.start

    def __str__(self) -> str:
        return f"{{{self.start}}}:{self.size}"


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of slice that a GPU can be cut into, as NVML describes it.

    Attributes:
        name: NVIDIA's name, for example ``1g.5gb``, ``1g.5gb+me`` or ``1g.24gb-me``.
        profile_id: NVML's ``id`` (19, 14, 9 …), which create and list calls take.
        enum: NVML's ``GPU_INSTANCE_PROFILE_*`` number, which the profile-info call takes.
        compute_slices: compute slices, of 7 (A30: 4).
        size: memory slices.
        sm_count: streaming multiprocessors.
        memory_mib: memory of the slice, MiB.
        max_count: how many fit on an empty GPU.
        starts: every legal first memory slice.
        engine_bits: what it takes beside memory, wherever it lies (`with_engines`).
        engine_shifts: the kinds of engine of which it takes what belongs to its memory slices, as
            the place of their bits (`with_engines`).
    """

    name: str
    profile_id: int
    enum: int
    compute_slices: int
    size: int
    sm_count: int
    memory_mib: int
    max_count: int
    starts: tuple[int, ...]
    engine_bits: int = 0
    engine_shifts: tuple[int, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether it is no variant (``+me``, ``+me.all``, ``-me``, ``+gfx``) of another profile."""
        return not set("+-") & set(self.name)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Every legal placement on an empty GPU, lowest start first."""
        return tuple(Placement(start, self.size) for start in self.starts)


@dataclass(frozen=True)
class Geometry:
    """How one model of GPU can be cut.

    Attributes:
        memory_slices: how many memory slices the GPU has.
        profiles: what it can be cut into, in NVML's order.
    """

    memory_slices: int
    profiles: tuple[Profile, ...]

    @cached_property
    def by_name(self) -> dict[str, Profile]:
        """The profiles by name."""
        return {profile.name: profile for profile in self.profiles}

    @cached_property
    def by_id(self) -> dict[int, Profile]:
        """The profiles by NVML id."""
        return {profile.profile_id: profile for profile in self.profiles}

    @cached_property
    def placements(self) -> dict[str, tuple[tuple[int, "ProfilePlacement"], ...]]:
        """By profile, its placements on an empty GPU and their bits, highest start first."""
        return {
            profile.name: tuple((option.bits, option) for option in _all_placements(profile))
            for profile in self.profiles
        }

    @cached_property
    def packing_order(self) -> dict[str, tuple[int, int, bool]]:
        """By profile, its sort key for packing: large ones first, then those with few starts."""
        return {
            profile.name: (-profile.size, len(profile.starts), profile.is_plain)
            for profile in self.profiles
        }


@dataclass(frozen=True, slots=True)
class ProfilePlacement:
    """A profile at a placement: what occupies a part of a GPU."""

    profile: Profile
    placement: Placement

    @property
    def bits(self) -> int:
        """The bits that it occupies of a GPU; two that share a bit cannot both be on one."""
        mask = self.placement.mask
        bits = mask | self.profile.engine_bits
        for shift in self.profile.engine_shifts:
            bits |= mask << shift
        return bits


def _all_placements(profile: Profile) -> list[ProfilePlacement]:
    placements = sorted(profile.placements, reverse=True)
    return [ProfilePlacement(profile, placement) for placement in placements]


def occupied_mask(placed_slices: Iterable[ProfilePlacement]) -> int:
    """The occupied memory slices, as bits."""
    mask = 0
    for placed_slice in placed_slices:
        mask |= placed_slice.placement.mask
    return mask


def occupied_bits(placed_slices: Iterable[ProfilePlacement]) -> int:
    """The bits that slices occupy of a GPU, as `ProfilePlacement.bits`."""
    bits = 0
    for placed_slice in placed_slices:
        bits |= placed_slice.bits
    return bits


@lru_cache(maxsize=256)
def without_placements(geometry: Geometry, closed: frozenset[object]) -> Geometry:
    """Return the geometry that is left of a GPU while some placements are closed.

    Args:
        geometry: how it can be cut.
        closed: the placements, each as its profile's name and its start.
    """
    profiles = []
    for profile in geometry.profiles:
        starts = tuple(start for start in profile.starts if (profile.name, start) not in closed)
        if starts:
            max_count = min(profile.max_count, len(starts))
            profiles.append(replace(profile, starts=starts, max_count=max_count))
    return Geometry(geometry.memory_slices, tuple(profiles))


def legal_placements(
    profile: Profile, placed_slices: Iterable[ProfilePlacement]
) -> list[Placement]:
    """Where ``profile`` can still be created beside ``placed_slices``, lowest start first."""
    occupied = occupied_bits(placed_slices)
    return [
        placement
        for placement in profile.placements
        if not ProfilePlacement(profile, placement).bits & occupied
    ]


# -- media engines --------------------------------------------------------------------------------


class _EngineKind(NamedTuple):
    """One kind of engine: the profiles that take all of its engines, and those that share them."""

    shift: int
    takers: frozenset[str]
    sharers: frozenset[str]


def with_engines(profiles: Sequence[tuple[Profile, Engines]]) -> tuple[Profile, ...]:
    """The profiles of a GPU, with the bits by which its media engines keep two of them apart.

    A GPU has as many engines of a kind as the profile that has most of them.  A profile that leaves
    too few for any other that needs some (``+me`` the only OFA, ``+me.all`` every decoder) takes
    them all; the others take those that belong to their memory slices, and clash with it alone.

    Args:
        profiles: each with its engines, as NVML tells them.

    Returns:
        The profiles in the same order.  Where NVML tells fewer engines of a kind than the
        ``max_count`` of a profile needs, that kind is left out of account.  A profile that a GPU
        holds only once, though no engine says why, takes a bit of its own.
    """
    kinds = [_engine_kind(profiles, number) for number in range(len(Engines._fields))]
    return tuple(_with_bits(profile, number, kinds) for number, (profile, _) in enumerate(profiles))


def _engine_kind(profiles: Sequence[tuple[Profile, Engines]], number: int) -> _EngineKind:
    total = max((engines[number] for _, engines in profiles), default=0)
    size = max((profile.size for profile, _ in profiles), default=0)
    counts = {p: engines[number] for p, engines in profiles if engines[number] and p.size < size}
    fewest = min(counts.values(), default=0)
    is_believable = all(profile.max_count * count <= total for profile, count in counts.items())
    takers = {p.name for p, count in counts.items() if is_believable and count + fewest > total}
    sharers = {profile.name for profile in counts} - takers if takers else set()
    return _EngineKind(FIELD * (number + 1), frozenset(takers), frozenset(sharers))


def _with_bits(profile: Profile, number: int, kinds: Sequence[_EngineKind]) -> Profile:
    bits = sum(((1 << FIELD) - 1) << kind.shift for kind in kinds if profile.name in kind.takers)
    shifts = tuple(kind.shift for kind in kinds if profile.name in kind.sharers)
    if profile.max_count == 1 < len(profile.starts) and not bits:
        bits = 1 << (FIELD * (len(kinds) + 1) + number)
    return replace(profile, engine_bits=bits, engine_shifts=shifts)
