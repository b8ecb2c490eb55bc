"""What an action of staff makes of a row, or why it is refused.  Pure: rows in, rows out."""

from dataclasses import replace
from typing import TypeVar

from miglab_api.gpus import DRAINABLE_STATES, SliceState
from miglab_api.leases import LeaseState, WarningKind
from miglab_api.staff import display_name
from miglab_api.tickets import TicketState
from miglab_pool.ledger.rows import FULL, GpuRow, LeaseRow, Row, SliceRow, TicketRow
from miglab_pool.refused import Refused

DRAINING = "draining"
NEXT = "next"
Drainable = TypeVar("Drainable", GpuRow, SliceRow)

FIXED_ENDS = frozenset({WarningKind.MAINTENANCE})


# -- the expected state ---------------------------------------------------------------------------


def row_title(row: Row) -> str:
    """Return what a row is called at the beginning of a sentence."""
    return f"GPU {row.idx}" if isinstance(row, GpuRow) else f"{row.kind.capitalize()} {row.id}"


def status_word(row: Row) -> str:
    """Return the state of a row in the word that pages show, such as "draining" or "next"."""
    if isinstance(row, GpuRow | SliceRow) and row.draining:
        is_drained = isinstance(row, GpuRow) or row.state in DRAINABLE_STATES
        return DRAINING if is_drained else row.state
    if isinstance(row, TicketRow) and row.is_queued and row.next_at is not None:
        return NEXT
    return row.state


def is_as_expected(row: Row, expected: str | None) -> bool:
    """Whether a row still has the state or generation that a person saw; None expects nothing."""
    if expected is None:
        return True
    if expected.isdecimal() and isinstance(row, SliceRow | LeaseRow):
        return int(expected) == row.generation
    return expected == status_word(row)


def changed_refusal(row: Row, expected: str | None, last_change: str) -> Refused:
    """Return the refusal for a row that changed since a person saw it, naming the last change."""
    cause = f": {last_change}" if last_change else ""
    now = status_word(row)
    difference = f"is {now} now, not {expected}" if expected != now else "is another by now"
    message = f"{row_title(row)} {difference}{cause}. Nothing was done: look again, then decide."
    return Refused("changed-meanwhile", message)


# -- the pool -------------------------------------------------------------------------------------


def check_pause(paused: str, reason: str, last_change: str) -> None:
    """Refuse to pause a paused pool or to resume a running one, so that no reason is overwritten.

    Args:
        paused: why the pool is paused; empty if it is not.
        reason: why it is to be paused; empty to resume.
        last_change: who paused or resumed it last.
    """
    if bool(paused) == bool(reason):
        if paused:
            state = f"is paused already: {last_change or paused}"
        else:
            state = f"grants leases already{f': {last_change}' if last_change else ''}"
        raise Refused("already-done", f"The pool {state}. Nothing was done.")


# -- GPUs and slices ------------------------------------------------------------------------------


def drain(row: Drainable, reason: str, last_change: str) -> Drainable:
    """Drain a GPU or a slice: it takes no new lease, and running leases go on.

    Args:
        row: the GPU or slice.
        reason: why, in the words of the person who drains it.
        last_change: who changed it last, and how.
    """
    if row.draining:
        raise _already_done(row, f"is drained already: {last_change or row.draining}")
    if isinstance(row, SliceRow):
        if row.profile == FULL:
            raise Refused("whole-gpu", f"{row_title(row)} is a whole GPU: drain the GPU instead.")
        if row.state not in DRAINABLE_STATES:
            raise _already_done(row, f"is {row.state}, so nobody gets it anyway")
    return replace(row, draining=reason)


def undrain(row: Drainable, last_change: str) -> Drainable:
    """End a drain; of a GPU with a fault, clear the fault, because it was reset.

    A drain outlasts the clearing of a fault, until it is ended as well.
    """
    if isinstance(row, GpuRow) and row.fault:
        return replace(row, fault="")
    if not row.draining:
        raise _already_done(
            row, f"is not drained{f' any more: {last_change}' if last_change else ''}"
        )
    return replace(row, draining="")


def quarantine(row: SliceRow, reason: str, last_change: str) -> SliceRow:
    """Take a slice that nobody holds out of service, until a person clears it."""
    if row.state == SliceState.QUARANTINED:
        raise _already_done(row, f"is quarantined already: {last_change or row.reason}")
    if row.state == SliceState.FOREIGN:
        raise _already_done(row, "is foreign: miglab never gives it to anybody")
    if row.lease is not None:
        raise Refused(
            "still-held",
            f"{row_title(row)} is held by lease {row.lease}. Drain it, so that nobody gets it "
            "next, or take the lease back first.",
        )
    if row.state != SliceState.FREE:
        raise Refused(
            "still-held",
            f"{row_title(row)} is {row.state}: the driver is working on it. Try again in a moment.",
        )
    return replace(row, state=SliceState.QUARANTINED, reason=reason)


def check_state(row: SliceRow, state: SliceState, reason: str) -> None:
    """Refuse an action on a slice that is not in the state that the action needs."""
    if row.state != state:
        raise Refused(reason, f"{row_title(row)} is {row.state}, not {state}.")


def _already_done(row: Row, state: str) -> Refused:
    return Refused("already-done", f"{row_title(row)} {state}. Nothing was done.")


# -- leases ---------------------------------------------------------------------------------------


def warn_for_reclaim(
    row: LeaseRow, actor: str, reason: str, warning_s: float, at: float
) -> LeaseRow | None:
    """Warn the holder of a lease that staff reclaim; None if it is to be released now.

    The holder cannot end this warning; only staff can, by an extension.  A warning by staff is not
    repeated, but the lease can be reclaimed at once meanwhile.  It does not postpone maintenance.
    """
    if not row.is_live or row.state == LeaseState.RELEASING:
        state = "is being given back already" if row.is_live else f"is over ({row.state})"
        raise _already_done(row, state)
    if row.state == LeaseState.GRANTED or not warning_s:
        return None
    if row.warn_kind == WarningKind.STAFF:
        raise _already_done(row, f"is being reclaimed already, by {display_name(row.warn_by)}")
    until = at + warning_s
    if row.warn_kind in FIXED_ENDS and row.reclaim_at is not None:
        until = min(until, row.reclaim_at)
    return replace(
        row,
        state=LeaseState.WARNED,
        warned_at=at,
        reclaim_at=until,
        warn_kind=WarningKind.STAFF.value,
        warn_reason=reclaim_message(actor, reason),
        warn_by=actor,
    )


def reclaim_message(actor: str, reason: str) -> str:
    """Return what the holder of a reclaimed lease reads."""
    end = "" if reason.endswith((".", "!", "?")) else "."
    return f"This slice is reclaimed by {display_name(actor)}: “{reason}”{end} Your files are kept."


def is_reclaim_due(row: LeaseRow, at: float) -> bool:
    """Whether the time of a warning by staff is over."""
    is_staffs = row.state == LeaseState.WARNED and row.warn_kind == WarningKind.STAFF
    return is_staffs and row.reclaim_at is not None and row.reclaim_at <= at


def extend_guarantee(row: LeaseRow, by_s: float, at: float, still_here_s: float) -> LeaseRow:
    """Extend the guarantee of a lease, regardless of how many extensions its holder has left.

    This ends a warning, by staff or for idleness.
    """
    if not row.is_in_use:
        raise Refused("no-extension", f"{row_title(row)} is {row.state} and cannot be extended.")
    if row.warn_kind in FIXED_ENDS:
        raise Refused("no-extension", f"An extension does not change this end: {row.warn_reason}")
    if row.state == LeaseState.WARNED:
        row = replace(row.without_warning(), keepalive_until=at + still_here_s)
    return replace(row, guaranteed_until=max(row.guaranteed_until, at) + by_s)


# -- tickets --------------------------------------------------------------------------------------


def put_in_front(row: TicketRow, at: float, last_change: str) -> TicketRow:
    """Put a ticket in front of the queue, behind those that staff put there before."""
    _check_queued(row)
    if row.next_at is not None:
        raise _already_done(row, f"is in front already: {last_change}")
    return replace(row, next_at=at)


def restore_position(row: TicketRow, last_change: str) -> TicketRow:
    """Return a ticket to the position that its course, user and age give it."""
    _check_queued(row)
    if row.next_at is None:
        raise _already_done(
            row, f"is not in front{f' any more: {last_change}' if last_change else ''}"
        )
    return replace(row, next_at=None)


def renew_offer(row: TicketRow, message: str, at: float) -> TicketRow:
    """Hold what is offered to a ticket in full again, and tell its student to come."""
    check_offered(row)
    return replace(row, offered_at=at, message=message)


def check_offered(row: TicketRow) -> None:
    """Refuse if nothing is offered to a ticket now."""
    if row.state != TicketState.OFFERED:
        raise Refused("not-offered", f"{row_title(row)} is {row.state}: nothing is offered to it.")


def _check_queued(row: TicketRow) -> None:
    if row.is_queued:
        return
    is_served = row.state in (TicketState.WAITING, TicketState.OFFERED, TicketState.TAKEN)
    state = "has its slices already" if is_served else f"is {row.state}"
    raise Refused("not-waiting", f"{row_title(row)} {state}: it is no longer in the queue.")
