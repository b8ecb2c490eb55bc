"""What is live in the ledger, held in memory, so that a decision reads no disk.

One short change to the ledger: a row is written to the file, and taken into memory.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Insert, Table, Update, bindparam, insert, update
from sqlalchemy.dialects.sqlite import dialect

from miglab_pool.ledger import tables
from miglab_pool.ledger.rows import (
    ROWS,
    GpuRow,
    LeaseRow,
    MessageRow,
    PauseKind,
    ReservationRow,
    Row,
    SliceRow,
    TicketRow,
)
from miglab_pool.ledger.tables import TABLES


class State:
    """What is live, by id.  Written by `Transaction` alone; read under the pool's lock.

    Attributes:
        on_gpu: the slices on each GPU.
        touched: the GPUs whose rows, slices or leases have changed; whoever looks again clears it.
        changed: the tables that have changed; whoever copies them clears it.
        ended: the leases that have ended, by id; whoever counts them clears it.
        writes: grows with every row that is stored.
    """

    def __init__(self) -> None:
        self.gpus: dict[str, GpuRow] = {}
        self.slices: dict[int, SliceRow] = {}
        self.tickets: dict[int, TicketRow] = {}
        self.leases: dict[int, LeaseRow] = {}
        self.reservations: dict[int, ReservationRow] = {}
        self.messages: dict[int, MessageRow] = {}
        self.on_gpu: dict[str, dict[int, SliceRow]] = defaultdict(dict)
        self.touched: set[str] = set()
        self.changed: set[str] = {f"{row.kind}s" for row in ROWS}
        self.ended: dict[int, LeaseRow] = {}
        self.writes = 0
        self.paused = ""
        self.pause_kind: PauseKind | None = None

    def of_kind(self, kind: str) -> dict[Any, Any]:
        """The live rows of a kind, by key."""
        rows: dict[Any, Any] = getattr(self, f"{kind}s")
        return rows

    def store(self, row: Row) -> None:
        """Take in a new or changed row; what is no longer live is dropped."""
        kept = self.of_kind(row.kind)
        self.changed.add(f"{row.kind}s")
        self.writes += 1
        if row.is_live:
            kept[row.key] = row
        else:
            kept.pop(row.key, None)
        if isinstance(row, SliceRow):
            self._store_on_gpu(row)
        elif isinstance(row, LeaseRow):
            self._touch_lease(row)
        elif isinstance(row, GpuRow):
            self.touched.add(row.uuid)

    def _store_on_gpu(self, row: SliceRow) -> None:
        self.touched.add(row.gpu)
        if row.is_live:
            self.on_gpu[row.gpu][row.id] = row
        else:
            self.on_gpu[row.gpu].pop(row.id, None)

    def _touch_lease(self, row: LeaseRow) -> None:
        self.touched.update(self.slices[s].gpu for s in row.slices if s in self.slices)
        if row.is_live:
            return
        self.ended[row.id] = row
        ticket = self.tickets.get(row.ticket or 0)
        if ticket is not None and ticket.state == "taken":
            del self.tickets[ticket.id]
            self.changed.add("tickets")

    def attend(self, ticket: TicketRow, at: float) -> TicketRow:
        """Somebody still wants it: in memory only, and no news."""
        ticket = self.tickets[ticket.id] = dataclasses.replace(ticket, attended_at=at)
        self.changed.add("tickets")
        return ticket

    def slices_of(self, lease: LeaseRow) -> list[SliceRow]:
        """The lease's live slices, in the order asked."""
        return [self.slices[number] for number in lease.slices if number in self.slices]


REASON_KEPT = 500
BY_HAND = ("person:", "service:", "server:")
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
        afterwards: what to call then; not if it was undone.

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
        self.afterwards: list[Callable[[], None]] = []
        self._state = state
        self._connection = connection
        self._begin_file = begin

    def put(self, row: Row, by: str = "pool", reason: str = "", action: str = "") -> None:
        """Insert or replace a row; a change of state becomes a transition.

        Args:
            row: the row as it is to be.
            by: who caused it.
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
            self._record((row.kind, row.key), states, by, reason, action, row.course)
        self._state.store(row)

    def _write(self, row: Row, *, is_new: bool) -> None:
        values = {name: getattr(row, name) for name in _COLUMNS[row.kind]}
        if is_new:
            self._connection.exec_driver_sql(_INSERTS[row.kind], values)
            held = row.slices if isinstance(row, LeaseRow) else ()
            for position, number in enumerate(held):
                placed = {"lease": row.key, "slice": number, "position": position}
                self._connection.exec_driver_sql(_INSERT_SLICES, placed)
            return
        values.pop(_KEYS[row.kind])
        done = self._connection.exec_driver_sql(_UPDATES[row.kind], values | {"key_": row.key})
        if done.rowcount != 1:
            raise LedgerMismatch(row.kind, row.key)

    def _record(
        self,
        target: tuple[str, object],
        states: tuple[str, str],
        by: str,
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
                "by": by,
                "reason": reason[:REASON_KEPT],
                "course": course,
                "action": action or (states[1] if by.startswith(BY_HAND) else ""),
            },
        )

    def record(
        self, row: Row, by: str, reason: str, action: str = "", course: str | None = None
    ) -> None:
        """Write down something that did not change a state: an extension, a refused attach.

        Args:
            row: of what.
            by: who caused it.
            reason: why, in words.
            action: as for `put`.
            course: whose it is, if not the row's course's.
        """
        self._begin()
        whose = row.course if course is None else course
        self._record((row.kind, row.key), (row.state, row.state), by, reason, action, whose)

    def note(self, kind: str, target: str, by: str, action: str) -> None:
        """Write down what a person did to something of a course that is no row: its class."""
        self._begin()
        self._record((kind, target), ("", ""), by, "", action, target)

    def pause(self, reason: str, by: str, kind: PauseKind | None) -> None:
        """Why nothing is granted from now on; empty, and of no kind: it is granted."""
        self._begin()
        states = (_granting(self._state.paused), _granting(reason))
        self._record(("pool", ""), states, by, reason, "pause" if reason else "resume")
        self._connection.execute(
            update(tables.pool_state).values(paused=reason, pause_kind=kind or "")
        )
        self._state.paused, self._state.pause_kind = reason, kind
        self._state.writes += 1

    def add(self, statement: Any, values: Sequence[Any] | None = None) -> None:
        """Figures that are no row of what is live, such as `activity`'s; no transition."""
        self._begin()
        self._connection.execute(statement, values)

    def _begin(self) -> None:
        if not self.has_begun:
            self._begin_file()
            self.has_begun = True


def _granting(paused: str) -> str:
    return "paused" if paused else "granting"
