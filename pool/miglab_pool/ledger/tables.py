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

lease_slices = Table(
    "lease_slices",
    metadata,
    Column("lease", ForeignKey("leases.id"), primary_key=True),
    Column("slice", ForeignKey("slices.id"), primary_key=True, index=True),
    Column("position", Integer, nullable=False),
)

transitions = Table(
    "transitions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False, index=True),
    Column("kind", String, nullable=False),
    Column("target", String, nullable=False),
    Column("from_state", String, nullable=False),
    Column("to_state", String, nullable=False),
    Column("by", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("course", String, nullable=False),
    Column("action", String, nullable=False),
    Index("transitions_target", "kind", "target"),
    Index("transitions_actions", "id", sqlite_where=text("action != ''")),
)

pool_state = Table(
    "pool_state",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("paused", String, nullable=False),
    Column("pause_kind", String, nullable=False),
)

identity = Table(
    "identity",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("ledger", String, nullable=False),
    Column("engine", String, nullable=False),
)

activity = Table(
    "activity",
    metadata,
    Column("lease", ForeignKey("leases.id"), primary_key=True),
    Column("day", Integer, primary_key=True, index=True),
    Column("active_s", Float, nullable=False),
    Column("idle_s", Float, nullable=False),
    Column("unknown_s", Float, nullable=False),
)

progress = Table(
    "progress",
    metadata,
    Column("user", String, primary_key=True),
    Column("course", String, primary_key=True),
    Column("experiment", String, primary_key=True),
    Column("stage", String, nullable=False),
    Column("minute", Integer, nullable=False),
)

version = Table("alembic_version", metadata, Column("version_num", String, primary_key=True))
"""Named so that a miglab which still used Alembic refuses a ledger that is newer than itself."""
