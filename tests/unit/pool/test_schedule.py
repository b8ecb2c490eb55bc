"""When a class takes place: readings of the wall clock, whatever the clocks do."""

import itertools
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miglab_api.reservations import WEEKDAYS
from miglab_pool.schedule import (
    DAY_S,
    Schedule,
    is_zone,
    local_day,
    next_occurrence,
    occurrence,
    occurrences,
    weekday_mask,
    weekday_names,
)

BERLIN = "Europe/Berlin"
ZONES = (BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/Santiago")
SPRING, AUTUMN = date(2026, 3, 29), date(2026, 10, 25)  # Berlin's clocks change


def weekly(
    day: str, starts: str, ends: str, first: str = "2026-01-01", **fields: object
) -> Schedule:
    """A rule in few words."""
    values = {"last": None, "tz": BERLIN} | fields
    return Schedule(
        weekdays=weekday_mask(day.split("+")) if day else 0,
        first=date.fromisoformat(first),
        starts=time.fromisoformat(starts),
        ends=time.fromisoformat(ends),
        **values,  # type: ignore[arg-type]
    )


def utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("day", "starts", "ends", "begins_utc", "ends_utc"),
    [
        (SPRING, "02:30", "03:15", "01:00", "01:15"),  # begins when the clocks jump
        (SPRING, "01:30", "02:30", "00:30", "01:00"),  # ends when the clocks jump
        (SPRING, "01:00", "04:00", "00:00", "02:00"),  # an hour shorter
        (AUTUMN, "02:15", "02:45", "00:15", "01:45"),  # first 02:15 until last 02:45
        (AUTUMN, "01:00", "02:00", "23:00", "00:00"),  # 02:00 is not read in it: no hour more
        (AUTUMN, "01:00", "04:00", "23:00", "03:00"),  # an hour longer
    ],
)
def test_clocks_change(day: date, starts: str, ends: str, begins_utc: str, ends_utc: str) -> None:
    """What the module says of missing and repeated times, by hand."""
    interval = occurrence(weekly("sun", starts, ends), day)
    assert interval is not None
    times = [datetime.fromtimestamp(at, UTC).strftime("%H:%M") for at in interval]
    assert times == [begins_utc, ends_utc]


def test_term() -> None:
    """A weekly class keeps within its first and last day, both included."""
    rule = weekly("mon", "10:00", "11:00", "2026-06-08", last=date(2026, 6, 22))
    days = [
        local_day(interval.starts_at, BERLIN).day
        for interval in occurrences(rule, 0, utc("2027-01-01"))
    ]
    assert days == [8, 15, 22]
    assert next_occurrence(rule, utc("2026-06-23")) is None


def test_weekday_names() -> None:
    """Names and bits are the same thing; naming a day twice changes nothing."""
    assert weekday_names(weekday_mask(["sun", "mon", "mon"])) == ("mon", "sun")
    assert [weekday_mask([name]) for name in WEEKDAYS] == [1, 2, 4, 8, 16, 32, 64]


times = st.builds(time, st.integers(0, 23), st.sampled_from((0, 1, 15, 30, 45, 59)))
spans = st.tuples(times, times).filter(lambda pair: pair[0] < pair[1])
days = st.dates(date(2026, 1, 1), date(2027, 12, 31))


@st.composite
def rules(draw: st.DrawFn) -> Schedule:
    starts, ends = draw(spans)
    first = draw(st.dates(date(2025, 12, 1), date(2026, 6, 30)))
    last = draw(st.none() | st.dates(first, date(2027, 12, 31)))
    return Schedule(
        draw(st.integers(0, 127)), first, last, starts, ends, draw(st.sampled_from(ZONES))
    )


def _read_minutes(rule: Schedule, day: date) -> Iterator[float]:
    """The minutes of two days in which the wall clock reads a time of the class on that day."""
    zone = ZoneInfo(rule.tz)
    at = datetime.combine(day, time(), UTC) - timedelta(hours=15)
    for minute in (at + timedelta(minutes=n) for n in range(54 * 60)):
        wall = minute.astimezone(zone)
        if wall.date() == day and rule.starts <= wall.time() < rule.ends:
            yield minute.timestamp()


def _changes(tz: str) -> list[date]:
    """The days of two years that are not 24 hours long."""
    zone = ZoneInfo(tz)
    every = [date(2026, 1, 1) + timedelta(days=n) for n in range(730)]
    midnights = [datetime.combine(day, time(), zone).utcoffset() for day in every]
    pairs = zip(every, midnights, midnights[1:], strict=False)
    return [day for day, offset, following in pairs if offset != following]


odd_days = st.sampled_from(ZONES).flatmap(
    lambda tz: st.tuples(st.just(tz), st.sampled_from([*_changes(tz), date(2026, 5, 5)]))
)


@settings(max_examples=settings.default.max_examples // 2)
@given(span=spans, zone_and_day=odd_days)
def test_an_occurrence_is_what_the_wall_clock_reads(
    span: tuple[time, time], zone_and_day: tuple[str, date]
) -> None:
    """From the first to the last minute that reads a time of the class, on odd days above all."""
    tz, day = zone_and_day
    rule = Schedule(0, day, None, *span, tz)
    minutes = list(_read_minutes(rule, day))
    expected = (minutes[0], minutes[-1] + 60) if minutes else None
    assert occurrence(rule, day) == expected


@settings(max_examples=settings.default.max_examples // 2)
@given(rule=rules(), days=st.integers(0, 800))
def test_next_is_the_first_of_all(rule: Schedule, days: int) -> None:
    """`next_occurrence` and `occurrences` agree, in order and without overlap."""
    at = utc("2025-12-15T10:30") + days * DAY_S
    every = list(occurrences(rule, at, at + 420 * DAY_S))
    assert every == sorted(every)
    assert all(first.ends_at <= second.starts_at for first, second in itertools.pairwise(every))
    assert all(interval.ends_at > at for interval in every)
    following = next_occurrence(rule, at)
    if every:
        assert following == every[0]
    elif following is not None:
        assert following.starts_at > at + 420 * DAY_S


@pytest.mark.parametrize("name", ["localtime", "Factory", "Mars/Olympus", "", "posixrules"])
def test_a_zone_that_means_another_on_each_machine_is_none(name: str) -> None:
    """A lab's times are those of the place that it names, wherever its files are read."""
    assert not is_zone(name)
    assert is_zone("Europe/Berlin") and is_zone("UTC")
