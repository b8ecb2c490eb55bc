"""The lab's two databases: their writes fail, they are lost, restored, or of an older version."""

import resource
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from miglab_bench.faults.service import FAILING
from miglab_hub.settings.lab_toml import Settings

OLDER = "0012"  # before tickets knew since when their student waits


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
        with closing(sqlite3.connect(self._ledger)) as ledger, ledger:
            ledger.execute("ALTER TABLE tickets DROP COLUMN since")
            ledger.execute("UPDATE alembic_version SET version_num = ?", (OLDER,))


def _remove_log(database: Path) -> None:
    for left in database.parent.glob(f"{database.name}-*"):
        left.unlink()
