"""How GPUs are partitioned, and what applying a layout would change.

A layout file is mig-parted's.  It travels as its text, so that an error in it can be told with its
line.
"""

from typing import Annotated

from pydantic import Field

from miglab_api.base import ReasonText, WireModel

TEXT_MAX = 32 * 1024
WARNING_MAX_S = 3600.0
LAYOUT_NAME_MAX = 64


class PlacedSlice(WireModel):
    """A slice that is there or is to be, on its GPU."""

    profile: str
    start: int
    size: int


class LayoutDrain(PlacedSlice):
    """A leased slice that a layout does not contain: its lease runs on, then it is removed.

    Attributes:
        user: who holds it; for staff only.
        guaranteed_until: until when nobody's need ends the lease.
        ends_at: when the lease ends at the latest; None if it has no end.
    """

    slice_id: int
    lease: int
    user: str | None = None
    course: str
    guaranteed_until: float = 0.0
    ends_at: float | None = None


class GpuLayout(WireModel):
    """One GPU against a layout: what must be done until it is cut so.

    Attributes:
        gpu: its UUID.
        layout: the layout's name; empty: it is cut on demand.
        partition: the profiles wanted.
        conforms: whether the GPU has exactly the slices wanted, all of them usable.
        keeps: slices that stay.
        makes: slices to be made, or under way.
        removes: free slices to be destroyed, or under way.
        drains: slices that others hold.
        blocked: what blocks the layout and only a person can remove, in words.
        ready_at: when all of ``drains`` have ended at the latest; None if one has no end.
    """

    gpu: str
    index: int
    layout: str = ""
    partition: tuple[str, ...] = ()
    conforms: bool
    keeps: tuple[PlacedSlice, ...] = ()
    makes: tuple[PlacedSlice, ...] = ()
    removes: tuple[PlacedSlice, ...] = ()
    drains: tuple[LayoutDrain, ...] = ()
    blocked: tuple[str, ...] = ()
    ready_at: float | None = None


class Layouts(WireModel):
    """GPUs that can be cut, each against its layout.

    Attributes:
        breaks: the reservations that applying it takes slices from, in words.
    """

    at: float
    gpus: tuple[GpuLayout, ...]
    breaks: tuple[str, ...] = ()


class LayoutText(WireModel):
    """A layout file, and which of its configurations is meant.

    Attributes:
        text: what is in it.
        file: its name, for what is wrong in it.
        name: the configuration's; empty: the only one.
    """

    text: Annotated[str, Field(min_length=1, max_length=TEXT_MAX)]
    file: Annotated[str, Field(min_length=1, max_length=200)] = "layout"
    name: Annotated[str, Field(max_length=LAYOUT_NAME_MAX)] = ""


class ApplyRequest(LayoutText):
    """Apply a configuration of a file.

    Attributes:
        reason: why; staff read it, and with ``now`` whoever is asked to leave.
        now: reclaim the leases that block it, instead of waiting for their end; those of courses
            that are not the requester's run on.
        warning_s: how long before they are reclaimed their holders are warned.
        anyway: why it is applied though it takes slices from a reservation; empty: it is not.
    """

    reason: ReasonText = ""
    now: bool = False
    warning_s: Annotated[float, Field(ge=0, le=WARNING_MAX_S)] = 300.0
    anyway: ReasonText = ""


class Applied(Layouts):
    """The GPUs under what was applied; ``warned`` are the leases that were warned for it."""

    warned: tuple[int, ...] = ()
