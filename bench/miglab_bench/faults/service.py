"""The pool service as it is, with a shorter patience and a disk that can fail.

A fault of the harness lasts seconds: a call that hangs counts as hung after `STUCK_S` here, and a
server that the hub does not know any more is ended by the pool after `UNKNOWN_S`.  The file
`FAILING` in the state folder names a statement; the next commit of one fails, and so does what is
read after it, as where a disk goes away for a moment.
"""

import sqlite3
import sys
from pathlib import Path

from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError

from miglab_bench.faults.machine import FAILING, sleep_by_select
from miglab_hub.service import __main__ as service
from miglab_hub.settings.lab_toml import load
from miglab_pool.reclaim import server_stopper
from miglab_pool.settings import Tuning

STUCK_S = 2.0
UNKNOWN_S = 4.0


def let_disk_fail(file: Path) -> None:
    """Let the ledger's connection fail as `FAILING`, this file, says."""
    fails: set[str] = set()

    def io_error() -> OperationalError:
        return OperationalError(None, None, sqlite3.OperationalError("disk I/O error"))

    @event.listens_for(Engine, "before_cursor_execute")
    def execute(_connection: object, _cursor: object, statement: str, *_arguments: object) -> None:
        if "reading" in fails:
            fails.clear()
            raise io_error()
        if file.exists() and statement.startswith(file.read_text()):
            fails.add("commit")

    @event.listens_for(Engine, "commit")
    def commit(_connection: object) -> None:
        if "commit" in fails:
            fails.clear()
            fails.add("reading")
            file.unlink(missing_ok=True)
            raise io_error()


def main(config: str) -> None:
    """Run until told to stop."""
    sleep_by_select()
    settings = load(Path(config))
    let_disk_fail(settings.state / FAILING)
    server_stopper.UNKNOWN_S = UNKNOWN_S
    gpus = settings.gpus.model_copy(update={"answer_s": STUCK_S, "change_s": STUCK_S})
    tuning = Tuning(retry_max_s=5.0)
    service.run(settings.model_copy(update={"gpus": gpus, "tuning": tuning}))


if __name__ == "__main__":
    main(sys.argv[1])
