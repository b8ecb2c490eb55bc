"""What spawner, student and pool service say to each other: the wire format, and nothing else.

Times are seconds since the epoch (UTC); durations carry ``_s``, memory ``_mib``.  A reading that is
not known is ``None``, never zero.  A sender may not add keys; a receiver refuses unknown ones.
"""

import datetime as dt
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

USER_MAX = 255
SERVER_MAX = 255
COURSE_MAX = 255
SHAPE_MAX = 64
REASON_MAX = 500
SEEN_MAX = 32
COUNT_MAX = 1000
AGE_MAX_S = 10 * 366 * 24 * 3600.0
ATTEND_S = 20.0  # a start that waits asks after its ticket at least this often

User = Annotated[str, Field(min_length=1, max_length=USER_MAX)]
Server = Annotated[str, Field(max_length=SERVER_MAX)]
Course = Annotated[str, Field(min_length=1, max_length=COURSE_MAX)]
ShapeText = Annotated[str, Field(min_length=1, max_length=SHAPE_MAX)]
ReasonText = Annotated[str, Field(max_length=REASON_MAX)]
Seen = Annotated[str, Field(max_length=SEEN_MAX)]
Age = Annotated[float, Field(ge=0, le=AGE_MAX_S, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]


class Message(BaseModel):
    """The base of all: immutable, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TicketState(StrEnum):
    """waiting → offered → (taken | cancelled | refused | expired)."""

    WAITING = "waiting"
    OFFERED = "offered"
    TAKEN = "taken"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    EXPIRED = "expired"


class LeaseState(StrEnum):
    """granted → attached → running → (warned) → releasing → released; granted → expired."""

    GRANTED = "granted"
    ATTACHED = "attached"
    RUNNING = "running"
    WARNED = "warned"
    RELEASING = "releasing"
    RELEASED = "released"
    EXPIRED = "expired"


class WarningKind(StrEnum):
    """Why a lease is about to be taken back.

    It is unused, its time is up, the class ends, maintenance begins, or staff ask for it back.
    """

    IDLE = "idle"
    TIME = "time"
    CLASS_END = "class-end"
    MAINTENANCE = "maintenance"
    STAFF = "staff"


class SliceState(StrEnum):
    """making → free → leased → scrubbing → (gone, or made anew); quarantined; foreign."""

    MAKING = "making"
    FREE = "free"
    LEASED = "leased"
    SCRUBBING = "scrubbing"
    QUARANTINED = "quarantined"
    FOREIGN = "foreign"


class SliceView(Message):
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
        ends_at: when the lease ends; None for no limit or no lease.
        why: why it is quarantined or foreign.
        draining: why its place takes no new lease, in the words of whoever drained it; who is on
            it runs on; empty while it is not drained.
        gives_way: the layout that has no place for it: once its lease ends it is removed; empty for
            none.
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
    ends_at: float | None = None
    why: str = ""
    draining: str = ""
    gives_way: str = ""


class GpuView(Message):
    """One GPU and how it is cut.

    Attributes:
        state: ``ok``; ``unknown`` (an NVML call is stuck or failed: takes no new lease);
            ``lost``.
        mig: whether MIG mode is on; None if unknown.
        why: what is wrong, in words, when ``state`` is not ``ok``.
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
    why: str = ""
    draining: str = ""
    course: str = ""
    layout: str = ""
    slices: tuple[SliceView, ...] = ()


class TicketRequest(Message):
    """Ask for a shape; the same user, server, course and shape again is the same ticket.

    Attributes:
        server: the named server; empty for the default one.
        shape: ``1g.5gb``, ``2x1g.5gb``, ``full`` …, or a need: ``at least 9 GiB``.
        only_if_free: granted at once, or refused (``not-free``) and nothing is changed: the server
            keeps the place, or the offer, that it has.
    """

    user: User
    server: Server = ""
    course: Course
    shape: ShapeText
    only_if_free: bool = False


class WaitEstimate(Message):
    """How long a wait is likely to last from now on; seconds.

    Attributes:
        low_s: it hardly lasts shorter.
        likely_s: as often shorter as longer.
        high_s: it hardly lasts longer; in simulation four of five waits end between the two.
        why: what the figures were made from, in words.
    """

    low_s: float
    likely_s: float
    high_s: float
    why: str


class TicketView(Message):
    """A place in the queue.

    Attributes:
        shape: the shape asked for, resolved to profiles.
        position: 1 for the next in line; None unless waiting.
        waiting: how many wait in all.
        lease: the granted lease, from ``offered`` on.
        reason: a short machine-readable word for a refusal (``queue-full``, ``waited-too-long``,
            ``impossible-shape``, ``not-in-course``, ``cancelled`` …), else empty.
        message: the same in words the student can act on.
        expires_at: when an unattended ticket, or an offer not taken, ends.
        estimate: how long it is likely to wait; None unless waiting, and where it is not known.
        is_next: whether staff put it in front: the next slices that fit are its.
    """

    id: int
    user: str | None
    server: str | None
    course: str
    shape: str
    state: TicketState
    position: int | None = None
    waiting: int = 0
    estimate: WaitEstimate | None = None
    created_at: float
    expires_at: float | None = None
    lease: int | None = None
    reason: str = ""
    message: str = ""
    is_next: bool = False


class LeaseWarning(Message):
    """A lease is about to be taken back unless something happens.

    Attributes:
        at: when the holder was warned.
        reclaim_at: when it is taken back; may be put off, and brought forward where staff set it
            and the class, the lease or the lab ends before.
        reason: why, in words for the holder.
        kind: ``idle`` ends with activity or "I am still here"; ``time`` with an extension; the
            others with nothing that its holder can do.
        stays_left: how often "I am still here" still counts before work must be seen.
    """

    at: float
    reclaim_at: float
    reason: str
    kind: WarningKind
    stays_left: int = 0


class LeaseView(Message):
    """A grant of slices to one server.

    Attributes:
        generation: the fence: attach must present it.
        holder: ``container:<id>`` or ``process:<pid>,<start time>,<boot id>``; empty before attach.
        uuids: the slices' UUIDs, in order, for ``MIGLAB_SLICES``.
        ends_at: when it ends; None for no limit.
        attached_at: when its server was attached; None before.
        asked_back_at: when somebody asked for its release; None if nobody did, as when its server
            ended by itself.
        extensions_left: how often the holder may still extend it; 0 where its place is reserved.
        extension_s: the most one extension adds; less where its place is reserved from then on.
        warning: that it is about to be taken back, and when; None unless ``state`` is ``warned``.
        others_wait: how many of the others in line could use what this lease would free.
    """

    id: int
    ticket: int | None
    generation: int
    user: str
    server: str
    course: str
    shape: str
    state: LeaseState
    holder: str = ""
    uuids: tuple[str, ...] = ()
    slices: tuple[SliceView, ...] = ()
    granted_at: float
    attached_at: float | None = None
    ends_at: float | None = None
    asked_back_at: float | None = None
    extensions_left: int = 0
    extension_s: float = 0
    reason: str = ""
    warning: LeaseWarning | None = None
    others_wait: int = 0


class AttachRequest(Message):
    """The fence: the server's container or process exists, is not started, and holds this lease."""

    generation: int
    holder: Annotated[str, Field(min_length=3, max_length=200)]


class ReleaseRequest(Message):
    """Ask for a lease back; freed once the pool has seen for itself that the holder is gone."""

    reason: ReasonText = ""


class ExtendRequest(Message):
    """Ask for more time, seconds.

    Attributes:
        reason: why, where it is not the holder who asks.
        seen: the lease's state that whoever asks saw; refused if it is another by now.
    """

    by_s: Annotated[float, Field(gt=0, le=7 * 24 * 3600)]
    reason: ReasonText = ""
    seen: Seen | None = None


class KernelSignal(Message):
    """What a server says of one kernel.

    Attributes:
        busy: whether it runs something now; None if it cannot be told.
        last_execution_age_s: since it last ended something, or since it was started if it never
            ran anything; None if it cannot be told.
    """

    busy: bool | None = None
    last_execution_age_s: Age | None = None


class Signals(Message):
    """What a student's server says of itself; `None` is always "it cannot be told".

    Ages are seconds by the sender's monotonic clock: no two clocks are ever compared.

    Attributes:
        kernels: all that there are; an empty list is known, None is not.
        terminals: how many are open.
        terminal_age_s: since the last input or output of any.
        browsers: how many pages are connected.
        browser_age_s: since a person last did something in any.
        unsaved: documents with changes that are not saved.
        cpu_s: CPU time used so far by all that the server has started, itself included.
    """

    kernels: Annotated[tuple[KernelSignal, ...], Field(max_length=COUNT_MAX)] | None = None
    terminals: Count | None = None
    terminal_age_s: Age | None = None
    browsers: Count | None = None
    browser_age_s: Age | None = None
    unsaved: Count | None = None
    cpu_s: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] | None = None


class ShapeOffer(Message):
    """A shape as the spawn page offers it.

    Attributes:
        shape: what to send back in a `TicketRequest`; ``cpu`` for no GPU.
        sm_count: SMs per slice (0 for cpu).
        memory_mib: GPU memory per slice (0 for cpu).
        slices: how many slices.
        good_for: one sentence for the student.
        free_now: how many such leases could be granted right now; None for cpu.
        waiting: how many tickets wait for this shape.
        is_kept: whether what is free is kept for somebody in line, and only therefore not enough.
        reserved_s: how long what is free may yet be kept for a class that has reserved it, if only
            therefore it is not enough; else None.
        next_end_s: seconds until the next lease that would make room ends, beside the place kept
            for whoever is first in line; None if unknown.
        wait: how long somebody would wait who asked now; None if free, or if it is not known.
    """

    shape: str
    sm_count: int
    memory_mib: int
    slices: int
    good_for: str
    free_now: int | None
    waiting: int = 0
    is_kept: bool = False
    reserved_s: float | None = None
    next_end_s: float | None = None
    wait: WaitEstimate | None = None


class QuotaLeft(Message):
    """How much of one limit is used.

    Attributes:
        quota: the quota's name.
        limit: ``live_slices`` (memory slices at a time), ``slice_hours_week`` (memory slices
            times hours, in any seven days), or ``lease_s`` (longest lease, seconds).
        is_shared: whether the whole course uses it together.
        more_in_s: when all of it is used: seconds until some of it is there again.
    """

    quota: str
    limit: Literal["live_slices", "slice_hours_week", "lease_s"]
    is_shared: bool = False
    most: float
    used: float = 0.0
    more_in_s: float | None = None


class CourseOffers(Message):
    """What one course offers one user; ``left`` is what that user's quotas leave."""

    course: str
    title: str
    shapes: tuple[ShapeOffer, ...]
    default: str
    left: tuple[QuotaLeft, ...] = ()


class Offers(Message):
    """The spawn page's data."""

    simulated: bool
    courses: tuple[CourseOffers, ...]
    paused: str = ""


class ReservationState(StrEnum):
    """planned → kept → open → planned … → over; planned, kept or open → cancelled; refused.

    planned: ahead.  kept: its places are set aside.  open: it takes place, and what was not taken
    up in time is free for all, its students first.
    """

    PLANNED = "planned"
    KEPT = "kept"
    OPEN = "open"
    OVER = "over"
    CANCELLED = "cancelled"
    REFUSED = "refused"


Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WallTime = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
ZoneName = Annotated[str, Field(min_length=1, max_length=64)]
RESERVED_MAX = 10_000


class ReservationRequest(Message):
    """Reserve slices for a course, every week or once.

    Attributes:
        shape: what a student asks for, as in a `TicketRequest`.
        count: how many students may hold it.
        weekdays: the days of every week; empty for once.
        date: the day of a single time, or the first day from which the weekly ones count.
        until: the last day that a weekly one may take place; None for no end.
        from_time: ``HH:MM``, local.
        to_time: ``HH:MM``, local, later on the same day.
        tz: the time zone's IANA name, such as ``Europe/Berlin``.
        grace_s: how long after the start what is not taken up stays set aside.
        reason: what it is for; staff read it.
    """

    course: Course
    shape: ShapeText
    count: Annotated[int, Field(ge=1, le=RESERVED_MAX)]
    weekdays: Annotated[tuple[Weekday, ...], Field(max_length=7)] = ()
    date: dt.date | None = None
    until: dt.date | None = None
    from_time: WallTime
    to_time: WallTime
    tz: ZoneName
    grace_s: Annotated[float, Field(ge=0, le=24 * 3600)] = 900.0
    reason: ReasonText = ""


class ReservationView(Message):
    """A reservation, and its time in force or next.

    Attributes:
        date: the day of a single time, or the first day that counts.
        starts_at: when the time in force, or else the next, begins; None if there is none.
        ends_at: when it ends.
        kept_from: from when on its places are set aside.
        kept_until: until when what is not taken up stays set aside.
        drawn: how many live leases draw on it, of ``count``.
        made_by: who made it; for staff only.
        reason: for one that was cancelled or refused, a word; else empty.
        message: what it is for, or why it was cancelled or refused; for staff only.
    """

    id: int
    course: str
    shape: str
    count: int
    weekdays: tuple[Weekday, ...]
    date: dt.date
    until: dt.date | None
    from_time: str
    to_time: str
    tz: str
    grace_s: float
    state: ReservationState
    starts_at: float | None = None
    ends_at: float | None = None
    kept_from: float | None = None
    kept_until: float | None = None
    drawn: int = 0
    made_by: str | None = None
    made_at: float
    reason: str = ""
    message: str = ""


class KeptPlace(Message):
    """Memory slices that are set aside for a reservation; who runs there runs on.

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


class Note(Message):
    """What staff tell whoever is at a server.

    Attributes:
        by: who says so, by name.
        until: it is shown no longer from then on.
    """

    id: int
    at: float
    by: str
    text: str
    until: float


class Standing(Message):
    """What one server has, what it waits for, and what staff tell it.

    Attributes:
        lease: the live lease that the server was attached to.
        ticket: its place in line or its offer; also one that is over, to who names it as known.
        notes: staff's messages to this server, its student or its course.
    """

    lease: LeaseView | None = None
    ticket: TicketView | None = None
    notes: tuple[Note, ...] = ()


class AgainRequest(Message):
    """Ask once more for what a ticket that is over had asked for."""

    ticket: Annotated[int, Field(ge=0, le=2**53)]


class PoolSnapshot(Message):
    """The pool at one moment, answered from memory.

    Attributes:
        kept: what is set aside now for reservations of slices; whole GPUs are not among it.
    """

    at: float
    simulated: bool
    gpus: tuple[GpuView, ...]
    waiting: tuple[TicketView, ...]
    kept: tuple[KeptPlace, ...] = ()
    paused: str = ""


class Refusal(Message):
    """The body of every answer that is an error: a word for machines, a sentence for people."""

    reason: str
    message: str
