"""`miglab pool reserve, reservations, unreserve`: slots for a class, weekly or once."""

import re
from collections.abc import Iterable
from datetime import date, datetime
from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from miglab_api.plain_text import printable
from miglab_api.reservations import WEEKDAYS, ReservationState, ReservationView
from miglab_hub.cli.pool.output import CommandOutput, cell, pool_command, table
from miglab_hub.pool_api import PoolApi

app = typer.Typer()
UNITS_S = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
STATE_WORDS = {
    ReservationState.PLANNED: "planned",
    ReservationState.RESERVED: "slots reserved",
    ReservationState.OPEN: "in progress",
}


@pool_command(app, "reserve")
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
) -> CommandOutput:
    """Reserve slices for a course, weekly or once."""
    body = {
        "course": course, "shape": shape, "count": count,
        "weekdays": weekdays(weekly or ()), "date": day(on), "until": day(until),
        "from_time": from_time, "to_time": to_time, "tz": tz,
        "grace_s": seconds(grace), "reason": reason,
    }  # fmt: skip
    answer = pool.call("POST", "/reservations", body)
    return answer, describe_reservation(ReservationView.model_validate(answer))


@pool_command(app)
def reservations(pool: PoolApi) -> CommandOutput:
    """List the reservations, the next one first."""
    answer = pool.call("GET", "/reservations")
    reservation_table = table(
        "id", "course", "shape", "certain", "taken up", "when", "next", "state"
    )
    for reservation in map(ReservationView.model_validate, answer):
        counts = (
            f"{reservation.certain} of {reservation.count}",
            f"{reservation.in_use} of {reservation.count}",
        )
        row = (
            str(reservation.id),
            reservation.course,
            reservation.shape,
            *counts,
            _dates(reservation),
            _next_start(reservation),
            _state_in_words(reservation),
        )
        reservation_table.add_row(*(cell(text) for text in row))
    return answer, reservation_table if answer else "There are no reservations."


@pool_command(app)
def unreserve(
    pool: PoolApi,
    reservation: int,
    reason: Annotated[str, typer.Option(help="Why; the audit records it.")] = "",
) -> CommandOutput:
    """Cancel a reservation; students who have a slice keep it."""
    answer = pool.call("DELETE", f"/reservations/{reservation}", reason=reason)
    return answer, describe_reservation(ReservationView.model_validate(answer))


def seconds(text: str) -> float:
    """Convert ``15m``, ``1.5h``, ``90s`` or ``900`` to seconds."""
    match = DURATION.fullmatch(text.strip().lower())
    if match is None or match[2] not in UNITS_S:
        raise typer.BadParameter(f"{text!r} is not a duration; write 15m, 1.5h, 90s or 900.")
    return float(match[1]) * UNITS_S[match[2]]


def weekdays(texts: Iterable[str]) -> list[str]:
    """Convert ``tue``, ``Tuesday`` or ``mon,wed`` to the API's weekdays."""
    day_names = [name for text in texts for name in re.split(r"[,+ ]+", text.lower()) if name]
    wrong = [name for name in day_names if name[:3] not in WEEKDAYS]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r} is not a weekday; write {', '.join(WEEKDAYS)}.")
    return [day for day in WEEKDAYS if day in {name[:3] for name in day_names}]


def day(text: str | None) -> str | None:
    """Return a date as the API writes it."""
    try:
        return text and date.fromisoformat(text).isoformat()
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a date; write 2026-07-14.") from None


def describe_reservation(reservation: ReservationView) -> str:
    """Describe one reservation in a sentence."""
    certain = reservation.outlook or f"All {reservation.count} are certain."
    slots = f"{reservation.count} × {reservation.shape}"
    upcoming = f"; next {_next_start(reservation)}" if reservation.starts_at else ""
    outlook = f". {certain}" if reservation.state in STATE_WORDS else ""
    return printable(
        f"reservation {reservation.id}: {slots} for {reservation.course}, {_dates(reservation)}: "
        f"{_state_in_words(reservation)}{upcoming}{outlook}"
    )


def _dates(reservation: ReservationView) -> str:
    days = "+".join(reservation.weekdays) or str(reservation.date)
    until = f" until {reservation.until}" if reservation.until else ""
    return f"{days} {reservation.from_time}-{reservation.to_time} {reservation.tz}{until}"


def _next_start(reservation: ReservationView) -> str:
    """Return when it next begins, in its own time zone; empty if never."""
    if reservation.starts_at is None:
        return ""
    return (
        f"{datetime.fromtimestamp(reservation.starts_at, ZoneInfo(reservation.tz)):%Y-%m-%d %H:%M}"
    )


def _state_in_words(reservation: ReservationView) -> str:
    return STATE_WORDS.get(reservation.state, reservation.state.value)
