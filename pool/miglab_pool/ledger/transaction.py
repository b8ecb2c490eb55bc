"""A change to the ledger: rows and transitions, to the file and to the rows in memory.

Decides nothing; must not import pool, NVML or holders.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Insert, Table, Update, bindparam, insert, update
from sqlalchemy.dialects.sqlite import dialect

from miglab_pool.ledger import tables
from miglab_pool.ledger.rows import LeaseRow, PauseKind, Row
from miglab_pool.ledger.state import State
from miglab_pool.ledger.tables import TABLES

REASON_MAX = 500  # characters of a reason that a transition keeps
CAUSES_BY_HAND = ("person:", "service:", "server:")

_COLUMNS = {kind: tuple(column.name for column in table.c) for kind, table in TABLES.items()}
_KEYS = {kind: columns[0] for kind, columns in _COLUMNS.items()}


def _sql(statement: Insert | Update, *columns: str) -> str:
    """A statement as SQLite reads it: composed once, for these take most of a decision's time."""
    return str(statement.compile(dialect=dialect(paramstyle="named"), column_keys=columns or None))


def _update_of(table: Table) -> str:
    key = next(iter(table.primary_key))
    values: dict[str, Any] = {
        column.name: bindparam(column.name) for column in table.c if column is not key
    }
    return _sql(update(table).where(key == bindparam("key_")).values(values))


_INSERTS = {kind: _sql(insert(table)) for kind, table in TABLES.items()}
_UPDATES = {kind: _update_of(table) for kind, table in TABLES.items()}
_INSERT_SLICES = _sql(insert(tables.lease_slices))
_INSERT_TRANSITION = _sql(
    insert(tables.transitions),
    *(column.name for column in tables.transitions.c if not column.primary_key),
)


class LedgerMismatch(RuntimeError):
    """Memory has a row that the file has not: nothing is written, and memory is read anew."""

    def __init__(self, kind: str, key: object) -> None:
        super().__init__(f"The ledger has no {kind} {key}, which memory has; it is read anew.")


class Transaction:
    """One short change to the ledger: all of it is on disk afterwards, or none.

    Attributes:
        at: the time it carries, seconds since the epoch.
        has_begun: whether anything was written.
        on_commit: what to call once it is on disk; not if it was rolled back.

    Args:
        state: what is live.
        connection: to the file.
        at: as the attribute.
        begin: begins to write to the file; called before the first write.
    """

    def __init__(
        self, state: State, connection: Connection, at: float, begin: Callable[[], None]
    ) -> None:
        self.at = at
        self.has_begun = False
        self.on_commit: list[Callable[[], None]] = []
        self._state = state
        self._connection = connection
        self._begin_file = begin

    def put(self, row: Row, cause: str = "pool", reason: str = "", action: str = "") -> None:
        """Insert or replace a row; a change of state becomes a transition.

        Args:
            row: the row as it is to be.
            cause: who caused it, such as ``person:ada`` or ``pool``.
            reason: why, in words.
            action: what a person did, in a word, such as ``quarantine``; a person's act without one
                is called by the state it led to.
        """
        self._begin()
        before = self._state.of_kind(row.kind).get(row.key)
        if before == row:
            return
        self._write(row, is_new=before is None)
        if before is None or before.state != row.state:
            states = ("" if before is None else before.state, row.state)
            self._record((row.kind, row.key), states, cause, reason, action, row.course)
        self._state.store(row)

    def _write(self, row: Row, *, is_new: bool) -> None:
        values = {name: getattr(row, name) for name in _COLUMNS[row.kind]}
        if is_new:
            self._connection.exec_driver_sql(_INSERTS[row.kind], values)
            slice_ids = row.slices if isinstance(row, LeaseRow) else ()
            for position, number in enumerate(slice_ids):
                values_of_slice = {"lease": row.key, "slice": number, "position": position}
                self._connection.exec_driver_sql(_INSERT_SLICES, values_of_slice)
            return
        values.pop(_KEYS[row.kind])
        result = self._connection.exec_driver_sql(_UPDATES[row.kind], values | {"key_": row.key})
        if result.rowcount != 1:
            raise LedgerMismatch(row.kind, row.key)

    def _record(
        self,
        target: tuple[str, object],
        states: tuple[str, str],
        cause: str,
        reason: str,
        action: str,
        course: str = "",
    ) -> None:
        self._connection.exec_driver_sql(
            _INSERT_TRANSITION,
            {
                "at": self.at,
                "kind": target[0],
                "target": str(target[1]),
                "from_state": states[0],
                "to_state": states[1],
                "by": cause,
                "reason": reason[:REASON_MAX],
                "course": course,
                "action": action or (states[1] if cause.startswith(CAUSES_BY_HAND) else ""),
            },
        )

    def record(
        self, row: Row, cause: str, reason: str, action: str = "", course: str | None = None
    ) -> None:
        """Log something that did not change a state: an extension, a refused attach.

        Args:
            row: of what.
            cause: who caused it.
            reason: why, in words.
            action: as for `put`.
            course: whose it is, if not the row's course's.
        """
        self._begin()
        owner_course = row.course if course is None else course
        self._record(
            (row.kind, row.key), (row.state, row.state), cause, reason, action, owner_course
        )

    def record_action(self, kind: str, target: str, cause: str, action: str) -> None:
        """Log what a person did to something of a course that has no row: its class."""
        self._begin()
        self._record((kind, target), ("", ""), cause, "", action, target)

    def pause(self, reason: str, cause: str, kind: PauseKind | None) -> None:
        """Pause all grants, or resume them with an empty reason and no kind."""
        self._begin()
        states = (_grant_state(self._state.paused), _grant_state(reason))
        self._record(("pool", ""), states, cause, reason, "pause" if reason else "resume")
        self._connection.execute(
            update(tables.pool_state).values(paused=reason, pause_kind=kind or "")
        )
        self._state.paused, self._state.pause_kind = reason, kind
        self._state.writes += 1

    def add(self, statement: Any, values: Sequence[Any] | None = None) -> None:
        """Write to a table without live rows, such as `activity`; no transition is logged."""
        self._begin()
        self._connection.execute(statement, values)

    def _begin(self) -> None:
        if not self.has_begun:
            self._begin_file()
            self.has_begun = True


def _grant_state(paused: str) -> str:
    return "paused" if paused else "granting"
