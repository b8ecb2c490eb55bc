"""A GPU as decisions see it: its geometry, what lies on it until when, and who may use it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import NamedTuple

from miglab_pool.gpu.geometry import Geometry, Placed, Placement, Profile, occupied_mask

SOON = -inf  # what is being scrubbed, or made for nobody yet, is free in seconds


@dataclass(frozen=True)
class GpuOccupancy:
    """What lies on one GPU, without the rows that say so.

    Attributes:
        gpu: its UUID.
        geometry: how it can be cut.
        live: what cannot be used: leased, being made or scrubbed, quarantined, foreign.
        warm: free slices that already exist; they count as free memory.
        usable: whether it takes new leases now.
        fixed: the part of ``live`` that is foreign, quarantined, or reserved: it will
            not become free by a lease's end.
        frees_at: when the rest of ``live`` is free by the ends that are set, by `Placement.mask`;
            infinite for what has no end, and for what is not named.
        course: the only course that gets leases there; empty: every course.
    """

    gpu: str
    geometry: Geometry
    live: tuple[Placed, ...] = ()
    warm: tuple[Placed, ...] = ()
    usable: bool = True
    fixed: tuple[Placed, ...] = ()
    frees_at: Mapping[int, float] = field(default_factory=dict)
    course: str = ""

    @cached_property
    def mask(self) -> int:
        """The memory slices that cannot be used, as bits."""
        return occupied_mask(self.live)

    @cached_property
    def warm_masks(self) -> tuple[tuple[int, Placed], ...]:
        """The warm slices, each with its memory slices as bits."""
        return tuple((item.placement.mask, item) for item in self.warm)

    @cached_property
    def has_media(self) -> bool:
        """Whether the GPU's one ``+me`` slice is in use."""
        return any(item.profile.has_media for item in self.live)


@dataclass(frozen=True)
class Choice:
    """One slice of a decision.

    Attributes:
        gpu: UUID of the GPU.
        profile: what to make there.
        placement: where.
        reuse: whether that very slice exists, warm; then there is nothing to make.
        destroy: warm slices to destroy first.  A slice in the way of several choices is named by
            the first of them only.
    """

    gpu: str
    profile: Profile
    placement: Placement
    reuse: bool = False
    destroy: tuple[Placed, ...] = ()


def open_to(gpus: Sequence[GpuOccupancy], course: str) -> list[GpuOccupancy]:
    """Every GPU as a course may use it: another course's own takes nothing of it."""
    return [one if one.course in ("", course) else replace(one, usable=False) for one in gpus]


def own_first(gpus: Sequence[GpuOccupancy], course: str) -> list[GpuOccupancy]:
    """As `open_to`, a course's own in front: of equal places room for all is left to others."""
    return sorted(open_to(gpus, course), key=lambda one: one.course != course)


def clash(one: Placed, other: Placed) -> bool:
    """Whether two slices cannot be on one GPU: they overlap, or both are ``+me``."""
    both_media = one.profile.has_media and other.profile.has_media
    return both_media or bool(one.placement.mask & other.placement.mask)


class Slot(NamedTuple):
    """A reserved slot's slice: for which lease of those asked for, by number, and where."""

    request: int
    gpu: str
    placed: Placed
