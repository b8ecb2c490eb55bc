"""What is old moves from the ledger to its archive; nothing is lost, and no number comes again."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from miglab_pool.ledger import archive
from miglab_pool.ledger.archive import DAY_S, archive_of, move_old
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.model.rows import LeaseRow, TicketRow

from .conftest import World

NOW = 1000 * DAY_S
LONG_AGO, LATELY = NOW - 500 * DAY_S, NOW - 5 * DAY_S
TICKET = TicketRow(
    id=1, user="ada", server="", course="c", shape="1g.5gb", asked="1g.5gb", state="cancelled",
    created_at=LONG_AGO, attended_at=LONG_AGO,
)  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Four tickets: two old, one of them a lease's; one old that waits; the newest."""
    made = Ledger(tmp_path / "ledger.sqlite")
    with made.write(LONG_AGO, durable=True) as tx:
        tx.put(TICKET, by="server:ada/")
        tx.put(replace(TICKET, id=2, state="expired"))
        tx.put(LeaseRow(
            id=1, ticket=2, generation=1, user="ada", server="", course="c", shape="1g.5gb",
            state="released", granted_at=LONG_AGO, slices=(),
        ))  # fmt: skip
        tx.put(replace(TICKET, id=3, state="waiting"))
        tx.record(TICKET, "person:instructor", "in your favour", "next")
    with made.write(LATELY, durable=True) as tx:
        tx.put(replace(TICKET, id=4, created_at=LATELY))
    return made


def archived(ledger: Ledger, table: str) -> list[int]:
    """The ids in the archive."""
    with closing(sqlite3.connect(archive_of(ledger.path))) as file:
        return [row[0] for row in file.execute(f"SELECT id FROM {table} ORDER BY id")]


def all_rows(ledger: Ledger) -> list[int]:
    """The ids of all transitions in the ledger."""
    return sorted(row["id"] for row in ledger.history(limit=10_000))


def test_what_is_old_moves(ledger: Ledger) -> None:
    """Not what waits, what a lease came of, what is new, or what staff did."""
    before = all_rows(ledger)
    assert move_old(ledger, NOW, 400, 1200) == 5
    assert archived(ledger, "tickets") == [1]
    assert sorted([*archived(ledger, "transitions"), *all_rows(ledger)]) == before
    assert [row["action"] for row in ledger.history()] == ["", "next"]
    assert ledger.find_ticket(2) and ledger.find_ticket(3) and not ledger.find_ticket(1)
    assert move_old(ledger, NOW, 400, 1200) == 0


def test_staffs_actions_have_an_age_of_their_own(ledger: Ledger) -> None:
    """They may go sooner, later, or never; 0 keeps all."""
    assert move_old(ledger, NOW, 0, 0) == 0
    assert not archive_of(ledger.path).exists()
    assert move_old(ledger, NOW, 0, 400) == 1


def test_an_archive_of_before_is_read_and_goes_on(ledger: Ledger) -> None:
    """Its columns and words get their new names with the next round; no row is lost."""
    with closing(sqlite3.connect(archive_of(ledger.path))) as file, file:
        file.execute(
            "CREATE TABLE transitions (id, at, what, thing, from_state, to_state, by, reason,"
            " course, act, UNIQUE (id, at))"
        )
        file.executemany(
            "INSERT INTO transitions VALUES (?, 1.0, ?, '7', ?, ?, 'person:ina', '', '', ?)",
            [
                (101, "note", "", "shown", "message"),
                (102, "reservation", "planned", "kept", ""),
                (103, "lease", "warned", "running", "stay"),
            ],
        )
    assert move_old(ledger, NOW, 400, 1200) > 0
    with closing(sqlite3.connect(archive_of(ledger.path))) as file:
        old = file.execute(
            "SELECT kind, target, to_state, action FROM transitions WHERE id > 100 ORDER BY id"
        )
        assert old.fetchall() == [
            ("message", "7", "shown", "message"),
            ("reservation", "7", "reserved", ""),
            ("lease", "7", "running", "keepalive"),
        ]
        assert file.execute("SELECT count(*) FROM transitions").fetchone()[0] > 3


def test_no_number_comes_again(ledger: Ledger) -> None:
    """With everything old, the newest ticket stays to count from."""
    later = NOW + 1000 * DAY_S
    move_old(ledger, later, 400, 400)
    path = ledger.path
    ledger.close()
    assert Ledger(path).new_id("ticket") == 5


def test_a_crash_between_the_two_files(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row may be in both for a while, and is never in neither, nor twice in one."""
    before = all_rows(ledger)
    with monkeypatch.context() as broken:
        broken.setattr(archive, "delete", None)
        with pytest.raises(TypeError):
            move_old(ledger, NOW, 400, 1200)
    assert all_rows(ledger) == before
    move_old(ledger, NOW, 400, 1200)
    kept = archived(ledger, "transitions")
    assert sorted([*kept, *all_rows(ledger)]) == before


def test_an_archive_of_an_older_version(ledger: Ledger) -> None:
    """Columns that are new are added."""
    with closing(sqlite3.connect(archive_of(ledger.path))) as file, file:
        file.execute("CREATE TABLE tickets (id, created_at, user, UNIQUE (id, created_at))")
        file.execute("INSERT INTO tickets VALUES (1, 1.0, 'an earlier ledger''s')")
    move_old(ledger, NOW, 400, 1200)
    assert archived(ledger, "tickets") == [1, 1]


def test_a_round_is_bounded(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is old, a round moves so many rows of a table."""
    monkeypatch.setattr(archive, "MOST", 2)
    assert [move_old(ledger, NOW, 400, 1200) for _ in range(3)] == [3, 2, 0]


def test_the_pool_moves_it_under_its_lock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads write to the same connection: their transactions would be ended in between."""
    store, owned = world.pool.store, []
    read = store.ledger.read

    def watched(query: object) -> object:
        owned.append(store.lock._is_owned())  # type: ignore[attr-defined]
        return read(query)

    monkeypatch.setattr(store.ledger, "read", watched)
    world.pool.archive_old()
    assert owned and all(owned)
