"""The ends that come whatever anybody does: the lease's, the class's, maintenance.  Pure.

Times of a class and of maintenance are written as people say them, ``tue 12:00``,
``mon-fri 18:00``, ``2026-11-24 06:00-08:00``, and are readings of the wall clock.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from zoneinfo import ZoneInfo

from miglab_hub.reclaimer.policy import KEPT, HardEnd
from miglab_spawner.messages import WarningKind
from miglab_spawner.pool.reserve.calendar import (
    WEEKDAYS,
    Occurrence,
    Rule,
    next_occurrence,
)
from miglab_spawner.pool.reserve.handover import MakesWay

LONG_AGO = date(1970, 1, 1)
TIME_IS_UP = "The lease's time is up. Your files are kept; start again for a new lease."
_DAY = "|".join(WEEKDAYS)
_CLOCK = r"([01]\d|2[0-3]):[0-5]\d"
_TEXT = re.compile(
    rf"(?:(?P<date>\d{{4}}-\d\d-\d\d)|(?P<first>{_DAY})(?:-(?P<last>{_DAY}))?)"
    rf" (?:(?P<starts>{_CLOCK})-)?(?P<ends>{_CLOCK})"
)


class BadTime(ValueError):
    """A time of lab.toml cannot be read; the message says how one is written."""


@dataclass(frozen=True)
class Closings:
    """When the lab, or a course's class, closes.

    Attributes:
        maintenance: windows in which no server holds a slice.
        classes: the ends of each course's classes, by course.
    """

    maintenance: tuple[Rule, ...] = ()
    classes: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)


def window(text: str, tz: str) -> Rule:
    """A maintenance window: ``tue 06:00-08:00`` or ``2026-11-24 06:00-08:00``.

    Raises:
        BadTime: it is none.
    """
    rule = _rule(text, tz, needs_start=True)
    if rule is None:
        raise BadTime(f'"{text}" is no window: write "tue 06:00-08:00" or a date for the day')
    return rule


def class_end(text: str, tz: str) -> Rule:
    """The end of a class: ``tue 12:00``, ``mon-fri 18:00`` or ``2026-11-24 12:00``.

    Raises:
        BadTime: it is none.
    """
    rule = _rule(text, tz, needs_start=False)
    if rule is None:
        raise BadTime(f'"{text}" is no end of a class: write "tue 12:00" or "mon-fri 18:00"')
    return rule


def ends_of(
    course: str,
    held_since: float,
    ends_at: float | None,
    closings: Closings,
    makes_way: MakesWay | None = None,
) -> list[HardEnd]:
    """The hard ends of a lease: of each kind the first since it is held.

    Args:
        course: whose lease it is.
        held_since: since when its server is attached.
        ends_at: its own end.
        closings: when classes end, and the lab is closed.
        makes_way: when its reserved time is up because others need its place.
    """
    ends = []
    if makes_way is not None:
        why = f"{makes_way.why} {KEPT}"
        ends.append(HardEnd(makes_way.at, WarningKind.CLASS_END, why))
    if ends_at is not None:
        ends.append(HardEnd(ends_at, WarningKind.TIME, TIME_IS_UP))
    for rule in closings.classes.get(course, ()):
        if (found := next_occurrence(rule, held_since)) is not None:
            why = f"The class ends at {_wall(found.ends_at, rule.tz)}. {KEPT}"
            ends.append(HardEnd(found.ends_at, WarningKind.CLASS_END, why))
    for rule in closings.maintenance:
        if (found := next_occurrence(rule, held_since)) is not None:
            ends.append(
                HardEnd(found.starts_at, WarningKind.MAINTENANCE, f"{_closed(found, rule)} {KEPT}")
            )
    return ends


def closed_now(closings: Closings, now: float) -> str:
    """Why nothing is granted now; empty outside of every maintenance window."""
    for rule in closings.maintenance:
        found = next_occurrence(rule, now)
        if found is not None and found.starts_at <= now:
            return _closed(found, rule)
    return ""


def _closed(found: Occurrence, rule: Rule) -> str:
    begins, ends = _wall(found.starts_at, rule.tz), _wall(found.ends_at, rule.tz)
    return f"Maintenance of the lab from {begins} to {ends}."


def _wall(at: float, tz: str) -> str:
    return datetime.fromtimestamp(at, ZoneInfo(tz)).strftime("%H:%M")


def _rule(text: str, tz: str, *, needs_start: bool) -> Rule | None:
    found = _TEXT.fullmatch(text.strip().lower())
    if found is None or bool(found["starts"]) is not needs_start:
        return None
    try:
        day = date.fromisoformat(found["date"]) if found["date"] else LONG_AGO
    except ValueError:
        return None
    starts, ends = time.fromisoformat(found["starts"] or "00:00"), time.fromisoformat(found["ends"])
    if starts >= ends:
        return None
    return Rule(_mask(found["first"], found["last"]), day, None, starts, ends, tz)


def _mask(first: str | None, last: str | None) -> int:
    """The bits of the days from first to last, over the weekend if need be; 0 without."""
    if first is None:
        return 0
    begin = WEEKDAYS.index(first)
    days: Sequence[int] = range((WEEKDAYS.index(last or first) - begin) % 7 + 1)
    return sum(1 << (begin + day) % 7 for day in days)
