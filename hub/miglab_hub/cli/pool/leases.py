"""`miglab pool leases, release, extend, cancel, reclaim`: one student's lease or ticket."""

import time
from typing import Annotated

import typer
from rich.table import Table

from miglab_api.tickets import Purpose
from miglab_api.wording import server_in_words
from miglab_hub.cli.pool import reclaim
from miglab_hub.cli.pool.output import AsJson, Why, api, cell, of_thing, table, tell

app = typer.Typer()


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
    tell(answer, as_json, lambda: of_thing(answer, "lease"))


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
        body = reclaim.request(reason, "0" if now else warning)
        answer = api(context).call("POST", f"/leases/{lease}/reclaim", body)
        tell(answer, as_json, lambda: reclaim.taken(answer))
        return
    answer = api(context).call("GET", "/reclaim", user=explain)
    tell(answer, as_json, lambda: reclaim.thoughts(answer, with_figures=explain is not None))


def left(until: float, now: float, ends_at: float | None = None) -> str:
    """For how long a lease is guaranteed; one that then ends says so."""
    if until <= now and ends_at is None:
        return "open"
    return f"{max(0.0, until - now) / 60:.0f} min{'' if ends_at is None else ', then it ends'}"
