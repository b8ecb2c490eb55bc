"""`miglab pool reserve, reservations, unreserve`: slots for a class, weekly or once."""

import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import Annotated
from zoneinfo import ZoneInfo

import typer
from rich.console import RenderableType
from rich.table import Table

from miglab_api.reservations import WEEKDAYS, ReservationState, ReservationView
from miglab_hub.cli.pool.output import AsJson, api, cell, shown, table, tell

app = typer.Typer()
UNITS_S = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
STATE_WORDS = {
    ReservationState.PLANNED: "planned",
    ReservationState.RESERVED: "slots reserved",
    ReservationState.OPEN: "in progress",
}


@app.command("reserve")
def reserve_(
    context: typer.Context,
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
    as_json: AsJson = False,
) -> None:
    """Reserve slices for a course, weekly or once."""
    body = {
        "course": course, "shape": shape, "count": count,
        "weekdays": weekdays(weekly or ()), "date": day(on), "until": day(until),
        "from_time": from_time, "to_time": to_time, "tz": tz,
        "grace_s": seconds(grace), "reason": reason,
    }  # fmt: skip
    answer = api(context).call("POST", "/reservations", body)
    tell(answer, as_json, lambda: sentence(ReservationView.model_validate(answer)))


@app.command()
def reservations(context: typer.Context, as_json: AsJson = False) -> None:
    """List the reservations, the next one first."""
    answer = api(context).call("GET", "/reservations")

    def words() -> RenderableType:
        made = table("id", "course", "shape", "certain", "taken up", "when", "next", "state")
        fill(made, [ReservationView.model_validate(one) for one in answer])
        return made if answer else "There are no reservations."

    tell(answer, as_json, words)


@app.command()
def unreserve(
    context: typer.Context,
    reservation: int,
    reason: Annotated[str, typer.Option(help="Why; the audit records it.")] = "",
    as_json: AsJson = False,
) -> None:
    """Cancel a reservation; students who have a slice keep it."""
    answer = api(context).call("DELETE", f"/reservations/{reservation}", reason=reason)
    tell(answer, as_json, lambda: sentence(ReservationView.model_validate(answer)))


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


def fill(table: Table, found: Sequence[ReservationView]) -> None:
    """A row for each: id, course, shape, certain, taken, when, next, state."""
    for one in found:
        taken = f"{one.drawn} of {one.count}"
        certain = f"{one.certain} of {one.count}"
        now = (certain, taken, _when(one), _next(one), _state(one))
        row = (str(one.id), one.course, one.shape, *now)
        table.add_row(*(cell(each) for each in row))


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
