"""What the ledger keeps of a person, and how it is made nobody's.

Over a plain connection to the file, or to its archive, while no pool runs.  Rows stay, under a
pseudonym, since usage and audit are counts of them; what staff wrote to the person goes.
"""

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from miglab_pool.ledger.rows import LIVE_LEASES, LIVE_TICKETS

WHOSE = {
    "tickets": "user",
    "leases": "user",
    "messages": "to_user",
    "progress": "user",
    "people": "called",
}
REMOVED = ("messages", "progress", "people")  # what nobody counts goes with the person
BY = {
    "transitions": "by",
    "leases": "warn_by",
    "messages": "by",
    "reservations": "made_by",
}
TEXTS = {
    "transitions": ("reason",),
    "leases": ("reason", "warn_reason"),
    "tickets": ("message",),
    "messages": ("text",),
    "reservations": ("message",),
    "pool_state": ("paused",),
}
"""The columns that name whose a row is, who caused it, and those with sentences."""
ABOUT = {"ticket": "tickets", "lease": "leases", "message": "messages"}
Target = tuple[str, str]
"""What a transition is of: its kind and its id."""
KINDS = ("person", "server", "service")


@contextmanager
def opened(file: Path) -> Iterator[sqlite3.Connection]:
    """The ledger's file or its archive; what is changed is written at the end, or nothing is."""
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=rw", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA secure_delete=ON")
        with connection:
            yield connection


def held_by(connection: sqlite3.Connection, user: str) -> list[str]:
    """The person's live leases and tickets, in words."""
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
    """What in this file is the person's: tickets, leases, messages."""
    there = _tables(connection)
    return {
        (kind, str(row[0]))
        for kind, table in ABOUT.items()
        if table in there
        for row in connection.execute(f"SELECT id FROM {table} WHERE {WHOSE[table]} = ?", (user,))  # noqa: S608
    }


def know(connection: sqlite3.Connection, targets: Iterable[Target]) -> None:
    """Tell this connection what is the person's, also by another file: transitions name only it."""
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS known_targets (kind TEXT, target TEXT)")
    connection.executemany("INSERT INTO known_targets VALUES (?, ?)", sorted(targets))


def kept_of(connection: sqlite3.Connection, user: str) -> dict[str, list[dict[str, Any]]]:
    """Every row that is the person's, is about what was the person's, or was caused by them."""
    found = {table: _theirs(connection, table, user) for table in _tables(connection)}
    return {table: [dict(row) for row in rows] for table, rows in found.items() if rows}


def forget(connection: sqlite3.Connection, user: str, pseudonym: str) -> dict[str, int]:
    """Put a pseudonym in the person's place, and remove messages to them and their progress.

    The name is replaced in sentences of rows that are about the person; elsewhere, where the same
    word may mean something else, only where it is marked as a person's or a server's.

    Returns:
        The number of rows changed, by table.
    """
    there = _tables(connection)
    about = {
        table: frozenset(row[0] for row in _theirs(connection, table, user, "rowid"))
        for table in there
    }
    swap = Pseudonymiser(user, pseudonym)
    changed = {}
    for table in there:
        changed[table] = sum(_rename(connection, table, swap, about[table]))
    for table in there:
        if table in REMOVED:
            query = f"DELETE FROM {table} WHERE {WHOSE[table]} = ?"  # noqa: S608
            done = connection.execute(query, (pseudonym,))
            changed[table] = max(changed[table], done.rowcount)
    return {table: count for table, count in changed.items() if count}


class Pseudonymiser:
    """Puts a pseudonym where a name stands."""

    def __init__(self, user: str, pseudonym: str) -> None:
        self.user, self.pseudonym = user, pseudonym
        word = rf"{re.escape(user)}(?![\w@-])"
        self._anywhere = re.compile(rf"(?<![\w@.-]){word}")
        self._marked = re.compile(rf"(?<=\b(?:person|server):){word}|(?<=\bservice:){word}")

    def in_text(self, text: str | None, *, is_about: bool) -> str | None:
        """A sentence without the name."""
        return (self._anywhere if is_about else self._marked).sub(self.pseudonym, text or "")

    def in_cause(self, by: str) -> str:
        """Who caused something, without the name."""
        kind, colon, name = by.partition(":")
        person, slash, server = name.partition("/")
        if kind in KINDS and (person if kind == "server" else name) == self.user:
            return f"{kind}{colon}{self.pseudonym}{slash}{server}"
        return self.pseudonym if by == self.user else by


def _rename(
    connection: sqlite3.Connection, table: str, swap: Pseudonymiser, about: frozenset[int]
) -> Iterator[int]:
    """1 for each row that changed."""
    columns = (WHOSE.get(table), BY.get(table), *TEXTS.get(table, ()))
    named = [column for column in columns if column]
    query = f"SELECT rowid AS row, {', '.join(_quoted(named))} FROM {table}"  # noqa: S608
    for row in connection.execute(query).fetchall() if named else ():
        after = _renamed(row, table, swap, is_about=row["row"] in about)
        if after != {column: row[column] for column in named}:
            sets = ", ".join(f"{column} = ?" for column in _quoted(after))
            update = f"UPDATE {table} SET {sets} WHERE rowid = ?"  # noqa: S608
            connection.execute(update, (*after.values(), row["row"]))
            yield 1


def _renamed(
    row: sqlite3.Row, table: str, swap: Pseudonymiser, *, is_about: bool
) -> Mapping[str, Any]:
    after: dict[str, Any] = {}
    if column := WHOSE.get(table):
        after[column] = swap.pseudonym if row[column] == swap.user else row[column]
    if column := BY.get(table):
        after[column] = swap.in_cause(row[column])
    for column in TEXTS.get(table, ()):
        after[column] = swap.in_text(row[column], is_about=is_about)
    return after


def _theirs(
    connection: sqlite3.Connection, table: str, user: str, columns: str = "*"
) -> list[sqlite3.Row]:
    """The rows of a table that are the person's, about them, or caused by them."""
    conditions, values = _conditions(table, user)
    if not conditions:
        return []
    query = f"SELECT {columns} FROM {table} WHERE {' OR '.join(conditions)}"  # noqa: S608
    return connection.execute(query, values).fetchall()


def _conditions(table: str, user: str) -> tuple[list[str], list[Any]]:
    """What makes a row the person's, and the values of its marks."""
    conditions, values = [], []
    if column := WHOSE.get(table):
        conditions.append(f'"{column}" = ?')
        values.append(user)
    if column := BY.get(table):
        conditions.append(f'"{column}" IN (?, ?, ?) OR "{column}" LIKE ? ESCAPE \'!\'')
        values += [user, f"person:{user}", f"service:{user}", f"server:{_like(user)}/%"]
    if table == "transitions":
        conditions.append("(kind, target) IN (SELECT kind, target FROM known_targets)")
    if table == "activity":
        conditions.append("lease IN (SELECT id FROM leases WHERE user = ?)")
        values.append(user)
    return conditions, values


def _like(name: str) -> str:
    return re.sub(r"([!%_])", r"!\1", name)


def _quoted(names: Iterable[str]) -> list[str]:
    return [f'"{name}"' for name in names]


def _tables(connection: sqlite3.Connection) -> list[str]:
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    known = WHOSE.keys() | BY.keys() | TEXTS.keys() | {"activity"}
    return sorted(row[0] for row in found if row[0] in known)
