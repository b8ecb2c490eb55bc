"""The ledger's tables: one for each row of `model.rows`, made of it, and those that have no row."""

from dataclasses import MISSING, Field, fields
from types import NoneType
from typing import Any, get_args, get_type_hints

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    text,
)

from miglab_pool.ledger.rows import ROWS, Row

TYPES = {str: String, int: Integer, float: Float, bool: Boolean}

metadata = MetaData(naming_convention={"ix": "%(table_name)s_%(column_0_name)s"})


def _table_of(row: type[Row]) -> Table:
    types = get_type_hints(row)
    key, *others = [one for one in fields(row) if one.metadata.get("is_column", True)]
    columns = [_column(one, types[one.name]) for one in others]
    return Table(f"{row.kind}s", metadata, _column(key, types[key.name], is_key=True), *columns)


def _column(declared: Field[Any], annotation: Any, *, is_key: bool = False) -> Column[Any]:
    kinds = get_args(annotation) or (annotation,)
    references = declared.metadata.get("references")
    return Column(
        declared.name,
        TYPES[kinds[0]],
        *([ForeignKey(references)] if references else ()),
        primary_key=is_key,
        nullable=NoneType in kinds,
        index=declared.metadata.get("is_indexed", False),
        server_default=_sql_default(declared.default),
    )


def _sql_default(value: Any) -> str | None:
    """What a row has that was written before there was such a field."""
    if value is MISSING or value is None:
        return None
    return str(int(value)) if isinstance(value, bool) else str(value)


TABLES = {row.kind: _table_of(row) for row in ROWS}
gpus, slices, leases, tickets, reservations, messages = TABLES.values()
Index("slices_generation", slices.c.gpu, slices.c.generation, unique=True)


def _plain(name: str, *key: Column[Any], **others: Any) -> Table:
    """A table that has no row: its key, and columns that always say something."""
    columns = (Column(column, kind, nullable=False) for column, kind in others.items())
    return Table(name, metadata, *key, *columns)


def _key(name: str, kind: Any, **more: Any) -> Column[Any]:
    return Column(name, kind, primary_key=True, **more)


lease_slices = _plain(
    "lease_slices",
    _key("lease", ForeignKey("leases.id")),
    _key("slice", ForeignKey("slices.id"), index=True),
    position=Integer,
)
transitions = _plain(
    "transitions",
    _key("id", Integer),
    at=Float,
    kind=String,
    target=String,
    from_state=String,
    to_state=String,
    by=String,
    reason=String,
    course=String,
    action=String,
)
Index(None, transitions.c.at)
Index("transitions_target", transitions.c.kind, transitions.c.target)
Index("transitions_actions", transitions.c.id, sqlite_where=text("action != ''"))
pool_state = _plain("pool_state", _key("id", Integer), paused=String, pause_kind=String)
identity = _plain("identity", _key("id", Integer), ledger=String, engine=String)
activity = _plain(
    "activity",
    _key("lease", ForeignKey("leases.id")),
    _key("day", Integer, index=True),
    active_s=Float,
    idle_s=Float,
    unknown_s=Float,
)
progress = _plain(
    "progress",
    *(_key(name, String) for name in ("user", "course", "experiment")),
    stage=String,
    minute=Integer,
)
version = Table("alembic_version", metadata, Column("version_num", String, primary_key=True))
"""Named so that a miglab which still used Alembic refuses a ledger that is newer than itself."""
