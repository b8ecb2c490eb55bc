"""Times at which a class ends or the lab closes, as settings write them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from miglab_pool.model.schedule import Schedule, parse


class BadTime(ValueError):
    """A time of lab.toml cannot be read; the message says how one is written."""


@dataclass(frozen=True)
class Closings:
    """When the lab, or a course's class, closes.

    Attributes:
        maintenance: windows in which no server holds a slice.
        classes: the ends of each course's classes, by course.
    """

    maintenance: tuple[Schedule, ...] = ()
    classes: Mapping[str, tuple[Schedule, ...]] = field(default_factory=dict)


def window(text: str, tz: str) -> Schedule:
    """A maintenance window: ``tue 06:00-08:00`` or ``2026-11-24 06:00-08:00``.

    Raises:
        BadTime: it is none.
    """
    found = parse(text, tz, needs_start=True)
    if found is None:
        raise BadTime(f'"{text}" is no window: write "tue 06:00-08:00" or a date for the day')
    return found


def class_end(text: str, tz: str) -> Schedule:
    """The end of a class: ``tue 12:00``, ``mon-fri 18:00`` or ``2026-11-24 12:00``.

    Raises:
        BadTime: it is none.
    """
    found = parse(text, tz, needs_start=False)
    if found is None:
        raise BadTime(f'"{text}" is no end of a class: write "tue 12:00" or "mon-fri 18:00"')
    return found
