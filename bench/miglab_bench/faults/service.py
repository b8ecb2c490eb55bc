"""The pool service as it is, with a shorter patience and a disk that can fail.

A fault of the harness lasts seconds: a call that hangs counts as hung after `STUCK_S` here, and a
server that the hub does not know any more is ended by the pool after `UNKNOWN_S`.  The file
`FAILING` in the state folder names a statement; the next commit of one fails, and so does what is
read after it, as where a disk goes away for a moment.

``--without`` takes back a mend, so that a test can see that the harness notices.  Without
`READING`, a pool that cannot read its ledger anew goes on with what is in memory, and rows that are
not on disk can be changed.  Without `IDENTITY`, what a restored ledger does not know is not told
from what it knows.
"""

import sqlite3
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError

from miglab_hub.service import __main__ as service
from miglab_hub.settings.lab_toml import load
from miglab_pool.ledger.ledger import Ledger, LedgerMismatch, Transaction
from miglab_pool.ledger.rows import Row
from miglab_pool.reclaim import server_stopper
from miglab_pool.settings import Tuning
from miglab_pool.worker import reconcile

STUCK_S = 2.0
UNKNOWN_S = 4.0
WITHOUT = "--without"
READING, IDENTITY = "reading", "identity"
FAILING = "failing-statement"
IO_ERROR = "disk I/O error"


class FailingConnection(sqlite3.Connection):
    """A connection whose next commit of a named statement fails, and the first read after it."""

    file: Path
    _has_seen = False
    _fails_reading = False

    def watch(self, file: Path) -> None:
        """Look whether this file names a statement."""
        self.file = file
        self.set_trace_callback(self._see)

    def _see(self, statement: str) -> None:
        if not self._has_seen and self.file.exists():
            self._has_seen = statement.startswith(self.file.read_text())

    def commit(self) -> None:
        """Commit, or fail: nothing is on disk then."""
        if self._has_seen:
            self._has_seen, self._fails_reading = False, True
            self.file.unlink(missing_ok=True)
            super().rollback()
            raise sqlite3.OperationalError(IO_ERROR)
        super().commit()

    def cursor(self) -> sqlite3.Cursor:  # type: ignore[override]  # SQLAlchemy names no factory
        """A cursor, or none once after a commit that failed."""
        if self._fails_reading:
            self._fails_reading = False
            raise sqlite3.OperationalError(IO_ERROR)
        return super().cursor()


def let_disk_fail(database: Path) -> None:
    """Let the ledger's connection fail as `FAILING` says."""

    @event.listens_for(Engine, "do_connect")
    def connect(
        _dialect: object, _record: object, places: list[Any], words: dict[str, Any]
    ) -> None:
        words["factory"] = FailingConnection

    @event.listens_for(Engine, "connect")
    def connected(connection: Any, _record: object) -> None:
        if isinstance(connection, FailingConnection):
            connection.watch(database.with_name(FAILING))


def take_back(mend: str | None) -> None:
    """Take back one of the mends, if any: see the module."""
    if mend == IDENTITY:
        reconcile.why_left_alone = lambda identity, lease, stray: "" if lease else "unknown"
        reconcile._claim = lambda worker, stray: None
    elif mend == READING:
        Transaction._write = _write_anyway  # type: ignore[method-assign]
        Ledger._roll_back = _go_on  # type: ignore[method-assign]


def _write_anyway(
    self: Transaction,
    row: Row,
    *,
    is_new: bool,
    write: Callable[..., None] = Transaction._write,
) -> None:
    with suppress(LedgerMismatch):
        write(self, row, is_new=is_new)


def _go_on(self: Ledger) -> None:
    with suppress(OperationalError):
        self._read_anew()
    self.connection.rollback()


def main(arguments: list[str]) -> int:
    """Run until told to stop; returns the exit status."""
    parser = ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument(WITHOUT, choices=(READING, IDENTITY))
    asked = parser.parse_args(arguments)
    take_back(asked.without)
    settings = load(asked.config)
    let_disk_fail(settings.ledger)
    server_stopper.UNKNOWN_S = UNKNOWN_S
    tuning = Tuning(stuck_s=STUCK_S, retry_max_s=5.0)
    service.run(settings.model_copy(update={"tuning": tuning}))
    return 0
