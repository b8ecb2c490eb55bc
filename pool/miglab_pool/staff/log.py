"""The audit, read from the ledger's transitions, and the deletion of old entries.

Old tickets that led to no lease are deleted with old entries.  Leases and their activity stay,
since usage reports need them.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Integer,
    Select,
    Table,
    bindparam,
    cast,
    delete,
    exists,
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
NEVER = 1e99  # seconds since the epoch
MOST_DELETED = 1000  # rows at once; each deletion holds the pool up for some milliseconds
# A literal: not every SQLite uses the index on what was done by hand with a parameter.
BY_HAND = transitions.c.action != literal_column("''")
BY_STAFF = ("person:%", "service:%", "spawner")
"""The actors who act by hand, besides students' servers.

The operator uses the spawner's secret too.
"""


def _user_of(kind: str, table: Table) -> Any:
    is_it = (transitions.c.kind == kind) & (table.c.id == cast(transitions.c.target, Integer))
    return select(table.c.user).where(is_it).correlate(transitions).scalar_subquery()


USER_COLUMN = func.coalesce(_user_of("lease", leases), _user_of("ticket", tickets), "").label(
    "user"
)
COLUMNS = (
    *(transitions.c[name] for name in AuditEntry.model_fields if name != "user"),
    USER_COLUMN,
)


@dataclass(frozen=True)
class AuditQuery:
    """Which entries of the audit are selected; None selects all.

    Attributes:
        since: the earliest time, seconds since the epoch.
        until: the time before which the entries are.
        before: the id of an entry; only older ones are selected, by the time that they carry and,
            at the same time, by their id.
        actor: who acted, as the ledger names them or by the bare name.
        kind: the kind of row: gpu, slice, lease …
        target: the row's number or UUID.
        courses: the courses to which the rows belong.
        is_all: whether what nobody did by hand, and what students did in their own servers, is
            included.
        limit: how many of the newest entries are returned.
    """

    since: float | None = None
    until: float | None = None
    before: int | None = None
    actor: str | None = None
    kind: str | None = None
    target: str | None = None
    courses: Collection[str] | None = None
    is_all: bool = False
    limit: int = 100


def build_select(query: AuditQuery) -> Select[Any]:
    """Return the SELECT of a query, the newest entry first.  Pure.

    In the order of an index on times, so that a year ago is as near as yesterday.
    """
    columns = transitions.c
    newest_first = columns.at.desc(), columns.id.desc()
    statement = select(*COLUMNS).order_by(*newest_first).limit(min(query.limit, LIMIT_MAX))
    conditions: list[ColumnElement[bool]] = [] if query.is_all else [BY_HAND]
    for value, condition in (
        (query.since, columns.at.__ge__),
        (query.until, columns.at.__lt__),
        (query.before, _is_older_than),
        (query.kind, columns.kind.__eq__ if query.target else _is_of_kind),
        (query.target, columns.target.__eq__),
        (query.courses, lambda courses: columns.course.in_(sorted(courses))),
    ):
        if value is not None:
            conditions.append(condition(value))
    if query.actor is None and not query.is_all:
        conditions.append(not_(columns.by.startswith("server:")))
    if query.actor is not None:
        names = (query.actor, f"person:{query.actor}", f"service:{query.actor}")
        servers = columns.by.startswith(f"server:{query.actor}/", autoescape=True)
        conditions.append(columns.by.in_(names) | servers)
    return statement.where(*conditions)


def _is_of_kind(kind: Any) -> ColumnElement[bool]:
    """Select a kind of row; SQLite is told that many are, or it would sort them all by time."""
    condition: ColumnElement[bool] = func.likely(transitions.c.kind == kind)
    return condition


def _is_older_than(entry: Any) -> ColumnElement[bool]:
    """Select what is older than an entry; after one that is not there any more, by its id alone."""
    columns, other = transitions.c, transitions.alias()
    time_of_entry = select(other.c.at).where(other.c.id == entry).scalar_subquery()
    is_later = columns.at > func.coalesce(time_of_entry, NEVER)
    is_earlier = columns.at < func.coalesce(time_of_entry, 0.0)
    is_older: ColumnElement[bool] = not_(is_later) & (is_earlier | (columns.id < entry))
    return is_older


def read_entries(ledger: Path, query: AuditQuery) -> list[AuditEntry]:
    """Return the entries that a query selects, the newest first.

    Args:
        ledger: the ledger's file.
        query: the query.
    """
    with open_read_only(ledger) as connection:
        return [AuditEntry(**row) for row in connection.execute(build_select(query)).mappings()]


# -- in words --------------------------------------------------------------------------------------


VERB_PHRASES = {action.key: action.log_phrase for action in STAFF_ACTIONS} | {
    "reclaim": "reclaimed it",
    "extend": "gave it more time",
    "keep": "let its holder keep it",
    "next": "served it next",
    "back": "undid serving it next",
    "call": "called its student again",
    "pass": "passed its offer to the next",
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
STATE_PHRASES = {  # where no action was named: what a row that came into this state had done to it
    "waiting": "queued it",
    "offered": "offered it",
    "aside": "let it step aside",
    "taken": "took what it was offered",
    "cancelled": "cancelled it",
    "refused": "refused it",
    "expired": "let it expire",
    "granted": "granted it",
    "attached": "attached it to its server",
    "running": "saw its server start",
    "warned": "warned its holder",
    "releasing": "released it",
    "released": "finished its release",
    "making": "began to create it",
    "free": "made it available",
    "leased": "leased it",
    "scrubbing": "began to scrub it",
    "quarantined": "quarantined it",
    "foreign": "found it foreign",
    "gone": "destroyed it",
    "ok": "found it fit",
    "unfit": "found it unfit",
    "planned": "planned it",
    "reserved": "reserved its slices",
    "open": "opened it",
    "over": "ended it",
    "shown": "displayed it",
}


def describe_change(last: AuditEntry, now: float) -> str:
    """Return who made the last change, what it was, when and why, as a clause."""
    reason = f" (“{last.reason}”)" if last.reason else ""
    verb = verb_phrase(last.action, last.to_state)
    return f"{display_name(last.by)} {verb} {duration(now - last.at)} ago{reason}"


def verb_phrase(action: str, to_state: str) -> str:
    """Return what was done, as a verb phrase with "it"."""
    changed = f"changed its state to “{to_state}”" if to_state else "changed it"
    return VERB_PHRASES.get(action) or STATE_PHRASES.get(to_state, changed)


# -- old entries ----------------------------------------------------------------------------------


def delete_old(ledger: Ledger, at: float, keep_days: float, keep_staff_days: float) -> int:
    """Delete a batch of the entries and tickets that are older than they are to be kept.

    Args:
        ledger: the open ledger.
        at: now, seconds since the epoch.
        keep_days: for how long entries are kept; 0 for ever.
        keep_staff_days: the same for what people did by hand.

    Returns:
        How many rows were deleted; 0 if nothing is left to do.
    """
    before, staff_before = _oldest_kept(at, keep_days), _oldest_kept(at, keep_staff_days)
    return _delete(ledger, transitions.c.at, _old_transitions(before, staff_before), at) + _delete(
        ledger, tickets.c.created_at, _old_tickets(before), at
    )


def _oldest_kept(at: float, days: float) -> float | None:
    return at - days * DAY_S if days else None


def _old_transitions(before: float | None, staff_before: float | None) -> ColumnElement[bool]:
    rows = transitions.c
    by_staff = BY_HAND & or_(*(rows.by.like(pattern) for pattern in BY_STAFF))
    old_staff = false() if staff_before is None else by_staff & (rows.at < staff_before)
    old_others = false() if before is None else ~by_staff & (rows.at < before)
    latest = max((moment for moment in (before, staff_before) if moment is not None), default=0.0)
    return (rows.at < latest) & (old_staff | old_others)


def _old_tickets(before: float | None) -> ColumnElement[bool]:
    """Select old tickets without a lease; the newest stays, as the next number follows its own."""
    rows = tickets.c
    if before is None:
        return false()
    return (
        (rows.created_at < before)
        & rows.state.not_in(sorted(LIVE_TICKETS))
        & ~exists().where(leases.c.ticket == rows.id)
        & (rows.id < select(func.max(rows.id)).scalar_subquery())
    )


def _delete(ledger: Ledger, age: Column[float], condition: ColumnElement[bool], at: float) -> int:
    """Delete a batch of a table's rows, the oldest first, found by the index on their age."""
    table = age.table
    rows = ledger.read(select(table.c.id).where(condition).order_by(age).limit(MOST_DELETED))
    if rows:
        with ledger.write(at, durable=False) as tx:
            deletion = delete(table).where(table.c.id == bindparam("row"))
            tx.add(deletion, [{"row": row["id"]} for row in rows])
    return len(rows)
