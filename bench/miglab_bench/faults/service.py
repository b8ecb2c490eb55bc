"""The pool service as it is, with a shorter patience for driver calls and a disk that can fail.

A fault of the harness lasts seconds: a call that hangs counts as hung after `STUCK_S` here.  The
file `FAILING` in the state folder names a statement; the next commit of one fails, and so does what
is read after it, as where a disk goes away for a moment.

``--without-mends`` takes back what was mended after the review, so that a test can see that the
harness notices: a ledger that cannot be read anew goes on with what is in memory, rows that are not
on disk can be changed, and what a restored ledger does not know is not told from what it knows.
"""

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError

from miglab_hub.service import __main__ as service
from miglab_hub.settings.lab_toml import load
from miglab_pool.ledger import ledger
from miglab_pool.model.rows import Row
from miglab_pool.settings import Tuning
from miglab_pool.worker import reconcile

STUCK_S = 2.0
WITHOUT_MENDS = "--without-mends"
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


def take_mends_back() -> None:
    """See the module."""
    reconcile.why_left_alone = lambda identity, lease, stray: "" if lease else "unknown"
    reconcile._why_unknown = lambda worker, stray: ""
    ledger.Transaction._write = _write_anyway  # type: ignore[method-assign]
    ledger.Ledger._roll_back = _go_on  # type: ignore[method-assign]


def _write_anyway(
    self: ledger.Transaction,
    row: Row,
    *,
    is_new: bool,
    write: Callable[..., None] = ledger.Transaction._write,
) -> None:
    with suppress(ledger.LedgerMismatch):
        write(self, row, is_new=is_new)


def _go_on(self: ledger.Ledger) -> None:
    with suppress(OperationalError):
        self._read_anew()
    self.connection.rollback()


def main(arguments: list[str]) -> int:
    """Run until told to stop; returns the exit status."""
    if WITHOUT_MENDS in arguments:
        take_mends_back()
    settings = load(Path(arguments[arguments.index("--config") + 1]))
    let_disk_fail(settings.ledger)
    tuning = Tuning(stuck_s=STUCK_S, retry_max_s=5.0)
    return service.run(settings.model_copy(update={"tuning": tuning}))
