"""The lab's two databases: their writes fail, they are lost, restored, or of an older version."""

import resource
import shutil
import sqlite3
from contextlib import closing
from importlib import import_module
from pathlib import Path

from sqlalchemy import create_engine

from miglab_bench.faults.service import FAILING
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.ledger.file import upgrade

OLDER = "0010"  # before the migration that renamed tables and columns
RENAMED = import_module("miglab_pool.ledger.migrations.versions.0011_glossary")


class LabDatabases:
    """The ledger and the hub's database.

    Args:
        settings: of the lab.
        folder: for the ledger's copy; not on the lab's own disk.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._ledger = settings.ledger
        self._hubs = settings.hub_database
        self._failing = settings.state / FAILING
        self._copy = folder / "copy.sqlite"

    def fail_commit(self, statement: str) -> None:
        """Let the ledger's next commit of this statement fail, and what it reads after it."""
        self._failing.write_text(statement)

    def mend(self) -> None:
        """Let every commit succeed."""
        self._failing.unlink(missing_ok=True)

    def limit_growth(self, pool: int, more: int | None) -> None:
        """Let that process's files grow by ``more`` bytes beyond the ledger's log; None: freely.

        What crosses the limit is written in part, and fails.
        """
        log = Path(f"{self._ledger}-wal")
        size = log.stat().st_size if log.exists() else 0
        limit = resource.RLIM_INFINITY if more is None else size + more
        resource.prlimit(pool, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def back_up(self) -> None:
        """Keep a copy of the ledger as it is now."""
        source, target = sqlite3.connect(self._ledger), sqlite3.connect(self._copy)
        with closing(source), closing(target):
            source.backup(target)

    def restore(self) -> None:
        """Put the copy in the ledger's place; the pool does not run."""
        _remove_log(self._ledger)
        shutil.copy(self._copy, self._ledger)

    def lose_hubs(self) -> None:
        """The hub does not run, and begins anew."""
        _remove_log(self._hubs)
        self._hubs.unlink(missing_ok=True)

    def age_ledger(self) -> None:
        """Make the ledger what version `OLDER` left; the pool does not run."""
        older = self._ledger.with_suffix(".older")
        engine = create_engine(f"sqlite:///{older}")
        with engine.begin() as connection:
            upgrade(connection, OLDER)
        engine.dispose()
        with closing(sqlite3.connect(older)) as ledger, ledger:
            ledger.execute("ATTACH ? AS newer", (str(self._ledger),))
            for table in _tables(ledger):
                _copy_rows(ledger, table)
            ledger.execute("UPDATE transitions SET what = 'note' WHERE what = 'message'")
        _remove_log(self._ledger)
        older.replace(self._ledger)


def _tables(ledger: sqlite3.Connection) -> list[str]:
    found = ledger.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'")
    return [name for (name,) in found if name != "alembic_version"]


def _copy_rows(ledger: sqlite3.Connection, table: str) -> None:
    """Of the newer ledger, as far as the older one has columns for them."""
    renamed = RENAMED.COLUMNS.get(table, {})
    columns = [row[1] for row in ledger.execute(f"PRAGMA main.table_info({table})")]
    newer = ", ".join(f'"{renamed.get(column, column)}"' for column in columns)
    source = f"newer.{RENAMED.TABLES.get(table, table)}"
    ledger.execute(f"DELETE FROM main.{table}")  # noqa: S608
    ledger.execute(f"INSERT INTO main.{table} SELECT {newer} FROM {source}")  # noqa: S608


def _remove_log(database: Path) -> None:
    for left in database.parent.glob(f"{database.name}-*"):
        left.unlink()
