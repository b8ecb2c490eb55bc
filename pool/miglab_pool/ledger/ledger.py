"""The ledger: what the pool has decided, on disk before it is done.

SQLite in WAL mode behind SQLAlchemy Core.  What is live (GPUs, slices, tickets, leases) is also
held in memory (`State`), so that a decision reads no disk; a `Transaction` writes both, and one
that fails leaves the memory as the disk has it.  Decides nothing; must not import pool, NVML or
holders.  The module is long because a row's way to the file and into memory is read in one go.
"""

import dataclasses
import logging
import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Insert,
    Table,
    Update,
    bindparam,
    create_engine,
    event,
    func,
    insert,
    select,
    true,
    update,
)
from sqlalchemy.dialects.sqlite import dialect
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import StaticPool

from miglab_pool.ledger import tables
from miglab_pool.ledger.own_file import make_new
from miglab_pool.ledger.rows import (
    LIVE_TICKETS,
    MOST_WASTED,
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
from miglab_pool.ledger.tables import TABLES, LedgerUnwritable, check_file, migrate

log = logging.getLogger(__name__)
AnyRow = TypeVar("AnyRow", bound=Row)
EXIT_STATUS = 70  # of sysexits.h: an internal error
DISK_REFUSALS = ("disk is full", "disk I/O error", "readonly database")  # SQLite's own words
REASON_MAX = 500  # characters of a reason that a transition keeps
CAUSES_BY_HAND = ("person:", "service:", "server:")


class State:
    """The live rows by id.  Only `Transaction` writes them; they are read under the pool's lock.

    Attributes:
        on_gpu: the slices on each GPU.
        touched: the GPUs whose rows, slices or leases have changed; whoever looks again clears it.
        changed: the tables that have changed; whoever copies them clears it.
        ended: the leases that have ended, by id; whoever counts them clears it.
        writes: grows with every row that is stored.
        wasted: by user, when slices last went to waste, at most `MOST_WASTED` times, since a server
            of theirs has last attached to a lease.
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
        self.wasted: dict[str, tuple[float, ...]] = {}
        self.paused = ""
        self.pause_kind: PauseKind | None = None

    def of_kind(self, kind: str) -> dict[Any, Any]:
        """The live rows of a kind, by key."""
        rows: dict[Any, Any] = getattr(self, f"{kind}s")
        return rows

    def store(self, row: Row) -> None:
        """Take in a new or changed row; what is no longer live is dropped."""
        live_rows = self.of_kind(row.kind)
        self.changed.add(f"{row.kind}s")
        self.writes += 1
        self._note_waste(live_rows.get(row.key), row)
        if row.is_live:
            live_rows[row.key] = row
        else:
            live_rows.pop(row.key, None)
        if isinstance(row, SliceRow):
            self._store_on_gpu(row)
        elif isinstance(row, LeaseRow):
            self._touch_lease(row)
        elif isinstance(row, GpuRow):
            self.touched.add(row.uuid)

    def _note_waste(self, before: Row | None, row: Row) -> None:
        if isinstance(row, LeaseRow):
            was_attached = isinstance(before, LeaseRow) and before.attached_at is not None
            if row.attached_at is not None and not was_attached:
                self.wasted.pop(row.user, None)
        elif isinstance(row, TicketRow):
            count = before.wasted if isinstance(before, TicketRow) else 0
            if row.wasted_at is not None and row.wasted > count:
                times = (*self.wasted.get(row.user, ()), row.wasted_at)
                self.wasted[row.user] = times[-MOST_WASTED:]

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

    def note_attended(self, ticket: TicketRow, at: float) -> TicketRow:
        """Note, in memory only, that somebody still waits for a ticket."""
        ticket = self.tickets[ticket.id] = dataclasses.replace(ticket, attended_at=at)
        self.changed.add("tickets")
        return ticket

    def slices_of(self, lease: LeaseRow) -> list[SliceRow]:
        """The lease's live slices, in the order asked."""
        return [self.slices[number] for number in lease.slices if number in self.slices]


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
        before = self._state.of_kind(row.kind).get(row.key)
        if before == row:
            return  # what is there already is no change, and wakes nobody
        self._begin()
        self._write(row, is_new=before is None)
        if before is None or before.state != row.state:
            states = ("" if before is None else before.state, row.state)
            self._record((row.kind, row.key), states, cause, reason, action, row.course)
        self._state.store(row)

    def _write(self, row: Row, *, is_new: bool) -> None:
        values = {name: getattr(row, name) for name in _COLUMNS[row.kind]}
        if is_new:
            self._execute(_INSERTS[row.kind], values)
            slice_ids = row.slices if isinstance(row, LeaseRow) else ()
            for position, number in enumerate(slice_ids):
                values_of_slice = {"lease": row.key, "slice": number, "position": position}
                self._execute(_INSERT_SLICES, values_of_slice)
            return
        values.pop(_KEYS[row.kind])
        if self._execute(_UPDATES[row.kind], values | {"key_": row.key}) != 1:
            raise LedgerMismatch(row.kind, row.key)

    def _execute(self, statement: str, values: Mapping[str, Any]) -> int:
        """Execute one of the statements composed above; return how many rows it changed.

        By the driver itself: SQLAlchemy's way to it takes several times as long as the statement.
        """
        driver = self._connection.connection.driver_connection
        assert driver is not None
        changed: int = driver.execute(statement, values).rowcount
        return changed

    def _record(
        self,
        target: tuple[str, object],
        states: tuple[str, str],
        cause: str,
        reason: str,
        action: str,
        course: str = "",
    ) -> None:
        self._execute(
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


NUMBERED = tuple(row.kind for row in ROWS if row is not GpuRow)
LARGEST_ID = 2**63 - 1  # of SQLite


def end_process(reason: str) -> NoReturn:
    """End this process at once, because its memory differs from the file; a restart rereads it.

    Nothing is lost by it: what is not in the file was announced to nobody.
    """
    log.critical("%s The pool service ends; its next start reads the ledger anew.", reason)
    logging.shutdown()
    os._exit(EXIT_STATUS)


class Ledger:
    """The file, open; one process and one thread at a time (the pool's locks see to both).

    Attributes:
        identity: random, of this ledger alone; a copy of it has the same.
        engine: the id of the Docker engine that holders were found at; empty before the first.

    Args:
        path: the SQLite file; made if missing.  Migrations run on opening, after a copy of an
            older ledger was put beside it.
        version: the file's, if it has just been checked: a check reads all of it, and that takes
            most of a start after a year; None: it is checked now.
        end: ends the process, where memory can no longer be what the file is.

    Raises:
        LedgerBusy: another program holds it.
        LedgerDamaged: it is corrupt or something else; it is left as it is.
        LedgerEmpty: nothing is in it; it is left as it is.
        LedgerTooNew: a newer miglab wrote it; it is left as it is.
        LedgerTooOld: a miglab from before the first release wrote it; it is left as it is.
    """

    def __init__(
        self,
        path: Path,
        end: Callable[[str], NoReturn] = end_process,
        version: int | None = None,
    ) -> None:
        self.path = path
        self._end_process = end
        version = check_file(path) if version is None else version
        if version is None:
            make_new(path)
        self._engine = create_engine(
            URL.create("sqlite", database=str(path)),
            poolclass=StaticPool,
            connect_args={"check_same_thread": False},
        )
        event.listen(self._engine, "connect", _on_connect)
        event.listen(self._engine, "begin", _on_begin)
        self.connection: Connection = self._engine.connect()
        if version not in (None, tables.VERSION):
            migrate(self.connection, path, version)
        self._synchronous = ""
        self.state = self._load()
        self._next = {kind: self._last_id(kind) + 1 for kind in NUMBERED}
        identity_row = self.read(select(tables.identity))[0]
        self.identity: str = identity_row["ledger"]
        self.engine: str = identity_row["engine"]

    def new_id(self, kind: str) -> int:
        """The next id of one of `NUMBERED`; never given twice."""
        number = self._next[kind]
        self._next[kind] = number + 1
        return number

    def start_above(self, kind: str, number: int) -> None:
        """Give no id up to this one: it was seen where this ledger cannot have written it."""
        self._next[kind] = max(self._next[kind], number + 1)

    def keep_engine(self, at: float, engine: str) -> None:
        """Remember which Docker engine the holders are at."""
        with self.write(at, durable=True) as tx:
            tx.add(update(tables.identity).values(engine=engine), [{}])
        self.engine = engine

    @contextmanager
    def write(self, at: float, *, durable: bool) -> Iterator[Transaction]:
        """A transaction; without a put it costs nothing.

        Args:
            at: the time it carries, seconds since the epoch.
            durable: whether it must survive a power cut: everything before an irreversible act.
        """
        begin = partial(self.begin, durable=durable)
        transaction = Transaction(self.state, self.connection, at, begin)
        try:
            yield transaction
            if transaction.has_begun:
                self.commit()
        except BaseException as error:
            if transaction.has_begun:
                self._roll_back()
            if (refusal := self._unwritable_error(error)) is not None:
                raise refusal from error
            raise
        for call in transaction.on_commit:
            call()

    def begin(self, *, durable: bool) -> None:
        """Begin to write.  With NORMAL a power cut may lose the last commits, a crash cannot."""
        synchronous = "FULL" if durable else "NORMAL"
        if synchronous != self._synchronous:
            driver = self.connection.connection.driver_connection
            assert driver is not None
            driver.execute(f"PRAGMA synchronous={synchronous}")
            self._synchronous = synchronous
        self.connection.begin()

    def commit(self) -> None:
        """Commit the write that was begun."""
        self.connection.commit()

    def _roll_back(self) -> None:
        """Read memory anew from the file; end the process if that fails: memory is wrong then."""
        try:
            self._reload()
        except BaseException as error:
            self._end_process(f"The ledger {self.path} could not be read anew ({error}).")

    def _unwritable_error(self, error: BaseException) -> LedgerUnwritable | None:
        """The typed error for a write that the disk refused; None for any other error."""
        refusal = error.orig if isinstance(error, OperationalError) else error
        if not isinstance(error, OperationalError | sqlite3.OperationalError) or not any(
            phrase in str(refusal) for phrase in DISK_REFUSALS
        ):
            return None
        return LedgerUnwritable(
            f"The lab cannot write to its disk ({refusal}); nothing was changed, and running "
            f"servers go on. The lab's operator has to make room below {self.path.parent}, or "
            "repair the disk; then try again."
        )

    def _reload(self) -> None:
        attended = {ticket.id: ticket.attended_at for ticket in self.state.tickets.values()}
        writes = self.state.writes
        self.connection.rollback()
        self.state = self._load()
        self.state.writes = writes + 1
        for ticket in list(self.state.tickets.values()):  # that is in memory only
            at = max(ticket.attended_at, attended.get(ticket.id, 0.0))
            self.state.tickets[ticket.id] = dataclasses.replace(ticket, attended_at=at)
        self.state.touched = set(self.state.gpus)

    def close(self) -> None:
        """Close the file."""
        self.connection.close()
        self._engine.dispose()

    def find(self, kind: type[AnyRow], number: int) -> AnyRow | None:
        """Return the row of that number, live or over; None if there never was one."""
        row: AnyRow | None = self.state.of_kind(kind.kind).get(number)
        if row is None and abs(number) <= LARGEST_ID:  # anybody may ask for any number
            return next(iter(self.rows(kind, tables.TABLES[kind.kind].c.id == number)), None)
        return row

    def history(self, kind: str = "", target: str = "", limit: int = 1000) -> list[dict[str, Any]]:
        """The transitions, newest first.

        Args:
            kind: ``gpu``, ``slice``, ``ticket``, ``lease``, ``reservation``, ``message``,
                ``layout`` or ``pool``; empty for all.
            target: the id of one; empty for all.
            limit: at most so many.
        """
        columns = tables.transitions.c
        query = select(tables.transitions).order_by(columns.id.desc()).limit(limit)
        if kind:
            query = query.where(columns.kind == kind)
        if target:
            query = query.where(columns.target == target)
        return [dict(row) for row in self.read(query)]

    def read(self, query: Any) -> Sequence[Any]:
        """The answer of any query over `tables`, row by row; changes nothing."""
        is_inside = self.connection.in_transaction()
        try:
            return self.connection.execute(query).mappings().all()
        finally:
            if not is_inside:  # one left open would stop every later write
                self.connection.rollback()

    def rows(self, kind: type[AnyRow], condition: ColumnElement[bool]) -> list[AnyRow]:
        """The rows for which this holds, live or long over."""
        query = select(tables.TABLES[kind.kind]).where(condition)
        matching: list[Any] = [kind(**row) for row in self.read(query)]
        if kind is not LeaseRow:
            return matching
        slices = self._slices_of([lease.id for lease in matching])
        return [dataclasses.replace(lease, slices=tuple(slices[lease.id])) for lease in matching]

    def _slices_of(self, leases: Sequence[int]) -> Mapping[int, Sequence[int]]:
        columns = tables.lease_slices.c
        query = (
            select(columns.lease, columns.slice)
            .where(columns.lease.in_(leases))
            .order_by(columns.position)
        )
        slice_ids: defaultdict[int, list[int]] = defaultdict(list)
        for row in self.read(query):
            slice_ids[row["lease"]].append(row["slice"])
        return slice_ids

    def _load(self) -> State:
        state = State()
        for kind in ROWS:
            for row in self.rows(kind, _is_live(kind, state)):
                state.store(row)
        (pause,) = self.read(select(tables.pool_state.c.paused, tables.pool_state.c.pause_kind))
        state.paused = pause["paused"]
        state.pause_kind = PauseKind(pause["pause_kind"]) if pause["pause_kind"] else None
        state.wasted = self._load_wasted()
        return state

    def _load_wasted(self) -> dict[str, tuple[float, ...]]:
        tickets, leases = tables.tickets.c, tables.leases.c
        attached = (
            select(leases.user, func.max(leases.attached_at).label("last"))
            .group_by(leases.user)
            .subquery()
        )
        query = (
            select(tickets.user, tickets.wasted, tickets.wasted_at)
            .outerjoin(attached, attached.c.user == tickets.user)
            .where(tickets.wasted > 0, tickets.wasted_at > func.coalesce(attached.c.last, 0.0))
            .order_by(tickets.wasted_at)
        )
        wasted: dict[str, tuple[float, ...]] = {}
        for row in self.read(query):
            times = (*wasted.get(row["user"], ()), *[row["wasted_at"]] * row["wasted"])
            wasted[row["user"]] = times[-MOST_WASTED:]
        return wasted

    def _last_id(self, kind: str) -> int:
        query = select(func.max(tables.TABLES[kind].c.id).label("last"))
        return int(self.read(query)[0]["last"] or 0)


def _is_live(kind: type[Row], state: State) -> ColumnElement[bool]:
    """The condition for a table's live rows; live leases must be in the state already."""
    columns = tables.TABLES[kind.kind].c
    if kind is TicketRow:
        is_taken = (columns.state == "taken") & columns.lease.in_(sorted(state.leases))
        return columns.state.in_(sorted(LIVE_TICKETS - {"taken"})) | is_taken
    return true() if kind.live_states is None else columns.state.in_(sorted(kind.live_states))


def _on_connect(driver: sqlite3.Connection, _record: object) -> None:
    driver.isolation_level = None  # sqlite3 would begin and commit on its own
    for pragma in ("journal_mode=WAL", "foreign_keys=ON", "busy_timeout=5000"):
        driver.execute(f"PRAGMA {pragma}")


def _on_begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")
