"""What an act of staff makes of a row, or why it is refused.  Pure: rows and times in, rows out."""

from dataclasses import replace
from typing import TypeVar

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState, WarningKind
from miglab_api.staff import display_name
from miglab_api.tickets import TicketState
from miglab_pool.ledger.rows import FULL, GpuRow, LeaseRow, Row, SliceRow, TicketRow
from miglab_pool.refused import Refused

DRAINING = "draining"
NEXT = "next"
Drainable = TypeVar("Drainable", GpuRow, SliceRow)

DRAINABLE = frozenset({SliceState.FREE, SliceState.LEASED, SliceState.MAKING, SliceState.SCRUBBING})
FIXED_ENDS = frozenset({WarningKind.MAINTENANCE})


# -- what somebody saw ----------------------------------------------------------------------------


def label(row: Row) -> str:
    """What a thing is called where a sentence begins."""
    return f"GPU {row.idx}" if isinstance(row, GpuRow) else f"{row.kind.capitalize()} {row.id}"


def status_of(row: Row) -> str:
    """How a thing stands, in the one word that a page shows: its state, or what staff made it."""
    if isinstance(row, GpuRow | SliceRow) and row.draining:
        is_drained = isinstance(row, GpuRow) or row.state in DRAINABLE
        return DRAINING if is_drained else row.state
    if isinstance(row, TicketRow) and row.is_queued and row.next_at is not None:
        return NEXT
    return row.state


def is_as_expected(row: Row, expected: str | None) -> bool:
    """Whether it still stands as somebody saw it; who saw nothing in particular is content."""
    if expected is None:
        return True
    if expected.isdecimal() and isinstance(row, SliceRow | LeaseRow):
        return int(expected) == row.generation
    return expected == status_of(row)


def changed(row: Row, expected: str | None, told: str) -> Refused:
    """It stands otherwise than was seen; ``told`` says who did what."""
    by = f": {told}" if told else ""
    now = status_of(row)
    how = f"is {now} now, not {expected}" if expected != now else "is another by now"
    said = f"{label(row)} {how}{by}. Nothing was done: look again, then decide."
    return Refused("changed-meanwhile", said)


# -- all of it ------------------------------------------------------------------------------------


def check_pause(was: str, reason: str, told: str) -> None:
    """Refuse to pause what is paused, and to resume what is not: nobody's reason is written over.

    Args:
        was: why nothing is granted; empty while it is.
        reason: why nothing is to be granted; empty to grant again.
        told: who did what last.
    """
    if bool(was) == bool(reason):
        how = f"is paused already: {told or was}" if was else "grants leases already"
        since = f": {told}" if told and not was else ""
        raise Refused("already-done", f"The pool {how}{since}. Nothing was done.")


# -- places ---------------------------------------------------------------------------------------


def drained(row: Drainable, reason: str, told: str) -> Drainable:
    """Nobody new gets it; who is on it runs on.

    Args:
        row: a GPU or a slice.
        reason: in the words of whoever drains it.
        told: who did what to it last.
    """
    if row.draining:
        raise _done_already(row, f"is drained already: {told or row.draining}")
    if isinstance(row, SliceRow):
        if row.profile == FULL:
            raise Refused("whole-gpu", f"{label(row)} is a whole GPU: drain the GPU instead.")
        if row.state not in DRAINABLE:
            raise _done_already(row, f"is {row.state}, so nobody gets it anyway")
    return replace(row, draining=reason)


def undrained(row: Drainable, told: str) -> Drainable:
    """Whoever is next may have it again; of a GPU with a fault this says that it was reset.

    Somebody's drain, for a reason of their own, outlasts that, until it is ended as well.
    """
    if isinstance(row, GpuRow) and row.fault:
        return replace(row, fault="")
    if not row.draining:
        raise _done_already(row, f"is not drained{f' any more: {told}' if told else ''}")
    return replace(row, draining="")


def quarantine(row: SliceRow, reason: str, told: str) -> SliceRow:
    """A slice that nobody holds is set aside, as it is, until a person has it tried again."""
    if row.state == SliceState.QUARANTINED:
        raise _done_already(row, f"is quarantined already: {told or row.reason}")
    if row.state == SliceState.FOREIGN:
        raise _done_already(row, "is foreign: miglab never gives it to anybody")
    if row.lease is not None:
        raise Refused(
            "still-held",
            f"{label(row)} is held by lease {row.lease}. Drain it, so that nobody gets it next, or "
            "take the lease back first.",
        )
    if row.state != SliceState.FREE:
        raise Refused(
            "still-held",
            f"{label(row)} is {row.state}: the driver is working on it. Try again in a moment.",
        )
    return replace(row, state=SliceState.QUARANTINED, reason=reason)


def check_is(row: SliceRow, state: SliceState, reason: str) -> None:
    """Refuse what is not in the one state in which this can be done to it."""
    if row.state != state:
        raise Refused(reason, f"{label(row)} is {row.state}, not {state}.")


def _done_already(row: Row, how: str) -> Refused:
    return Refused("already-done", f"{label(row)} {how}. Nothing was done.")


# -- leases ---------------------------------------------------------------------------------------


def reclaimed(row: LeaseRow, by: str, reason: str, warning_s: float, at: float) -> LeaseRow | None:
    """The lease, warned by staff; None if it is to be released now.

    Whoever holds it can do nothing against it but save; only staff can let them keep it.  A warning
    by staff is not begun anew, but it can be cut short by taking the lease back at once.
    It does not put off maintenance.
    """
    if not row.is_live or row.state == LeaseState.RELEASING:
        how = "is being given back already" if row.is_live else f"is over ({row.state})"
        raise _done_already(row, how)
    if row.state == LeaseState.GRANTED or not warning_s:
        return None
    if row.warn_kind == WarningKind.STAFF:
        raise _done_already(row, f"is being reclaimed already, by {display_name(row.warn_by)}")
    until = at + warning_s
    if row.warn_kind in FIXED_ENDS and row.reclaim_at is not None:
        until = min(until, row.reclaim_at)
    return replace(
        row,
        state=LeaseState.WARNED,
        warned_at=at,
        reclaim_at=until,
        warn_kind=WarningKind.STAFF.value,
        warn_reason=asked_back(by, reason),
        warn_by=by,
    )


def asked_back(by: str, reason: str) -> str:
    """What the holder reads."""
    return f"{display_name(by)} takes this slice back: “{reason}”. Your files are kept."


def is_due(row: LeaseRow, at: float) -> bool:
    """Whether the warning that staff gave is over."""
    is_staffs = row.state == LeaseState.WARNED and row.warn_kind == WarningKind.STAFF
    return is_staffs and row.reclaim_at is not None and row.reclaim_at <= at


def given_time(row: LeaseRow, by_s: float, at: float, still_here_s: float) -> LeaseRow:
    """The lease with a longer guarantee: as often as staff wish, whatever its holder has left.

    An unused lease's warning ends with it, and so does one by staff: the holder may keep it.
    """
    if not row.is_in_use:
        raise Refused("no-extension", f"{label(row)} is {row.state} and cannot be extended.")
    if row.warn_kind in FIXED_ENDS:
        raise Refused("no-extension", f"An extension does not change this end: {row.warn_reason}")
    if row.state == LeaseState.WARNED:
        row = replace(row.without_warning(), keepalive_until=at + still_here_s)
    return replace(row, guaranteed_until=max(row.guaranteed_until, at) + by_s)


# -- tickets --------------------------------------------------------------------------------------


def put_in_front(row: TicketRow, at: float, told: str) -> TicketRow:
    """Behind those whom staff put there before, in front of everybody else."""
    _check_queued(row)
    if row.next_at is not None:
        raise _done_already(row, f"is in front already: {told}")
    return replace(row, next_at=at)


def put_back(row: TicketRow, told: str) -> TicketRow:
    """At the position that its course, its user and its age give it."""
    _check_queued(row)
    if row.next_at is None:
        raise _done_already(row, f"is not in front{f' any more: {told}' if told else ''}")
    return replace(row, next_at=None)


def _check_queued(row: TicketRow) -> None:
    if row.is_queued:
        return
    is_served = row.state in (TicketState.WAITING, TicketState.OFFERED, TicketState.TAKEN)
    how = "has its slices already" if is_served else f"is {row.state}"
    raise Refused("not-waiting", f"{label(row)} {how}: it is no longer in the queue.")
