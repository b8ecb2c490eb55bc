"""The log of the ledger's transitions: who did what, when and why, and how long that is kept.

With old entries go old tickets that led to no lease.  Leases and what was measured of them stay,
since reports of usage are made of them.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    Table,
    bindparam,
    cast,
    delete,
    false,
    func,
    literal_column,
    not_,
    or_,
    select,
)

from miglab_api.staff import STAFF_ACTIONS, AuditEntry, display_name
from miglab_api.wording import duration
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.ledger.rows import LIVE_TICKETS
from miglab_pool.ledger.tables import leases, open_read_only, tickets, transitions
from miglab_pool.schedule import DAY_S

LIMIT_MAX = 1000
MOST = 1000  # rows deleted at once: each round holds the pool up for some milliseconds
# A literal: not every SQLite uses the index on what was done by hand with a parameter.
BY_HAND = transitions.c.action != literal_column("''")
BY_STAFF = ("person:%", "service:%", "spawner")
"""Who acts by hand, beside students' own servers: the spawner's secret is the operator's too."""


def _user_of(kind: str, table: Table) -> Any:
    is_it = (transitions.c.kind == kind) & (table.c.id == cast(transitions.c.target, Integer))
    return select(table.c.user).where(is_it).correlate(transitions).scalar_subquery()


USER = func.coalesce(_user_of("lease", leases), _user_of("ticket", tickets), "").label("user")
COLUMNS = (*(transitions.c[name] for name in AuditEntry.model_fields if name != "user"), USER)


@dataclass(frozen=True)
class Question:
    """What of the audit is wanted; None leaves a thing open.

    Attributes:
        since: not before; seconds since the epoch.
        until: before.
        before: only what is older than the entry of this id.
        by: whose actions, as the ledger names them or by the bare name.
        kind: gpu, slice, lease …
        target: which one.
        courses: only what belongs to one of these.
        is_all: also what nobody did by hand, and what students did in their own servers.
        limit: the newest so many.
    """

    since: float | None = None
    until: float | None = None
    before: int | None = None
    by: str | None = None
    kind: str | None = None
    target: str | None = None
    courses: Collection[str] | None = None
    is_all: bool = False
    limit: int = 100


def query(asked: Question) -> Select[Any]:
    """The question in SQL, the newest first.  Pure."""
    columns = transitions.c
    found = select(*COLUMNS).order_by(columns.id.desc()).limit(min(asked.limit, LIMIT_MAX))
    wanted: list[ColumnElement[bool]] = [] if asked.is_all else [BY_HAND]
    for value, holds in (
        (asked.since, columns.at.__ge__),
        (asked.until, columns.at.__lt__),
        (asked.before, columns.id.__lt__),
        (asked.kind, columns.kind.__eq__),
        (asked.target, columns.target.__eq__),
        (asked.courses, lambda courses: columns.course.in_(sorted(courses))),
    ):
        if value is not None:
            wanted.append(holds(value))
    if asked.by is None and not asked.is_all:
        wanted.append(not_(columns.by.startswith("server:")))
    if asked.by is not None:
        names = (asked.by, f"person:{asked.by}", f"service:{asked.by}")
        servers = columns.by.startswith(f"server:{asked.by}/", autoescape=True)
        wanted.append(columns.by.in_(names) | servers)
    return found.where(*wanted)


def read(ledger: Path, asked: Question) -> list[AuditEntry]:
    """The entries, the newest first.

    Args:
        ledger: its file.
        asked: which.
    """
    with open_read_only(ledger) as connection:
        return [AuditEntry(**row) for row in connection.execute(query(asked)).mappings()]


# -- in words --------------------------------------------------------------------------------------


DONE = {action.key: action.log_phrase for action in STAFF_ACTIONS} | {
    "reclaim": "reclaimed it",
    "extend": "gave it more time",
    "keep": "let its holder keep it",
    "next": "served it next",
    "back": "undid serving it next",
    "apply": "applied a layout to it",
    "end": "took it back",
    "message": "sent it",
    "change": "changed it",
    "pause": "paused it",
    "resume": "resumed it",
    "keepalive": "is still there",
    "look": "looked at it",
    "export": "exported it",
    "refused": "was refused a change of it",
    "prove": "lent it to miglab prove",
}


def told(last: AuditEntry, now: float) -> str:
    """Who did what last, as a clause."""
    reason = f" (“{last.reason}”)" if last.reason else ""
    done = did(last.action, last.to_state)
    return f"{display_name(last.by)} {done} {duration(now - last.at)} ago{reason}"


def did(action: str, to_state: str) -> str:
    """What was done to something, as a verb with "it"."""
    return DONE.get(action) or (f"made it {to_state}" if to_state else "changed it")


# -- what is too old -------------------------------------------------------------------------------


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
        transitions: _old_transitions(before, staff_before),
        tickets: _old_tickets(before),
    }
    return sum(_delete(ledger, table, condition, at) for table, condition in old.items())


def _limit(at: float, days: float) -> float | None:
    return at - days * DAY_S if days else None


def _old_transitions(before: float | None, staff_before: float | None) -> ColumnElement[bool]:
    rows = transitions.c
    by_staff = BY_HAND & or_(*(rows.by.like(who) for who in BY_STAFF))
    of_staff = false() if staff_before is None else by_staff & (rows.at < staff_before)
    others = false() if before is None else ~by_staff & (rows.at < before)
    return of_staff | others


def _old_tickets(before: float | None) -> ColumnElement[bool]:
    """The newest stays: its number is where the next begins."""
    rows = tickets.c
    if before is None:
        return false()
    return (
        (rows.created_at < before)
        & rows.state.not_in(sorted(LIVE_TICKETS))
        & rows.id.not_in(select(leases.c.ticket).where(leases.c.ticket.is_not(None)))
        & (rows.id < select(func.max(rows.id)).scalar_subquery())
    )


def _delete(ledger: Ledger, table: Table, condition: ColumnElement[bool], at: float) -> int:
    rows = ledger.read(select(table.c.id).where(condition).order_by(table.c.id).limit(MOST))
    if rows:
        with ledger.write(at, durable=False) as tx:
            gone = delete(table).where(table.c.id == bindparam("row"))
            tx.add(gone, [{"row": row["id"]} for row in rows])
    return len(rows)
