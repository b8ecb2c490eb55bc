"""A person's rows in the ledger: list them, or replace the name in them by a pseudonym.

Works on a plain connection to the file while no pool runs.  Rows stay, under a pseudonym, because
usage and audit count them; what staff wrote to the person is deleted.
"""

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from miglab_pool.ledger.rows import LIVE_LEASES, LIVE_TICKETS

OWNER_COLUMN = {
    "tickets": "user",
    "leases": "user",
    "messages": "to_user",
    "progress": "user",
    "people": "called",
}
DELETED_TABLES = ("messages", "progress", "people")  # tables whose rows nobody counts
CAUSE_COLUMN = {
    "transitions": "by",
    "leases": "warn_by",
    "messages": "by",
    "reservations": "made_by",
}
TEXT_COLUMNS = {
    "transitions": ("reason",),
    "leases": ("reason", "warn_reason"),
    "tickets": ("message",),
    "messages": ("text",),
    "reservations": ("message",),
    "pool_state": ("paused",),
}
"""By table: the column with the row's user, the one with its cause, and those with sentences."""
TABLE_OF_KIND = {"ticket": "tickets", "lease": "leases", "message": "messages"}
Target = tuple[str, str]
"""The kind and the id of a transition's target."""
KINDS = ("person", "server", "service")


@contextmanager
def open_ledger(file: Path) -> Iterator[sqlite3.Connection]:
    """Open the ledger's file; all changes are written at the end, or none."""
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=rw", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA secure_delete=ON")
        with connection:
            yield connection


def live_leases_and_tickets(connection: sqlite3.Connection, user: str) -> list[str]:
    """A person's live leases and tickets, in words."""
    return [
        f"{kind} {row['id']} ({row['state']})"
        for kind, table, live in (
            ("lease", "leases", LIVE_LEASES),
            ("ticket", "tickets", LIVE_TICKETS - {"taken"}),
        )
        for row in connection.execute(f"SELECT id, state FROM {table} WHERE user = ?", (user,))  # noqa: S608
        if row["state"] in live
    ]


def targets_of(connection: sqlite3.Connection, user: str) -> set[Target]:
    """A person's tickets, leases and messages in this file."""
    tables = _tables(connection)
    return {
        (kind, str(row[0]))
        for kind, table in TABLE_OF_KIND.items()
        if table in tables
        for row in connection.execute(
            f"SELECT id FROM {table} WHERE {OWNER_COLUMN[table]} = ?",  # noqa: S608
            (user,),
        )
    }


def register_targets(connection: sqlite3.Connection, targets: Iterable[Target]) -> None:
    """Give the connection a person's targets, by which it finds their transitions."""
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS known_targets (kind TEXT, target TEXT)")
    connection.executemany("INSERT INTO known_targets VALUES (?, ?)", sorted(targets))


def personal_rows(connection: sqlite3.Connection, user: str) -> dict[str, list[dict[str, Any]]]:
    """By table, every row of a person, about something of theirs, or caused by them."""
    rows_by_table = {
        table: _rows_of_person(connection, table, user) for table in _tables(connection)
    }
    return {table: [dict(row) for row in rows] for table, rows in rows_by_table.items() if rows}


def forget(connection: sqlite3.Connection, user: str, pseudonym: str) -> dict[str, int]:
    """Replace a person's name by a pseudonym; delete messages to them and their progress.

    The name is replaced in sentences of rows that are about the person; elsewhere, where the same
    word may mean something else, only where it is marked as a person's or a server's.

    Returns:
        The number of rows changed, by table.
    """
    tables = _tables(connection)
    about = {
        table: frozenset(row[0] for row in _rows_of_person(connection, table, user, "rowid"))
        for table in tables
    }
    swap = Pseudonymiser(user, pseudonym)
    changed = {}
    for table in tables:
        changed[table] = sum(_pseudonymise_table(connection, table, swap, about[table]))
    for table in tables:
        if table in DELETED_TABLES:
            query = f"DELETE FROM {table} WHERE {OWNER_COLUMN[table]} = ?"  # noqa: S608
            result = connection.execute(query, (pseudonym,))
            changed[table] = max(changed[table], result.rowcount)
    return {table: count for table, count in changed.items() if count}


class Pseudonymiser:
    """Replaces one name by a pseudonym."""

    def __init__(self, user: str, pseudonym: str) -> None:
        self.user, self.pseudonym = user, pseudonym
        name = rf"{re.escape(user)}(?![\w@-])"
        self._anywhere = re.compile(rf"(?<![\w@.-]){name}")
        self._marked = re.compile(rf"(?<=\b(?:person|server):){name}|(?<=\bservice:){name}")

    def in_text(self, text: str | None, *, is_about: bool) -> str | None:
        """A sentence without the name."""
        return (self._anywhere if is_about else self._marked).sub(self.pseudonym, text or "")

    def in_cause(self, cause: str) -> str:
        """Return a cause, such as ``person:ada``, without the name."""
        kind, colon, name = cause.partition(":")
        person, slash, server = name.partition("/")
        if kind in KINDS and (person if kind == "server" else name) == self.user:
            return f"{kind}{colon}{self.pseudonym}{slash}{server}"
        return self.pseudonym if cause == self.user else cause


def _pseudonymise_table(
    connection: sqlite3.Connection, table: str, swap: Pseudonymiser, about: frozenset[int]
) -> Iterator[int]:
    """Replace the name in a table; yield 1 for each row that changed."""
    columns = (OWNER_COLUMN.get(table), CAUSE_COLUMN.get(table), *TEXT_COLUMNS.get(table, ()))
    names = [column for column in columns if column]
    has_name = " OR ".join(f"instr({column}, ?)" for column in _quote(names))
    query = f"SELECT rowid AS row, {', '.join(_quote(names))} FROM {table} WHERE {has_name}"  # noqa: S608
    values = [swap.user] * len(names)
    for row in connection.execute(query, values).fetchall() if names else ():
        after = _pseudonymised(row, table, swap, is_about=row["row"] in about)
        if after != {column: row[column] for column in names}:
            sets = ", ".join(f"{column} = ?" for column in _quote(after))
            update = f"UPDATE {table} SET {sets} WHERE rowid = ?"  # noqa: S608
            connection.execute(update, (*after.values(), row["row"]))
            yield 1


def _pseudonymised(
    row: sqlite3.Row, table: str, swap: Pseudonymiser, *, is_about: bool
) -> Mapping[str, Any]:
    after: dict[str, Any] = {}
    if column := OWNER_COLUMN.get(table):
        after[column] = swap.pseudonym if row[column] == swap.user else row[column]
    if column := CAUSE_COLUMN.get(table):
        after[column] = swap.in_cause(row[column])
    for column in TEXT_COLUMNS.get(table, ()):
        after[column] = swap.in_text(row[column], is_about=is_about)
    return after


def _rows_of_person(
    connection: sqlite3.Connection, table: str, user: str, columns: str = "*"
) -> list[sqlite3.Row]:
    """The rows of a table that are the person's, about them, or caused by them."""
    conditions, values = _conditions(table, user)
    if not conditions:
        return []
    query = f"SELECT {columns} FROM {table} WHERE {' OR '.join(conditions)}"  # noqa: S608
    return connection.execute(query, values).fetchall()


def _conditions(table: str, user: str) -> tuple[list[str], list[Any]]:
    """The SQL conditions by which a row is the person's, and the values in them."""
    conditions, values = [], []
    if column := OWNER_COLUMN.get(table):
        conditions.append(f'"{column}" = ?')
        values.append(user)
    if column := CAUSE_COLUMN.get(table):
        conditions.append(f'"{column}" IN (?, ?, ?) OR "{column}" LIKE ? ESCAPE \'!\'')
        values += [user, f"person:{user}", f"service:{user}", f"server:{_escape_like(user)}/%"]
    if table == "transitions":
        conditions.append("(kind, target) IN (SELECT kind, target FROM known_targets)")
    if table == "activity":
        conditions.append("lease IN (SELECT id FROM leases WHERE user = ?)")
        values.append(user)
    return conditions, values


def _escape_like(name: str) -> str:
    return re.sub(r"([!%_])", r"!\1", name)


def _quote(names: Iterable[str]) -> list[str]:
    return [f'"{name}"' for name in names]


def _tables(connection: sqlite3.Connection) -> list[str]:
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    relevant = OWNER_COLUMN.keys() | CAUSE_COLUMN.keys() | TEXT_COLUMNS.keys() | {"activity"}
    return sorted(row[0] for row in names if row[0] in relevant)
