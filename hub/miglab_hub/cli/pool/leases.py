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
from miglab_hub.cli.pool.output import AsJson, Why, api, cell, of_thing, shown, table, tell
from miglab_hub.cli.pool.reserve import seconds

app = typer.Typer()
UNKNOWN = "unknown"


@app.command()
def leases(
    context: typer.Context,
    user: Annotated[str | None, typer.Option(help="Only this user's leases.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the live leases."""
    answer = api(context).call("GET", "/leases", user=user)

    def words() -> Table:
        made = table("lease", "user", "server", "course", "shape", "state", "guaranteed")
        for one in answer:
            is_borrow = one["purpose"] == Purpose.BORROW
            said = {**one, "server": server_in_words(one["server"])} if is_borrow else one
            cells = (said[key] for key in ("id", "user", "server", "course", "shape", "state"))
            until = left(one["ends_at"] or one["guaranteed_until"], time.time(), one["ends_at"])
            made.add_row(*(cell(str(each)) for each in cells), until)
        return made

    tell(answer, as_json, words)


@app.command()
def release(context: typer.Context, lease: int, reason: Why = "", as_json: AsJson = False) -> None:
    """Release a lease: its server is stopped, and then its slices are free."""
    answer = api(context).call("POST", f"/leases/{lease}/release", {"reason": reason})
    tell(answer, as_json, lambda: of_thing(answer, "lease"))


@app.command()
def extend(
    context: typer.Context,
    lease: int,
    minutes: Annotated[float, typer.Argument(help="How many minutes longer.", min=1)],
    reason: Why = "",
    as_json: AsJson = False,
) -> None:
    """Give a lease more time; this also ends a warning by staff."""
    body = {"by_s": minutes * 60} | ({"reason": reason} if reason else {})
    answer = api(context).call("POST", f"/leases/{lease}/extend", body)

    def words() -> str:
        until = answer["ends_at"] or answer["guaranteed_until"]
        how_long = left(until, time.time(), answer["ends_at"])
        return f"{of_thing(answer, 'lease')}, guaranteed: {how_long}"

    tell(answer, as_json, words)


@app.command()
def cancel(context: typer.Context, ticket: int, as_json: AsJson = False) -> None:
    """Remove a ticket from the queue."""
    answer = api(context).call("DELETE", f"/tickets/{ticket}")
    tell(answer, as_json, lambda: of_thing(answer, "ticket"))


@app.command("reclaim")
def reclaim_(
    context: typer.Context,
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
    as_json: AsJson = False,
) -> None:
    """Reclaim a lease; without one, show what the reclaimer thinks of each lease, and why."""
    if lease is not None:
        body = request(reason, "0" if now else warning)
        answer = api(context).call("POST", f"/leases/{lease}/reclaim", body)
        tell(answer, as_json, lambda: taken(answer))
        return
    answer = api(context).call("GET", "/reclaim", user=explain)
    tell(answer, as_json, lambda: thoughts(answer, with_figures=explain is not None))


def left(until: float, now: float, ends_at: float | None = None) -> str:
    """For how long a lease is guaranteed; one that then ends says so."""
    if until <= now and ends_at is None:
        return "open"
    return f"{max(0.0, until - now) / 60:.0f} min{'' if ends_at is None else ', then it ends'}"


def request(reason: str, warning: str) -> dict[str, Any]:
    """What is sent to reclaim a lease.

    Args:
        reason: why; its holder reads it.
        warning: how long its holder is warned first, as a person types it.
    """
    if not reason:
        raise typer.BadParameter("give a reason with --reason", param_hint="--reason")
    return {"reason": reason, "warning_s": seconds(warning)}


def taken(lease: Mapping[str, Any]) -> str:
    """A lease that is reclaimed, in a sentence."""
    warning = lease["warning"]
    left_s = None if warning is None else warning["reclaim_at"] - warning["at"]
    when = "" if left_s is None else f"; it ends in {left_s:.0f} s"
    return f"{of_thing(dict(lease), 'lease')}{when}"


def thoughts(told: Sequence[Mapping[str, Any]], *, with_figures: bool) -> RenderableType:
    """What the service told of each lease.

    Args:
        told: answers of ``GET /api/reclaim``.
        with_figures: also what each was decided by.
    """
    return Group(*_parts(told, with_figures)) if told else "No lease is in use."


def _parts(told: Sequence[Mapping[str, Any]], with_figures: bool) -> Iterator[RenderableType]:
    for one in told:
        yield Text(headline(one))
        if with_figures:
            yield _figures(one)


def headline(one: Mapping[str, Any]) -> str:
    """One lease in a sentence."""
    server = f" ({server_in_words(one['server'])})" if one["server"] else ""
    acts = "" if one["is_acted_on"] else " [reported only: dry run, or switched off]"
    return shown(
        f"lease {one['lease']} of {one['user']}{server}, {one['shape']}: {one['activity']}, "
        f"{one['decision']}{acts}. {one['reason']}"
    )


def _figures(one: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in {**one["figures"], "keepalives": one["keepalives"]}.items():
        table.add_row("", name, UNKNOWN if value is None else str(value))
    return table
