"""`miglab pool audit`: who did what to whom, when and why."""

import re
import time
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from miglab_hub.cli.pool.output import AsJson, api, cell, table, tell

UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
AGO = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")

app = typer.Typer()


@app.command()
def audit(
    context: typer.Context,
    since: Annotated[
        str | None, typer.Option(help="From this time on: 90m, 2h or 3d ago, or 2026-11-24 10:00.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Before this time; written like --since.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Only actions of this person.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="Only one kind of object: gpu, slice, lease, ticket, reservation …"),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Only this object: its number, or a GPU's UUID.")
    ] = None,
    course: Annotated[str | None, typer.Option(help="Only what concerns this course.")] = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Also what the pool did by itself.")
    ] = False,
    limit: Annotated[
        int, typer.Option(help="Show at most this many, the newest first.", min=1, max=1000)
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """List who did what, when and why, the newest first."""
    now = time.time()
    answer = api(context).call(
        "GET", "/audit", since=moment(since, now), until=moment(until, now), by=by, kind=kind,
        target=target, course=course, everything=everything or None, limit=limit,
    )  # fmt: skip
    tell(answer, as_json, lambda: _table(answer))


def moment(text: str | None, now: float) -> float | None:
    """A time as people type it, in seconds since the epoch; local unless it names a zone.

    Args:
        text: ``90m``, ``2h``, ``3d``, ``1w`` ago, or ``2026-11-24``, ``2026-11-24 10:00``.
        now: seconds since the epoch.
    """
    if text is None:
        return None
    if (ago := AGO.fullmatch(text.strip())) is not None:
        return max(0.0, now - float(ago[1]) * UNITS_S[ago[2]])
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time; write 90m, 2h, 3d, 2026-11-24 or 2026-11-24T10:00."
        ) from None


def _table(entries: list[dict[str, Any]]) -> RenderableType:
    made = table("when", "who", "did", "what", "course", "from", "to", "why")
    for one in entries:
        when = f"{datetime.fromtimestamp(one['at']).astimezone():%Y-%m-%d %H:%M:%S %Z}"
        target = f"{one['kind']} {one['target']}"
        words = (
            one["by"],
            one["action"],
            target,
            one["course"],
            one["from_state"],
            one["to_state"],
        )
        made.add_row(when, *(cell(word) for word in (*words, one["reason"])))
    return made if entries else "The audit has no such entries."
