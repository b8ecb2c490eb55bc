"""`miglab pool status`: every GPU with its slices, and who waits."""

import time

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from miglab_api.gpus import GpuView, PoolSnapshot, SliceView
from miglab_api.wording import server_in_words
from miglab_hub.cli.pool.leases import left
from miglab_hub.cli.pool.output import AsJson, api, cell, shown, table, tell

app = typer.Typer()


@app.command()
def status(context: typer.Context, as_json: AsJson = False) -> None:
    """Show every GPU with its slices, and the queue."""
    answer = api(context).call("GET", "/pool")
    tell(answer, as_json, lambda: picture(PoolSnapshot.model_validate(answer), time.time()))


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
