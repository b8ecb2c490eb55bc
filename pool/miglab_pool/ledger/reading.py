"""Reads the ledger's file over a connection of its own that cannot write.

A long read holds up no decision, and sees the ledger as it was when it began.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool


@contextmanager
def reading(ledger: Path) -> Iterator[Connection]:
    """A connection to the ledger's file, for as long as it is read; from any thread."""
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
