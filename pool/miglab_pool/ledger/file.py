"""The ledger as a file: which version it is, whether it can be used, and bringing it up to date.

Must not import the ledger, nor anything that decides.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from sqlalchemy import Connection, Table, create_engine, insert, select
from sqlalchemy import inspect as reflect
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateColumn

from miglab_pool.ledger import tables

VERSION = "0016"  # of what `tables` describes: grows with each change of a column
OLDEST = "0012"  # that can be brought up to date
BUSY_S = 1.0  # how long another program may hold the file while it is opened


class LedgerError(Exception):
    """The ledger cannot be used; the message says why and what to do.  Nothing was overwritten."""


class LedgerUnwritable(LedgerError):
    """A write failed on the disk, and nothing of it remains; the message says what to do."""


class LedgerDamaged(LedgerError):
    """The file is not a ledger, or SQLite finds it corrupt."""


class LedgerBusy(LedgerError):
    """Another program holds the file."""


class LedgerTooNew(LedgerError):
    """A newer miglab has written this ledger."""


class LedgerTooOld(LedgerError):
    """A miglab of before the first release has written this ledger."""


def migrate(connection: Connection, path: Path, version: str | None) -> None:
    """Bring a ledger up to `VERSION`, after a copy was put beside it.

    Args:
        connection: to the file, open.
        path: the file.
        version: of what is there; None for an empty one.
    """
    if version is not None:
        _keep_copy(path, version)
    with connection.begin():
        upgrade(connection)


def upgrade(connection: Connection) -> None:
    """Make the tables, or give those of an older version the columns that they have today.

    A new column has its row's default; what no row has any more goes.
    """
    tables.metadata.create_all(connection)
    for table in tables.metadata.sorted_tables:
        _change_columns(connection, table)
        for index in table.indexes:
            index.create(connection, checkfirst=True)
    if reflect(connection).has_table("layouts"):
        _give_layouts_to_gpus(connection)
    for table, values in (
        (tables.pool_state, {"id": 1, "paused": "", "pause_kind": ""}),
        (tables.identity, {"id": 1, "ledger": uuid4().hex, "engine": ""}),
        (tables.version, {"version_num": VERSION}),
    ):
        if connection.execute(select(table)).first() is None:
            connection.execute(insert(table).values(values))
    connection.execute(tables.version.update().values(version_num=VERSION))


def _change_columns(connection: Connection, table: Table) -> None:
    there = {column["name"] for column in reflect(connection).get_columns(table.name)}
    for name in set(table.c.keys()) - there:
        column = CreateColumn(table.c[name]).compile(dialect=connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {column}")
    for name in there - set(table.c.keys()):
        connection.exec_driver_sql(f'ALTER TABLE {table.name} DROP COLUMN "{name}"')


def _give_layouts_to_gpus(connection: Connection) -> None:
    """Until 0014 layouts had a table, times and courses: what held always and for all is kept."""
    rows = connection.exec_driver_sql(
        "SELECT name, partitions FROM layouts "
        "WHERE state = 'in-force' AND times = '[]' AND course = '' ORDER BY id"
    )
    for name, partitions in rows.all():
        for gpu, profiles in json.loads(partitions).items():
            values = {"layout": name, "partition": ",".join(profiles)}
            connection.execute(tables.gpus.update().where(tables.gpus.c.uuid == gpu).values(values))
    connection.exec_driver_sql("DROP TABLE layouts")


def _keep_copy(path: Path, version: str) -> None:
    copy = sqlite3.connect(path.with_suffix(f".before-{VERSION}-{version}"))
    source = sqlite3.connect(path)
    with copy:
        source.backup(copy)
    copy.close()
    source.close()


def inspect(path: Path) -> str | None:
    """The revision of the file there; None if there is none, or nothing in it.  Changes nothing.

    Raises:
        LedgerError: it cannot be used: damaged, too new, or locked by another program.
    """
    if not path.exists() or path.stat().st_size == 0:
        return None
    try:
        version = _read_version(path)
        if version is None:
            return None
        if version <= VERSION:
            _check_free(path)
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            raise LedgerBusy(
                f"The ledger {path} is locked by another program. End that one (a backup, an "
                "sqlite3 shell, another service), then start again. Nothing was changed."
            ) from error
        raise LedgerDamaged(_damaged(path, str(error))) from error
    if version < OLDEST:
        raise LedgerTooOld(
            f"The ledger {path} is of a miglab of before the first release (its version is "
            f"{version}, this miglab reads {OLDEST} to {VERSION}). Start commit 3500e72 with it "
            "once, which brings it up to date, and then this one. Nothing was changed."
        )
    if version > VERSION:
        raise LedgerTooNew(
            f"The ledger {path} was written by a newer miglab (its version is {version}, this "
            f"miglab knows up to {VERSION}). Start the newer miglab, or put back the "
            "copy that it made beside the ledger before it changed it. Nothing was changed."
        )
    return version


def _read_version(path: Path) -> str | None:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)
    try:
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
            return None  # its first start ended before it had made the tables
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        if row is None:
            raise sqlite3.DatabaseError("it has no version")
        return str(row[0])
    finally:
        connection.close()


def _check_free(path: Path) -> None:
    """Ask for the right to write, which another program may hold, and give it back."""
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=BUSY_S, isolation_level=None
    )
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def _damaged(path: Path, reason: str) -> str:
    return (
        f"The ledger {path} cannot be read as a ledger ({reason}). Nothing was changed. Stop the "
        "students' servers, move the file aside (keep it, with its -wal and -shm), and put a "
        "backup in its place or start with an empty one: what lies on the GPUs then shows as "
        "foreign until an admin adopts it."
    )


@contextmanager
def reading(ledger: Path) -> Iterator[Connection]:
    """A connection of its own to the ledger's file that cannot write; from any thread.

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
