"""The ledger as a file: which version it is, whether it can be used, and bringing it up to date.

Must not import the ledger, nor anything that decides.
"""

import sqlite3
from functools import lru_cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

MIGRATIONS = Path(__file__).parent / "migrations"
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


def migrate(connection: Connection, path: Path, version: str | None) -> None:
    """Bring a ledger up to the version that this miglab writes, after a copy was put beside it.

    Args:
        connection: to the file, open.
        path: the file.
        version: of what is there; None for an empty one.
    """
    if version is not None:
        _keep_copy(path, version)
    upgrade(connection, newest_version())
    connection.commit()


def upgrade(connection: Connection, version: str) -> None:
    """Run the migrations up to a version within the connection's transaction."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, version)


def _keep_copy(path: Path, version: str) -> None:
    copy = sqlite3.connect(path.with_suffix(f".before-{newest_version()}-{version}"))
    source = sqlite3.connect(path)
    with copy:
        source.backup(copy)
    copy.close()
    source.close()


@lru_cache
def newest_version() -> str:
    """The revision this miglab writes."""
    head = ScriptDirectory(str(MIGRATIONS)).get_current_head()
    assert head is not None
    return head


@lru_cache
def _known_versions() -> frozenset[str]:
    return frozenset(r.revision for r in ScriptDirectory(str(MIGRATIONS)).walk_revisions())


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
        if version in _known_versions():
            _check_free(path)
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            raise LedgerBusy(
                f"The ledger {path} is locked by another program. End that one (a backup, an "
                "sqlite3 shell, another service), then start again. Nothing was changed."
            ) from error
        raise LedgerDamaged(_damaged(path, str(error))) from error
    if version not in _known_versions():
        raise LedgerTooNew(
            f"The ledger {path} was written by a newer miglab (its version is {version}, this "
            f"miglab knows up to {newest_version()}). Start the newer miglab, or put back the "
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
