"""A week of reservations as a timetable: days, lanes, time zones, clock changes."""

import datetime as dt

import pytest

from miglab_api.reservations import ReservationState, ReservationView
from miglab_pool.reservations.page import Block, Week, monday_of, week

from .fakes import reservation_view

MONDAY = dt.date(2026, 6, 1)
BERLIN = "Europe/Berlin"


def at(day: int, hour: int) -> float:
    """A moment of that week, UTC."""
    return dt.datetime(2026, 6, day, hour, tzinfo=dt.UTC).timestamp()


def drawn(*found: ReservationView, zone: str = BERLIN, now: float = at(1, 6)) -> Week:
    return week(found, MONDAY, zone, now)


def blocks(of: Week, day: int) -> list[Block]:
    return list(of.days[day].blocks)


def class_(number: int = 1, **more: object) -> ReservationView:
    return reservation_view(number, date=dt.date(2026, 5, 1), **more)


def test_a_class_lies_at_its_time() -> None:
    """Tuesday, from 10 to 12: eight quarters from the fortieth on; the other days are empty.

    As a clock elsewhere shows it, the hours that are drawn go with it.
    """
    found = drawn(class_())
    assert [len(day.blocks) for day in found.days] == [0, 1, 0, 0, 0, 0, 0]
    (block,) = blocks(found, 1)
    assert (block.first, block.quarters, block.times) == (40, 8, "10:00–12:00")
    assert (found.from_hour, found.to_hour) == (8, 18)
    there = drawn(class_(), zone="America/New_York")
    (block,) = blocks(there, 1)
    assert (block.first, block.times, there.from_hour) == (16, "04:00–06:00", 4)


def test_over_midnight_there_it_is_two_blocks() -> None:
    """One until midnight, one from midnight on; both say when it is."""
    late = class_(from_time="16:30", to_time="18:00")
    found = drawn(late, zone="Asia/Tokyo")
    (before,), (after,) = blocks(found, 1), blocks(found, 2)
    assert (before.first + before.quarters, after.first) == (96, 0)
    assert before.times == after.times == "23:30–01:00"


def test_overlapping_classes_lie_side_by_side() -> None:
    """The third below the first, where that is free again; the picture stays as wide."""
    found = drawn(
        class_(1),
        class_(2, from_time="11:00", to_time="14:00"),
        class_(3, from_time="12:00", to_time="13:00"),
    )
    lanes = {block.reservation.id: block.lane for block in blocks(found, 1)}
    assert lanes == {1: 0, 2: 1, 3: 0}
    assert (found.days[1].lanes, found.days[0].lanes) == (2, 1)
    found = drawn(*(class_(number) for number in range(40)))
    assert (len(blocks(found, 1)), found.days[1].lanes) == (40, 12)
    assert max(block.lane for block in blocks(found, 1)) == 11


@pytest.mark.parametrize(
    ("now", "state"),
    [(at(2, 7), ReservationState.RESERVED), (at(5, 0), ReservationState.OVER)],
)
def test_the_state_is_of_that_time(now: float, state: ReservationState) -> None:
    """What it does now stands at the time in force; a time that is past is over."""
    one = class_(state=ReservationState.RESERVED, starts_at=at(2, 8))
    later = class_(state=ReservationState.PLANNED, starts_at=at(9, 8))
    (block,) = blocks(drawn(one if state is ReservationState.RESERVED else later, now=now), 1)
    assert block.state is state


def test_the_hour_that_is_missing() -> None:
    """A week in which clocks go forward is drawn, each class at its wall time."""
    monday = dt.date(2026, 3, 23)
    one = reservation_view(1, date=monday, weekdays=("sun",), from_time="01:30", to_time="04:00")
    found = week([one], monday, BERLIN, 0.0)
    (block,) = found.days[6].blocks
    assert (block.first, block.quarters, block.times) == (6, 10, "01:30–04:00")


def test_once() -> None:
    """A single time stands in its week and in no other."""
    once = reservation_view(1, weekdays=(), date=dt.date(2026, 6, 4))
    assert [len(day.blocks) for day in drawn(once).days] == [0, 0, 0, 1, 0, 0, 0]
    other = week([once], MONDAY + dt.timedelta(days=7), BERLIN, at(1, 6))
    assert not any(day.blocks for day in other.days)


def test_today_and_monday() -> None:
    """The day that it is, by the drawn clock; a Sunday belongs to the week before it ends."""
    found = drawn(now=at(2, 23))
    assert [day.is_today for day in found.days].index(True) == 2
    assert monday_of(dt.date(2026, 6, 7)) == MONDAY
