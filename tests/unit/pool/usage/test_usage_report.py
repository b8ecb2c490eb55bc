"""Was it worth it: the figures of a period, from the ledger's rows."""

import datetime as dt
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pool_settings import changed
from tests.unit.pool.conftest import SETTINGS, World

from miglab_api.usage import GroupBy, UsageRow
from miglab_pool.leases.views import ActivitySpan
from miglab_pool.usage.report import (
    Event,
    Facts,
    ObservedDay,
    Period,
    ReportedUse,
    Requester,
    hours_by_week,
    midnight,
    periods_of_use,
    read_facts,
    report,
    sum_facts,
    week_of,
)

BERLIN = ZoneInfo("Europe/Berlin")
MONDAY = midnight(dt.date(2026, 11, 2), BERLIN)
HOUR = 3600.0
WEEK = 7 * 24 * HOUR
PERIOD = Period(MONDAY, MONDAY + 2 * WEEK, BERLIN)
ADA = Requester("ada", "ml", "1g.5gb")
BOB = Requester("bob", "vision", "3g.20gb")


def held_lease(
    lease: int, holder: Requester = ADA, at: float = 0.0, hours: float | None = 1.0, **fields: Any
) -> ReportedUse:
    """A lease that began so many seconds into the period, and lasted so long."""
    started_at = MONDAY + at
    ended_at = None if hours is None else started_at + hours * HOUR
    values = {
        "size": 1,
        "granted_at": started_at,
        "wait_s": 0.0,
        "began_at": started_at,
        "ended_at": ended_at,
    }
    return ReportedUse(lease=lease, requester=holder, **(values | fields))


def rows_of(facts: Facts, period: Period, group_by: GroupBy) -> tuple[UsageRow, ...]:
    """The rows of a report."""
    return report(sum_facts(facts, period, group_by), period)[0]


def total(facts: Facts, period: Period) -> UsageRow:
    """The row of the whole period."""
    return report(sum_facts(facts, period, GroupBy.SHAPE), period)[1]


def test_what_lies_outside_does_not_count() -> None:
    """Begun before, over later, and living: each counts with what lies in the period, by size."""
    before = held_lease(1, at=-HOUR, hours=3)
    after = held_lease(2, at=2 * WEEK - HOUR, hours=None)
    never = held_lease(3, began_at=None, ended_at=MONDAY + HOUR)
    facts = Facts(lease_uses=(before, after, never, held_lease(4, BOB, size=4, hours=2)))
    row = total(facts, PERIOD)
    assert (row.slice_hours, row.leases) == (11.0, 2)
    rows = rows_of(facts, PERIOD, GroupBy.COURSE)
    assert [(row.key, row.slice_hours) for row in rows] == [("vision", 8.0), ("ml", 3.0)]


def test_weeks_are_those_of_the_zone_and_have_no_gap() -> None:
    """A lease over the night to Monday is in both weeks; a week without use is there, with zero."""
    period = Period(MONDAY, MONDAY + 3 * WEEK, BERLIN)
    rows = rows_of(
        Facts(lease_uses=(held_lease(1, at=WEEK - 2 * HOUR, hours=3),)), period, GroupBy.WEEK
    )
    assert [(row.key, row.slice_hours) for row in rows] == [
        ("2026-W45", 2.0),
        ("2026-W46", 1.0),
        ("2026-W47", 0.0),
    ]
    assert [row.leases for row in rows] == [1, 0, 0]


def test_a_week_with_a_change_of_the_clock_has_its_own_length() -> None:
    """The week in which winter time begins has 169 hours; New Year's may be the old year's last."""
    monday = midnight(dt.date(2026, 10, 19), BERLIN)
    period = Period(monday, midnight(dt.date(2026, 11, 2), BERLIN), BERLIN)
    lease_in_use = held_lease(1, began_at=monday, granted_at=monday, ended_at=None)
    rows = rows_of(Facts(lease_uses=(lease_in_use,)), period, GroupBy.WEEK)
    assert [row.slice_hours for row in rows] == [169.0, 168.0]
    assert week_of(midnight(dt.date(2027, 1, 1), BERLIN), BERLIN) == "2026-W53"


def test_waits_count_where_they_ended() -> None:
    """Percentiles are of what somebody waited; without a ticket there is no wait."""
    waits = [held_lease(n, wait_s=60.0 * n) for n in range(1, 21)]
    assert total(Facts(lease_uses=tuple(waits[:3])), PERIOD).wait_p95_s == 180.0
    waits.append(held_lease(21, wait_s=None))
    waits.append(held_lease(22, wait_s=9e9, granted_at=MONDAY - 1))
    row = total(Facts(lease_uses=tuple(waits)), PERIOD)
    assert (row.wait_p50_s, row.wait_p95_s) == (600.0, 1140.0)
    assert total(Facts(), PERIOD).wait_p50_s is None


def test_the_idle_share_is_of_what_could_be_told() -> None:
    """Weighted by size; a lease of which nothing is known neither raises nor lowers it."""
    facts = Facts(
        lease_uses=(
            held_lease(1),
            held_lease(2, BOB, size=3),
            held_lease(3, Requester("cy", "ml", "1g.5gb")),
        ),
        observed_days=(ObservedDay(1, MONDAY, 100.0, 0.0), ObservedDay(2, MONDAY, 0.0, 100.0)),
    )
    assert total(facts, PERIOD).idle_share == 0.75
    assert total(facts, PERIOD).known_share == pytest.approx(400 / (5 * HOUR))
    assert total(Facts(), PERIOD).known_share == 0.0
    by_user = {row.key: row.idle_share for row in rows_of(facts, PERIOD, GroupBy.USER)}
    assert by_user == {"ada": 0.0, "bob": 1.0, "cy": None}


def test_reclaims_and_refusals_count_without_a_lease() -> None:
    """Who was only refused has a row too; the end of the period is not in it."""
    late = Event(BOB, PERIOD.until)
    facts = Facts(reclaims=(Event(ADA, MONDAY),), refusals=(Event(BOB, MONDAY + 1), late))
    rows = {row.key: (row.reclaims, row.refusals) for row in rows_of(facts, PERIOD, GroupBy.SHAPE)}
    assert rows == {"1g.5gb": (1, 0), "3g.20gb": (0, 1)}


USES = st.lists(
    st.builds(
        held_lease,
        st.integers(1, 10**6),
        st.sampled_from([ADA, BOB, Requester("cy", "ml", "3g.20gb")]),
        at=st.floats(-WEEK, 3 * WEEK),
        hours=st.none() | st.floats(0, 400),
        wait_s=st.none() | st.floats(0, 1e5),
        size=st.integers(1, 8),
    ),
    max_size=8,
)


@given(uses=USES, group_by=st.sampled_from(GroupBy))
def test_however_it_is_grouped_it_is_the_same_in_total(
    uses: list[ReportedUse], group_by: GroupBy
) -> None:
    """The whole period's row says the same beside all rows, and so do the chart's hours."""
    facts = Facts(lease_uses=tuple(uses))
    usage_sums = sum_facts(facts, PERIOD, group_by)
    rows, all_of_it = report(usage_sums, PERIOD)
    by_shape = total(facts, PERIOD)
    assert all_of_it.slice_hours == pytest.approx(sum(row.slice_hours for row in rows))
    assert all_of_it.slice_hours == pytest.approx(by_shape.slice_hours)
    assert (all_of_it.leases, all_of_it.wait_p50_s, all_of_it.wait_p95_s) == (
        by_shape.leases, by_shape.wait_p50_s, by_shape.wait_p95_s,
    )  # fmt: skip
    hours = hours_by_week(usage_sums)
    for place, key in enumerate((GroupBy.WEEK, GroupBy.COURSE)):
        for row in rows_of(facts, PERIOD, key):
            drawn = sum(used for keys, used in hours.items() if keys[place] == row.key)
            assert drawn == pytest.approx(row.slice_hours)


@given(
    started_s=st.floats(-3 * WEEK, 5 * WEEK),
    lasts=st.none() | st.floats(0, 4 * WEEK),
)
def test_pieces_are_the_whole(started_s: float, lasts: float | None) -> None:
    """Cut at Mondays or not, the pieces add up to what lies in the period, in order."""
    period = Period(0.0, 3 * WEEK, BERLIN)
    ended = None if lasts is None else started_s + lasts
    periods = list(periods_of_use(started_s, ended, period, period.mondays))
    until = period.until if ended is None else min(ended, period.until)
    expected_s = max(0.0, until - max(started_s, 0.0))
    assert sum(end - begin for begin, end in periods) == pytest.approx(expected_s, abs=1e-3)
    assert all(begin < end for begin, end in periods) and periods == sorted(periods)


def around(world: World, hours: float = 24.0) -> Period:
    return Period(world.at - hours * HOUR, world.at + HOUR, BERLIN)


def read(world: World, courses: set[str] | None = None) -> Facts:
    period = around(world)
    with read_facts(world.ledger.path, period.since, period.until, courses) as facts:
        return Facts(*(tuple(getattr(facts, column.name)) for column in fields(facts)))


def test_the_ledger_tells_the_whole_story(world: World) -> None:
    """A wait, a lease in use, one that is over, what was seen of it, and a refusal."""
    first = world.run("ada", "7g.40gb")
    ticket = world.ask("bob", "3g.20gb")
    world.pass_time(60)
    world.pool.tickets.attend(ticket.id)
    world.pool.leases.note_activity([ActivitySpan(first.id, 30.0, 10.0, 20.0)])
    world.pool.leases.note_activity([ActivitySpan(first.id, 0.0, 20.0, 0.0)])
    world.pool.leases.note_activity([ActivitySpan(4711, 1.0, 1.0, 1.0)])
    world.end(first)
    lease = world.pool.tickets.take(ticket.id)
    world.pool.leases.attach(lease.id, lease.generation, world.new_holder())
    with pytest.raises(Exception, match="does not offer"):
        world.ask("cy", "3g.20gb", course="vision")
    world.pass_time(HOUR)
    facts = read(world)
    assert {use_seen.lease for use_seen in facts.observed_days} == {first.id}
    rows = {row.key: row for row in rows_of(facts, around(world), GroupBy.USER)}
    assert rows["ada"].slice_hours == pytest.approx(8 * 60 / HOUR, abs=0.1)
    assert rows["ada"].idle_share == 0.5 and rows["ada"].leases == 1
    assert rows["bob"].wait_p50_s is not None and rows["bob"].wait_p50_s >= 60
    assert rows["bob"].slice_hours >= 4.0
    assert rows["cy"].refusals == 1 and rows["cy"].leases == 0


def test_who_still_waits_counts_in_the_median(tmp_path: Path) -> None:
    """One served at once and two who wait for ten minutes: half of them wait that long.

    Wherever the ledger lies: a folder's name may hold whatever means something in an address.
    """
    folder = tmp_path / "100% José? #1 & 🎓"
    folder.mkdir()
    world = World(folder)
    world.run("ada", "7g.40gb")
    world.ask("bob", "7g.40gb")
    world.ask("cy", "7g.40gb")
    world.pass_time(600)
    row = total(read(world), Period(world.at - HOUR, world.at, BERLIN))
    assert (row.wait_p50_s, row.leases) == (pytest.approx(600, abs=5), 1)
    assert read(world, {"vision"}).waiting == ()
    world.close()


def test_reclaims_are_what_others_took_back(make_world: Callable[..., World]) -> None:
    """The reclaimer's, staff's, and those whose time was up; not what hub or holder gave back."""
    world = make_world(changed(SETTINGS, borrow_s=100.0))
    for user, principal in (("ada", "reclaimer"), ("bob", "hub"), ("cy", "person:cy")):
        world.pool.leases.release(world.run(user).id, principal, "so")
    for user, warning_s in (("fay", 0.0), ("gus", 5.0)):
        lease = world.run(user)
        world.pool.staff.reclaim(lease.id, "the room is needed", "person:ina", warning_s)
    world.pass_time(6)
    world.pool.staff.release_reclaimed()
    ended = world.borrow("dee")
    world.pass_time(100)
    world.pool.leases.release(ended.id, "pool", "its time is up")
    lost = world.run("eve")
    world.pool.leases.release(lost.id, "pool", "the slice is gone")
    assert {reclaim.requester.user for reclaim in read(world).reclaims} == {
        "ada",
        "dee",
        "fay",
        "gus",
    }
