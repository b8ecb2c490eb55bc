"""Times at which a class ends or the lab closes, as settings write them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time

from miglab_api.reservations import WEEKDAYS
from miglab_pool.model.schedule import Rule

LONG_AGO = date(1970, 1, 1)
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
