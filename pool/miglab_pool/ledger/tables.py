"""The ledger's tables, and its file: its version, whether it can be used, brought up to date.

There is a table for each row of `ledger.rows`, made of it, and for what has no row.  Whoever
changes one counts `VERSION` up: the next start then gives the ledgers of before what they lack.
Must not import the ledger, nor anything that decides.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints
from uuid import uuid4

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    func,
    insert,
    select,
    text,
)
from sqlalchemy import inspect as reflect
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateColumn

from miglab_pool.ledger.rows import ROWS, Row

VERSION = 1  # of the tables: grows with each change of a column
TABLES_BEFORE_RELEASE = {"alembic_version", "leases", "slices"}  # of ledgers from before 0.1.0
DISK_ERRORS = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
}
TABLE_NAMES = "SELECT name FROM sqlite_master WHERE type = 'table'"
BUSY_S = 1.0  # how long another program may hold the file while it is opened
TO_BEGIN_OR_RESTORE = (
    "Nothing was changed. Put a backup in place (`miglab restore FILE`), or begin with a new "
    "ledger (`miglab ledger begin`), to which servers that still run are strangers: their slices "
    "show as foreign until an admin adopts them."
)
TYPES = {str: String, int: Integer, float: Float, bool: Boolean}

metadata = MetaData(naming_convention={"ix": "%(table_name)s_%(column_0_name)s"})


def _table_of(row: type[Row]) -> Table:
    types = get_type_hints(row)
    key, *non_keys = [f for f in fields(row) if f.metadata.get("is_column", True)]
    columns = [_column(f, types[f.name]) for f in non_keys]
    return Table(f"{row.kind}s", metadata, _column(key, types[key.name], is_key=True), *columns)


def _column(row_field: Field[Any], annotation: Any, *, is_key: bool = False) -> Column[Any]:
    kinds = get_args(annotation) or (annotation,)
    references = row_field.metadata.get("references")
    return Column(
        row_field.name,
        TYPES[kinds[0]],
        *([ForeignKey(references)] if references else ()),
        primary_key=is_key,
        nullable=NoneType in kinds,
        index=row_field.metadata.get("is_indexed", False),
        server_default=_sql_default(row_field.default),
    )


def _sql_default(value: Any) -> str | None:
    """The value of a field in rows that were written before it existed."""
    if value is MISSING or value is None:
        return None
    return str(int(value)) if isinstance(value, bool) else str(value)


TABLES = {row.kind: _table_of(row) for row in ROWS}
gpus, slices, leases, tickets, reservations, messages = TABLES.values()
Index("slices_generation", slices.c.gpu, slices.c.generation, unique=True)
Index("leases_ended", leases.c.ended_at, leases.c.granted_at)
"""By which the leases of a period are found, among those of years."""


def _table_without_row(name: str, *key: Column[Any], **column_types: Any) -> Table:
    """A table without a row class: its key, and columns that are never null."""
    columns = (Column(column, kind, nullable=False) for column, kind in column_types.items())
    return Table(name, metadata, *key, *columns)


def _key_column(name: str, kind: Any, **options: Any) -> Column[Any]:
    return Column(name, kind, primary_key=True, **options)


lease_slices = _table_without_row(
    "lease_slices",
    _key_column("lease", ForeignKey("leases.id")),
    _key_column("slice", ForeignKey("slices.id"), index=True),
    position=Integer,
)
size_of_lease = (
    select(func.coalesce(func.sum(slices.c.size), 0))
    .join_from(lease_slices, slices, slices.c.id == lease_slices.c.slice)
    .where(lease_slices.c.lease == leases.c.id)
    .correlate(leases)
    .scalar_subquery()
)
"""The memory slices of a lease of the query around it; with a join and GROUP BY instead, SQLite
would read all leases that ever were."""
transitions = _table_without_row(
    "transitions",
    _key_column("id", Integer),
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
Index("transitions_by_hand", transitions.c.at, sqlite_where=text("action != ''"))
ENDINGS = text("transitions.to_state IN ('releasing', 'refused')")
"""What a report of usage counts; a query that says the same is answered by their index."""
Index(
    "transitions_endings",
    transitions.c.kind,
    transitions.c.at,
    sqlite_where=text("to_state IN ('releasing', 'refused')"),
)
pool_state = _table_without_row(
    "pool_state", _key_column("id", Integer), paused=String, pause_kind=String
)
identity = _table_without_row("identity", _key_column("id", Integer), ledger=String, engine=String)
activity = _table_without_row(
    "activity",
    _key_column("lease", ForeignKey("leases.id")),
    _key_column("day", Integer, index=True),
    active_s=Float,
    idle_s=Float,
    unknown_s=Float,
)
people = _table_without_row("people", _key_column("id", String), called=String)
"""The hub's name of every user that it has mentioned, by user id."""
progress = _table_without_row(
    "progress",
    *(_key_column(name, String) for name in ("user", "course", "experiment")),
    stage=String,
    minute=Integer,
)
schema_version = _table_without_row("schema_version", _key_column("version", Integer))
"""One row: the `VERSION` of the miglab that wrote the file last."""


# -- the file -------------------------------------------------------------------------------------


class LedgerError(Exception):
    """The ledger cannot be used; the message says why and what to do.  Nothing was overwritten."""


class LedgerUnwritable(LedgerError):
    """A write failed on the disk, and nothing of it remains; the message says what to do."""


class LedgerDamaged(LedgerError):
    """The file is not a ledger, or SQLite finds it corrupt."""


class LedgerEmpty(LedgerError):
    """The file is there, and nothing is in it."""


class LedgerMissing(LedgerError):
    """The lab has had a ledger, and its file is not there."""


class LedgerForeign(LedgerError):
    """The file is a ledger, and nothing shows that it is this lab's."""


class LedgerBusy(LedgerError):
    """Another program holds the file."""


class LedgerTooNew(LedgerError):
    """A newer miglab has written this ledger."""


class LedgerTooOld(LedgerError):
    """A miglab of before the first release has written this ledger."""


def needs_upgrade(path: Path) -> bool:
    """Whether there is a ledger that an older miglab wrote, which the next start upgrades.

    Raises:
        LedgerError: what `check_file` raises.
    """
    return check_file(path) not in (None, VERSION)


def migrate(connection: Connection, path: Path, version: int) -> None:
    """Bring a ledger up to `VERSION`, after a copy was put beside it.

    Args:
        connection: to the file, open.
        path: the file.
        version: of what is there.
    """
    _keep_copy(path, version)
    with connection.begin():
        upgrade(connection)


def upgrade(connection: Connection) -> None:
    """Make the tables, or give older ones the columns and indexes that they have today.

    A new column has its row's default; what no row has any more goes.  An index that is made
    otherwise gets another name, since it is known by its name alone.
    """
    metadata.create_all(connection)
    for table in metadata.sorted_tables:
        _drop_indexes(connection, table)  # SQLite drops no column that has one
        _change_columns(connection, table)
        for index in table.indexes:
            index.create(connection, checkfirst=True)
    for table, values in (
        (pool_state, {"id": 1, "paused": "", "pause_kind": ""}),
        (identity, {"id": 1, "ledger": uuid4().hex, "engine": ""}),
        (schema_version, {"version": VERSION}),
    ):
        if connection.execute(select(table)).first() is None:
            connection.execute(insert(table).values(values))
    connection.execute(schema_version.update().values(version=VERSION))


def _change_columns(connection: Connection, table: Table) -> None:
    existing = {column["name"] for column in reflect(connection).get_columns(table.name)}
    for name in set(table.c.keys()) - existing:
        column = CreateColumn(table.c[name]).compile(dialect=connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {column}")
    for name in existing - set(table.c.keys()):
        connection.exec_driver_sql(f'ALTER TABLE {table.name} DROP COLUMN "{name}"')


def _drop_indexes(connection: Connection, table: Table) -> None:
    """Drop the indexes that the table has no more."""
    names = {index.name for index in table.indexes}
    for index in reflect(connection).get_indexes(table.name):
        if index["name"] not in names:
            connection.exec_driver_sql(f'DROP INDEX "{index["name"]}"')


def _keep_copy(path: Path, version: int) -> None:
    copy = sqlite3.connect(path.with_suffix(f".before-{VERSION}-{version}"))
    source = sqlite3.connect(path)
    with copy:
        source.backup(copy)
    copy.close()
    source.close()


def check_file(path: Path) -> int | None:
    """Return the version of a ledger's file; None if there is no file.  Changes nothing.

    Raises:
        LedgerError: it cannot be used: empty, damaged, too new, from before the first release, or
            locked by another program.
    """
    if not path.exists():
        return None
    try:
        version = _read_version(path)
        if version <= VERSION:
            _check_free(path)
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            raise LedgerBusy(
                f"The ledger {path} is locked by another program. End that one (a backup, an "
                "sqlite3 shell, another service), then start again. Nothing was changed."
            ) from error
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in DISK_ERRORS:
            raise LedgerUnwritable(
                f"The ledger {path} cannot be opened for writing ({error}). Nothing was changed, "
                "and running servers go on. Make room on its disk, or repair the disk or the "
                "rights to it; then start again."
            ) from error
        raise LedgerDamaged(_damage_message(path, str(error))) from error
    if version > VERSION:
        raise LedgerTooNew(
            f"The ledger {path} was written by a newer miglab (its version is {version}, this "
            f"miglab knows up to {VERSION}). Start the newer miglab, or put back the "
            "copy that it made beside the ledger before it changed it. Nothing was changed."
        )
    return version


def _read_version(path: Path) -> int:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)
    try:
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        _check_tables(path, {name for (name,) in connection.execute(TABLE_NAMES)})
        row = connection.execute("SELECT version FROM schema_version").fetchone()
        if row is None:
            raise sqlite3.DatabaseError("it has no version")
        return int(row[0])
    finally:
        connection.close()


def _check_tables(path: Path, names: set[str]) -> None:
    """Check that a file with these tables may be a ledger of a released miglab."""
    if not names:
        raise LedgerEmpty(
            f"The ledger {path} is empty, and a lab that has started once has more in it: who "
            f"holds which slice is lost. {TO_BEGIN_OR_RESTORE}"
        )
    if names >= TABLES_BEFORE_RELEASE:
        raise LedgerTooOld(
            f"The ledger {path} was written by a miglab from before 0.1.0, the first release, and "
            "no release can read it. Nothing was changed. Stop the students' servers, then begin "
            "with a new ledger (`miglab ledger begin`): it moves this file aside. Accounts and "
            "homes stay; reservations, the queue, usage and the log begin anew."
        )


def _check_free(path: Path) -> None:
    """Check that no other program holds the write lock."""
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=BUSY_S, isolation_level=None
    )
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def _damage_message(path: Path, reason: str) -> str:
    return (
        f"The ledger {path} cannot be read as a ledger ({reason}). Nothing was changed. Stop the "
        "students' servers, move the file aside (keep it, with its -wal and -shm), and put a "
        "backup in its place or start with an empty one: what lies on the GPUs then shows as "
        "foreign until an admin adopts it."
    )


@contextmanager
def open_read_only(ledger: Path) -> Iterator[Connection]:
    """Open a read-only connection of its own to the ledger's file; from any thread.

    A long read holds up no decision, and sees the ledger as it was when it began.
    """
    uri = f"{ledger.resolve().as_uri()}?mode=ro"
    engine = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(uri, uri=True), poolclass=NullPool
    )
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("BEGIN")  # sqlite3 begins none by itself for reading
            yield connection
    finally:
        engine.dispose()
