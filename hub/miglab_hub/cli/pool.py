"""`miglab pool`: see who holds what and who waits, and steer it."""

import json
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from rich.console import Console
from rich.table import Table

from miglab_hub.cli import reclaim, reserve
from miglab_hub.pool_api import PoolApi, connect
from miglab_hub.settings import ENV_CONFIG
from miglab_spawner.messages import PoolSnapshot, ReservationView, SliceView

app = typer.Typer(help="The pool: who holds what, who waits.", no_args_is_help=True)
AsJson = Annotated[bool, typer.Option("--json", help="Print the service's answer as JSON.")]
Why = Annotated[str, typer.Option("--reason", help="Why; the person concerned reads it.")]


@app.callback()
def pool(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="The lab's settings.", envvar=ENV_CONFIG)
    ] = None,
    url: Annotated[str | None, typer.Option(help="The pool's address, if not lab.toml's.")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with a hub API token; without: this host's operator."),
    ] = None,
) -> None:
    """See who holds what and who waits, and steer it."""
    context.obj = (config, url, token_file)


@app.command()
def status(context: typer.Context, as_json: AsJson = False) -> None:
    """Show every GPU with its slices, and who waits."""
    answer = _api(context).call("GET", "/pool")
    if as_json:
        print(json.dumps(answer, indent=1))
        return
    console = Console()
    snapshot = PoolSnapshot.model_validate(answer)
    if snapshot.paused:
        console.print(f"paused: {snapshot.paused}", style="bold", markup=False)
    console.print(_slices(snapshot))
    console.print(_waiting(snapshot) if snapshot.waiting else "Nobody waits.")


@app.command()
def leases(
    context: typer.Context,
    user: Annotated[str | None, typer.Option(help="Only this user's.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the live leases."""
    query = f"?{urlencode({'user': user})}" if user else ""
    answer = _api(context).call("GET", f"/leases{query}")
    if as_json:
        print(json.dumps(answer, indent=1))
        return
    table = _table("lease", "user", "server", "course", "shape", "state", "time left")
    for lease in answer:
        cells = (lease[key] for key in ("id", "user", "server", "course", "shape", "state"))
        table.add_row(*(_plain(str(cell)) for cell in cells), _left(lease["ends_at"]))
    Console().print(table)


@app.command()
def release(context: typer.Context, lease: int, reason: Why = "") -> None:
    """Ask for a lease back: its server is stopped, then its slices are free."""
    _say(_api(context).call("POST", f"/leases/{lease}/release", {"reason": reason}), "lease")


@app.command()
def extend(
    context: typer.Context,
    lease: int,
    minutes: Annotated[float, typer.Argument(help="How much longer, minutes.", min=1)],
) -> None:
    """Give a lease more time."""
    _say(_api(context).call("POST", f"/leases/{lease}/extend", {"by_s": minutes * 60}), "lease")


@app.command()
def cancel(context: typer.Context, ticket: int) -> None:
    """Take a ticket out of the line."""
    _say(_api(context).call("DELETE", f"/tickets/{ticket}"), "ticket")


@app.command()
def pause(
    context: typer.Context, why: Annotated[str, typer.Argument(help="Shown to all.")]
) -> None:
    """Grant no new leases; what runs, runs on."""
    _api(context).call("POST", "/pool/pause", {"why": why})
    print("paused")


@app.command()
def resume(context: typer.Context) -> None:
    """Grant leases again."""
    _api(context).call("POST", "/pool/resume")
    print("granting again")


@app.command()
def adopt(context: typer.Context, slice_id: int) -> None:
    """Take over a foreign slice: it is DESTROYED, and its place is the pool's."""
    _api(context).call("POST", f"/slices/{slice_id}/adopt")
    print(f"slice {slice_id} is being destroyed")


@app.command()
def clear(context: typer.Context, slice_id: int) -> None:
    """Try again to destroy a slice that was set aside."""
    _api(context).call("POST", f"/slices/{slice_id}/clear")
    print(f"slice {slice_id} is tried again")


@app.command("reclaim")
def reclaim_(
    context: typer.Context,
    explain: Annotated[
        str | None, typer.Option(help="Only this user's leases, with every figure and its age.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what the reclaimer thinks of each lease in use, and why.  Changes nothing."""
    query = f"?{urlencode({'user': explain})}" if explain else ""
    answer = _api(context).call("GET", f"/reclaim{query}")
    if as_json:
        print(json.dumps(answer, indent=1))
        return
    reclaim.show(answer, Console(), with_figures=explain is not None)


@app.command("reserve")
def reserve_(
    context: typer.Context,
    course: str,
    shape: Annotated[str, typer.Argument(help="What a student asks for, such as 1g.5gb.")],
    from_time: Annotated[str, typer.Option("--from", help="Local time, HH:MM.")],
    to_time: Annotated[str, typer.Option("--to", help="Local time, HH:MM, the same day.")],
    tz: Annotated[str, typer.Option(help="Time zone, such as Europe/Berlin.")],
    count: Annotated[int, typer.Option(help="For how many students.", min=1)],
    weekly: Annotated[
        list[str] | None, typer.Option(help="Weekdays, such as tue or mon,wed.")
    ] = None,
    on: Annotated[
        str | None, typer.Option(help="Date of a single time, or first day of a weekly one.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Last day of a weekly one.")] = None,
    grace: Annotated[
        str, typer.Option(help="How long after the start what is not taken up is kept.")
    ] = "15m",
    reason: Annotated[str, typer.Option(help="What it is for; staff read it.")] = "",
) -> None:
    """Reserve slices for a course: kept before and at the start, each week or once."""
    body = {
        "course": course, "shape": shape, "count": count,
        "weekdays": reserve.weekdays(weekly or ()), "date": on, "until": until,
        "from_time": from_time, "to_time": to_time, "tz": tz,
        "grace_s": reserve.seconds(grace), "reason": reason,
    }  # fmt: skip
    answer = _api(context).call("POST", "/reservations", body)
    print(reserve.sentence(ReservationView.model_validate(answer)))


@app.command()
def reservations(context: typer.Context, as_json: AsJson = False) -> None:
    """List what is reserved, the next in front."""
    answer = _api(context).call("GET", "/reservations")
    if as_json:
        print(json.dumps(answer, indent=1))
        return
    table = _table("id", "course", "shape", "taken up", "when", "next", "state")
    reserve.fill(table, [ReservationView.model_validate(one) for one in answer])
    Console().print(table if answer else "Nothing is reserved.")


@app.command()
def unreserve(
    context: typer.Context,
    reservation: int,
    reason: Annotated[str, typer.Option(help="Why; it is kept in the ledger.")] = "",
) -> None:
    """Cancel a reservation; who has a slice of it keeps it."""
    query = f"?{urlencode({'reason': reason})}" if reason else ""
    answer = _api(context).call("DELETE", f"/reservations/{reservation}{query}")
    print(reserve.sentence(ReservationView.model_validate(answer)))


def _api(context: typer.Context) -> PoolApi:
    return context.with_resource(connect(*context.obj))


def _say(answer: dict[str, Any], what: str) -> None:
    print(f"{what} {answer['id']} of {answer['user']} ({answer['shape']}): {answer['state']}")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _slices(snapshot: PoolSnapshot) -> Table:
    table = _table("GPU", "slice", "profile", "place", "state", "lease", "held by", "time left")
    for gpu in snapshot.gpus:
        trouble = "" if gpu.state == "ok" else f"{gpu.state}: {gpu.why}"
        table.add_row(str(gpu.index), "", "", "", _plain(trouble), "", "", "")
        for item in sorted(gpu.slices, key=lambda item: item.start):
            table.add_row(*_slice_row(item))
    return table


def _slice_row(item: SliceView) -> tuple[str, ...]:
    held = item.user or ("somebody" if item.lease is not None else "")
    server = f" ({item.server})" if item.server else ""
    return (
        "",
        str(item.slice_id),
        item.profile,
        f"{{{item.start}}}:{item.size}",
        item.state.value,
        "" if item.lease is None else str(item.lease),
        _plain(held + server),
        "" if item.lease is None else _left(item.ends_at),
    )


def _waiting(snapshot: PoolSnapshot) -> Table:
    table = _table("place", "ticket", "who", "course", "shape", "since")
    for ticket in snapshot.waiting:
        since = f"{(snapshot.at - ticket.created_at) / 60:.0f} min"
        place = "" if ticket.position is None else str(ticket.position)
        who = _plain(ticket.user or "somebody")
        table.add_row(place, str(ticket.id), who, _plain(ticket.course), ticket.shape, since)
    return table


def _left(ends_at: float | None) -> str:
    return "no limit" if ends_at is None else f"{max(0.0, ends_at - time.time()) / 60:.0f} min"


def _plain(text: str) -> str:
    """A name as a terminal may show it: no markup, no control characters."""
    shown = "".join(sign if sign.isprintable() else "?" for sign in text)
    return shown.replace("[", r"\[")
