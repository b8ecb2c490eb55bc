"""What the transactions of staff share: find the object, compare it with what was seen, record.

Drain, undrain, quarantine, clear, adopt: what staff do to GPUs and slices.

A drained placement takes no new lease; a running lease goes on.  When a drained slice's lease ends
it is scrubbed and made anew, still drained, until somebody ends that.  Each is one transaction.

Take back, give time, put in front: what staff do to leases and tickets.  Transactions.
"""

from typing import TypeVar

from miglab_api.gpus import SliceState
from miglab_pool.leases import transactions as leases
from miglab_pool.ledger.audit_wording import Step, told
from miglab_pool.ledger.rows import GpuRow, LeaseRow, Row, SliceRow, TicketRow
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.queue import tickets
from miglab_pool.refused import Refused
from miglab_pool.reservations import ahead as reservations_ahead
from miglab_pool.staff import rules as staff_actions
from miglab_pool.staff.rules import changed, is_as_expected
from miglab_pool.state import slices
from miglab_pool.state.store import Store

AnyRow = TypeVar("AnyRow", bound=Row)


def last_told(store: Store, row: Row) -> str:
    """Who did what to it last, as a clause."""
    return told_of(store, row.kind, str(row.key))


def told_of(store: Store, kind: str, target: str) -> str:
    """The same, of anything that the ledger names."""
    found = store.ledger.history(kind, target, limit=1)
    return told(Step.of(found[0]), store.now()) if found else ""


def check_expected(store: Store, row: Row, expected: str | None) -> None:
    """Refuse if it does not stand as somebody saw it, saying who did what."""
    if not is_as_expected(row, expected):
        raise changed(row, expected, last_told(store, row))


def record(
    store: Store, tx: Transaction, before: Row, after: AnyRow, by: str, reason: str, action: str
) -> AnyRow:
    """Put the row, and write down whose act it was, whether or not it changed a state."""
    tx.put(after, by, reason, action)
    if after.state == before.state:
        tx.record(after, by, reason, action, _course(store, after))
    return after


def _course(store: Store, row: Row) -> str:
    """Whose staff are to find it in the audit: the course's that a place is assigned to."""
    if isinstance(row, GpuRow):
        return store.settings.assigned_course(row.uuid, row.idx) or row.course
    if isinstance(row, SliceRow) and not row.course:
        return _course(store, store.state.gpus[row.gpu])
    return row.course


def find_gpu(store: Store, uuid: str) -> GpuRow:
    """The GPU; Refused if the lab has none of that UUID."""
    row = store.state.gpus.get(uuid)
    if row is None:
        raise Refused("unknown-gpu", f"This lab has no GPU {uuid[:80]!r}.", 404)
    return row


def find_slice(
    store: Store, number: int, expected: str | None = None, reason: str = "already-done"
) -> SliceRow:
    """The slice as somebody saw it.

    Args:
        store: the pool.
        number: the slice's.
        expected: how it stood when somebody looked.
        reason: the word of the refusal of one that is gone, if nobody said how it stood.

    Raises:
        Refused: there is none, or none any more, or it stands otherwise.
    """
    row = store.state.slices.get(number)
    if row is not None:
        check_expected(store, row, expected)
        return row
    gone = store.ledger.find_slice(number)
    if gone is None:
        raise Refused("unknown-slice", f"There is no slice {number}.", 404)
    raise Refused(
        reason if expected is None else "changed-meanwhile",
        f"Slice {number} is gone: {last_told(store, gone)}. Nothing was done. Look again.",
    )


def drain_gpu(store: Store, uuid: str, reason: str, by: str, expected: str | None = None) -> GpuRow:
    """No new lease on this GPU."""
    with store.write(durable=True) as tx:
        row = find_gpu(store, uuid)
        check_expected(store, row, expected)
        after = staff_actions.drained(row, reason, last_told(store, row))
        return record(store, tx, row, after, by, reason, "drain")


def undrain_gpu(
    store: Store, uuid: str, reason: str, by: str, expected: str | None = None
) -> GpuRow:
    """The GPU takes leases again."""
    with store.write(durable=True) as tx:
        row = find_gpu(store, uuid)
        check_expected(store, row, expected)
        after = staff_actions.undrained(row, last_told(store, row))
        return record(store, tx, row, after, by, reason, "undrain")


def drain_slice(
    store: Store, number: int, reason: str, by: str, expected: str | None = None
) -> SliceRow:
    """No new lease on this slice, nor on what is made anew in its place."""
    with store.write(durable=True) as tx:
        row = find_slice(store, number, expected)
        after = staff_actions.drained(row, reason, last_told(store, row))
        return record(store, tx, row, after, by, reason, "drain")


def undrain_slice(
    store: Store, number: int, reason: str, by: str, expected: str | None = None
) -> SliceRow:
    """The slice's placement takes leases again."""
    with store.write(durable=True) as tx:
        row = find_slice(store, number, expected)
        after = staff_actions.undrained(row, last_told(store, row))
        return record(store, tx, row, after, by, reason, "undrain")


def quarantine(
    store: Store, number: int, reason: str, by: str, expected: str | None = None
) -> SliceRow:
    """Nobody gets it, and nothing touches it, until `clear`."""
    with store.write(durable=True) as tx:
        row = find_slice(store, number, expected)
        after = staff_actions.quarantine(row, reason, last_told(store, row))
        return record(store, tx, row, after, by, reason, "quarantine")


def clear(store: Store, number: int, reason: str, by: str, expected: str | None = None) -> SliceRow:
    """Announce another try at destroying what is set aside."""
    return _scrub(store, number, SliceState.QUARANTINED, reason, by, expected)


def adopt(store: Store, number: int, reason: str, by: str, expected: str | None = None) -> SliceRow:
    """Announce the destruction of what miglab did not make."""
    return _scrub(store, number, SliceState.FOREIGN, reason, by, expected)


OF = {
    SliceState.QUARANTINED: ("clear", "not-quarantined"),
    SliceState.FOREIGN: ("adopt", "not-foreign"),
}


def _scrub(
    store: Store, number: int, state: SliceState, reason: str, by: str, expected: str | None
) -> SliceRow:
    action, code = OF[state]
    with store.write(durable=True) as tx:
        row = find_slice(store, number, expected, code)
        staff_actions.check_is(row, state, code)
        slices.scrub(tx, row, reason or f"by hand, by {by}", remake=False, by=by, action=action)
        return store.state.slices[number]


def reclaim(
    store: Store, number: int, reason: str, by: str, warning_s: float, expected: str | None = None
) -> LeaseRow:
    """Take a lease back, after a warning or at once; free once its holder is gone."""
    with store.write(durable=True) as tx:
        row = leases.find(store, number)
        check_expected(store, row, expected)
        warned = staff_actions.reclaimed(row, by, reason, warning_s, tx.at)
        if warned is not None:
            return record(store, tx, row, warned, by, reason, "reclaim")
        return leases.release_in(
            store, tx, row, by, staff_actions.asked_back(by, reason), "reclaim"
        )


def release_reclaimed(store: Store) -> list[LeaseRow]:
    """Release the leases whose warning by staff is over, in the name of whoever gave it."""
    now = store.now()
    due = [row for row in store.state.leases.values() if staff_actions.is_due(row, now)]
    return [leases.release(store, row.id, row.warn_by or "pool", row.warn_reason) for row in due]


def extend(
    store: Store, number: int, by_s: float, reason: str, by: str, expected: str | None = None
) -> LeaseRow:
    """Put off a lease's end, into nothing that is reserved; or let its holder keep it."""
    with store.write() as tx:
        row = leases.find(store, number)
        check_expected(store, row, expected)
        after = staff_actions.given_time(row, by_s, tx.at, store.settings.reclaim.keepalive_s)
        if after.ends_at is not None:
            reservations_ahead.check_end(store.view(tx.at), row, after.ends_at)
        action = "keep" if after.ends_at == row.ends_at else "extend"
        return record(store, tx, row, after, by, reason or f"extended by {by_s:.0f} s", action)


def put_in_front(
    store: Store, number: int, reason: str, by: str, expected: str | None = None
) -> TicketRow:
    """The next slices that fit are this ticket's, behind reservations in force only."""
    with store.write(durable=True) as tx:
        row = tickets.find(store, number)
        check_expected(store, row, expected)
        after = staff_actions.put_in_front(row, tx.at, last_told(store, row))
        return record(store, tx, row, after, by, reason, "next")


def put_back(
    store: Store, number: int, reason: str, by: str, expected: str | None = None
) -> TicketRow:
    """The ticket waits at the position that the rule gives it."""
    with store.write(durable=True) as tx:
        row = tickets.find(store, number)
        check_expected(store, row, expected)
        after = staff_actions.put_back(row, last_told(store, row))
        return record(store, tx, row, after, by, reason, "back")
