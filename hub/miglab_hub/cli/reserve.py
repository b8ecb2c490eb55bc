"""`miglab pool reserve`, `reservations`: what people type becomes a request, an answer a table."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

import typer
from rich.table import Table

from miglab_spawner.messages import ReservationState, ReservationView
from miglab_spawner.pool.calendar import WEEKDAYS

UNITS_S = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
STATE_WORDS = {
    ReservationState.PLANNED: "planned",
    ReservationState.KEPT: "places kept",
    ReservationState.OPEN: "takes place",
}


def seconds(text: str) -> float:
    """``15m``, ``1.5h``, ``90s`` or ``900`` in seconds."""
    match = DURATION.fullmatch(text.strip().lower())
    if match is None or match[2] not in UNITS_S:
        raise typer.BadParameter(f"{text!r} is no duration: 15m, 1.5h, 90s or 900 are.")
    return float(match[1]) * UNITS_S[match[2]]


def weekdays(texts: Iterable[str]) -> list[str]:
    """``tue``, ``Tuesday`` or ``mon,wed`` as the API writes days."""
    words = [word for text in texts for word in re.split(r"[,+ ]+", text.lower()) if word]
    wrong = [word for word in words if word[:3] not in WEEKDAYS]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r} is no weekday: {', '.join(WEEKDAYS)} are.")
    return [day for day in WEEKDAYS if day in {word[:3] for word in words}]


def sentence(one: ReservationView) -> str:
    """One reservation, for people."""
    return (
        f"reservation {one.id}: {one.count} times {one.shape} for {one.course}, {_when(one)}: "
        f"{_state(one)}{f'; next {_next(one)}' if one.starts_at else ''}"
    )


def fill(table: Table, found: Sequence[ReservationView]) -> None:
    """A row for each: id, course, shape, taken, when, next, state."""
    for one in found:
        taken = f"{one.drawn} of {one.count}"
        row = (str(one.id), one.course, one.shape, taken, _when(one), _next(one), _state(one))
        table.add_row(*(_plain(cell) for cell in row))


def _when(one: ReservationView) -> str:
    days = "+".join(one.weekdays) or str(one.date)
    until = f" until {one.until}" if one.until else ""
    return f"{days} {one.from_time}-{one.to_time} {one.tz}{until}"


def _next(one: ReservationView) -> str:
    """When it begins, by a clock of its own time zone."""
    if one.starts_at is None:
        return ""
    return f"{datetime.fromtimestamp(one.starts_at, ZoneInfo(one.tz)):%Y-%m-%d %H:%M}"


def _state(one: ReservationView) -> str:
    return STATE_WORDS.get(one.state, one.state.value)


def _plain(text: str) -> str:
    """Text as a terminal may show it: no markup, no control characters."""
    return "".join(sign if sign.isprintable() else "?" for sign in text).replace("[", r"\[")
