"""Reads from the ledger what a report of usage is made of."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, Select, cast, func, select, true

from miglab_api.leases import WarningKind
from miglab_api.tickets import Purpose, TicketState
from miglab_pool.leases.activity import DAY_S
from miglab_pool.ledger import tables
from miglab_pool.ledger.file import reading
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
    with reading(ledger) as connection:
        held = tuple(_held(connection, since, until, courses))
        return Facts(
            held=held,
            looked=tuple(_looked(connection, since, until, {one.lease for one in held})),
            reclaims=tuple(_reclaims(connection, since, until, courses)),
            refusals=tuple(_refusals(connection, since, until, courses)),
            waiting=tuple(_waiting(connection, until, courses)),
        )


def _is_of(columns: Any, courses: Collection[str] | None) -> ColumnElement[bool]:
    return true() if courses is None else columns.course.in_(sorted(courses))


def _held(
    connection: Connection, since: float, until: float, courses: Collection[str] | None
) -> Iterator[Held]:
    leases, slices = tables.leases.c, tables.slices.c
    who = (leases.user, leases.course, leases.shape)
    times = (tables.tickets.c.created_at, leases.granted_at, leases.attached_at, leases.ended_at)
    query = (
        select(leases.id, *who, *times, func.sum(slices.size))
        .outerjoin(tables.tickets, tables.tickets.c.id == leases.ticket)
        .join(tables.lease_slices, tables.lease_slices.c.lease == leases.id)
        .join(tables.slices, slices.id == tables.lease_slices.c.slice)
        .where(leases.taken_at.is_not(None), leases.granted_at < until, _is_of(leases, courses))
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


def _reclaims(
    connection: Connection, since: float, until: float, courses: Collection[str] | None
) -> Iterator[Event]:
    """Leases that somebody other than their holder and the hub asked back.

    That is the reclaimer; the pool, when a borrow's time was up (not when its slice was lost);
    and staff, at once or after a warning.
    """
    moves, leases = tables.transitions.c, tables.leases.c
    by_others = (
        (moves.by == RECLAIMER)
        | (
            (moves.by == POOL)
            & (leases.purpose == Purpose.BORROW.value)
            & (leases.guaranteed_until <= moves.at)
        )
        | (moves.action == TAKEN_BACK)
        | (leases.warn_kind == WarningKind.STAFF.value)
    )
    query = (
        select(moves.at, leases.user, leases.course, leases.shape)
        .join(tables.leases, leases.id == cast(moves.target, Integer))
        .where(moves.kind == "lease", moves.to_state == "releasing", by_others)
        .where(moves.at >= since, moves.at < until, _is_of(leases, courses))
    )
    return _events(connection, query)


def _refusals(
    connection: Connection, since: float, until: float, courses: Collection[str] | None
) -> Iterator[Event]:
    moves, tickets = tables.transitions.c, tables.tickets.c
    query = (
        select(moves.at, tickets.user, tickets.course, tickets.shape)
        .join(tables.tickets, tickets.id == cast(moves.target, Integer))
        .where(moves.kind == "ticket", moves.to_state == "refused")
        .where(moves.at >= since, moves.at < until, _is_of(tickets, courses))
    )
    return _events(connection, query)


def _waiting(
    connection: Connection, until: float, courses: Collection[str] | None
) -> Iterator[Event]:
    tickets = tables.tickets.c
    query = (
        select(tickets.created_at, tickets.user, tickets.course, tickets.shape)
        .where(tickets.state == TicketState.WAITING, tickets.created_at < until)
        .where(_is_of(tickets, courses))
    )
    return _events(connection, query)


def _events(connection: Connection, query: Select[Any]) -> Iterator[Event]:
    for at, *who in connection.execute(query):
        yield Event(Who(*who), at)
