"""`miglab pool audit, usage`: who did what to whom and why; what courses and students used."""

import re
import sys
import time
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from miglab_api.usage import BOM, GroupBy, UsageReport, UsageRow, as_csv
from miglab_hub.cli.pool.output import AsJson, Told, api, asks, cell, table, tell, who
from miglab_hub.pool_api import PoolApi

UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
AGO = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")

app = typer.Typer()
DAY = ["%Y-%m-%d"]


@asks(app)
def audit(
    pool: PoolApi,
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
) -> Told:
    """List who did what, when and why, the newest first."""
    now = time.time()
    answer = pool.call(
        "GET", "/audit", since=moment(since, now), until=moment(until, now), by=by, kind=kind,
        target=target, course=course, everything=everything or None, limit=limit,
    )  # fmt: skip
    return answer, _table(answer)


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
        said = (one[key] for key in ("course", "from_state", "to_state", "reason"))
        words = (who(one["by"]), one["action"], target, *said)
        made.add_row(when, *(cell(word) for word in words))
    return made if entries else "The audit has no such entries."


@app.command()
def usage(
    context: typer.Context,
    since: Annotated[
        datetime | None,
        typer.Option(formats=DAY, help="First day; by default four weeks before the last."),
    ] = None,
    until: Annotated[
        datetime | None, typer.Option(formats=DAY, help="Last day; by default today.")
    ] = None,
    by: Annotated[GroupBy, typer.Option(help="What each row stands for.")] = GroupBy.COURSE,
    csv: Annotated[bool, typer.Option("--csv", help="Print a table for a spreadsheet.")] = False,
    as_json: AsJson = False,
) -> None:
    """Report slice-hours, waits, idle share, reclaims and refusals of your courses."""
    if csv and as_json:
        raise typer.BadParameter("choose one of --csv and --json")
    days = {"since": _day(since), "until": _day(until)}
    answer = api(context).call("GET", "/usage", **days, by=by.value)
    if csv:
        sys.stdout.write(as_csv(UsageReport.model_validate(answer)).removeprefix(BOM))
        return
    tell(answer, _report(answer), as_json)


def _day(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment:%Y-%m-%d}"


def _report(answer: dict[str, Any]) -> RenderableType:
    found = UsageReport.model_validate(answer)
    period = f"{found.since} to {found.until}, {found.timezone}"
    if not found.rows:
        return f"Nothing was used from {period}."
    made = table(
        found.by.value, "slice-hours", "idle", "leases", "median wait", "p95 wait",
        "reclaimed", "refused",
    )  # fmt: skip
    for row in (*found.rows, found.total.model_copy(update={"key": "all"})):
        made.add_row(*(cell(text) for text in _cells(row)))
    return Group(f"from {period}", made)


def _cells(row: UsageRow) -> tuple[str, ...]:
    return (
        row.key,
        f"{row.slice_hours:.1f}",
        "unknown" if row.idle_share is None else f"{row.idle_share:.0%}",
        str(row.leases),
        _minutes(row.wait_p50_s),
        _minutes(row.wait_p95_s),
        str(row.reclaims),
        str(row.refusals),
    )


def _minutes(wait_s: float | None) -> str:
    return "" if wait_s is None else f"{wait_s / 60:.1f} min"
