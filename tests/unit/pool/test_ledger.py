"""The ledger as a file, and the lock beside it."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, create_engine

from miglab_api.tickets import TicketState
from miglab_pool.ledger.file import (
    MIGRATIONS,
    LedgerBusy,
    LedgerDamaged,
    LedgerTooNew,
    newest_version,
    upgrade,
)
from miglab_pool.ledger.ledger import EXIT_STATUS, Ledger
from miglab_pool.ledger.tables import metadata
from miglab_pool.ledger.transaction import LedgerMismatch
from miglab_pool.model.rows import TicketRow
from miglab_pool.state.lock import AlreadyRunning, PoolLock

glossary = import_module("miglab_pool.ledger.migrations.versions.0011_glossary")


def ticket(number: int, user: str = "ada") -> TicketRow:
    return TicketRow(number, user, "", "vision", "1g.5gb", "1g.5gb", TicketState.WAITING, 1.0, 1.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def test_migrations_make_the_tables(path: Path) -> None:
    """What the migrations make is what the code believes in."""
    ledger = Ledger(path)
    context = MigrationContext.configure(ledger.connection)
    assert compare_metadata(context, metadata) == []
    ledger.close()


def test_course_everywhere(path: Path) -> None:
    """GPUs, slices, tickets, leases and transitions carry the course from the first migration."""
    for name in ("gpus", "slices", "tickets", "leases", "transitions"):
        assert "course" in metadata.tables[name].c


def test_wal(path: Path) -> None:
    """The ledger is in WAL mode."""
    ledger = Ledger(path)
    ledger.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


@pytest.mark.parametrize(("durable", "level"), [(True, 2), (False, 1)])
def test_durable_is_synced(path: Path, durable: bool, level: int) -> None:
    """What precedes an irreversible act is synced in full; the rest survives any crash of ours."""
    ledger = Ledger(path)
    with ledger.write(1.0, durable=not durable) as tx:
        tx.put(ticket(1))
    with ledger.write(2.0, durable=durable) as tx:
        tx.put(ticket(2))
        found = ledger.connection.exec_driver_sql("PRAGMA synchronous").scalar()
    assert found == level
    ledger.close()


@pytest.mark.parametrize("user", ["ada", "José Ñandú 🎓", "x" * 255, "'; DROP TABLE leases; --"])
def test_reopen(path: Path, user: str) -> None:
    """What was written is there after reopening, to the letter."""
    ledger = Ledger(path)
    with ledger.write(5.0, durable=True) as tx:
        tx.put(ticket(1, user), by=user, reason="asked")
    ledger.close()
    ledger = Ledger(path)
    assert ledger.state.tickets == {1: ticket(1, user)}
    (step,) = ledger.history()
    assert (step["at"], step["by"], step["reason"], step["course"]) == (
        5.0,
        user,
        "asked",
        "vision",
    )
    assert ledger.new_id("ticket") == 2
    ledger.close()


def test_roll_back(path: Path) -> None:
    """A transaction that fails leaves neither disk nor memory changed."""
    ledger = Ledger(path)
    with pytest.raises(ZeroDivisionError), ledger.write(1.0, durable=True) as tx:
        tx.put(ticket(1))
        raise ZeroDivisionError
    assert ledger.state.tickets == {}
    assert ledger.history() == []
    ledger.close()


def test_a_first_start_that_was_interrupted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is there and has no tables yet: the next start makes them."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(command, "upgrade", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Ledger(path)
    assert path.stat().st_size > 0
    Ledger(path).close()


@pytest.mark.parametrize("content", [b"this is no database, " * 50, b"\x00" * 4096])
def test_damaged(path: Path, content: bytes) -> None:
    """A file that is no ledger is left as it is, with words on what to do."""
    path.write_bytes(content)
    with pytest.raises(LedgerDamaged, match="move the file aside"):
        Ledger(path)
    assert path.read_bytes() == content


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


def test_other_database(path: Path) -> None:
    """Some other program's database is not taken for a ledger."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text)")
    connection.close()
    with pytest.raises(LedgerDamaged):
        Ledger(path)


ROWS: dict[str, dict[str, Any]] = {
    "gpus": {
        "uuid": "GPU-0", "idx": 0, "name": "A100", "memory_mib": 40960, "memory_slices": 8,
        "sm_count": 108, "mig": True, "state": "ok", "why": "", "generation": 3, "course": "",
    },
    "slices": {
        "id": 5, "gpu": "GPU-0", "generation": 3, "profile": "1g.5gb", "start": 2, "size": 1,
        "sm_count": 14, "memory_mib": 4864, "state": "leased", "gi_id": 9, "ci_id": 0,
        "uuid": "MIG-5", "lease": 6, "tried": True, "attempts": 0, "retry_at": 0.0,
        "remake": False, "lost": False, "why": "", "course": "vision",
    },
    "tickets": asdict(ticket(7)),
    "leases": {
        "id": 6, "ticket": None, "generation": 3, "user": "bob", "server": "", "course": "vision",
        "shape": "1g.5gb", "state": "warned", "granted_at": 1.0, "holder": "container:aa",
        "attached_at": 2.0, "extensions": 1, "reason": "", "warned_at": 3.0, "reclaim_at": 4.0,
        "warn_kind": "idle", "warn_why": "Unused.", "stays": 1,
    },
    "lease_slices": {"lease": 6, "slice": 5, "position": 0},
    "transitions": {
        "id": 1, "at": 1.0, "what": "lease", "thing": "6", "from_state": "running",
        "to_state": "releasing", "by": "person:ina", "reason": "over", "course": "vision",
    },
    "reservations": {
        "id": 4, "course": "vision", "shape": "1g.5gb", "count": 7, "weekdays": 2,
        "first_date": "2026-06-02", "last_date": "", "from_time": "10:00", "to_time": "12:00",
        "tz": "Europe/Berlin", "grace_s": 900.0, "made_by": "person:ina", "made_at": 1.0,
        "state": "planned", "reason": "", "message": "week 1",
    },
    "notes": {
        "id": 2, "at": 1.0, "by": "person:ina", "to_user": "ada", "to_server": None,
        "to_course": None, "text": "Come to room 2.", "until": 9.0, "state": "open",
    },
    "layouts": {
        "id": 3, "name": "practical", "course": "", "cuts": '{"GPU-0":["1g.5gb","3g.20gb"]}',
        "times": "[]", "made_by": "person:root", "made_at": 1.0, "state": "in-force", "message": "",
    },
    "activity": {"lease": 6, "day": 20000, "active_s": 60.0, "idle_s": 5.0, "unknown_s": 0.0},
}  # fmt: skip
OLDER = sorted(r.revision for r in ScriptDirectory(str(MIGRATIONS)).walk_revisions())[:-1]


def make_older(path: Path, version: str) -> dict[str, list[dict[str, Any]]]:
    """A ledger as that version wrote it, a row in every table; returns what is in it."""
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        upgrade(connection, version)
        there = MetaData()
        there.reflect(connection)
        is_renamed = version >= "0011"
        rows = dict(_rows_in_new_words()) if is_renamed else ROWS
        desk = there.tables.get("pool_state" if is_renamed else "desk")
        for name, table in there.tables.items():
            if name in rows:
                known = {key: rows[name][key] for key in table.c.keys() & rows[name].keys()}
                connection.execute(table.insert(), known)
        if version >= "0002":
            connection.execute(desk.update().values(paused="Repairs."))
        if version >= "0008":
            connection.execute(desk.update().values(pause_kind="staff"))
        written = _contents(connection, there)
    engine.dispose()
    return written


def _rows_in_new_words() -> Iterator[tuple[str, dict[str, Any]]]:
    for table, row in ROWS.items():
        names = glossary.COLUMNS.get(table, {})
        renamed = {names.get(column, column): value for column, value in row.items()}
        yield glossary.TABLES.get(table, table), renamed


def _contents(connection: Connection, tables: MetaData) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [dict(row) for row in connection.execute(table.select()).mappings()]
        for name, table in tables.tables.items()
        if name != "alembic_version"
    }


@pytest.mark.parametrize("version", OLDER)
def test_nothing_is_lost_by_an_upgrade(path: Path, version: str) -> None:
    """Every row of every older version is there afterwards, to the letter, and is understood."""
    written = make_older(path, version)
    ledger = Ledger(path)
    now = _contents(ledger.connection, metadata)
    ledger.connection.rollback()
    for old, rows in written.items():
        name = glossary.TABLES.get(old, old)
        names = glossary.COLUMNS.get(old, {})
        assert len(rows) == len(now[name]) == 1, f"ROWS has no row for {old}"
        row = {names.get(column, column): value for column, value in rows[0].items()}
        assert row.items() <= now[name][0].items()
    state = ledger.state
    assert (state.gpus["GPU-0"].draining, state.slices[5].draining) == ("", "")
    assert (state.tickets[7].user, state.tickets[7].next_at) == ("ada", None)
    assert (state.leases[6].slices, state.leases[6].warn_by) == ((5,), "")
    assert state.paused == ("Repairs." if version >= "0002" else "")
    assert state.pause_kind == ("staff" if version >= "0002" else None)
    assert sorted(state.reservations) == ([4] if version >= "0003" else [])
    assert [row.name for row in state.layouts.values()] == ["practical"] * (version >= "0006")
    ledger.close()


def test_the_words_of_before_are_those_of_the_glossary(path: Path) -> None:
    """States, kinds and actions that have another name since are read by it."""
    make_older(path, "0010")
    noted = [
        ("reservation", "4", "planned", "kept", ""),
        ("note", "2", "", "shown", "message"),
        ("lease", "6", "warned", "running", "stay"),
        ("layout", "1", "", "planned", "cut"),
        ("layout", "1", "in-force", "replaced", "cut"),
        ("layout", "2", "in-force", "removed", "cut"),
    ]
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE reservations SET state = 'kept'")
        connection.executemany(
            "INSERT INTO transitions (at, what, thing, from_state, to_state, act, by, reason,"
            " course) VALUES (9.0, ?, ?, ?, ?, ?, 'person:ina', '', 'vision')",
            noted,
        )
    connection.close()
    ledger = Ledger(path)
    assert ledger.state.reservations[4].state == "reserved"
    names = ("kind", "target", "from_state", "to_state", "action")
    assert [tuple(one[name] for name in names) for one in reversed(ledger.history(limit=6))] == [
        ("reservation", "4", "planned", "reserved", ""),
        ("message", "2", "", "shown", "message"),
        ("lease", "6", "warned", "running", "keepalive"),
        ("layout", "1", "", "planned", "apply"),
        ("layout", "1", "in-force", "replaced", "replace"),
        ("layout", "2", "in-force", "removed", "remove"),
    ]
    ledger.close()


@pytest.mark.parametrize("version", OLDER)
def test_an_older_ledger_is_copied_first(path: Path, version: str) -> None:
    """As it was it lies beside the new one, and can be put back."""
    written = make_older(path, version)
    Ledger(path).close()
    (copy,) = path.parent.glob("ledger.before-*")
    assert copy.suffix == f".before-{newest_version()}-{version}"
    engine = create_engine(f"sqlite:///{copy}")
    with engine.connect() as connection:
        there = MetaData()
        there.reflect(connection)
        assert _contents(connection, there) == written
    engine.dispose()


@pytest.mark.parametrize(("by", "kind"), [("reclaimer", "maintenance"), ("person:ina", "staff")])
def test_a_pause_of_before_has_its_kind(path: Path, by: str, kind: str) -> None:
    """Who paused tells maintenance from a person's pause, whatever its words are."""
    make_older(path, "0007")
    words = "Maintenance of the lab from 14:00 to 16:00."
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE desk SET paused = ?", (words,))
        connection.execute(
            "INSERT INTO transitions (at, what, thing, from_state, to_state, by, reason, course)"
            " VALUES (9.0, 'pool', '', 'granting', 'paused', ?, ?, '')",
            (by, words),
        )
    connection.close()
    ledger = Ledger(path)
    assert (ledger.state.paused, ledger.state.pause_kind) == (words, kind)
    ledger.close()
    ledger = Ledger(path)  # and again, without a migration
    assert ledger.state.pause_kind == kind
    ledger.close()


def test_what_people_did_before_is_in_the_audit(path: Path) -> None:
    """An older ledger knew no acts: a person's transitions are called by what they led to."""
    make_older(path, "0004")
    ledger = Ledger(path)
    assert [(one["by"], one["action"]) for one in ledger.history()] == [("person:ina", "releasing")]
    ledger.close()


def test_locked_by_another_program(path: Path) -> None:
    """A ledger that another program writes to is not called damaged: that program must end."""
    Ledger(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerBusy, match="locked by another program"):
        Ledger(path)
    other.close()
    Ledger(path).close()


def test_too_new(path: Path) -> None:
    """A newer miglab's ledger is refused and left as it is."""
    Ledger(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(LedgerTooNew, match="9999"):
        Ledger(path)
    assert path.read_bytes() == before
    assert newest_version() != "9999"


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
        with pytest.raises(AlreadyRunning):
            PoolLock(path)
        said = other()
        assert said.returncode == 1
        assert "already holds" in said.stderr
    assert other().returncode == 0


def test_lock_names_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal names the process that has the lock."""
    monkeypatch.setattr("os.getpid", lambda: 4711)
    with PoolLock(tmp_path / "lock"), pytest.raises(AlreadyRunning, match="4711"):
        PoolLock(tmp_path / "lock")


@pytest.mark.parametrize("number", [-1, 0, 2**63 - 1, 2**63, -(2**63) - 1, 10**30])
def test_a_number_nothing_has(path: Path, number: int) -> None:
    """Whatever number is asked for, nothing is found, and the ledger can be written."""
    ledger = Ledger(path)
    assert ledger.find_ticket(number) is None
    assert ledger.find_lease(number) is None
    assert ledger.find_slice(number) is None
    for at, durable in ((1.0, True), (2.0, False)):
        with ledger.write(at, durable=durable) as tx:
            tx.put(ticket(int(at)))
    ledger.close()


def test_a_read_that_fails(path: Path) -> None:
    """A read that fails leaves no transaction open: that would stop every later write."""
    ledger = Ledger(path)
    with pytest.raises(OverflowError):
        ledger.history(limit=2**63)
    for at, durable in ((1.0, True), (2.0, False)):
        with ledger.write(at, durable=durable) as tx:
            tx.put(ticket(int(at)))
    ledger.close()


DOUBLE_FAULT = """
import sys
from pathlib import Path
from sqlalchemy.exc import OperationalError
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.model.rows import TicketRow

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
    done = subprocess.run(
        [sys.executable, "-c", DOUBLE_FAULT, str(path)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (EXIT_STATUS, "")
    assert "could not be read anew" in done.stderr
    ledger = Ledger(path)
    assert ledger.state.tickets == {}
    ledger.close()


def test_an_update_of_a_row_that_is_not_there(path: Path) -> None:
    """It is no success: nothing is written, and memory is again what the file has."""
    ledger = Ledger(path)
    ledger.state.tickets[7] = ticket(7)
    with pytest.raises(LedgerMismatch), ledger.write(2.0, durable=True) as tx:
        tx.put(replace(ticket(7), state=TicketState.CANCELLED, reason="x", message="x"))
    assert ledger.state.tickets == {}
    assert ledger.history() == []
    ledger.close()
