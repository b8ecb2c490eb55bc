"""The ledger as a file, what is deleted from it when it is old, and the lock beside it."""

import hashlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.dialects.sqlite import dialect
from sqlalchemy.schema import CreateIndex, CreateTable
from tests import old_ledgers
from tests.unit.pool.conftest import World

from miglab_api.tickets import TicketState
from miglab_pool.ledger import tables
from miglab_pool.ledger.ledger import EXIT_STATUS, Ledger, LedgerMismatch
from miglab_pool.ledger.own_file import check_own
from miglab_pool.ledger.rows import ROWS, LeaseRow, SliceRow, TicketRow
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


SCHEMA = {"0019": "e3920ab09273712b"}
"""The digest of today's tables, by their version."""


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


def of_version(number: str) -> Callable[[Path], None]:
    def make_old_ledger(path: Path) -> None:
        Ledger(path).close()
        sql(path, f"UPDATE alembic_version SET version_num = '{number}'")

    return make_old_ledger


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
        (of_version("0011"), LedgerTooOld, "Start commit 3500e72"),
        (of_version("9999"), LedgerTooNew, "9999"),
    ],
    ids=[
        "no database",
        "zeros",
        "another program's",
        "0 bytes",
        "no tables",
        "before 3500e72",
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
def older(path: Path) -> dict[str, list[dict[str, Any]]]:
    """A ledger of 3500e72 lies there; this is what is in it."""
    old_ledgers.write(old_ledgers.LEDGER, path)
    rows = contents(path)
    assert rows.keys() - {"alembic_version", "layouts"} <= tables.metadata.tables.keys()
    assert all(rows.values()), "the ledger of before has a row in every table"
    return rows


def contents(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, by its columns."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        return {
            name: [dict(row) for row in connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2")]
            for (name,) in names
            if name != "alembic_version"
        }


def test_nothing_is_lost_by_an_upgrade(path: Path, older: dict[str, list[dict[str, Any]]]) -> None:
    """Every row is there afterwards, to the letter, and what is new has its row's default.

    An end that a lease had is no guarantee, and goes: the pool guarantees the lease anew.
    As it was it lies beside the new one, which has the tables and indices of one begun today.
    """
    for _ in range(2):  # it is brought up to date once
        Ledger(path).close()
        (copy,) = path.parent.glob("ledger.before-*")
    assert copy.suffix == f".before-{VERSION}-{old_ledgers.VERSION}"
    assert contents(copy) == older
    Ledger(path.with_name("new.sqlite")).close()
    assert schema_of(path) == schema_of(path.with_name("new.sqlite"))
    now = contents(path)
    del older["layouts"]  # GPUs have them, as the next test shows
    assert now.keys() - {"progress", "people"} == older.keys()
    for table, rows in older.items():
        assert len(rows) == len(now[table])
        for row, row_now in zip(rows, now[table], strict=True):
            assert row.items() - {("ends_at", row.get("ends_at"))} <= row_now.items()
            new = tables.metadata.tables[table].c.keys() - row.keys() - {"layout", "partition"}
            assert {name: row_now[name] for name in new} == {
                name: default_of(table, name) for name in new
            }


def default_of(table: str, column: str) -> object:
    """Of the row that the table is made of."""
    (row,) = (row for row in ROWS if f"{row.kind}s" == table)
    return next(field.default for field in fields(row) if field.name == column)


def test_an_upgraded_ledger_is_understood(path: Path, older: object) -> None:
    """What matters of it is in memory, and it goes on where it was."""
    ledger = Ledger(path)
    state = ledger.state
    gpus = {row.uuid: (row.draining, row.layout, row.partition) for row in state.gpus.values()}
    assert gpus == {
        "GPU-0": ("", "practical", "1g.5gb,3g.20gb"),
        "GPU-1": ("a fan is loud", "", ""),
    }
    slices = {number: (row.remake, row.lost) for number, row in state.slices.items()}
    assert (slices.keys(), slices[2][0], slices[3][1]) == ({2, 3}, 1, 1)
    tickets = {row.id: row.state for row in state.tickets.values()}
    assert tickets == {3: "taken", 4: "offered", 5: "waiting", 6: "waiting"}
    assert (state.leases.keys(), state.leases[2].slices) == ({2}, (3,))
    assert state.leases[2].warn_reason == "Unused for an hour."
    ended_lease = ledger.find(LeaseRow, 1)
    assert (ended_lease.user, ended_lease.slices, ended_lease.ended_at) == (
        "ada",
        (1,),
        1746803600.0,
    )
    assert (*state.reservations, *state.messages) == (1, 1)
    assert (state.paused, state.pause_kind) == ("Repairs.", "staff")
    assert (ledger.identity, ledger.engine) == ("c49045d5244f4ee29e00f3a73c491c7f", "ENGINE:1")
    assert [ledger.new_id(kind) for kind in ("slice", "ticket", "lease")] == [4, 7, 3]
    ledger.close()


def schema_of(path: Path) -> dict[str, Any]:
    """The columns and indices of every table."""
    schema: dict[str, Any] = {}
    with closing(sqlite3.connect(path)) as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'"):
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
    path: Path, older: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is in the file, and the next start does all of it."""
    with monkeypatch.context() as broken:
        broken.setattr(tables, "uuid4", None)  # what comes after the columns
        with pytest.raises(TypeError):
            Ledger(path)
    assert contents(path) == older
    Ledger(path).close()
    assert "since" in contents(path)["tickets"][0]


def test_a_column_that_no_row_has_any_more(path: Path) -> None:
    """It goes, since nothing would be written to it; the copy beside the ledger has it."""
    of_version(old_ledgers.VERSION)(path)
    sql(path, "ALTER TABLE tickets ADD COLUMN mood TEXT NOT NULL DEFAULT 'good'")
    ledger = Ledger(path)
    with ledger.write(1.0, durable=True) as tx:
        tx.put(ticket(1))
    ledger.close()
    assert "mood" not in contents(path)["tickets"][0]


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
