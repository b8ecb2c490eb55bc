"""A ledger as the miglab of commit 3500e72 wrote it, with every kind of row.

`data/` has it as `sqlite3 .dump` prints it; its code made it, and nothing else can any more.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

VERSION = "0012"
LEDGER = Path(__file__).with_name("data") / "ledger-0012.sql"


def write(dump: Path, target: Path) -> None:
    """Make the file that was dumped."""
    with closing(sqlite3.connect(target)) as connection:
        connection.executescript(dump.read_text(encoding="utf-8"))
