"""The reservations by the times at which they take place: a decision looks at the near ones alone.

Next month's reservations cannot change what is granted today.  Looking through them for each moment
that a decision asks about would make it slower with every reservation.
"""

import datetime as dt
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from functools import cached_property, lru_cache

from miglab_pool.ledger.rows import ReservationRow
from miglab_pool.schedule import (
    DAY_S,
    Occurrence,
    Schedule,
    local_day,
    occurrence,
    occurrences,
    schedule,
)

LONGEST_S = DAY_S + 3600.0  # of one time: a local day on which the clocks go back


@lru_cache(maxsize=4096)
def _day(text: str) -> dt.date | None:
    return dt.date.fromisoformat(text) if text else None


def schedule_of(row: ReservationRow) -> Schedule:
    """Return when a reservation takes place."""
    first, last = _day(row.first_date), _day(row.last_date)
    return schedule(row.weekdays, first, last, row.from_time, row.to_time, row.tz)


class ReservationTimes(dict[int, ReservationRow]):
    """The live reservations by number, as `PoolView` has them; never changed."""

    def __init__(self, rows: Mapping[int, ReservationRow]) -> None:
        super().__init__(rows)
        self._weekly = [(schedule_of(row), row) for row in rows.values() if row.weekdays]
        single: list[tuple[Occurrence, int]] = []
        for row in rows.values():
            rule = schedule_of(row)
            if not row.weekdays and (time := occurrence(rule, rule.first)):
                single.append((time, row.id))
        self._single = sorted(single)
        self._starts = [time.starts_at for time, _ in self._single]

    def between(self, since: float, until: float) -> list[ReservationRow]:
        """Return the reservations that take place between two moments, both included."""
        first, last = (
            bisect_left(self._starts, since - LONGEST_S),
            bisect_right(self._starts, until),
        )
        near = (self[number] for time, number in self._single[first:last] if time.ends_at > since)
        weekly = (row for rule, row in self._weekly if any(occurrences(rule, since, until)))
        return [*near, *weekly]

    def over_by(self, at: float) -> list[ReservationRow]:
        """Return the reservations that do not take place after a moment, nor the day before it."""
        started = self._single[: bisect_right(self._starts, at)]
        yesterday = local_day(at - 2 * DAY_S, "UTC")
        weekly = (row for rule, row in self._weekly if rule.last and rule.last < yesterday)
        return [*(self[number] for time, number in started if time.ends_at <= at), *weekly]

    @cached_property
    def in_progress(self) -> list[ReservationRow]:
        """The reservations whose recorded phase is not that they are planned."""
        return [row for row in self.values() if row.state != "planned"]

    @cached_property
    def keys_reserved(self) -> frozenset[tuple[str, str]]:
        """The courses and shapes that anything is reserved for."""
        return frozenset((row.course, row.shape) for row in self.values())
