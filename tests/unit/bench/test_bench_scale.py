"""`lab bench scale`: a history as the pool would have written it, and bounds that break."""

import json
import sqlite3
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from tests.pool_settings import changed
from tests.unit.pool.conftest import SETTINGS, World
from typer.testing import CliRunner

from miglab_api.leases import WarningKind
from miglab_bench.commands import app
from miglab_bench.harness import history
from miglab_bench.harness.history import HistorySize, Stay, places_on, write_history
from miglab_bench.measures import scale
from miglab_bench.measures.scale import CALENDAR, RATIO, START, USAGE_OF_WEEK, row_of
from miglab_pool.ledger import tables
from miglab_pool.ledger.rows import LeaseRow, SliceRow, TicketRow

SMALL = HistorySize(students=9, courses=3, leases=800)
DAY_S = 86_400.0


def lived(world: World) -> Stay:
    """A stay of which everything happens that may: put in front, extended, idle, reclaimed."""
    first = world.run("bob", "7g.40gb")
    ticket = world.ask("ada")
    world.pool.staff.put_in_front(ticket.id, "exam tomorrow", "person:ina")
    world.pass_time(60)
    world.end(world.pool.leases.find(first.id))
    lease = world.pool.tickets.take(ticket.id)
    holder = world.new_holder()
    world.pool.leases.attach(lease.id, lease.generation, holder)
    world.pool.leases.running(lease.id)
    world.pool.leases.extend(lease.id, 1800, "server:ada/")
    world.pass_time(1000)
    world.pool.leases.warn(lease.id, WarningKind.IDLE, history.IDLE, world.at + 300)
    world.pass_time(history.WARNING_S)
    world.pool.leases.release(lease.id, "reclaimer", history.IDLE)
    world.holders.present.discard(holder)
    world.pass_time(1)
    world.work()
    (row,) = world.ledger.rows(LeaseRow, tables.leases.c.id == lease.id)
    (slice_,) = world.ledger.rows(SliceRow, tables.slices.c.id == row.slices[0])
    place = next(p for p in places_on([slice_.gpu, ""]) if _starts_at(p, slice_.start))
    asked_at = world.ledger.rows(TicketRow, tables.tickets.c.id == ticket.id)[0].created_at
    assert row.releasing_at is not None and row.ended_at is not None
    return Stay(
        row.id, ticket.id, slice_.generation, row.generation, "ada", "everyone", place, asked_at,
        row.granted_at, row.releasing_at, row.ended_at, instructor="ina", is_extended=True,
        is_reclaimed=True,
    )  # fmt: skip


def _starts_at(place: history.SlicePlace, start: int) -> bool:
    return place.profile_placement.placement.start == start


@pytest.fixture
def cold_world(tmp_path: Path) -> Any:
    """A world that makes no slice before somebody needs it."""
    world = World(tmp_path / "world", changed(SETTINGS, keep_warm=False), gpus=1)
    yield world
    world.close()


def test_a_stay_is_what_the_pool_writes_of_one(cold_world: World) -> None:
    """Ticket, slice, lease and every transition, to the word; the fields of hardware aside."""
    stay = lived(cold_world)
    ledger = cold_world.ledger
    (ticket,) = ledger.rows(TicketRow, tables.tickets.c.id == stay.ticket)
    assert history.ticket_row(stay) == ticket
    (slice_,) = ledger.rows(SliceRow, tables.slices.c.id == stay.number)
    hardware = {"gi_id": slice_.gi_id, "uuid": slice_.uuid}
    assert replace(history.slice_row(stay), **hardware) == slice_
    (lease,) = ledger.rows(LeaseRow, tables.leases.c.id == stay.number)
    assert replace(history.lease_row(stay), holder=lease.holder, slices=lease.slices) == lease
    targets = {
        ("ticket", str(stay.ticket)),
        ("lease", str(stay.number)),
        ("slice", str(stay.number)),
    }
    log = [tuple(row.values())[1:] for row in reversed(ledger.history())]
    logged = [entry[1:] for entry in log if entry[1:3] in targets]
    expected = [entry[1:] for entry in history.transitions_of(stay)]
    assert sorted(expected) == sorted(logged)


def test_who_gives_up_waiting_is_what_the_pool_writes(cold_world: World) -> None:
    """A cancelled ticket, and what the log says of it."""
    cold_world.run("bob", "7g.40gb")
    ticket = cold_world.ask("ada", server="other")
    cold_world.pass_time(5)
    cold_world.pool.tickets.cancel(ticket.id, "ada")
    (row,) = cold_world.ledger.rows(TicketRow, tables.tickets.c.id == ticket.id)
    entries = [tuple(entry.values())[1:] for entry in cold_world.ledger.history("ticket", "2")]
    attended = replace(row, attended_at=cold_world.at)
    assert history.cancelled_transitions(attended) == list(reversed(entries))
    (place,) = places_on(["GPU-0", ""])[:1]
    stay = Stay(
        1, ticket.id + 1, 1, 1, "ada", "everyone", place, row.created_at, row.attended_at, 0.0, 0.0
    )
    assert history.cancelled_ticket(stay) == row


def test_a_history_is_a_ledger_like_any_other(cold_world: World) -> None:
    """Nothing dangles, no two stays share a slice, numbers go with time; the pool goes on."""
    world = cold_world
    world.close()
    world.at = 1_000_000.0 + 400 * DAY_S
    write_history(world.ledger.path, SMALL, world.at)
    with closing(sqlite3.connect(world.ledger.path)) as connection:
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        (overlaps,) = connection.execute(
            "SELECT count(*) FROM leases a JOIN slices s ON s.id = a.id JOIN slices t ON t.gpu = "
            "s.gpu AND t.start = s.start AND t.id > s.id JOIN leases b ON b.id = t.id "
            "WHERE b.granted_at < a.ended_at"
        ).fetchone()
        moments = [row[0] for row in connection.execute("SELECT at FROM transitions ORDER BY id")]
        count = connection.execute("SELECT count(*), count(DISTINCT user) FROM leases").fetchone()
    assert (overlaps, count) == (0, (SMALL.leases, SMALL.students))
    assert moments == sorted(moments)
    world.open()
    world.check()
    lease = world.run("student-0", course="everyone")
    assert lease.id == SMALL.leases + 1
    world.check()
    assert world.ledger.read(select(tables.gpus.c.generation))[0]["generation"] > SMALL.leases // 2


@pytest.mark.parametrize(
    ("name", "pairs", "bound", "bounded"),
    [
        ("pool page", [(0.1, 0.13), (0.1, 0.11), (0.9, 0.9)], "1.2 times", True),
        ("pool page", [(0.1, 0.13), (0.1, 0.14), (0.9, 0.9)], "1.2 times", False),
        (CALENDAR, [(0.1, 0.15)], "1.5 times", True),  # it draws more
        (CALENDAR, [(0.1, 0.151)], "1.5 times", False),
        (USAGE_OF_WEEK, [(0.01, 0.1)], "100 ms", True),  # it has more to sum up
        (USAGE_OF_WEEK, [(0.01, 0.101)], "100 ms", False),
        (START, [(4.0, 5.1)], "5000 ms", False),
    ],
)
def test_a_row_says_whether_its_bound_holds(
    name: str, pairs: list[tuple[float, float]], bound: str, bounded: bool
) -> None:
    """By the ratio of the least, or by the full lab's time where more has to be done."""
    row = row_of(name, pairs)
    assert (row.what, row.bound, row.bounded) == (name, bound, bounded)
    assert RATIO == 1.2


def test_a_broken_bound_is_said_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """In words and by the exit status, in a table as in JSON; without one, the status is 0."""
    good = row_of("pool page", [(0.1, 0.1)])
    rows = [good, row_of("calendar page", [(0.1, 0.2)])]
    monkeypatch.setattr(scale, "measure", lambda *_: rows)
    broken = CliRunner().invoke(app, ["scale"])
    assert broken.exit_code == 1
    assert "BOUND BROKEN: calendar page" in broken.output
    as_json = CliRunner().invoke(app, ["scale", "--json"])
    assert as_json.exit_code == 1
    assert json.loads(as_json.output)["rows"] == [asdict(row) for row in rows]
    rows.pop()
    unbroken = CliRunner().invoke(app, ["scale"])
    assert (unbroken.exit_code, "all bounds hold" in unbroken.output) == (0, True)
