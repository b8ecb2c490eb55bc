"""`miglab pool status, watch`: every GPU with its slices, and who waits; also as they change.

On a terminal `watch` is the picture of `status`, drawn anew; in a pipe a line for each thing that
changed; with ``--json`` a line with the whole pool for each change.
"""

import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from miglab_api.gpus import GpuView, PoolSnapshot, SliceView
from miglab_api.tickets import TicketView
from miglab_api.wording import server_in_words
from miglab_hub.cli.pool.leases import left
from miglab_hub.cli.pool.output import AsJson, Told, api, asks, cell, shown, table
from miglab_hub.pool_api import PoolApi

app = typer.Typer()


@asks(app)
def status(pool: PoolApi) -> Told:
    """Show every GPU with its slices, and the queue."""
    answer = pool.call("GET", "/pool")
    return answer, picture(PoolSnapshot.model_validate(answer), time.time())


def picture(snapshot: PoolSnapshot, now: float, head: str = "") -> RenderableType:
    """The pool as a person reads it."""
    paused = f"paused: {shown(snapshot.paused)}" if snapshot.paused else ""
    said: list[RenderableType] = [Text(line, "bold") for line in (head, paused) if line]
    waiting = _waiting(snapshot) if snapshot.waiting else Text("The queue is empty.")
    return Group(*said, _slices(snapshot, now), waiting)


def _slices(snapshot: PoolSnapshot, now: float) -> Table:
    made = table("GPU", "slice", "profile", "placement", "state", "lease", "held by", "time left")
    for gpu in snapshot.gpus:
        made.add_row(str(gpu.index), "", "", "", cell(_trouble(gpu)), "", "", "")
        for item in sorted(gpu.slices, key=lambda item: item.start):
            made.add_row(*_slice_row(item, now))
    return made


def _trouble(gpu: GpuView) -> str:
    parts = ["" if gpu.state == "ok" else f"{gpu.state}: {gpu.reason}"]
    parts += [f"draining: {gpu.draining}"] if gpu.draining else []
    parts += [f"only for {gpu.course}"] if gpu.course else []
    return "; ".join(part for part in parts if part)


def _slice_row(item: SliceView, now: float) -> tuple[str | Text, ...]:
    held = item.user or ("somebody" if item.lease is not None else "")
    server = f" ({server_in_words(item.server)})" if item.server else ""
    return (
        "",
        str(item.slice_id),
        item.profile,
        f"{{{item.start}}}:{item.size}",
        item.state.value + (", draining" if item.draining else ""),
        "" if item.lease is None else str(item.lease),
        cell(held + server),
        "" if item.lease is None else left(item.guaranteed_until or 0.0, now),
    )


def _waiting(snapshot: PoolSnapshot) -> Table:
    made = table("position", "ticket", "user", "course", "shape", "waiting")
    for ticket in snapshot.waiting:
        since = f"{(snapshot.at - ticket.created_at) / 60:.0f} min"
        position = "" if ticket.position is None else str(ticket.position)
        who = cell(ticket.user or "somebody")
        made.add_row(position, str(ticket.id), who, cell(ticket.course), ticket.shape, since)
    return made


@app.command()
def watch(context: typer.Context, as_json: AsJson = False) -> None:
    """Show the pool and follow its changes until Ctrl-C."""
    told = api(context).events("/events")
    if as_json:
        for one in told:
            print(json.dumps(one), flush=True)
        return
    snapshots = (PoolSnapshot.model_validate(one) for one in told)
    if sys.stdout.isatty():
        _draw(snapshots)
    else:
        _list(snapshots)


def _draw(snapshots: Iterator[PoolSnapshot]) -> None:
    with Live(console=Console(highlight=False), auto_refresh=False, screen=True) as live:
        for snapshot in snapshots:
            head = f"{_clock(snapshot.at)}; press Ctrl-C to end"
            live.update(picture(snapshot, snapshot.at, head), refresh=True)


def _list(snapshots: Iterator[PoolSnapshot]) -> None:
    before: PoolSnapshot | None = None
    for snapshot in snapshots:
        for line in news(before, snapshot):
            print(f"{_clock(snapshot.at)} {line}", flush=True)
        before = snapshot


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%H:%M:%S %Z}"


def news(before: PoolSnapshot | None, now: PoolSnapshot) -> list[str]:
    """What is new since the last look, a line each; at first all there is.  Pure."""
    lines = []
    if now.paused != (before.paused if before else ""):
        lines.append(f"paused: {now.paused}" if now.paused else "new leases are granted again")
    known, found = dict(_states(before)) if before else {}, dict(_states(now))
    lines += [f"{what}: {said}" for what, said in found.items() if known.get(what) != said]
    lines += [f"{what}: gone" for what in known if what not in found]
    return [shown(line) for line in lines]


def _states(snapshot: PoolSnapshot) -> Iterator[tuple[str, str]]:
    """How each GPU, slice and ticket stands."""
    for gpu in snapshot.gpus:
        draining = f", draining: {gpu.draining}" if gpu.draining else ""
        reason = f": {gpu.reason}" if gpu.reason else ""
        yield f"GPU {gpu.index}", f"{gpu.state}{reason}{draining}"
    for gpu in snapshot.gpus:
        yield from ((f"slice {item.slice_id}", _slice(item)) for item in gpu.slices)
    yield from ((f"ticket {one.id}", _ticket(one)) for one in snapshot.waiting)


def _slice(item: SliceView) -> str:
    where = f"GPU {item.gpu} {{{item.start}}}:{item.size}"
    by = f" by {item.user or 'somebody'}" if item.lease is not None else ""
    return f"{item.profile} on {where}, {item.state}{by}"


def _ticket(one: TicketView) -> str:
    position = "" if one.position is None else f", position {one.position}"
    return f"{one.shape} for {one.user or 'somebody'}, {one.state}{position}"
