"""Take back, give time, put in front: what staff do to leases and tickets.  Transactions."""

from miglab_pool.decisions import reservations_ahead
from miglab_pool.model.rows import LeaseRow, TicketRow
from miglab_pool.rules import staff_actions
from miglab_pool.state.store import Store
from miglab_pool.transactions import leases, tickets
from miglab_pool.transactions.staff_common import check_expected, last_told, record


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
