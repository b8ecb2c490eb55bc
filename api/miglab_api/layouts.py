"""How GPUs are partitioned, when, and what applying a layout would change.

A layout file travels as its text, so that an error in it can be told with its line.
"""

import datetime as dt
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from miglab_api.base import COURSE_MAX, ReasonText, WallTime, Weekday, WireModel, ZoneName

TEXT_MAX = 32 * 1024
WARNING_MAX_S = 3600.0


class LayoutTime(WireModel):
    """When a layout holds, as a clock on the wall shows it: every week on some days, or once.

    Attributes:
        weekdays: the days of every week; empty for once.
        date: the day of a single time; None for weekly ones.
        from_time: ``HH:MM``.
        to_time: ``HH:MM``, later on the same day.
        tz: the time zone's IANA name.
    """

    weekdays: Annotated[tuple[Weekday, ...], Field(max_length=7)] = ()
    date: dt.date | None = None
    from_time: WallTime
    to_time: WallTime
    tz: ZoneName


LAYOUT_NAME_MAX = 64
LAYOUT_TIMES_MAX = 64
LayoutName = Annotated[
    str, Field(pattern=r"^\w([\w.+ -]*[\w.+-])?$", min_length=1, max_length=LAYOUT_NAME_MAX)
]


class LayoutSpec(WireModel):
    """How some GPUs are to be cut.

    Attributes:
        name: by which people call it; applying one of the same name replaces it.
        course: whose slices they are while it is in force; empty: everybody's.
        gpus: the profiles of each GPU, by its UUID.
        when: its times; empty: always.
    """

    name: LayoutName
    course: Annotated[str, Field(max_length=COURSE_MAX)] = ""
    gpus: dict[str, tuple[str, ...]]
    when: Annotated[tuple[LayoutTime, ...], Field(max_length=LAYOUT_TIMES_MAX)] = ()


class PlacedSlice(WireModel):
    """A slice that is there or is to be, on its GPU."""

    profile: str
    start: int
    size: int


class LayoutDrain(PlacedSlice):
    """A leased slice that a layout does not contain: its lease runs on, then it is removed.

    Attributes:
        user: who holds it; for staff only.
        ends_at: when the lease ends at the latest; None if it has no end.
    """

    slice_id: int
    lease: int
    user: str | None = None
    course: str
    ends_at: float | None = None


class GpuLayout(WireModel):
    """One GPU against a layout: what must be done until it is cut so.

    Attributes:
        gpu: its UUID.
        layout: the layout's name; empty: none is in force, and it is cut on demand.
        partition: the profiles wanted.
        until: when the layout ends there; None without an end, or while it is not in force.
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
    course: str = ""
    partition: tuple[str, ...] = ()
    until: float | None = None
    conforms: bool
    keeps: tuple[PlacedSlice, ...] = ()
    makes: tuple[PlacedSlice, ...] = ()
    removes: tuple[PlacedSlice, ...] = ()
    drains: tuple[LayoutDrain, ...] = ()
    blocked: tuple[str, ...] = ()
    ready_at: float | None = None


class LayoutDiff(WireModel):
    """A layout against the GPUs as they are now.

    Attributes:
        starts_at: when it begins or began; None for one without times.
        ends_at: when that time ends.
        replaces: the names of the layouts that applying it ends.
    """

    layout: str
    course: str = ""
    starts_at: float | None = None
    ends_at: float | None = None
    replaces: tuple[str, ...] = ()
    gpus: tuple[GpuLayout, ...]

    @property
    def conforms(self) -> bool:
        """Whether all its GPUs do."""
        return all(gpu.conforms for gpu in self.gpus)


class LayoutState(StrEnum):
    """planned ↔ in-force → (over, removed, replaced); refused."""

    PLANNED = "planned"
    IN_FORCE = "in-force"
    OVER = "over"
    REMOVED = "removed"
    REPLACED = "replaced"
    REFUSED = "refused"


class LayoutView(LayoutSpec):
    """A layout that was applied, and its time in force or next.

    Attributes:
        starts_at: when the time in force, or else the next, begins; None without times.
        ends_at: when it ends.
        made_by: who applied it; for staff only.
        message: why; for staff only.
    """

    id: int
    state: LayoutState
    starts_at: float | None = None
    ends_at: float | None = None
    made_by: str | None = None
    made_at: float
    message: str = ""


class Layouts(WireModel):
    """What was applied, and every GPU that can be cut against what is in force on it."""

    at: float
    layouts: tuple[LayoutView, ...]
    gpus: tuple[GpuLayout, ...]


class LayoutText(WireModel):
    """A layout file.

    Attributes:
        text: what is in it.
        file: its name, for what is wrong in it.
        names: only these of its layouts; empty: all.
    """

    text: Annotated[str, Field(min_length=1, max_length=TEXT_MAX)]
    file: Annotated[str, Field(min_length=1, max_length=200)] = "layout"
    names: Annotated[tuple[LayoutName, ...], Field(max_length=32)] = ()


class ApplyRequest(LayoutText):
    """Apply the layouts of a file.

    Attributes:
        reason: why; staff read it, and with ``now`` whoever is asked to leave.
        now: reclaim the leases that block what is in force, instead of waiting for
            their end; those of courses that are not the requester's run on.
        warning_s: how long before they are reclaimed their holders are warned.
    """

    reason: ReasonText = ""
    now: bool = False
    warning_s: Annotated[float, Field(ge=0, le=WARNING_MAX_S)] = 300.0


class Applied(Layouts):
    """What is applied now; ``warned`` are the leases that were warned for it."""

    warned: tuple[int, ...] = ()


class AssertRequest(WireModel):
    """Does it conform: the layouts of a file or, without one, what is in force?

    Attributes:
        text: a layout file; None: what was applied.
        names: these of its layouts, whatever the time; empty: those that would be in force now.
    """

    text: Annotated[str, Field(min_length=1, max_length=TEXT_MAX)] | None = None
    file: Annotated[str, Field(min_length=1, max_length=200)] = "layout"
    names: Annotated[tuple[LayoutName, ...], Field(max_length=32)] = ()


class Asserted(WireModel):
    """Whether each GPU that a layout is about has exactly its slices."""

    conforms: bool
    gpus: tuple[GpuLayout, ...]
