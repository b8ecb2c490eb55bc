"""Reads from the ledger what a report of usage is made of.

Over a connection of its own that cannot write: a long read holds up no decision, and sees the
ledger as it was when it began.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Integer, cast, create_engine, func, select
from sqlalchemy.pool import NullPool

from . import tables
from .activity import DAY_S
from .usage_report import Event, Facts, Held, Looked, Who

RECLAIMER = "reclaimer"
POOL = "pool"


def read(ledger: Path, since: float, until: float, courses: Collection[str] | None) -> Facts:
    """What the ledger says of a period.

    Args:
        ledger: its file.
        since: from when, seconds since the epoch.
        until: up to when.
        courses: only of these; None for all.
    """
    with _reading(ledger) as connection:
        held = tuple(_held(connection, since, until, courses))
        return Facts(
            held=held,
            looked=tuple(_looked(connection, since, until, {one.lease for one in held})),
            reclaims=tuple(_reclaims(connection, since, until, courses)),
            refusals=tuple(_refusals(connection, since, until, courses)),
        )


@contextmanager
def _reading(ledger: Path) -> Iterator[Connection]:
    uri = f"sqlite:///file:{ledger.resolve().as_posix()}?mode=ro&uri=true"
    engine = create_engine(uri, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _held(
    connection: Connection, since: float, until: float, courses: Collection[str] | None
) -> Iterator[Held]:
    leases, slices = tables.leases.c, tables.slices.c
    query = (
        select(
            leases.id, leases.user, leases.course, leases.shape, leases.granted_at,
            leases.attached_at, leases.ended_at, tables.tickets.c.created_at,
            func.sum(slices.size).label("size"),
        )
        .outerjoin(tables.tickets, tables.tickets.c.id == leases.ticket)
        .join(tables.lease_slices, tables.lease_slices.c.lease == leases.id)
        .join(tables.slices, slices.id == tables.lease_slices.c.slice)
        .where(leases.taken_at.is_not(None), leases.granted_at < until)
        .where(leases.ended_at.is_(None) | (leases.ended_at > since))
        .group_by(leases.id)
    )  # fmt: skip
    for row in connection.execute(query):
        if courses is None or row.course in courses:
            wait_s = None if row.created_at is None else row.granted_at - row.created_at
            who = Who(row.user, row.course, row.shape)
            yield Held(row.id, who, row.size, row.granted_at, wait_s, row.attached_at, row.ended_at)


def _looked(
    connection: Connection, since: float, until: float, leases: Collection[int]
) -> Iterator[Looked]:
    """By day: the days on which the period begins and ends count by their noon."""
    seen = tables.activity.c
    days = seen.day.between(int(since // DAY_S), int(until // DAY_S))
    for row in connection.execute(select(tables.activity).where(days)):
        if row.lease in leases:
            at = min(max((row.day + 0.5) * DAY_S, since), until - 1)
            yield Looked(row.lease, at, row.active_s, row.idle_s)


def _reclaims(
    connection: Connection, since: float, until: float, courses: Collection[str] | None
) -> Iterator[Event]:
    """Leases that somebody other than their holder and the hub asked back.

    That is the reclaimer; the pool, when the lease's own time was up (not when its slice was lost);
    and a person who had it warned first.
    """
    moves, leases = tables.transitions.c, tables.leases.c
    query = (
        select(moves.at, leases.user, leases.course, leases.shape)
        .join(tables.leases, leases.id == cast(moves.thing, Integer))
        .where(moves.what == "lease", moves.to_state == "releasing")
        .where(moves.at >= since, moves.at < until)
        .where(
            (moves.by == RECLAIMER)
            | ((moves.by == POOL) & (leases.ends_at <= moves.at))
            | (leases.warn_kind == "staff")
        )
    )
    for row in connection.execute(query):
        if courses is None or row.course in courses:
            yield Event(Who(row.user, row.course, row.shape), row.at)


def _refusals(
    connection: Connection, since: float, until: float, courses: Collection[str] | None
) -> Iterator[Event]:
    moves, tickets = tables.transitions.c, tables.tickets.c
    query = (
        select(moves.at, tickets.user, tickets.course, tickets.shape, tickets.asked)
        .join(tables.tickets, tickets.id == cast(moves.thing, Integer))
        .where(moves.what == "ticket", moves.to_state == "refused")
        .where(moves.at >= since, moves.at < until)
    )
    for row in connection.execute(query):
        if courses is None or row.course in courses:
            yield Event(Who(row.user, row.course, row.shape or row.asked), row.at)
