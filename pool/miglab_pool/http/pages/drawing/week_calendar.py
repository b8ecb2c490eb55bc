"""A week of reservations as a timetable: which block lies where.  Pure.

Times are drawn as the clock on the wall of one time zone shows them; a class that runs over
midnight there is two blocks.  Blocks of one day that overlap lie side by side, in lanes.
"""

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from zoneinfo import ZoneInfo

from miglab_api.reservations import ReservationState, ReservationView
from miglab_pool.model.schedule import Occurrence, Schedule, mask_of, occurrences, schedule

QUARTERS = 96  # of an hour, in a day
DAY_BEGINS, DAY_ENDS = 8, 18  # the hours that are always drawn
MOST_LANES = 12
STATE_WORDS = {
    ReservationState.PLANNED: "planned",
    ReservationState.RESERVED: "slots reserved",
    ReservationState.OPEN: "in progress",
    ReservationState.OVER: "over",
    ReservationState.CANCELLED: "cancelled",
    ReservationState.REFUSED: "refused",
}


@dataclass(frozen=True, slots=True)
class Block:
    """One time that a reservation takes place.

    Attributes:
        first: the quarter of an hour in which it begins, counted from midnight.
        quarters: how many it touches.
        lane: beside how many it lies.
        times: from when to when, as the clock shows it.
        state: what it is doing at that time, if this is the one in force; else planned or over.
    """

    reservation: ReservationView
    first: int
    quarters: int
    times: str
    state: ReservationState
    lane: int = 0


@dataclass(frozen=True, slots=True)
class CalendarDay:
    """One day of the week; ``lanes``: how many blocks lie side by side at most."""

    date: dt.date
    is_today: bool
    blocks: tuple[Block, ...]
    lanes: int


@dataclass(frozen=True, slots=True)
class Week:
    """A week, Monday first.

    Attributes:
        from_hour: the first hour that is drawn.
        to_hour: the hour after the last.
    """

    days: tuple[CalendarDay, ...]
    from_hour: int
    to_hour: int
    zone: str

    @property
    def monday(self) -> dt.date:
        """Its first day."""
        return self.days[0].date


def monday_of(day: dt.date) -> dt.date:
    """The Monday of a day's week."""
    return day - dt.timedelta(days=day.weekday())


def schedule_of(one: ReservationView) -> Schedule:
    """When it takes place."""
    days = mask_of(one.weekdays)
    return schedule(days, one.date, one.until, one.from_time, one.to_time, one.tz)


def week(found: Iterable[ReservationView], monday: dt.date, zone: str, now: float) -> Week:
    """The timetable of a week.

    Args:
        found: what is reserved.
        monday: the week's first day.
        zone: the time zone whose clock is drawn; one that this machine knows.
        now: seconds since the epoch.
    """
    clock = ZoneInfo(zone)
    dates = [monday + dt.timedelta(days=n) for n in range(7)]
    since, until = (_midnight(day, clock) for day in (monday, monday + dt.timedelta(days=7)))
    blocks: dict[dt.date, list[Block]] = {day: [] for day in dates}
    for one in found:
        for time in occurrences(schedule_of(one), since, until):
            for day, block in _blocks(one, time, clock, now):
                if day in blocks:
                    blocks[day].append(block)
    today = dt.datetime.fromtimestamp(now, clock).date()
    days = tuple(_day(date, blocks[date], date == today) for date in dates)
    first = [block.first // 4 for day in days for block in day.blocks]
    last = [-(-(block.first + block.quarters) // 4) for day in days for block in day.blocks]
    return Week(days, min([DAY_BEGINS, *first]), max([DAY_ENDS, *last]), zone)


def _midnight(day: dt.date, clock: ZoneInfo) -> float:
    return dt.datetime.combine(day, dt.time(), clock).timestamp()


def _blocks(
    one: ReservationView, time: Occurrence, clock: ZoneInfo, now: float
) -> Iterable[tuple[dt.date, Block]]:
    """A time as blocks, one for each day of the drawn clock that it touches."""
    starts, ends = (dt.datetime.fromtimestamp(at, clock) for at in time)
    times = f"{starts:%H:%M}–{ends:%H:%M}"
    state = _state(one, time, now)
    day = starts.date()
    while day <= ends.date():
        first = _quarter(starts) if day == starts.date() else 0
        last = -(-_minutes(ends) // 15) if day == ends.date() else QUARTERS
        if last > first:
            yield day, Block(one, first, last - first, times, state)
        day += dt.timedelta(days=1)


def _minutes(at: dt.datetime) -> int:
    return at.hour * 60 + at.minute


def _quarter(at: dt.datetime) -> int:
    return _minutes(at) // 15


def _state(one: ReservationView, time: Occurrence, now: float) -> ReservationState:
    if one.starts_at == time.starts_at:
        return one.state
    return ReservationState.OVER if time.ends_at <= now else ReservationState.PLANNED


def _day(date: dt.date, blocks: Sequence[Block], is_today: bool) -> CalendarDay:
    """The blocks in lanes: each in the first that is free where it begins."""
    ends: list[int] = []
    placed = []
    for block in sorted(blocks, key=lambda block: (block.first, -block.quarters)):
        free = (lane for lane, end in enumerate(ends) if end <= block.first)
        lane = min(next(free, len(ends)), MOST_LANES - 1)
        ends[lane : lane + 1] = [block.first + block.quarters]
        placed.append(replace(block, lane=lane))
    return CalendarDay(date, is_today, tuple(placed), max(1, len(ends)))
