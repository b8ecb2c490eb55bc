"""The ledger as a file, what is deleted from it when it is old, and the lock beside it."""

import hashlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.dialects.sqlite import dialect
from sqlalchemy.schema import CreateIndex, CreateTable
from tests.unit.pool.conftest import World

from miglab_api.tickets import TicketState
from miglab_pool.ledger import tables
from miglab_pool.ledger.ledger import EXIT_STATUS, Ledger, LedgerMismatch, State
from miglab_pool.ledger.own_file import check_own
from miglab_pool.ledger.rows import (
    GpuRow,
    LeaseRow,
    MessageRow,
    PauseKind,
    ReservationRow,
    SliceRow,
    TicketRow,
)
from miglab_pool.ledger.tables import (
    VERSION,
    LedgerBusy,
    LedgerDamaged,
    LedgerEmpty,
    LedgerTooNew,
    LedgerTooOld,
)
from miglab_pool.schedule import DAY_S
from miglab_pool.staff.log import delete_old
from miglab_pool.state.lock import AlreadyRunning, PoolLock


def ticket(number: int, user: str = "ada") -> TicketRow:
    return TicketRow(number, user, "", "vision", "1g.5gb", "1g.5gb", TicketState.WAITING, 1.0, 1.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    """A new one."""
    new_ledger = Ledger(path)
    yield new_ledger
    new_ledger.close()


SCHEMA = {1: "b21d9f947cf3ee02"}
"""The digest of today's tables, by their version; that of 0.1.0 is 1."""


def test_a_change_of_the_tables_is_a_new_version() -> None:
    """Else ledgers that exist would not be given the new column."""
    assert {VERSION: _digest()} == SCHEMA, "count VERSION up, and put the digest here"


def _digest() -> str:
    all_tables = tables.metadata.sorted_tables
    indices = [index for table in all_tables for index in table.indexes]
    statements = [*map(CreateTable, all_tables), *map(CreateIndex, indices)]
    tokens = " ".join(
        sorted(str(statement.compile(dialect=dialect())) for statement in statements)
    ).split()
    return hashlib.sha256(" ".join(tokens).encode()).hexdigest()[:16]


def test_a_row_that_is_put_as_it_is_begins_nothing(ledger: Ledger) -> None:
    """It is no change: nothing is written to disk, and nobody is woken."""
    for has_begun in (True, False):
        with ledger.write(1.0, durable=True) as tx:
            tx.put(ticket(1))
        assert tx.has_begun is has_begun


@pytest.mark.parametrize(("durable", "level"), [(True, 2), (False, 1)])
def test_durable_is_synced(ledger: Ledger, durable: bool, level: int) -> None:
    """What precedes an irreversible act is synced in full; the rest survives any crash of ours."""
    with ledger.write(1.0, durable=not durable) as tx:
        tx.put(ticket(1))
    with ledger.write(2.0, durable=durable) as tx:
        tx.put(ticket(2))
        synchronous = ledger.connection.exec_driver_sql("PRAGMA synchronous").scalar()
        mode = ledger.connection.exec_driver_sql("PRAGMA journal_mode").scalar()
    assert (synchronous, mode) == (level, "wal")


@pytest.mark.parametrize("user", ["ada", "José Ñandú 🎓", "x" * 255, "'; DROP TABLE leases; --"])
def test_reopen(path: Path, user: str) -> None:
    """What was written is there after reopening, to the letter."""
    ledger = Ledger(path)
    with ledger.write(5.0, durable=True) as tx:
        tx.put(ticket(1, user), cause=user, reason="asked")
    ledger.close()
    ledger = Ledger(path)
    assert ledger.state.tickets == {1: ticket(1, user)}
    (step,) = ledger.history()
    logged = (step["at"], step["by"], step["reason"], step["course"])
    assert logged == (5.0, user, "asked", "vision")
    assert ledger.new_id("ticket") == 2
    ledger.close()


def test_a_first_start_that_was_interrupted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No ledger is there yet, so the next start makes it, and is not refused for what was noted."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(tables, "upgrade", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Ledger(path)
    assert not path.exists()
    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Ledger(path)
    assert check_own(path) is None
    Ledger(path).close()
    assert check_own(path) == VERSION


def test_corrupt(path: Path) -> None:
    """A ledger with a broken page is found damaged before anything is written."""
    ledger = Ledger(path)
    with ledger.write(1.0, durable=True) as tx:
        for number in range(1, 400):
            tx.put(ticket(number, f"user{number}"))
    ledger.connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    ledger.close()
    content = bytearray(path.read_bytes())
    content[8192:40960] = b"\xff" * (40960 - 8192)
    path.write_bytes(content)
    with pytest.raises(LedgerDamaged):
        Ledger(path)
    assert path.read_bytes() == bytes(content)


def sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def of_version(number: int) -> Callable[[Path], None]:
    def make_old_ledger(path: Path) -> None:
        Ledger(path).close()
        sql(path, f"UPDATE schema_version SET version = {number}")

    return make_old_ledger


def from_before_the_release(path: Path) -> None:
    """Test beds have such ledgers: today's tables or fewer, and Alembic's for the version."""
    Ledger(path).close()
    sql(
        path,
        "DROP TABLE schema_version",
        "CREATE TABLE alembic_version (version_num VARCHAR(32) PRIMARY KEY)",
        "INSERT INTO alembic_version VALUES ('0018')",
    )


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda path: path.write_bytes(b"this is no database, " * 50), LedgerDamaged, "move"),
        (lambda path: path.write_bytes(b"\x00" * 4096), LedgerDamaged, "move the file aside"),
        (lambda path: sql(path, "CREATE TABLE notes (text)"), LedgerDamaged, "move"),
        (Path.touch, LedgerEmpty, "miglab restore FILE"),
        (
            lambda path: sql(path, "CREATE TABLE t (x)", "DROP TABLE t"),
            LedgerEmpty,
            "miglab ledger begin",
        ),
        (from_before_the_release, LedgerTooOld, "before 0.1.0.*miglab ledger begin"),
        (of_version(9999), LedgerTooNew, "9999"),
    ],
    ids=[
        "no database",
        "zeros",
        "another program's",
        "0 bytes",
        "no tables",
        "from before the first release",
        "a newer miglab's",
    ],
)
def test_what_is_not_opened(
    path: Path, make: Callable[[Path], None], error: type[Exception], message: str
) -> None:
    """It is left as it is, with words on what to do."""
    make(path)
    before = path.read_bytes()
    with pytest.raises(error, match=message):
        Ledger(path)
    assert path.read_bytes() == before


@pytest.fixture
def older(path: Path) -> State:
    """A ledger with a row in every table lies there, cut back to what an older miglab had.

    Returns:
        What was live in it before.
    """
    state = fill(path)
    cut_back(path)
    assert all(contents(path).values()), "there is a row in every table"
    return state


def fill(path: Path) -> State:
    """Write a row of every table; return what is live."""
    ledger = Ledger(path)
    with ledger.write(1.0, durable=True) as tx:
        tx.put(GpuRow("GPU-0", 0, "A100", 40960, 8, 98, True, "ok", layout="practical"))
        tx.put(SliceRow(1, "GPU-0", 1, "1g.5gb", 0, 1, 14, 4864, "leased", lease=1))
        tx.put(replace(ticket(1), state="taken", lease=1, since=1.0, wasted=1, wasted_at=1.0))
        tx.put(ticket(2, "bob"))
        tx.put(LeaseRow(1, 1, 1, "ada", "", "vision", "1g.5gb", "running", 1.0, slices=(1,)))
        tx.put(RESERVATION)
        tx.put(MessageRow(1, 1.0, "person:ines", None, None, None, "Back up your work", 9e9))
        tx.add(insert(tables.activity), [{"lease": 1, "day": 1, **ACTIVITY}])
        tx.add(insert(tables.people), [{"id": "hub-1", "called": "ada"}])
        tx.add(insert(tables.progress), [PROGRESS])
        tx.pause("Repairs.", "person:ines", PauseKind.STAFF)
    ledger.keep_engine(2.0, "ENGINE:1")
    ledger.close()
    return ledger.state


RESERVATION = ReservationRow(
    1, "vision", "1g.5gb", 2, 1, "2026-11-02", "", "10:00", "12:00", "Europe/Berlin", 600.0,
    "person:ines", 1.0, "planned",
)  # fmt: skip
ACTIVITY = {"active_s": 3.0, "idle_s": 2.0, "unknown_s": 1.0}
PROGRESS = {"user": "ada", "course": "v", "experiment": "T-1", "stage": "claimed", "minute": 1}


def cut_back(path: Path) -> None:
    """Take a column, a table and an index away, and give one table an indexed column of before."""
    sql(
        path,
        "ALTER TABLE tickets DROP COLUMN since",
        "ALTER TABLE tickets ADD COLUMN mood TEXT NOT NULL DEFAULT 'good'",
        "CREATE INDEX tickets_mood ON tickets (mood)",
        "DROP TABLE progress",
        "DROP INDEX transitions_by_hand",
        "CREATE INDEX transitions_of_yore ON transitions (id)",
        f"UPDATE schema_version SET version = {VERSION - 1}",
    )


def contents(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, by its columns."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return {
            name: [dict(row) for row in connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2")]
            for (name,) in connection.execute(tables.TABLE_NAMES).fetchall()
            if name != "schema_version"
        }


def test_an_upgrade_keeps_every_row(path: Path, older: State) -> None:
    """It has the tables and indices of a ledger that begins today, and every row to the letter.

    What is new has its row's default, what no row has any more is gone, and beside it lies the
    ledger as it was.
    """
    before = contents(path)
    for _ in range(2):  # it is brought up to date once
        Ledger(path).close()
        (copy,) = path.parent.glob("ledger.before-*")
    assert copy.suffix == f".before-{VERSION}-{VERSION - 1}"
    assert contents(copy) == before
    Ledger(path.with_name("new.sqlite")).close()
    assert schema_of(path) == schema_of(path.with_name("new.sqlite"))
    for row in before["tickets"]:
        del row["mood"]
        row["since"] = None
    assert contents(path) == before | {"progress": []}


def test_an_upgraded_ledger_goes_on_where_it_was(path: Path, older: State) -> None:
    """What was live is in memory, with a default for what is new; no number comes again."""
    tickets = {number: replace(row, since=None) for number, row in older.tickets.items()}
    ledger = Ledger(path)
    state = ledger.state
    assert (state.tickets, state.leases, state.slices) == (tickets, older.leases, older.slices)
    assert (state.gpus, state.messages) == (older.gpus, older.messages)
    assert (state.reservations, state.wasted) == (older.reservations, older.wasted)
    assert (state.paused, state.pause_kind, ledger.engine) == ("Repairs.", "staff", "ENGINE:1")
    assert [ledger.new_id(kind) for kind in ("slice", "ticket", "lease")] == [2, 3, 2]
    with ledger.write(3.0, durable=True) as tx:
        tx.put(replace(tickets[2], since=3.0))
    ledger.close()


def schema_of(path: Path) -> dict[str, Any]:
    """The columns and indices of every table."""
    schema: dict[str, Any] = {}
    with closing(sqlite3.connect(path)) as connection:
        for (table,) in connection.execute(tables.TABLE_NAMES):
            columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
            indices = connection.execute(f"PRAGMA index_list({table})").fetchall()
            keys = connection.execute(f"PRAGMA foreign_key_list({table})").fetchall()
            schema[table] = (
                {(name, is_required, key) for _, name, _, is_required, _, key in columns},
                {
                    (name, unique, *connection.execute(f"PRAGMA index_info({name})").fetchall())
                    for _, name, unique, *_ in indices
                },
                {key[2:5] for key in keys},
            )
    return schema


def test_an_upgrade_that_is_interrupted(
    path: Path, older: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is in the file, and the next start does all of it."""
    before = contents(path)
    with monkeypatch.context() as broken:
        broken.setattr(tables, "uuid4", None)  # what comes after the columns
        with pytest.raises(TypeError):
            Ledger(path)
    assert contents(path) == before
    Ledger(path).close()
    assert "since" in contents(path)["tickets"][0]


def test_locked_by_another_program(path: Path) -> None:
    """A ledger that another program writes to is not called damaged: that program must end."""
    Ledger(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerBusy, match="locked by another program"):
        Ledger(path)
    other.close()
    Ledger(path).close()


def test_second_process_is_refused(tmp_path: Path) -> None:
    """While one process holds the lock a second is refused, and told who holds it."""
    path = tmp_path / "pool.lock"
    code = (
        "import sys; from pathlib import Path; from miglab_pool.state.lock import *\n"
        "try:\n    PoolLock(Path(sys.argv[1]))\n"
        "except AlreadyRunning as error:\n    sys.exit(str(error))"
    )

    def other() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
        )

    with PoolLock(path):
        with pytest.raises(AlreadyRunning, match=str(os.getpid())):
            PoolLock(path)
        second_process = other()
        assert second_process.returncode == 1
        assert "already holds" in second_process.stderr
    assert other().returncode == 0


@pytest.mark.parametrize("number", [-1, 0, 2**63 - 1, 2**63, -(2**63) - 1, 10**30])
def test_a_number_nothing_has(ledger: Ledger, number: int) -> None:
    """Nothing is found; nor does a read that fails leave a transaction open, to stop all writes."""
    assert [ledger.find(row, number) for row in (TicketRow, LeaseRow, SliceRow)] == [None] * 3
    with pytest.raises(OverflowError):
        ledger.history(limit=2**63)
    for at, durable in ((1.0, True), (2.0, False)):
        with ledger.write(at, durable=durable) as tx:
            tx.put(ticket(int(at)))


DOUBLE_FAULT = """
import sys
from pathlib import Path
from sqlalchemy.exc import OperationalError
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.ledger.rows import TicketRow

def fail(*_):
    raise OperationalError("COMMIT", {}, Exception("disk I/O error"))

ledger = Ledger(Path(sys.argv[1]))
ledger.commit = ledger._load = fail
try:
    with ledger.write(1.0, durable=True) as tx:
        tx.put(TicketRow(1, "ada", "", "vision", "1g.5gb", "1g.5gb", "waiting", 1.0, 1.0))
except BaseException as error:
    print("lives on with", list(ledger.state.tickets), error)
"""


def test_a_roll_back_that_fails_ends_the_process(path: Path) -> None:
    """Memory with rows that no file has would lease a slice twice after the next start."""
    process = subprocess.run(
        [sys.executable, "-c", DOUBLE_FAULT, str(path)], capture_output=True, text=True
    )
    assert (process.returncode, process.stdout) == (EXIT_STATUS, "")
    assert "could not be read anew" in process.stderr
    ledger = Ledger(path)
    assert ledger.state.tickets == {}
    ledger.close()


def test_an_update_of_a_row_that_is_not_there(ledger: Ledger) -> None:
    """It is no success: nothing is written, and memory is again what the file has."""
    ledger.state.tickets[7] = ticket(7)
    with pytest.raises(LedgerMismatch), ledger.write(2.0, durable=True) as tx:
        tx.put(replace(ticket(7), state=TicketState.CANCELLED, reason="x", message="x"))
    assert ledger.state.tickets == {}
    assert ledger.history() == []


NOW = 1000 * DAY_S
LONG_AGO, LATELY = NOW - 500 * DAY_S, NOW - 5 * DAY_S
TICKET = replace(ticket(1), state="cancelled", created_at=LONG_AGO, attended_at=LONG_AGO)


@pytest.fixture
def aged(tmp_path: Path) -> Ledger:
    """Four tickets: two old, one of them a lease's; one old that waits; the newest."""
    aged_ledger = Ledger(tmp_path / "aged.sqlite")
    with aged_ledger.write(LONG_AGO, durable=True) as tx:
        tx.put(TICKET, cause="server:ada/")
        tx.put(replace(TICKET, id=2, state="expired"))
        tx.put(LeaseRow(1, 2, 1, "ada", "", "vision", "1g.5gb", "released", LONG_AGO))
        tx.put(replace(TICKET, id=3, state="waiting"))
        tx.record(TICKET, "person:instructor", "in your favour", "next")
    with aged_ledger.write(LATELY, durable=True) as tx:
        tx.put(replace(TICKET, id=4, created_at=LATELY))
    return aged_ledger


def test_what_is_old_is_deleted(aged: Ledger) -> None:
    """Not what waits, what a lease came of, what is new, or what staff did."""
    assert delete_old(aged, NOW, 400, 1200) == 5
    assert [row["action"] for row in aged.history()] == ["", "next"]
    assert aged.find(TicketRow, 2) and aged.find(TicketRow, 3) and not aged.find(TicketRow, 1)
    assert delete_old(aged, NOW, 400, 1200) == 0


def test_staffs_actions_have_an_age_of_their_own(aged: Ledger) -> None:
    """They may go sooner, later, or never; 0 keeps all."""
    assert delete_old(aged, NOW, 0, 0) == 0
    assert sorted(row["id"] for row in aged.history()) == [1, 2, 3, 4, 5, 6]
    assert delete_old(aged, NOW, 0, 400) == 1


def test_no_number_comes_again(aged: Ledger) -> None:
    """With everything old, the newest ticket stays to count from."""
    delete_old(aged, NOW + 1000 * DAY_S, 400, 400)
    aged.close()
    assert Ledger(aged.path).new_id("ticket") == 5


def test_a_round_is_bounded(aged: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is old, a round deletes so many rows of a table."""
    monkeypatch.setattr("miglab_pool.staff.log.MOST_DELETED", 2)
    assert [delete_old(aged, NOW, 400, 1200) for _ in range(3)] == [3, 2, 0]


def test_the_pool_deletes_it_under_its_lock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads write to the same connection: their transactions would be ended in between."""
    store, owned = world.pool.store, []
    read = store.ledger.read

    def watched(query: object) -> object:
        owned.append(store.lock._is_owned())  # type: ignore[attr-defined]
        return read(query)

    monkeypatch.setattr(store.ledger, "read", watched)
    world.pool.delete_old()
    assert owned and all(owned)
