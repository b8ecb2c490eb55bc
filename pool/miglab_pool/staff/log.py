"""Who did what, when and why: read from the ledger's transitions."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    Table,
    cast,
    func,
    literal_column,
    not_,
    select,
)

from miglab_api.staff import AuditEntry
from miglab_pool.ledger.file import reading
from miglab_pool.ledger.tables import leases, tickets, transitions

LIMIT_MAX = 1000
BY_HAND = transitions.c.action != literal_column(
    "''"
)  # not every SQLite looks into a parameter for it


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
    with reading(ledger) as connection:
        return [AuditEntry(**row) for row in connection.execute(query(asked)).mappings()]
