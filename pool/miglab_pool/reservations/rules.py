"""A reservation's phases and times, worked out from its row alone.

Which reservations are in force at a moment, and how much of each is left.  Pure.
"""

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from miglab_api.leases import LeaseState
from miglab_api.reservations import ReservationState
from miglab_pool.ledger.rows import LeaseRow, ReservationRow
from miglab_pool.schedule import (
    Occurrence,
    Schedule,
    next_occurrence,
    occurrences,
    schedule,
    weekday_names,
)

RELEASING = LeaseState.RELEASING
Phase = tuple[ReservationState, Occurrence | None]
Key = tuple[str, str]  # course and shape


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
    days = "+".join(weekday_names(row.weekdays)) or row.first_date
    when = f"{days} {row.from_time}-{row.to_time} {row.tz}"
    return f"{row.count} times {row.shape} for {row.course}, {when}"


@dataclass(frozen=True)
class InForce:
    """A reservation that keeps places or takes place at a moment.

    Attributes:
        row: what is reserved.
        time: when.
        is_reserved: whether its slots are kept.
        has_begun: whether it takes place.
        left: how many leases its course has not drawn.
    """

    row: ReservationRow
    time: Occurrence
    is_reserved: bool
    has_begun: bool
    left: int

    @property
    def key(self) -> Key:
        """What a lease must be of to be drawn from it: the course and the shape."""
        return self.row.course, self.row.shape


def undrawn(rows: Iterable[ReservationRow], at: float, lead_s: float) -> list[InForce]:
    """The reservations in force at a moment if no lease lives, those that began first in front."""
    phases = ((row, *phase(row, at, lead_s)) for row in rows)
    in_time = [
        InForce(row, time, state is ReservationState.RESERVED, time.starts_at <= at, row.count)
        for row, state, time in phases
        if time is not None and state in (ReservationState.RESERVED, ReservationState.OPEN)
    ]
    return sorted(in_time, key=lambda one: (one.time, one.row.id))


def drawn(leases: Iterable[LeaseRow]) -> Counter[Key]:
    """How many people of each course draw on its reservations of each shape, if these live."""
    held = ((one.course, one.shape, one.user) for one in leases if one.state != RELEASING)
    return Counter((course, shape) for course, shape, _ in set(held))


def less_drawn(ahead: Sequence[InForce], drawn: Mapping[Key, int]) -> list[InForce]:
    """Who holds the shape draws on the course's reservations, the earliest first."""
    rest, less = Counter(drawn), []
    for one in ahead:
        mine = min(rest[one.key], one.row.count)
        rest[one.key] -= mine
        less.append(replace(one, left=one.row.count - mine))
    return less
