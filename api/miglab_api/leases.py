"""Leases, the reports of their servers, and the requests about them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from miglab_api.base import COUNT_MAX, Age, Count, ExpectedState, ReasonText, WireModel
from miglab_api.gpus import SliceView
from miglab_api.line import LeaseEnd, Line
from miglab_api.staff import StaffMessage
from miglab_api.tickets import Purpose, TicketView

TIME_OF_HUB = r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z)?$"


class LeaseState(StrEnum):
    """granted → attached → running → (warned) → releasing → released; granted → expired."""

    GRANTED = "granted"
    ATTACHED = "attached"
    RUNNING = "running"
    WARNED = "warned"
    RELEASING = "releasing"
    RELEASED = "released"
    EXPIRED = "expired"


ENDED_STATES = frozenset({LeaseState.RELEASED, LeaseState.EXPIRED})


class WarningKind(StrEnum):
    """Why a lease is about to be reclaimed.

    It is unused, its time is up, somebody needs it, maintenance begins, or staff ask for it back.
    """

    IDLE = "idle"
    TIME = "time"
    NEEDED = "needed"
    MAINTENANCE = "maintenance"
    STAFF = "staff"


WITHDRAWABLE = frozenset({WarningKind.IDLE, WarningKind.NEEDED})
"""Warnings whose ground may go; they last in full for whoever can answer them."""


class LeaseWarning(WireModel):
    """A lease is about to be reclaimed unless something happens.

    Attributes:
        at: when the holder was warned.
        reclaim_at: when it is reclaimed; may be put off, and brought forward where staff set it
            and the lease or the lab ends before.
        reason: why, in words for the holder.
        kind: ``idle`` ends with activity or "I am still here"; ``time`` with an extension;
            ``needed`` when nobody needs it any more; the others with nothing.
        keepalives_left: how often "I am still here" still counts before work must be seen.
    """

    at: float
    reclaim_at: float
    reason: str
    kind: WarningKind
    keepalives_left: int = 0


class LeaseView(WireModel):
    """A grant of slices to one server.

    Attributes:
        generation: the fence: attach must present it.
        ledger: the id of the ledger that granted it; empty where it is not said.
        holder: ``container:<id>`` or ``process:<pid>,<start time>,<boot id>``; empty before attach.
        uuids: the slices' UUIDs, in order, for ``MIGLAB_SLICES``.
        guaranteed_until: until when it is guaranteed; then it is open, and goes on as long as
            nobody needs its slices.  None where leases end when they are set to.
        ends_at: when it ends, needed or not: what is borrowed, and a job of Slurm; None: it has no
            such end.
        attached_at: when its server was attached; None before.
        release_requested_at: when somebody asked for its release; None if nobody did, as when its
            server ended by itself.
        is_given_back: whether it was its holder who asked.
        goes_on: whether it ends because somebody needs it, and its server goes on without a GPU.
        extensions_left: how often the holder may still extend it; 0 where its slot is reserved.
        extension_s: the most one extension adds; less where its slot is reserved from then on.
        warning: that it is about to be reclaimed, and when; None unless ``state`` is ``warned``.
        others_wait: how many of the others in the queue could use what this lease would free.
        purpose: what it is for; one that is borrowed ends with its measurements.
        server_started: as for `AttachRequest`.
    """

    id: int
    ticket: int | None
    generation: int
    user: str
    server: str
    course: str
    shape: str
    state: LeaseState
    ledger: str = ""
    holder: str = ""
    uuids: tuple[str, ...] = ()
    slices: tuple[SliceView, ...] = ()
    granted_at: float
    attached_at: float | None = None
    guaranteed_until: float | None = None
    ends_at: float | None = None
    release_requested_at: float | None = None
    is_given_back: bool = False
    goes_on: bool = False
    extensions_left: int = 0
    extension_s: float = 0
    reason: str = ""
    warning: LeaseWarning | None = None
    others_wait: int = 0
    purpose: Purpose = Purpose.SERVER
    server_started: str = ""


class RequestedLease(WireModel):
    """What a request for a lease led to.

    Attributes:
        ticket: as the request left it.
        taken_lease: what was granted and taken in the same step; None: the ticket waits.
    """

    ticket: TicketView
    taken_lease: LeaseView | None = None


class LeaseEnds(WireModel):
    """The leases of a student that have ended since some moment, the oldest first."""

    ends: tuple[LeaseEnd, ...]


class Fence(WireModel):
    """What identifies a lease beside its number, which a ledger restored from a copy gives again.

    Attributes:
        ledger: the id of the ledger that granted it; empty for a server from before there was one.
    """

    generation: int
    ledger: Annotated[str, Field(max_length=64)] = ""


class AttachRequest(Fence):
    """The fence: the server's container or process exists, is not started, and holds this lease.

    Attributes:
        server_started: when this start of the server began, as the hub's API says it; empty where
            nobody knows.
    """

    holder: Annotated[str, Field(min_length=3, max_length=200)]
    server_started: Annotated[str, Field(max_length=40, pattern=TIME_OF_HUB)] = ""


class ReleaseRequest(WireModel):
    """Ask to release a lease, which is freed once the pool has confirmed that its holder is gone.

    Attributes:
        generation: of the lease that is meant; a spawner says it, as numbers can come again.
        ledger: as for `Fence`.
    """

    reason: ReasonText = ""
    generation: int | None = None
    ledger: Annotated[str, Field(max_length=64)] = ""


class ExtendRequest(WireModel):
    """Ask for more time, seconds.

    Attributes:
        reason: why, where it is not the holder who asks.
        expected: the lease's state as whoever asks saw it; refused if it is another by now.
    """

    by_s: Annotated[float, Field(gt=0, le=7 * 24 * 3600)]
    reason: ReasonText = ""
    expected: ExpectedState | None = None


class KernelSignal(WireModel):
    """A server's report on one kernel.

    Attributes:
        busy: whether it runs something now; None if it cannot be told.
        last_execution_age_s: since it last ended something, or since it was started if it never
            ran anything; None if it cannot be told.
    """

    busy: bool | None = None
    last_execution_age_s: Age | None = None


class Signals(WireModel):
    """A report of a student's server on its activity; None always means unknown.

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


class ServerStatus(WireModel):
    """A server's lease, its ticket, and the messages for it.

    Attributes:
        lease: the live lease that the server was attached to.
        ticket: its ticket in the queue or its offer; one that is over only if the caller knows it.
        messages: what staff tell this server, its student or its course.
        borrowed: the live lease of its measurements.
        borrowing: the ticket of its measurements.
        people: how full the lab is, in words; empty where that is not counted.
        line: where this server stands, for the words that all pages share.
        sharing: the student's courses whose staff are shown how far everybody is, and whether the
            student has read the notice of it.
    """

    lease: LeaseView | None = None
    ticket: TicketView | None = None
    messages: tuple[StaffMessage, ...] = ()
    borrowed: LeaseView | None = None
    borrowing: TicketView | None = None
    people: str = ""
    line: Line | None = None
    sharing: Mapping[str, bool] = {}
