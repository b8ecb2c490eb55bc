"""What is asked again and again finds its rows by an index, however much has happened since."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import Connection, event
from tests.unit.pool.conftest import World

from miglab_api.usage import GroupBy
from miglab_pool.ledger.tables import open_read_only
from miglab_pool.staff import log
from miglab_pool.staff.log import AuditQuery, delete_old, read_entries
from miglab_pool.state.store import read_ended_uses
from miglab_pool.usage import report
from miglab_pool.usage.report import Period

DAY_S = 86_400.0
WHOLE_TABLE = re.compile(r"SCAN (leases|tickets|slices|lease_slices|transitions$)")
Work = Callable[[World], object]


def usage_of_a_week(world: World) -> object:
    period = Period(world.at - 7 * DAY_S, world.at, ZoneInfo("UTC"))
    return world.pool.sum_usage(period, GroupBy.COURSE)


def log_of_a_year_ago(world: World, **filters: Any) -> object:
    return read_entries(world.ledger.path, AuditQuery(until=world.at - 365 * DAY_S, **filters))


WORKS: dict[str, tuple[Work, set[str]]] = {
    "usage": (usage_of_a_week, {"leases_ended", "transitions_endings", "tickets_state"}),
    "fair share": (
        lambda world: read_ended_uses(world.ledger, world.at - 14 * DAY_S), {"leases_ended"},
    ),
    "log": (log_of_a_year_ago, {"transitions_by_hand"}),
    "log of leases": (
        lambda world: log_of_a_year_ago(world, kind="lease"), {"transitions_by_hand"},
    ),
    "all of the log": (lambda world: log_of_a_year_ago(world, is_all=True), {"transitions_at"}),
    "the next page": (
        lambda world: read_entries(world.ledger.path, AuditQuery(before=1)),
        {"transitions_by_hand"},
    ),
    "the log of one": (
        lambda world: log_of_a_year_ago(world, is_all=True, kind="lease", target="1"),
        {"transitions_target"},
    ),
    "old rows": (
        lambda world: delete_old(world.ledger, world.at, 400, 1200),
        {"transitions_at", "tickets_created_at", "leases_ticket"},
    ),
}  # fmt: skip


class Plans:
    """How SQLite answers each query, step by step."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def follow(self, connection: Connection) -> None:
        """Ask for the plan of every query from now on."""
        event.listen(connection, "before_cursor_execute", self._explain)

    def _explain(self, connection: Any, _cursor: Any, sql: str, values: Any, *_: Any) -> None:
        if sql.startswith("SELECT"):
            driver = connection.connection.driver_connection
            self.steps += [row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {sql}", values)]


@pytest.fixture
def plans(world: World, monkeypatch: pytest.MonkeyPatch) -> Plans:
    """The plans of what reads this world's ledger."""
    recorded = Plans()
    recorded.follow(world.ledger.connection)

    @contextmanager
    def opened(path: Path) -> Iterator[Connection]:
        with open_read_only(path) as connection:
            recorded.follow(connection)
            yield connection

    monkeypatch.setattr(log, "open_read_only", opened)
    monkeypatch.setattr(report, "open_read_only", opened)
    return recorded


@pytest.mark.parametrize("name", WORKS)
def test_no_table_of_years_is_read_through(world: World, plans: Plans, name: str) -> None:
    """Each has its index; there are no statistics, so the plan is that of a full ledger."""
    work, indexes = WORKS[name]
    work(world)
    assert not [step for step in plans.steps if WHOLE_TABLE.match(step)]
    used = {name for name in indexes if any(name in step for step in plans.steps)}
    assert used == indexes, plans.steps


def test_the_log_goes_by_time_and_its_pages_by_neither_twice(world: World) -> None:
    """After a step of the clock, too: each entry is on one page, among those of its time."""
    for step_s in (0.0, 0.0, 50.0, -80.0, 10.0, 0.0, 200.0, -10.0):
        world.pass_time(step_s)
        world.pool.staff.pause("Repairs.", "person:ina")
        world.pool.staff.resume("person:ina")
    entries = read_entries(world.ledger.path, AuditQuery())
    assert len(entries) == 16
    assert entries == sorted(entries, key=lambda entry: (-entry.at, -entry.id))
    paged, before = [], None
    while page := read_entries(world.ledger.path, AuditQuery(before=before, limit=3)):
        paged += page
        before = page[-1].id
    assert paged == entries
    beyond = max(entry.id for entry in entries) + 1
    assert read_entries(world.ledger.path, AuditQuery(before=beyond)) == entries


def test_old_tickets_go_where_there_are_many_leases(world: World) -> None:
    """Those that led to a lease stay with it; a deletion looks for leases by their index."""
    world.end(world.run("ada"))
    cancelled = world.ask("bob")
    world.pool.tickets.cancel(cancelled.id, "bob")
    world.ask("carl")
    world.pass_time(500 * DAY_S)
    assert delete_old(world.ledger, world.at, 400, 1200) > 0
    rows = world.ledger.connection.exec_driver_sql("SELECT user FROM tickets").scalars().all()
    world.ledger.connection.rollback()
    assert sorted(rows) == ["ada", "carl"]
    assert delete_old(world.ledger, world.at, 400, 1200) == 0
