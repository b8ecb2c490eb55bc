"""Reads from the ledger what a report of usage is made of."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, Select, Table, cast, func, select, true

from miglab_api.leases import WarningKind
from miglab_api.tickets import Purpose, TicketState
from miglab_pool.ledger import tables
from miglab_pool.ledger.file import reading
from miglab_pool.schedule import DAY_S
from miglab_pool.usage.report import Event, Facts, Held, Looked, Who

RECLAIMER = "reclaimer"
POOL = "pool"
TAKEN_BACK = "reclaim"  # the desk's name of the act


def read(ledger: Path, since: float, until: float, courses: Collection[str] | None) -> Facts:
    """What the ledger says of a period.

    Args:
        ledger: its file.
        since: from when, seconds since the epoch.
        until: up to when.
        courses: only of these; None for all.
    """
    moves, tickets = tables.transitions.c, tables.tickets.c
    is_then = (moves.at >= since) & (moves.at < until)
    of_lease, of_ticket = (_is_of(columns, courses) for columns in (tables.leases.c, tickets))
    refused = _moved(tables.tickets, "ticket", "refused")
    waits = (tickets.state == TicketState.WAITING) & (tickets.created_at < until)
    waiting = select(tickets.created_at, tickets.user, tickets.course, tickets.shape)
    with reading(ledger) as connection:
        held = tuple(_held(connection, since, until, of_lease))
        return Facts(
            held=held,
            looked=tuple(_looked(connection, since, until, {one.lease for one in held})),
            reclaims=_events(connection, _reclaims(), is_then, of_lease),
            refusals=_events(connection, refused, is_then, of_ticket),
            waiting=_events(connection, waiting, waits, of_ticket),
        )


def _is_of(columns: Any, courses: Collection[str] | None) -> ColumnElement[bool]:
    return true() if courses is None else columns.course.in_(sorted(courses))


def _held(
    connection: Connection, since: float, until: float, is_of: ColumnElement[bool]
) -> Iterator[Held]:
    leases, slices = tables.leases.c, tables.slices.c
    who = (leases.user, leases.course, leases.shape)
    times = (tables.tickets.c.created_at, leases.granted_at, leases.attached_at, leases.ended_at)
    query = (
        select(leases.id, *who, *times, func.sum(slices.size))
        .outerjoin(tables.tickets, tables.tickets.c.id == leases.ticket)
        .join(tables.lease_slices, tables.lease_slices.c.lease == leases.id)
        .join(tables.slices, slices.id == tables.lease_slices.c.slice)
        .where(leases.taken_at.is_not(None), leases.granted_at < until, is_of)
        .where(leases.ended_at.is_(None) | (leases.ended_at > since))
        .group_by(leases.id)
    )
    for lease, user, course, shape, asked, granted, began, ended, size in connection.execute(query):
        wait_s = None if asked is None else granted - asked
        yield Held(lease, Who(user, course, shape), size, granted, wait_s, began, ended)


def _looked(
    connection: Connection, since: float, until: float, leases: Collection[int]
) -> Iterator[Looked]:
    """By day: the days on which the period begins and ends count by their noon."""
    seen = tables.activity.c
    days = seen.day.between(int(since // DAY_S), int(until // DAY_S))
    query = select(seen.lease, seen.day, seen.active_s, seen.idle_s).where(days)
    for lease, day, active_s, idle_s in connection.execute(query):
        if lease in leases:
            at = min(max((day + 0.5) * DAY_S, since), until - 1)
            yield Looked(lease, at, active_s, idle_s)


def _reclaims() -> Select[Any]:
    """Leases that somebody other than their holder and the hub asked back.

    That is the reclaimer; the pool, when a borrow's time was up (not when its slice was lost);
    and staff, at once or after a warning.
    """
    moves, leases = tables.transitions.c, tables.leases.c
    is_over = (leases.purpose == Purpose.BORROW.value) & (leases.guaranteed_until <= moves.at)
    by_others = (
        (moves.by == RECLAIMER)
        | ((moves.by == POOL) & is_over)
        | (moves.action == TAKEN_BACK)
        | (leases.warn_kind == WarningKind.STAFF.value)
    )
    return _moved(tables.leases, "lease", "releasing").where(by_others)


def _moved(table: Table, kind: str, to_state: str) -> Select[Any]:
    """When what came to a state, and whose it was."""
    moves, of = tables.transitions.c, table.c
    query = select(moves.at, of.user, of.course, of.shape)
    query = query.join(table, of.id == cast(moves.target, Integer))
    return query.where(moves.kind == kind, moves.to_state == to_state)


def _events(
    connection: Connection, query: Select[Any], *conditions: ColumnElement[bool]
) -> tuple[Event, ...]:
    return tuple(Event(Who(*who), at) for at, *who in connection.execute(query.where(*conditions)))
