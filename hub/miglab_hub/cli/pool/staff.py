"""`miglab pool drain, undrain, quarantine, next, message …`: what staff do by hand."""

from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer
from rich.console import RenderableType

from miglab_hub.cli.pool.output import AsJson, Why, api, cell, of_thing, shown, table, tell
from miglab_hub.cli.pool.reserve import seconds
from miglab_hub.errors import RefusedError
from miglab_hub.pool_api import PoolApi

app = typer.Typer()

Needed = Annotated[
    str, typer.Option("--reason", help="Why; kept with your name, whom it concerns reads it.")
]


class DrainTarget(StrEnum):
    """What can be drained."""

    GPU = "gpu"
    SLICE = "slice"


Kind = Annotated[DrainTarget, typer.Argument(help="What: a gpu or a slice.")]
Which = Annotated[str, typer.Argument(help="A GPU's index or UUID; a slice's number.")]


# -- places ---------------------------------------------------------------------------------------


@app.command()
def drain(
    context: typer.Context, kind: Kind, which: Which, reason: Needed, as_json: AsJson = False
) -> None:
    """Give nobody new this GPU or slice; who is on it runs on."""
    pool = api(context)
    answer = pool.call("POST", f"{_path(pool, kind, which)}/drain", {"reason": reason})
    tell(answer, as_json, lambda: f"{kind.value} {shown(which)} is draining: {shown(reason)}")


@app.command()
def undrain(
    context: typer.Context, kind: Kind, which: Which, reason: Why = "", as_json: AsJson = False
) -> None:
    """Give leases on this GPU or slice again."""
    pool = api(context)
    answer = pool.call("POST", f"{_path(pool, kind, which)}/undrain", {"reason": reason})
    tell(answer, as_json, lambda: f"{kind.value} {shown(which)} takes leases again")


@app.command()
def quarantine(
    context: typer.Context, slice_id: int, reason: Needed, as_json: AsJson = False
) -> None:
    """Set a slice aside that nobody holds: it stays as it is until clear."""
    answer = api(context).call("POST", f"/slices/{slice_id}/quarantine", {"reason": reason})
    tell(answer, as_json, lambda: f"slice {slice_id} is set aside: {shown(reason)}")


def _path(pool: PoolApi, kind: DrainTarget, which: str) -> str:
    """The API's path of a place; a GPU may be named by its index."""
    if kind is DrainTarget.SLICE:
        if not which.isdecimal():
            raise typer.BadParameter(f"{which!r} is no slice: `miglab pool status` has their ids.")
        return f"/slices/{which}"
    if not which.isdecimal():
        return f"/gpus/{quote(which, safe='')}"
    gpus = pool.call("GET", "/pool")["gpus"]
    uuid = next((gpu["uuid"] for gpu in gpus if gpu["index"] == int(which)), None)
    if uuid is None:
        raise RefusedError(f"This lab has no GPU {which}; it has {len(gpus)}.", "unknown-gpu")
    return f"/gpus/{quote(uuid, safe='')}"


# -- the line -------------------------------------------------------------------------------------


@app.command("next")
def next_(
    context: typer.Context,
    ticket: int,
    reason: Annotated[str, typer.Option("--reason", help="Why; needed unless with --undo.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Give it its own place again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give a ticket the next slices that fit; nobody who runs is cut off for it."""
    if not undo and not reason:
        raise typer.BadParameter("say why, with --reason", param_hint="--reason")
    body = None if undo else {"reason": reason}
    answer = api(context).call("DELETE" if undo else "POST", f"/tickets/{ticket}/next", body)
    where = f"number {answer['position']} in line" if answer["position"] else "not in line"
    tell(answer, as_json, lambda: f"{of_thing(answer, 'ticket')}, {where}")


# -- messages -------------------------------------------------------------------------------------


@app.command()
def message(
    context: typer.Context,
    text: Annotated[str, typer.Argument(help="What they read in JupyterLab.")],
    user: Annotated[str | None, typer.Option(help="To this user.")] = None,
    server: Annotated[str | None, typer.Option(help="At this server of theirs alone.")] = None,
    course: Annotated[str | None, typer.Option(help="To everybody of this course.")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="To everybody.")] = False,
    shown_for: Annotated[str, typer.Option("--for", help="For so long: 15m, 1.5h.")] = "60m",
    as_json: AsJson = False,
) -> None:
    """Show a message in JupyterLab, with your name."""
    if sum((user is not None, course is not None, everybody)) != 1:
        raise typer.BadParameter("say to whom: one of --user, --course and --all")
    named = {"to_user": user, "to_server": server, "to_course": course}
    to = {key: value for key, value in named.items() if value is not None}
    body = {"text": text, "all": everybody, "minutes": seconds(shown_for) / 60, **to}
    answer = api(context).call("POST", "/messages", body)
    tell(answer, as_json, lambda: f"message {answer['id']} to {_addressee(answer)} is shown")


@app.command()
def messages(context: typer.Context, as_json: AsJson = False) -> None:
    """List the messages that are shown."""
    answer = api(context).call("GET", "/messages")

    def words() -> RenderableType:
        made = table("id", "to", "by", "text")
        for one in answer:
            cells = (_addressee(one), one["by"], one["text"])
            made.add_row(str(one["id"]), *(cell(each) for each in cells))
        return made if answer else "No message is shown."

    tell(answer, as_json, words)


@app.command()
def recall(
    context: typer.Context, message_id: int, reason: Why = "", as_json: AsJson = False
) -> None:
    """Show a message no longer."""
    query = f"?{urlencode({'reason': reason})}" if reason else ""
    answer = api(context).call("DELETE", f"/messages/{message_id}{query}")
    tell(answer, as_json, lambda: f"message {message_id} is not shown any more")


def _addressee(message: dict[str, Any]) -> str:
    """Whom a message is for."""
    if message["to_user"] is None:
        return shown(f"course {message['to_course']}" if message["to_course"] else "everybody")
    at = (
        ""
        if message["to_server"] is None
        else f" at {message['to_server'] or 'the default server'}"
    )
    return shown(f"{message['to_user']}{at}")
