"""`miglab pool status, watch, leases, audit, usage`: how the pool stands, and what was done.

On a terminal `watch` is the picture of `status`, drawn anew; in a pipe a line for each thing that
changed; with ``--json`` a line with the whole pool for each change.
"""

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from miglab_api.gpus import GpuView, PoolSnapshot, SliceView
from miglab_api.plain_text import printable
from miglab_api.tickets import Purpose, TicketView
from miglab_api.usage import BOM, GroupBy, UsageReport, UsageRow, to_csv
from miglab_api.wording import server_in_words
from miglab_hub.cli.pool.output import (
    AsJson,
    CommandOutput,
    api,
    cell,
    person_name,
    pool_command,
    print_answer,
    table,
)
from miglab_hub.pool_api import PoolApi

UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
AGO = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")
DAY = ["%Y-%m-%d"]

app = typer.Typer()


@pool_command(app)
def status(pool: PoolApi) -> CommandOutput:
    """Show every GPU with its slices, and the queue."""
    answer = pool.call("GET", "/pool")
    return answer, draw_pool(PoolSnapshot.model_validate(answer), time.time())


def draw_pool(snapshot: PoolSnapshot, now: float, head: str = "") -> RenderableType:
    """Return the pool's GPUs, slices and queue as tables."""
    paused = f"paused: {printable(snapshot.paused)}" if snapshot.paused else ""
    headings: list[RenderableType] = [Text(line, "bold") for line in (head, paused) if line]
    waiting = _waiting(snapshot) if snapshot.waiting else Text("The queue is empty.")
    return Group(*headings, _slices(snapshot, now), waiting)


def _slices(snapshot: PoolSnapshot, now: float) -> Table:
    offers = {offer.lease: offer for offer in snapshot.offered}
    slice_table = table(
        "GPU", "slice", "profile", "placement", "state", "lease", "held by", "time left"
    )
    for gpu in snapshot.gpus:
        slice_table.add_row(str(gpu.index), "", "", "", cell(_gpu_problems(gpu)), "", "", "")
        for item in sorted(gpu.slices, key=lambda item: item.start):
            slice_table.add_row(*_slice_row(item, now, offers.get(item.lease or 0)))
    return slice_table


def _gpu_problems(gpu: GpuView) -> str:
    parts = ["" if gpu.state == "ok" else f"{gpu.state}: {gpu.reason}"]
    parts += [f"draining: {gpu.draining}"] if gpu.draining else []
    parts += [f"only for {gpu.course}"] if gpu.course else []
    return "; ".join(part for part in parts if part)


def _slice_row(item: SliceView, now: float, offer: TicketView | None) -> tuple[str | Text, ...]:
    holder = item.user or ("somebody" if item.lease is not None else "")
    server = f" ({server_in_words(item.server)})" if item.server else ""
    state = item.state.value if offer is None else "offered"
    until = item.guaranteed_until if offer is None else offer.expires_at
    return (
        "",
        str(item.slice_id),
        item.profile,
        f"{{{item.start}}}:{item.size}",
        state + (", draining" if item.draining else ""),
        "" if item.lease is None else str(item.lease),
        cell(holder + server),
        "" if item.lease is None else _time_left(until or 0.0, now),
    )


def _waiting(snapshot: PoolSnapshot) -> Table:
    queue_table = table("position", "ticket", "user", "course", "shape", "waiting")
    for ticket in snapshot.waiting:
        since = f"{(snapshot.at - ticket.created_at) / 60:.0f} min"
        position = "" if ticket.position is None else str(ticket.position)
        user = cell(ticket.user or "somebody")
        queue_table.add_row(
            position, str(ticket.id), user, cell(ticket.course), ticket.shape, since
        )
    return queue_table


@app.command()
def watch(context: typer.Context, as_json: AsJson = False) -> None:
    """Show the pool and follow its changes until Ctrl-C."""
    events = api(context).events("/events")
    if as_json:
        for event in events:
            print(json.dumps(event), flush=True)
        return
    snapshots = (PoolSnapshot.model_validate(event) for event in events)
    if sys.stdout.isatty():
        _redraw(snapshots)
    else:
        _print_changes(snapshots)


def _redraw(snapshots: Iterator[PoolSnapshot]) -> None:
    with Live(console=Console(highlight=False), auto_refresh=False, screen=True) as live:
        for snapshot in snapshots:
            head = f"{_clock(snapshot.at)}; press Ctrl-C to end"
            live.update(draw_pool(snapshot, snapshot.at, head), refresh=True)


def _print_changes(snapshots: Iterator[PoolSnapshot]) -> None:
    before: PoolSnapshot | None = None
    for snapshot in snapshots:
        for line in changed_lines(before, snapshot):
            print(f"{_clock(snapshot.at)} {line}", flush=True)
        before = snapshot


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%H:%M:%S %Z}"


def changed_lines(before: PoolSnapshot | None, now: PoolSnapshot) -> list[str]:
    """Return a line for each difference between two snapshots; without a first, for all.  Pure."""
    lines = []
    if now.paused != (before.paused if before else ""):
        lines.append(f"paused: {now.paused}" if now.paused else "new leases are granted again")
    states_before, states = dict(_states(before)) if before else {}, dict(_states(now))
    lines += [
        f"{subject}: {state}"
        for subject, state in states.items()
        if states_before.get(subject) != state
    ]
    lines += [f"{subject}: gone" for subject in states_before if subject not in states]
    return [printable(line) for line in lines]


def _states(snapshot: PoolSnapshot) -> Iterator[tuple[str, str]]:
    """Yield name and state of each GPU, slice and ticket."""
    for gpu in snapshot.gpus:
        draining = f", draining: {gpu.draining}" if gpu.draining else ""
        reason = f": {gpu.reason}" if gpu.reason else ""
        yield f"GPU {gpu.index}", f"{gpu.state}{reason}{draining}"
    offered = {offer.lease for offer in snapshot.offered}
    for item in (item for gpu in snapshot.gpus for item in gpu.slices):
        yield f"slice {item.slice_id}", _describe_slice(item, is_offered=item.lease in offered)
    yield from ((f"ticket {ticket.id}", _describe_ticket(ticket)) for ticket in snapshot.waiting)


def _describe_slice(item: SliceView, *, is_offered: bool) -> str:
    placement = f"GPU {item.gpu} {{{item.start}}}:{item.size}"
    student = item.user or "somebody"
    if is_offered:
        return f"{item.profile} on {placement}, offered to {student}"
    holder = f" by {student}" if item.lease is not None else ""
    return f"{item.profile} on {placement}, {item.state}{holder}"


def _describe_ticket(ticket: TicketView) -> str:
    position = "" if ticket.position is None else f", position {ticket.position}"
    return f"{ticket.shape} for {ticket.user or 'somebody'}, {ticket.state}{position}"


@pool_command(app)
def leases(
    pool: PoolApi,
    user: Annotated[str | None, typer.Option(help="Only this user's leases.")] = None,
) -> CommandOutput:
    """List the live leases."""
    answer = pool.call("GET", "/leases", user=user)
    lease_table = table("lease", "user", "server", "course", "shape", "state", "guaranteed")
    for lease in answer:
        is_borrow = lease["purpose"] == Purpose.BORROW
        shown_lease = {**lease, "server": server_in_words(lease["server"])} if is_borrow else lease
        cells = (shown_lease[key] for key in ("id", "user", "server", "course", "shape", "state"))
        lease_table.add_row(*(cell(str(text)) for text in cells), guarantee_left(lease))
    return answer, lease_table


def guarantee_left(lease: Mapping[str, Any]) -> str:
    """Return how long a lease is still guaranteed, from the service's answer."""
    until = lease["ends_at"] or lease["guaranteed_until"]
    return _time_left(until, time.time(), lease["ends_at"])


def _time_left(until: float, now: float, ends_at: float | None = None) -> str:
    """Return the time left until a moment, in words."""
    if until <= now and ends_at is None:
        return "open"
    return f"{max(0.0, until - now) / 60:.0f} min{'' if ends_at is None else ', then it ends'}"


# -- what was done, and what was used --------------------------------------------------------------


@pool_command(app)
def audit(
    pool: PoolApi,
    since: Annotated[
        str | None, typer.Option(help="From this time on: 90m, 2h or 3d ago, or 2026-11-24 10:00.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Before this time; written like --since.")
    ] = None,
    person: Annotated[str | None, typer.Option("--by", help="Only actions of this person.")] = None,
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
) -> CommandOutput:
    """List who did what, when and why, the newest first."""
    now = time.time()
    answer = pool.call(
        "GET", "/audit", since=moment(since, now), until=moment(until, now), by=person, kind=kind,
        target=target, course=course, everything=everything or None, limit=limit,
    )  # fmt: skip
    return answer, _audit_table(answer)


def moment(text: str | None, now: float) -> float | None:
    """Parse a time to seconds since the epoch; local unless it names a zone.

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


def _audit_table(entries: list[dict[str, Any]]) -> RenderableType:
    audit_table = table("when", "who", "did", "what", "course", "from", "to", "why")
    for entry in entries:
        time_text = f"{datetime.fromtimestamp(entry['at']).astimezone():%Y-%m-%d %H:%M:%S %Z}"
        target = f"{entry['kind']} {entry['target']}"
        details = (entry[key] for key in ("course", "from_state", "to_state", "reason"))
        texts = (person_name(entry["by"]), entry["action"], target, *details)
        audit_table.add_row(time_text, *(cell(text) for text in texts))
    return audit_table if entries else "The audit has no such entries."


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
    grouping: Annotated[
        GroupBy, typer.Option("--by", help="What each row stands for.")
    ] = GroupBy.COURSE,
    csv: Annotated[bool, typer.Option("--csv", help="Print a table for a spreadsheet.")] = False,
    as_json: AsJson = False,
) -> None:
    """Report slice-hours, waits, idle share, reclaims and refusals of your courses."""
    if csv and as_json:
        raise typer.BadParameter("choose one of --csv and --json")
    days = {"since": _day(since), "until": _day(until)}
    answer = api(context).call("GET", "/usage", **days, by=grouping.value)
    if csv:
        sys.stdout.write(to_csv(UsageReport.model_validate(answer)).removeprefix(BOM))
        return
    print_answer(answer, _usage_report(answer), as_json)


def _day(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment:%Y-%m-%d}"


def _usage_report(answer: dict[str, Any]) -> RenderableType:
    report = UsageReport.model_validate(answer)
    period = f"{report.since} to {report.until}, {report.timezone}"
    if not report.rows:
        return f"Nothing was used from {period}."
    usage_table = table(
        report.group_by.value, "slice-hours", "idle", "leases", "median wait", "p95 wait",
        "reclaimed", "refused",
    )  # fmt: skip
    for row in (*report.rows, report.total.model_copy(update={"key": "all"})):
        usage_table.add_row(*(cell(text) for text in _cells(row)))
    return Group(f"from {period}", usage_table)


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
