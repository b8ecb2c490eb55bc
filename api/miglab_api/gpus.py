"""GPUs and their slices: the pool as one snapshot, and what applying a layout would change.

A layout file is mig-parted's.  It travels as its text, so that an error in it can be told with its
line.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from miglab_api.base import ReasonText, WireModel
from miglab_api.staff import WARNING_MAX_S
from miglab_api.tickets import Headcount, TicketView

LAYOUT_MAX = 32 * 1024
LAYOUT_NAME_MAX = 64


class SliceState(StrEnum):
    """making → free → leased → scrubbing → (gone, or made anew); quarantined; foreign."""

    MAKING = "making"
    FREE = "free"
    LEASED = "leased"
    SCRUBBING = "scrubbing"
    QUARANTINED = "quarantined"
    FOREIGN = "foreign"


DRAINABLE_STATES = frozenset(
    {SliceState.FREE, SliceState.LEASED, SliceState.MAKING, SliceState.SCRUBBING}
)
"""The states in which a slice can be drained; nobody gets a slice in any other state."""


class SliceView(WireModel):
    """One slice, or a whole GPU leased with MIG off.

    Attributes:
        slice_id: the ledger's name for the slice; a re-made one gets a new id.
        gpu: index of its GPU in the snapshot's order.
        uuid: what ``CUDA_VISIBLE_DEVICES`` takes (``MIG-…`` or ``GPU-…``); None while being made.
        profile: ``1g.5gb`` …, or ``full``.
        start: first memory slice.
        size: memory slices.
        generation: grows with every re-creation at that GPU.
        memory_mib: memory of the slice.
        memory_used_mib: NVML's reading; None if unknown.
        processes: how many processes NVML lists on it; None if unknown.
        activity_pct: how busy it was lately, percent; None where the hardware does not tell (a
            slice of a card before Hopper), or not yet.
        lease: the id of the lease that holds it.
        user: who holds it; only for staff and for the holder.
        server: the holder's server name; as ``user``.
        course: the lease's course.
        guaranteed_until: until when the lease is guaranteed; None for no lease.
        reason: why it is quarantined or foreign.
        draining: why its placement takes no new lease, in the words of whoever drained it; a
            running lease goes on; empty while it is not drained.
        blocks_layout: the layout that has no room for it: the slice is removed once its lease ends;
            empty for none.
    """

    slice_id: int
    gpu: int
    uuid: str | None
    profile: str
    start: int
    size: int
    generation: int
    state: SliceState
    sm_count: int
    memory_mib: int
    memory_used_mib: int | None = None
    processes: int | None = None
    activity_pct: float | None = None
    lease: int | None = None
    user: str | None = None
    server: str | None = None
    course: str | None = None
    guaranteed_until: float | None = None
    reason: str = ""
    draining: str = ""
    blocks_layout: str = ""


class GpuView(WireModel):
    """One GPU and its slices.

    Attributes:
        state: ``ok``; ``unfit`` (it answers, and takes no new lease: it needs a reset, or its MIG
            mode is not the one wanted); ``unknown`` (an NVML call is stuck or failed: takes no new
            lease); ``lost``.
        mig: whether MIG mode is on; None if unknown.
        reason: what is wrong, in words, when ``state`` is not ``ok``.
        draining: why it takes no new lease, in the words of whoever drained it; who is on it runs
            on; empty while it is not drained.
        course: the only course that gets leases on it; empty for every course.
        layout: the layout in force on it; empty: it is cut on demand.
        fault: the fault after which it takes no new lease until staff say that it was reset, which
            undrain does; empty: none.
    """

    index: int
    uuid: str
    name: str
    memory_slices: int
    memory_mib: int
    mig: bool | None
    state: str
    reason: str = ""
    draining: str = ""
    course: str = ""
    layout: str = ""
    fault: str = ""
    slices: tuple[SliceView, ...] = ()


class ReservedSlot(WireModel):
    """Memory slices reserved for a course; leases that lie there run on.

    Attributes:
        gpu: the UUID of its GPU.
        start: first memory slice.
        size: memory slices.
    """

    reservation: int
    course: str
    gpu: str
    start: int
    size: int


class PoolSnapshot(WireModel):
    """The pool at one moment, answered from memory.

    Attributes:
        offered: the tickets whose slices are ready and not taken yet, with their lease.
        reserved_slots: what is reserved now by reservations of slices; whole GPUs are not among it.
        people: how full the lab is.
    """

    at: float
    simulated: bool
    gpus: tuple[GpuView, ...]
    waiting: tuple[TicketView, ...]
    offered: tuple[TicketView, ...] = ()
    reserved_slots: tuple[ReservedSlot, ...] = ()
    paused: str = ""
    people: Headcount = Headcount()


# -- layouts ---------------------------------------------------------------------------------------


class PlacedSlice(WireModel):
    """A present or planned slice: its profile and placement."""

    profile: str
    start: int
    size: int


class ProofLoan(WireModel):
    """The GPUs that `miglab prove` may use until it ends.

    Attributes:
        gpus: their UUIDs.
        barred: why it may not use the others, by UUID.
    """

    gpus: tuple[str, ...]
    barred: dict[str, str]


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
    """One GPU compared with a layout: the steps until it conforms.

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
    """The partitionable GPUs, each compared with its layout.

    Attributes:
        breaks: the reservations that applying it takes slices from, in words.
    """

    at: float
    gpus: tuple[GpuLayout, ...]
    breaks: tuple[str, ...] = ()


class LayoutText(WireModel):
    """The text of a layout file, with the name of one of its configurations.

    Attributes:
        text: what is in it.
        file: its name, for what is wrong in it.
        name: the configuration's; empty: the only one.
    """

    text: Annotated[str, Field(min_length=1, max_length=LAYOUT_MAX)]
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
    """The GPUs under the applied layout; ``warned`` are the leases that were warned for it."""

    warned: tuple[int, ...] = ()
