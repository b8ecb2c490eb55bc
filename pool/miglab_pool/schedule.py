"""Schedules: a local time on given days, as instants.  Pure.

Reservations, layouts, the ends of classes and maintenance windows are all schedules.  A schedule
means readings of the wall clock in its time zone.  An occurrence is the time during which
the clock on the wall of that day reads ``starts`` or later and less than ``ends``:

- a class at 10:00 is at 10:00 in winter and in summer;
- of a local time that exists twice (clocks go back) the first is a start and the last an end: the
  repeated hour belongs to the class as often as it is read;
- a local time that does not exist (clocks go forward) is the moment at which the clocks jump; a
  class wholly inside the missing hour does not take place that day.

`parse_window` reads a window as settings write it.  Must not import the pool.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from miglab_api.reservations import WEEKDAYS

DAY = timedelta(days=1)
DAY_S = 86400.0
MINUTE = timedelta(minutes=1)
LOOK_AHEAD_DAYS = 23  # a weekly schedule takes place within them, or never: DST skips one week
PLAN_AHEAD = timedelta(days=366)  # how far ahead a first day may lie
LONG_AGO = date(1970, 1, 1)
_DAY_NAMES = "|".join(WEEKDAYS)
_CLOCK = r"([01]\d|2[0-3]):[0-5]\d"
_TEXT = re.compile(
    rf"(?:(?P<date>\d{{4}}-\d\d-\d\d)|(?P<first>{_DAY_NAMES})(?:-(?P<last>{_DAY_NAMES}))?)"
    rf" (?P<starts>{_CLOCK})-(?P<ends>{_CLOCK})"
)


class Occurrence(NamedTuple):
    """One time that a class takes place, seconds since the epoch; the end is not part of it."""

    starts_at: float
    ends_at: float

    def overlaps(self, other: "Occurrence") -> bool:
        """Whether both take place at some moment."""
        return self.starts_at < other.ends_at and other.starts_at < self.ends_at


@dataclass(frozen=True, slots=True)
class Schedule:
    """Every week on some days, or once.

    Attributes:
        weekdays: bits, Monday is 1; 0 for once, on ``first``.
        first: the day before which it does not take place.
        last: the day after which it does not; None for no end.
        starts: local time, whole minutes.
        ends: local time, later than ``starts`` on the same day.
        tz: IANA name of the time zone, one that `is_zone` knows.
    """

    weekdays: int
    first: date
    last: date | None
    starts: time
    ends: time
    tz: str

    def takes_place_on(self, day: date) -> bool:
        """Whether it is held that day, as far as the calendar says."""
        if not self.weekdays:
            return day == self.first
        is_too_late = self.last is not None and day > self.last
        return day >= self.first and not is_too_late and bool(self.weekdays >> day.weekday() & 1)


@lru_cache(maxsize=8192)
def schedule(
    weekdays: int, first: date | None, last: date | None, from_time: str, to_time: str, tz: str
) -> Schedule:
    """Build a schedule from times written ``HH:MM``; `schedule_problem` must find no problem.

    Args:
        weekdays: bits, Monday is 1; 0 for once.
        first: its day, or the first of the weekly ones; None: they began long ago.
        last: the last of the weekly ones.
        from_time: when it begins on the wall clock.
        to_time: when it ends, later on the same day.
        tz: whose wall clock.
    """
    starts, ends = time.fromisoformat(from_time), time.fromisoformat(to_time)
    return Schedule(weekdays, first or LONG_AGO, last, starts, ends, tz)


def _weekday_range_mask(first: str | None, last: str | None) -> int:
    """The bits of the days from first to last, over the weekend if need be; 0 without."""
    if first is None:
        return 0
    begin = WEEKDAYS.index(first)
    days: Sequence[int] = range((WEEKDAYS.index(last or first) - begin) % 7 + 1)
    return sum(1 << (begin + day) % 7 for day in days)


def schedule_problem(
    weekdays: Sequence[str], day: date | None, from_time: str, to_time: str, tz: str, at: float
) -> str:
    """Return what is wrong with a requested schedule, in words; empty if it is valid.

    Args:
        weekdays: names of days; none for once.
        day: the day of a single time, or the first of weekly ones.
        from_time: ``HH:MM``.
        to_time: ``HH:MM``.
        tz: the time zone's name.
        at: the moment at which it is asked for.
    """
    if not is_zone(tz):
        return f"There is no time zone {tz!r}; use an IANA name such as Europe/Berlin."
    if from_time >= to_time:
        return (
            f"{from_time} to {to_time} is no time: the end must be later than the start, on the "
            "same day. A class over midnight needs two entries."
        )
    if not weekdays and day is None:
        return "Say when: on which weekdays, or on which date."
    if day is not None and day > local_day(at, tz) + PLAN_AHEAD:
        return f"{day} is more than a year ahead; enter it later."
    return ""


def weekday_mask(names: Iterable[str]) -> int:
    """The bits of weekdays given by name (`WEEKDAYS`)."""
    return sum({1 << WEEKDAYS.index(name) for name in names})


def weekday_names(mask: int) -> tuple[str, ...]:
    """The names of the weekdays in a mask, Monday first."""
    return tuple(name for bit, name in enumerate(WEEKDAYS) if mask >> bit & 1)


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def is_zone(name: str) -> bool:
    """Whether this machine knows the time zone, and every other one means the same by its name."""
    return name in _zones() and name[:1].isupper() and name != "Factory"


def local_day(at: float, tz: str) -> date:
    """The day it is in a time zone."""
    return datetime.fromtimestamp(at, ZoneInfo(tz)).date()


@lru_cache(maxsize=65536)
def occurrence(rule: Schedule, day: date) -> Occurrence | None:
    """When the class takes place that day; None if it does not."""
    if not rule.takes_place_on(day):
        return None
    zone = ZoneInfo(rule.tz)
    starts_at, _ = _instants(day, rule.starts, zone)
    last = datetime.combine(day, rule.ends) - MINUTE  # the last minute that belongs to it
    _, ends_at = _instants(day, last.time(), zone)
    return Occurrence(starts_at, ends_at) if starts_at < ends_at else None


def _instants(day: date, wall: time, zone: ZoneInfo) -> tuple[float, float]:
    """When a minute of the wall clock first begins and last ends; both the jump, if it is missing.

    Of a missing time Python's ``fold=0`` counts from the offset before the jump and so lies after
    it, ``fold=1`` the other way round (PEP 495).
    """
    local = datetime.combine(day, wall, tzinfo=zone)
    first, last = (local.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
    if first <= last:
        return first.timestamp(), (last + MINUTE).timestamp()
    jump = _find_jump(last, first, zone).timestamp()
    return jump, jump


def _find_jump(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """The first second of the new offset, between an instant of the old and one of the new."""
    old = before.astimezone(zone).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = (before + (after - before) / 2).replace(microsecond=0)
        if middle.astimezone(zone).utcoffset() == old:
            before = middle
        else:
            after = middle
    return after


def occurrences(rule: Schedule, since: float, until: float) -> Iterator[Occurrence]:
    """Every occurrence that is not over at ``since`` and has begun by ``until``, in order."""
    day = max(rule.first, local_day(since, rule.tz) - DAY)
    last = local_day(until, rule.tz) + DAY
    while day <= (last if rule.weekdays else min(last, rule.first)):
        candidate = occurrence(rule, day)
        if candidate is not None and candidate.ends_at > since and candidate.starts_at <= until:
            yield candidate
        day += DAY


def next_occurrence(rule: Schedule, at: float) -> Occurrence | None:
    """The occurrence in force at a moment, else the next; None if there is no more."""
    day = max(rule.first, local_day(at, rule.tz) - DAY)
    for candidate in (occurrence(rule, day + n * DAY) for n in range(LOOK_AHEAD_DAYS)):
        if candidate is not None and candidate.ends_at > at:
            return candidate
    return None


class BadTime(ValueError):
    """A time of lab.toml cannot be read; the message says how one is written."""


def parse_window(text: str, tz: str) -> Schedule:
    """Parse a maintenance window of lab.toml.

    Args:
        text: ``tue 06:00-08:00``, ``mon-fri 06:00-08:00``, ``2026-11-24 06:00-08:00``.
        tz: whose wall clock.

    Raises:
        BadTime: it is none.
    """
    match = _TEXT.fullmatch(text.strip().lower())
    with suppress(ValueError):  # no such date
        if match is not None and match["starts"] < match["ends"]:
            day = date.fromisoformat(match["date"]) if match["date"] else None
            days = _weekday_range_mask(match["first"], match["last"])
            return schedule(days, day, None, match["starts"], match["ends"], tz)
    raise BadTime(f'"{text}" is no window: write "tue 06:00-08:00" or a date for the day')
