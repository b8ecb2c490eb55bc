"""MIG geometry: profiles, placements, what still fits.  Pure: no NVML, no clock, no files.

A *placement* ``{start}:size`` counts **memory slices** (8 on A100, H100 and H200; 4 on A30).
"Placements do not overlap" plus "at most one ``+me`` slice" is the whole constraint
(docs/explanation/mig.md gives the source and the counts that check it).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

MEDIA = 1 << 32  # among bits of memory slices: a GPU's one +me slice


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
        name: NVIDIA's name, for example ``1g.5gb`` or ``1g.5gb+me``.
        profile_id: NVML's ``id`` (19, 14, 9 …), which create and list calls take.
        enum: NVML's ``GPU_INSTANCE_PROFILE_*`` number, which the profile-info call takes.
        compute_slices: compute slices, of 7 (A30: 4).
        size: memory slices.
        sm_count: streaming multiprocessors.
        memory_mib: memory of the slice, MiB.
        max_count: how many fit on an empty GPU.
        starts: every legal first memory slice.
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

    @property
    def has_media(self) -> bool:
        """Whether it is the ``+me`` profile, of which a GPU holds at most one."""
        return self.name.endswith("+me")

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
    def placements(self) -> dict[str, tuple[tuple[int, "Placed"], ...]]:
        """Each profile's places on an empty GPU with their `Placed.bits`, highest start first."""
        return {
            profile.name: tuple((item.bits, item) for item in _placed(profile))
            for profile in self.profiles
        }

    @cached_property
    def packing_order(self) -> dict[str, tuple[int, int, bool]]:
        """By profile, what is packed first has the least: the large, then what has few places."""
        return {
            profile.name: (-profile.size, len(profile.starts), not profile.has_media)
            for profile in self.profiles
        }


@dataclass(frozen=True, slots=True)
class Placed:
    """A profile at a placement: what occupies a part of a GPU."""

    profile: Profile
    placement: Placement

    @property
    def bits(self) -> int:
        """What it takes of a GPU: two that share a bit cannot both be on one."""
        return self.placement.mask | (MEDIA if self.profile.has_media else 0)


def _placed(profile: Profile) -> list[Placed]:
    placements = sorted(profile.placements, reverse=True)
    return [Placed(profile, placement) for placement in placements]


def occupied_mask(placed: Iterable[Placed]) -> int:
    """The memory slices taken, as bits."""
    mask = 0
    for item in placed:
        mask |= item.placement.mask
    return mask


def legal_placements(
    geometry: Geometry, profile: Profile, placed: Iterable[Placed]
) -> list[Placement]:
    """Where ``profile`` can still be created beside ``placed``, lowest start first."""
    placed = list(placed)
    if profile.has_media and any(item.profile.has_media for item in placed):
        return []
    mask = occupied_mask(placed)
    return [placement for placement in profile.placements if not placement.mask & mask]
