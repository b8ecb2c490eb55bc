"""The ledger's rows as frozen records, and which of their states still matter.

A row is replaced, never changed: `dataclasses.replace` and `Transaction.put`.  Each is declared
here alone: `ledger.tables` makes a table of it, whose key is the first field.  A field's metadata
says what its type does not: `INDEXED`, `IN_OWN_TABLE`, or which column it ``references``.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import ClassVar

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState
from miglab_api.tickets import Purpose, TicketState
from miglab_pool.settings import PoolSettings

GONE = "gone"  # a slice that is no more; the ledger keeps the row, snapshots do not show it

GPU_OK = "ok"
GPU_UNFIT = "unfit"  # answers, and takes no new lease until somebody has mended it
GPU_UNKNOWN = "unknown"
GPU_LOST = "lost"

FULL = "full"  # the profile of a whole GPU leased with MIG off

LIVE_SLICES = frozenset(SliceState)
LIVE_TICKETS = frozenset(
    {TicketState.WAITING, TicketState.OFFERED, TicketState.ASIDE, TicketState.TAKEN}
)
LIVE_LEASES = frozenset(
    {
        LeaseState.GRANTED,
        LeaseState.ATTACHED,
        LeaseState.RUNNING,
        LeaseState.WARNED,
        LeaseState.RELEASING,
    }
)
LIVE_RESERVATIONS = frozenset({"planned", "reserved", "open"})
LIVE_MESSAGES = frozenset({"open"})
HELD_LEASES = LIVE_LEASES - {LeaseState.GRANTED}

MOST_WASTED = 2
"""After how many grants that go to waste within a day a student's tickets end nobody's lease.

Two, since a server may fail to start, and a phone call may take longer than an offer lasts.
"""


INDEXED = {"is_indexed": True}
IN_OWN_TABLE = {"is_column": False}  # in a table of its own


class PauseKind(StrEnum):
    """Why nothing is granted: staff said so, or a maintenance window has begun."""

    STAFF = "staff"
    MAINTENANCE = "maintenance"


class _Row:
    """What every row has.

    Attributes:
        kind: what it is of; the table's name is its plural.
        live_states: those in which it still matters; None: in every one.
    """

    __slots__ = ()
    kind: ClassVar[str]
    live_states: ClassVar[frozenset[str] | None]
    state: str

    @property
    def is_live(self) -> bool:
        return self.live_states is None or self.state in self.live_states


class _NumberedRow(_Row):
    """What the ledger gives a number."""

    __slots__ = ()
    id: int

    @property
    def key(self) -> int:
        return self.id


@dataclass(frozen=True, slots=True)
class GpuRow(_Row):
    """A GPU the pool has been given; ``generation`` counts the slices made on it.

    Attributes:
        draining: why it takes no new lease, by a person's act; empty: it does.
        layout: the name of the layout that was applied to it; empty: it is cut on demand.
        partition: the profiles of that layout, with commas between them.
        mig: whether MIG was on when it answered last; what is wanted stands in `gpus.whole`.
        fault: the Xids after which it takes no new lease until it was reset, in words, where the
            driver does not say what it needs; empty: none, or somebody said that it was reset.
        boot: the host's boot id when it was inspected last.
    """

    kind = "gpu"
    live_states = None
    uuid: str
    idx: int
    name: str
    memory_mib: int
    memory_slices: int
    sm_count: int | None
    mig: bool | None
    state: str
    reason: str = ""
    generation: int = 0
    course: str = ""
    draining: str = ""
    layout: str = ""
    partition: str = ""
    fault: str = ""
    boot: str = ""

    @property
    def key(self) -> str:
        return self.uuid


@dataclass(frozen=True, slots=True)
class SliceRow(_NumberedRow):
    """One slice, from the decision to make it until it is gone.

    Attributes:
        gi_id: NVML's GPU-instance id; None until it is made.
        lease: the live lease it belongs to.
        tried: whether a create was announced: only then may what lies at its placement be ours.
        attempts: failed destroys so far, or looks for the UUID of one that was just made.
        retry_at: no job before this moment.
        remake: make the same anew after the scrub.
        lost: NVML no longer shows it, but its holder is not confirmed gone.
        draining: why its place takes no new lease, by a person's act; empty: it does.
    """

    kind = "slice"
    live_states = LIVE_SLICES
    id: int
    gpu: str = field(metadata={"references": "gpus.uuid"})
    generation: int
    profile: str
    start: int
    size: int
    sm_count: int
    memory_mib: int
    state: str = field(metadata=INDEXED)
    gi_id: int | None = None
    ci_id: int | None = None
    uuid: str | None = None
    lease: int | None = None
    tried: bool = False
    attempts: int = 0
    retry_at: float = 0.0
    remake: bool = False
    lost: bool = False
    reason: str = ""
    course: str = ""
    draining: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it is free, and whoever is next may have it."""
        return self.state == SliceState.FREE and not self.draining

    @property
    def is_fixed(self) -> bool:
        """Whether its place does not become anybody's by a lease's end."""
        return self.state in (SliceState.FOREIGN, SliceState.QUARANTINED) or bool(self.draining)


@dataclass(frozen=True, slots=True)
class TicketRow(_NumberedRow):
    """A ticket in the queue.  ``waiting`` with a lease means: granted, its slices being made.

    Attributes:
        next_at: when staff put it in front; None if nobody did.
        purpose: a `Purpose`.
        since: when its student last said that they wait, it was granted, or it stepped aside;
            None for when it was made.
        wasted: how often slices went unused that were granted to it or being made free for it.
        wasted_at: when that was last.
    """

    kind = "ticket"
    live_states = LIVE_TICKETS
    id: int
    user: str
    server: str
    course: str
    shape: str
    asked: str
    state: str = field(metadata=INDEXED)
    created_at: float = field(metadata=INDEXED)
    attended_at: float
    offered_at: float | None = None
    lease: int | None = None
    reason: str = ""
    message: str = ""
    next_at: float | None = None
    purpose: str = Purpose.SERVER
    since: float | None = None
    wasted: int = 0
    wasted_at: float | None = None

    @property
    def period_at(self) -> float:
        """When this period of waiting, of being served, or aside began."""
        return self.created_at if self.since is None else self.since

    @property
    def is_borrow(self) -> bool:
        """Whether the slices are for measurements alone."""
        return self.purpose == Purpose.BORROW

    @property
    def is_queued(self) -> bool:
        """Whether it still waits for a grant."""
        return self.state == TicketState.WAITING and self.lease is None


@dataclass(frozen=True, slots=True)
class LeaseRow(_NumberedRow):
    """A grant of slices to one server; ``generation`` is the fence that attach must present.

    Attributes:
        guaranteed_until: until when nobody may end it but for want of use, staff and maintenance;
            then it is open: it goes on as long as nobody needs its slices.
        warned_at: when its holder was warned; set exactly while it is ``warned``.
        reclaim_at: when it is reclaimed unless something ends the warning.
        warn_kind: a `WarningKind`; empty without a warning.
        warn_reason: why, in words for the holder.
        keepalives: how often the holder said "I am still here" since work was last seen.
        keepalive_until: until when the last of these counts.
        warn_by: who asked for it back: staff with a warning, or whoever began its release; empty
            where the policy warned.
        purpose: a `Purpose`.
        server_started: which start of the server was attached: the hub's own time of it.
    """

    kind = "lease"
    live_states = LIVE_LEASES
    id: int
    ticket: int | None = field(metadata={"references": "tickets.id", **INDEXED})
    generation: int
    user: str = field(metadata=INDEXED)
    server: str
    course: str
    shape: str
    state: str = field(metadata=INDEXED)
    granted_at: float
    holder: str = ""
    taken_at: float | None = None
    attached_at: float | None = None
    releasing_at: float | None = None
    ended_at: float | None = None
    guaranteed_until: float = 0.0
    extensions: int = 0
    reason: str = ""
    warned_at: float | None = None
    reclaim_at: float | None = None
    warn_kind: str = ""
    warn_reason: str = ""
    keepalives: int = 0
    keepalive_until: float | None = None
    warn_by: str = ""
    purpose: str = Purpose.SERVER
    server_started: str = ""
    slices: tuple[int, ...] = field(default=(), metadata=IN_OWN_TABLE)

    @property
    def is_borrow(self) -> bool:
        """Whether it is held by measurements alone."""
        return self.purpose == Purpose.BORROW

    @property
    def ends_at(self) -> float | None:
        """When it ends, needed or not: what is borrowed, with its guarantee; None: nothing else."""
        return self.guaranteed_until if self.is_borrow else None

    def is_open_at(self, moment: float) -> bool:
        """Whether its guarantee is over, so that it ends once somebody needs its slices."""
        return self.guaranteed_until <= moment

    def without_warning(self) -> "LeaseRow":
        """The same, running."""
        return replace(
            self,
            state=LeaseState.RUNNING,
            warned_at=None,
            reclaim_at=None,
            warn_kind="",
            warn_reason="",
            warn_by="",
        )

    def frees_at(self, settings: PoolSettings) -> float:
        """When its slices are free if somebody needs them; infinite where nothing is reclaimed.

        At its reclaim, or a warning after its guarantee; what is borrowed, when that is over.
        """
        if self.state == LeaseState.RELEASING:
            return -inf  # in seconds
        if self.is_borrow:
            return self.guaranteed_until
        reclaim = settings.reclaim
        needed_at = self.guaranteed_until + reclaim.warning_s if reclaim.acts else inf
        return needed_at if self.reclaim_at is None else min(self.reclaim_at, needed_at)

    def extensions_left(self, settings: PoolSettings) -> int:
        """How often the holder may still lengthen the guarantee; what is borrowed ends with it."""
        return 0 if self.is_borrow else max(0, settings.pool.extensions - self.extensions)

    def keepalives_left(self, settings: PoolSettings) -> int:
        """How often "I am still here" still counts."""
        return max(0, settings.reclaim.keepalives - self.keepalives)

    @property
    def is_untaken(self) -> bool:
        """Whether it is granted, and nobody has taken it yet."""
        return self.state == LeaseState.GRANTED and self.taken_at is None

    @property
    def is_in_use(self) -> bool:
        """Whether a server has it, and is not asked to give it back."""
        return self.state in (LeaseState.ATTACHED, LeaseState.RUNNING, LeaseState.WARNED)

    @property
    def is_held(self) -> bool:
        """Whether a holder was attached that is not confirmed gone."""
        return self.state in HELD_LEASES and bool(self.holder)


@dataclass(frozen=True, slots=True)
class ReservationRow(_NumberedRow):
    """So many of a shape for a course, at a local time; see schedule.py for what the time means.

    Attributes:
        shape: resolved to profiles; what a ticket's shape must be to draw on it.
        count: how many leases of that shape.
        weekdays: bits, Monday is 1; 0 for a single time, on ``first_date``.
        first_date: ISO date before which it does not take place.
        last_date: ISO date after which it does not; empty for no end.
        from_time: ``HH:MM``, local.
        to_time: ``HH:MM``, local, the same day.
        tz: the IANA name of the time zone.
        grace_s: how long after the start what is not taken up stays set aside.
        state: planned, reserved, open, over, cancelled, refused.  Decisions go by the clock: the
            state is what was noted of it last.
        reason: why it was refused, one of `refused.REASONS`.
        message: the same in words, or why it was cancelled.
    """

    kind = "reservation"
    live_states = LIVE_RESERVATIONS
    id: int
    course: str
    shape: str
    count: int
    weekdays: int
    first_date: str
    last_date: str
    from_time: str
    to_time: str
    tz: str
    grace_s: float
    made_by: str
    made_at: float
    state: str = field(metadata=INDEXED)
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class MessageRow(_NumberedRow):
    """What staff tell students.  Without an addressee it is for all.

    Attributes:
        to_user: only this user.
        to_server: only this server of the user's; None for all of them.
        to_course: only who is in this course.
        until: it is shown no longer from then on.
        state: ``open`` or ``over``.
    """

    kind = "message"
    live_states = LIVE_MESSAGES
    id: int
    at: float
    by: str
    to_user: str | None
    to_server: str | None
    to_course: str | None
    text: str
    until: float
    state: str = field(default="open", metadata=INDEXED)

    @property
    def course(self) -> str:
        """The course it is for, as the ledger's transitions carry it."""
        return self.to_course or ""


Row = GpuRow | SliceRow | TicketRow | LeaseRow | ReservationRow | MessageRow
ROWS: tuple[type[Row], ...] = (
    GpuRow,
    SliceRow,
    LeaseRow,
    TicketRow,
    ReservationRow,
    MessageRow,
)
"""In the order in which they are read: which tickets still matter is known by the leases."""
