"""`miglab pool leases, release, extend, cancel, reclaim`: one student's lease or ticket."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from miglab_api.tickets import Purpose
from miglab_api.wording import server_in_words
from miglab_hub.cli.pool.output import Told, Why, asks, cell, of_thing, shown, table
from miglab_hub.cli.pool.reserve import seconds
from miglab_hub.pool_api import PoolApi

app = typer.Typer()
UNKNOWN = "unknown"


@asks(app)
def leases(
    pool: PoolApi,
    user: Annotated[str | None, typer.Option(help="Only this user's leases.")] = None,
) -> Told:
    """List the live leases."""
    answer = pool.call("GET", "/leases", user=user)
    made = table("lease", "user", "server", "course", "shape", "state", "guaranteed")
    for one in answer:
        is_borrow = one["purpose"] == Purpose.BORROW
        said = {**one, "server": server_in_words(one["server"])} if is_borrow else one
        cells = (said[key] for key in ("id", "user", "server", "course", "shape", "state"))
        made.add_row(*(cell(str(each)) for each in cells), _guaranteed(one))
    return answer, made


@asks(app)
def release(pool: PoolApi, lease: int, reason: Why = "") -> Told:
    """Release a lease: its server is stopped, and then its slices are free."""
    answer = pool.call("POST", f"/leases/{lease}/release", {"reason": reason})
    return answer, of_thing(answer, "lease")


@asks(app)
def extend(
    pool: PoolApi,
    lease: int,
    minutes: Annotated[float, typer.Argument(help="How many minutes longer.", min=1)],
    reason: Why = "",
) -> Told:
    """Give a lease more time; this also ends a warning by staff."""
    body = {"by_s": minutes * 60} | ({"reason": reason} if reason else {})
    answer = pool.call("POST", f"/leases/{lease}/extend", body)
    return answer, f"{of_thing(answer, 'lease')}, guaranteed: {_guaranteed(answer)}"


@asks(app)
def cancel(pool: PoolApi, ticket: int) -> Told:
    """Remove a ticket from the queue."""
    answer = pool.call("DELETE", f"/tickets/{ticket}")
    return answer, of_thing(answer, "ticket")


@asks(app, "reclaim")
def reclaim_(
    pool: PoolApi,
    lease: Annotated[int | None, typer.Argument(help="The lease to reclaim.")] = None,
    reason: Annotated[str, typer.Option(help="With a lease: why; its holder reads it.")] = "",
    warning: Annotated[
        str, typer.Option(help="With a lease: how long its holder is warned.")
    ] = "5m",
    now: Annotated[
        bool, typer.Option("--now", help="Reclaim the lease without a warning.")
    ] = False,
    explain: Annotated[
        str | None, typer.Option(help="Only this user's leases, with every figure and its age.")
    ] = None,
) -> Told:
    """Reclaim a lease; without one, show what the reclaimer thinks of each lease, and why."""
    if lease is not None:
        if not reason:
            raise typer.BadParameter("give a reason with --reason", param_hint="--reason")
        body = {"reason": reason, "warning_s": seconds("0" if now else warning)}
        answer = pool.call("POST", f"/leases/{lease}/reclaim", body)
        told = answer["warning"]
        when = f"; it ends in {told['reclaim_at'] - told['at']:.0f} s" if told else ""
        return answer, f"{of_thing(answer, 'lease')}{when}"
    answer = pool.call("GET", "/reclaim", user=explain)
    parts = _parts(answer, with_figures=explain is not None)
    return answer, Group(*parts) if answer else "No lease is in use."


def _guaranteed(lease: Mapping[str, Any]) -> str:
    until = lease["ends_at"] or lease["guaranteed_until"]
    return left(until, time.time(), lease["ends_at"])


def left(until: float, now: float, ends_at: float | None = None) -> str:
    """For how long a lease is guaranteed; one that then ends says so."""
    if until <= now and ends_at is None:
        return "open"
    return f"{max(0.0, until - now) / 60:.0f} min{'' if ends_at is None else ', then it ends'}"


def _parts(told: Sequence[Mapping[str, Any]], *, with_figures: bool) -> Iterator[RenderableType]:
    """What the service told of each lease; with figures also what each was decided by."""
    for one in told:
        yield Text(headline(one))
        if with_figures:
            figures = {**one["figures"], "keepalives": one["keepalives"]}
            table = Table(box=None, pad_edge=False, show_header=False)
            for name, value in figures.items():
                table.add_row("", name, UNKNOWN if value is None else str(value))
            yield table


def headline(one: Mapping[str, Any]) -> str:
    """One lease in a sentence."""
    server = f" ({server_in_words(one['server'])})" if one["server"] else ""
    acts = "" if one["is_acted_on"] else " [reported only: dry run, or switched off]"
    return shown(
        f"lease {one['lease']} of {one['user']}{server}, {one['shape']}: {one['activity']}, "
        f"{one['decision']}{acts}. {one['reason']}"
    )
