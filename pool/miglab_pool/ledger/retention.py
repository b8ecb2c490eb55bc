"""Deletes what is older than it is to be kept.

What goes: the log of transitions, and tickets that led to no lease.  Leases and what was measured
of them stay, since reports of usage are made of them.
"""

from sqlalchemy import ColumnElement, Table, bindparam, delete, false, func, or_, select

from miglab_pool.ledger import tables
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.ledger.rows import LIVE_TICKETS

MOST = 1000  # rows at once: each round holds the pool up for some milliseconds
DAY_S = 86_400.0
BY_STAFF = ("person:%", "service:%", "spawner")
"""Who acts by hand, beside students' own servers: the spawner's secret is the operator's too."""


def delete_old(ledger: Ledger, at: float, keep_days: float, keep_staff_days: float) -> int:
    """Delete some of what is older than it is to be kept.

    Args:
        ledger: open.
        at: now, seconds since the epoch.
        keep_days: for how long; 0 for ever.
        keep_staff_days: the same, of what people did by hand.

    Returns:
        How many rows were deleted; 0 if nothing is left to do.
    """
    before, staff_before = _limit(at, keep_days), _limit(at, keep_staff_days)
    old = {
        tables.transitions: _old_transitions(before, staff_before),
        tables.tickets: _old_tickets(before),
    }
    return sum(_delete(ledger, table, condition, at) for table, condition in old.items())


def _limit(at: float, days: float) -> float | None:
    return at - days * DAY_S if days else None


def _old_transitions(before: float | None, staff_before: float | None) -> ColumnElement[bool]:
    rows = tables.transitions.c
    by_staff = (rows.action != "") & or_(*(rows.by.like(who) for who in BY_STAFF))
    of_staff = false() if staff_before is None else by_staff & (rows.at < staff_before)
    others = false() if before is None else ~by_staff & (rows.at < before)
    return of_staff | others


def _old_tickets(before: float | None) -> ColumnElement[bool]:
    """The newest stays: its number is where the next begins."""
    rows = tables.tickets.c
    if before is None:
        return false()
    return (
        (rows.created_at < before)
        & rows.state.not_in(sorted(LIVE_TICKETS))
        & rows.id.not_in(select(tables.leases.c.ticket).where(tables.leases.c.ticket.is_not(None)))
        & (rows.id < select(func.max(rows.id)).scalar_subquery())
    )


def _delete(ledger: Ledger, table: Table, condition: ColumnElement[bool], at: float) -> int:
    rows = ledger.read(select(table.c.id).where(condition).order_by(table.c.id).limit(MOST))
    if rows:
        with ledger.write(at, durable=False) as tx:
            gone = delete(table).where(table.c.id == bindparam("row"))
            tx.add(gone, [{"row": row["id"]} for row in rows])
    return len(rows)
