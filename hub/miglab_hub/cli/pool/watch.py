"""`miglab pool watch`: the pool as it changes.

On a terminal it is the picture of `status`, drawn anew; in a pipe a line for each thing that
changed; with ``--json`` a line with the whole pool for each change.
"""

import json
import sys
from collections.abc import Iterator
from datetime import datetime

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from miglab_api.gpus import PoolSnapshot, SliceView
from miglab_api.tickets import TicketView
from miglab_hub.cli.pool.output import AsJson, api, shown
from miglab_hub.cli.pool.status import picture

app = typer.Typer()


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
            live.update(_headed(snapshot), refresh=True)


def _headed(snapshot: PoolSnapshot) -> RenderableType:
    return picture(snapshot, snapshot.at, head=f"{_clock(snapshot.at)}; press Ctrl-C to end")


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
    lines += _changes(_gpus(before), _gpus(now))
    lines += _changes(_slices(before), _slices(now))
    lines += _changes(_waiting(before), _waiting(now))
    return [shown(line) for line in lines]


def _changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
    changed = [f"{what}: {said}" for what, said in now.items() if before.get(what) != said]
    return changed + [f"{what}: gone" for what in before if what not in now]


def _gpus(snapshot: PoolSnapshot | None) -> dict[str, str]:
    found = {}
    for gpu in snapshot.gpus if snapshot else ():
        draining = f", draining: {gpu.draining}" if gpu.draining else ""
        found[f"GPU {gpu.index}"] = gpu.state + (f": {gpu.reason}" if gpu.reason else "") + draining
    return found


def _slices(snapshot: PoolSnapshot | None) -> dict[str, str]:
    slices = [item for gpu in (snapshot.gpus if snapshot else ()) for item in gpu.slices]
    return {f"slice {item.slice_id}": _slice(item) for item in slices}


def _slice(item: SliceView) -> str:
    where = f"GPU {item.gpu} {{{item.start}}}:{item.size}"
    by = f" by {item.user or 'somebody'}" if item.lease is not None else ""
    return f"{item.profile} on {where}, {item.state}{by}"


def _waiting(snapshot: PoolSnapshot | None) -> dict[str, str]:
    return {f"ticket {one.id}": _ticket(one) for one in (snapshot.waiting if snapshot else ())}


def _ticket(one: TicketView) -> str:
    position = "" if one.position is None else f", position {one.position}"
    return f"{one.shape} for {one.user or 'somebody'}, {one.state}{position}"
