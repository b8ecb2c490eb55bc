"""`miglab pool reserve, reservations, unreserve`: slots for a class, weekly or once."""

import re
from collections.abc import Iterable
from datetime import date, datetime
from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from miglab_api.reservations import WEEKDAYS, ReservationState, ReservationView
from miglab_hub.cli.pool.output import Told, asks, cell, shown, table
from miglab_hub.pool_api import PoolApi

app = typer.Typer()
UNITS_S = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
STATE_WORDS = {
    ReservationState.PLANNED: "planned",
    ReservationState.RESERVED: "slots reserved",
    ReservationState.OPEN: "in progress",
}


@asks(app, "reserve")
def reserve_(
    pool: PoolApi,
    course: str,
    shape: Annotated[str, typer.Argument(help="The shape that students ask for, such as 1g.5gb.")],
    from_time: Annotated[str, typer.Option("--from", help="Local start time, HH:MM.")],
    to_time: Annotated[str, typer.Option("--to", help="Local end time, HH:MM, on the same day.")],
    tz: Annotated[str, typer.Option(help="Time zone, such as Europe/Berlin.")],
    count: Annotated[int, typer.Option(help="How many slots.", min=1)],
    weekly: Annotated[
        list[str] | None, typer.Option(help="Weekdays, such as tue or mon,wed.")
    ] = None,
    on: Annotated[
        str | None, typer.Option(help="Date of a single reservation, or first day of a weekly one.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Last day of a weekly reservation.")] = None,
    grace: Annotated[
        str, typer.Option(help="How long after the start unclaimed slots are kept.")
    ] = "15m",
    reason: Annotated[str, typer.Option(help="What it is for; staff can read it.")] = "",
) -> Told:
    """Reserve slices for a course, weekly or once."""
    body = {
        "course": course, "shape": shape, "count": count,
        "weekdays": weekdays(weekly or ()), "date": day(on), "until": day(until),
        "from_time": from_time, "to_time": to_time, "tz": tz,
        "grace_s": seconds(grace), "reason": reason,
    }  # fmt: skip
    answer = pool.call("POST", "/reservations", body)
    return answer, sentence(ReservationView.model_validate(answer))


@asks(app)
def reservations(pool: PoolApi) -> Told:
    """List the reservations, the next one first."""
    answer = pool.call("GET", "/reservations")
    made = table("id", "course", "shape", "certain", "taken up", "when", "next", "state")
    for one in map(ReservationView.model_validate, answer):
        counts = (f"{one.certain} of {one.count}", f"{one.drawn} of {one.count}")
        row = (str(one.id), one.course, one.shape, *counts, _when(one), _next(one), _state(one))
        made.add_row(*(cell(each) for each in row))
    return answer, made if answer else "There are no reservations."


@asks(app)
def unreserve(
    pool: PoolApi,
    reservation: int,
    reason: Annotated[str, typer.Option(help="Why; the audit records it.")] = "",
) -> Told:
    """Cancel a reservation; students who have a slice keep it."""
    answer = pool.call("DELETE", f"/reservations/{reservation}", reason=reason)
    return answer, sentence(ReservationView.model_validate(answer))


def seconds(text: str) -> float:
    """``15m``, ``1.5h``, ``90s`` or ``900`` in seconds."""
    match = DURATION.fullmatch(text.strip().lower())
    if match is None or match[2] not in UNITS_S:
        raise typer.BadParameter(f"{text!r} is not a duration; write 15m, 1.5h, 90s or 900.")
    return float(match[1]) * UNITS_S[match[2]]


def weekdays(texts: Iterable[str]) -> list[str]:
    """``tue``, ``Tuesday`` or ``mon,wed`` as the API writes days."""
    words = [word for text in texts for word in re.split(r"[,+ ]+", text.lower()) if word]
    wrong = [word for word in words if word[:3] not in WEEKDAYS]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r} is not a weekday; write {', '.join(WEEKDAYS)}.")
    return [day for day in WEEKDAYS if day in {word[:3] for word in words}]


def day(text: str | None) -> str | None:
    """A date as the API writes it."""
    try:
        return text and date.fromisoformat(text).isoformat()
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a date; write 2026-07-14.") from None


def sentence(one: ReservationView) -> str:
    """One reservation, for people."""
    certain = one.outlook or f"All {one.count} are certain."
    return shown(
        f"reservation {one.id}: {one.count} × {one.shape} for {one.course}, {_when(one)}: "
        f"{_state(one)}{f'; next {_next(one)}' if one.starts_at else ''}"
        f"{f'. {certain}' if one.state in STATE_WORDS else ''}"
    )


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
