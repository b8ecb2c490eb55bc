"""Moves what is old out of the ledger into a file beside it; nothing is lost.

What goes: the log of transitions, and tickets that led to no lease.  Leases and what was measured
of them stay, since reports of usage are made of them.  A row is in the archive, on disk, before it
leaves the ledger, so a crash in between leaves it in both and the next round ends it.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Table, bindparam, delete, false, func, or_, select

from miglab_pool.ledger import tables
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.model.rows import LIVE_TICKETS

MOST = 1000  # rows at once: each round holds the pool up for some milliseconds
DAY_S = 86_400.0
RENAMED = {"act": "action", "thing": "target", "what": "kind"}
"""Columns of transitions by the names that they had before version 0011 of the ledger."""
BY_STAFF = ("person:%", "service:%", "spawner")
"""Who acts by hand, beside students' own servers: the spawner's secret is the operator's too."""


def move_old(ledger: Ledger, at: float, keep_days: float, keep_staff_days: float) -> int:
    """Move some of what is older than it is to be kept.

    Args:
        ledger: open.
        at: now, seconds since the epoch.
        keep_days: for how long; 0 for ever.
        keep_staff_days: the same, of what people did by hand.

    Returns:
        How many rows were moved; 0 if nothing is left to do.
    """
    before, staff_before = _limit(at, keep_days), _limit(at, keep_staff_days)
    old = {
        tables.transitions: _old_transitions(before, staff_before),
        tables.tickets: _old_tickets(before),
    }
    return sum(_move(ledger, table, condition, at) for table, condition in old.items())


def archive_of(ledger: Path) -> Path:
    """Where a ledger's old rows are."""
    return ledger.with_name(f"{ledger.stem}-archive{ledger.suffix}")


def upgrade(file: sqlite3.Connection) -> None:
    """Give an archive that an older version wrote the names and words of this one.

    Interrupted anywhere, the next call does the rest: ``what`` is renamed last.
    """
    there = {row[1] for row in file.execute("PRAGMA table_info(transitions)")}
    if "what" in there:
        file.execute("UPDATE transitions SET what = 'message' WHERE what = 'note'")
        for state in ("from_state", "to_state"):
            file.execute(
                f"UPDATE transitions SET {state} = 'reserved' "  # noqa: S608
                f"WHERE what = 'reservation' AND {state} = 'kept'"
            )
    if "act" in there:
        file.execute("UPDATE transitions SET act = 'keepalive' WHERE act = 'stay'")
    for old, new in RENAMED.items():
        if old in there:
            file.execute(f"ALTER TABLE transitions RENAME COLUMN {old} TO {new}")


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


def _move(ledger: Ledger, table: Table, condition: ColumnElement[bool], at: float) -> int:
    rows = ledger.read(select(table).where(condition).order_by(table.c.id).limit(MOST))
    if not rows:
        return 0
    _keep(archive_of(ledger.path), table, rows)
    with ledger.write(at, durable=False) as tx:
        gone = delete(table).where(table.c.id == bindparam("row"))
        tx.add(gone, [{"row": row["id"]} for row in rows])
    return len(rows)


def _keep(archive: Path, table: Table, rows: Sequence[Any]) -> None:
    """Write rows to the archive; one that is there already is the same row."""
    columns = [column.name for column in table.c]
    with closing(sqlite3.connect(archive)) as file, file:
        upgrade(file)
        _make_table(file, table.name, columns)
        marks = ", ".join("?" * len(columns))
        names = ", ".join(f'"{name}"' for name in columns)
        file.executemany(
            f"INSERT OR IGNORE INTO {table.name} ({names}) VALUES ({marks})",  # noqa: S608
            [tuple(row[name] for name in columns) for row in rows],
        )


def _make_table(file: sqlite3.Connection, name: str, columns: Sequence[str]) -> None:
    """The table, with the columns that later versions have added.

    An id alone would not do: a ledger that was restored from a copy gives some once more.
    """
    when = "at" if "at" in columns else "created_at"
    names = ", ".join(f'"{column}"' for column in columns)
    file.execute(f"CREATE TABLE IF NOT EXISTS {name} ({names}, UNIQUE (id, {when}))")
    there = {row[1] for row in file.execute(f"PRAGMA table_info({name})")}
    for column in columns:
        if column not in there:
            file.execute(f'ALTER TABLE {name} ADD COLUMN "{column}"')
