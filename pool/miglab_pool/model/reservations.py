"""A reservation's phases and times, worked out from its row alone."""

import datetime as dt
from functools import lru_cache
from typing import NamedTuple

from miglab_api.reservations import ReservationState
from miglab_pool.gpu.shapes import Shape, parse_shape
from miglab_pool.model.rows import ReservationRow
from miglab_pool.model.schedule import (
    Occurrence,
    Schedule,
    names_of,
    next_occurrence,
    occurrences,
    schedule,
)


@lru_cache(maxsize=1024)
def profiles(shape: str) -> tuple[str, ...]:
    """The profiles of a shape that was resolved when it was asked for."""
    parsed = parse_shape(shape)
    assert isinstance(parsed, Shape)
    return parsed.profiles


class MakesWay(NamedTuple):
    """The end of a lease whose class is over, with the reason for its holder."""

    at: float
    reason: str


Phase = tuple[ReservationState, Occurrence | None]


# -- when ---------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _day(text: str) -> dt.date | None:
    return dt.date.fromisoformat(text) if text else None


def schedule_of(row: ReservationRow) -> Schedule:
    """The row's times."""
    first, last = _day(row.first_date), _day(row.last_date)
    return schedule(row.weekdays, first, last, row.from_time, row.to_time, row.tz)


def phase(row: ReservationRow, at: float, lead_s: float) -> Phase:
    """What a reservation is doing at a moment, by its row and the clock alone.

    Args:
        row: of a reservation that is not cancelled or refused.
        at: the moment.
        lead_s: how long before the start its slots are reserved.

    Returns:
        ``reserved`` from the lead before its start to the end of its grace, ``open`` from then to
        its end, ``planned`` before, each with its time; ``over``, without one, after all.
    """
    times = schedule_of(row)
    found = next(occurrences(times, at, at + lead_s), None)
    if found is None:
        ahead = next_occurrence(times, at)
        return (ReservationState.PLANNED if ahead else ReservationState.OVER), ahead
    is_reserved = at < reserved_until(row, found)
    return (ReservationState.RESERVED if is_reserved else ReservationState.OPEN), found


def reserved_until(row: ReservationRow, found: Occurrence) -> float:
    """When what was not taken up is free for all."""
    return min(found.starts_at + row.grace_s, found.ends_at)


def in_words(row: ReservationRow) -> str:
    """What is reserved and when, for people."""
    days = "+".join(names_of(row.weekdays)) or row.first_date
    when = f"{days} {row.from_time}-{row.to_time} {row.tz}"
    return f"{row.count} times {row.shape} for {row.course}, {when}"
