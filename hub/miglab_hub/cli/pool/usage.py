"""`miglab pool usage`: what courses, students, shapes and weeks used."""

import sys
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from miglab_api.spreadsheet import BOM, as_csv
from miglab_api.usage import GroupBy, UsageReport, UsageRow
from miglab_hub.cli.pool.output import AsJson, api, cell, table, tell

DAY = ["%Y-%m-%d"]

app = typer.Typer()


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
    tell(answer, as_json, lambda: _report(answer))


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
