"""GPUs, their slices, and the pool as one snapshot."""

from enum import StrEnum

from miglab_api.base import WireModel
from miglab_api.tickets import Headcount, TicketView


class SliceState(StrEnum):
    """making → free → leased → scrubbing → (gone, or made anew); quarantined; foreign."""

    MAKING = "making"
    FREE = "free"
    LEASED = "leased"
    SCRUBBING = "scrubbing"
    QUARANTINED = "quarantined"
    FOREIGN = "foreign"


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
    """One GPU and how it is cut.

    Attributes:
        state: ``ok``; ``unknown`` (an NVML call is stuck or failed: takes no new lease);
            ``lost``.
        mig: whether MIG mode is on; None if unknown.
        reason: what is wrong, in words, when ``state`` is not ``ok``.
        draining: why it takes no new lease, in the words of whoever drained it; who is on it runs
            on; empty while it is not drained.
        course: the only course that gets leases on it; empty for every course.
        layout: the layout in force on it; empty: it is cut on demand.
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
        reserved_slots: what is reserved now by reservations of slices; whole GPUs are not among it.
        people: how full the lab is.
    """

    at: float
    simulated: bool
    gpus: tuple[GpuView, ...]
    waiting: tuple[TicketView, ...]
    reserved_slots: tuple[ReservedSlot, ...] = ()
    paused: str = ""
    people: Headcount = Headcount()
