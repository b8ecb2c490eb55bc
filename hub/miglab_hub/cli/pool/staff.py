"""`miglab pool release, extend, reclaim, drain, next, message …`: what staff do by hand."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from inspect import Parameter, Signature
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from miglab_api.staff import STAFF_ACTIONS
from miglab_api.wording import server_in_words
from miglab_hub.cli.pool.output import Told, Why, asks, cell, of_thing, shown, table, who
from miglab_hub.cli.pool.reserve import seconds
from miglab_hub.cli.pool.show import guaranteed
from miglab_hub.errors import RefusedError
from miglab_hub.pool_api import PoolApi

app = typer.Typer()

Needed = Annotated[
    str,
    typer.Option(
        "--reason", help="Why; the audit records it, and the people concerned can read it."
    ),
]
Anyway = Annotated[
    str, typer.Option("--anyway", help="Why, even though it takes slices from a reservation.")
]


# -- leases ----------------------------------------------------------------------------------------


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
    return answer, f"{of_thing(answer, 'lease')}, guaranteed: {guaranteed(answer)}"


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


def _parts(told: Sequence[Mapping[str, Any]], *, with_figures: bool) -> Iterator[RenderableType]:
    """What the service told of each lease; with figures also what each was decided by."""
    for one in told:
        yield Text(_headline(one))
        if with_figures:
            figures = {**one["figures"], "keepalives": one["keepalives"]}
            table = Table(box=None, pad_edge=False, show_header=False)
            for name, value in figures.items():
                table.add_row("", name, "unknown" if value is None else str(value))
            yield table


def _headline(one: Mapping[str, Any]) -> str:
    """One lease in a sentence."""
    server = f" ({server_in_words(one['server'])})" if one["server"] else ""
    acts = "" if one["is_acted_on"] else " [reported only: dry run, or switched off]"
    return shown(
        f"lease {one['lease']} of {one['user']}{server}, {one['shape']}: {one['activity']}, "
        f"{one['decision']}{acts}. {one['reason']}"
    )


# -- GPUs and slices ------------------------------------------------------------------------------


class DrainTarget(StrEnum):
    """What can be drained."""

    GPU = "gpu"
    SLICE = "slice"


Kind = Annotated[DrainTarget, typer.Argument(help="gpu or slice.")]
Which = Annotated[str, typer.Argument(help="A GPU's index or UUID, or a slice's number.")]


def command_of(key: str) -> Callable[..., Told]:
    """The command of an action on a slice, or on whatever can be drained, by the table."""
    action = next(one for one in STAFF_ACTIONS if one.key == key)
    parameters: dict[str, tuple[Any, Any]] = {"pool": (PoolApi, Parameter.empty)}
    if "gpu" in action.kinds:
        parameters |= {"kind": (Kind, Parameter.empty), "which": (Which, Parameter.empty)}
    else:
        parameters |= {"slice_id": (int, Parameter.empty)}
    if action.needs_no_reason:
        parameters |= {"reason": (Why, "")}
    else:
        parameters |= {"reason": (Needed, Parameter.empty), "anyway": (Anyway, "")}

    def command(pool: PoolApi, reason: str, **given: Any) -> Told:
        kind = given.get("kind", DrainTarget.SLICE)
        which = str(given.get("which", given.get("slice_id")))
        body = {"reason": reason} | {k: v for k, v in given.items() if k == "anyway" and v}
        answer = pool.call("POST", f"{_path(pool, kind, which)}/{key}", body)
        told = action.told.format(kind=kind.value, which=shown(which), reason=shown(reason))
        return answer, told

    vars(command)["__signature__"] = Signature(
        [
            Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for name, (kind, default) in parameters.items()
        ]
    )
    command.__doc__ = action.says
    return command


for _key in ("drain", "undrain", "quarantine", "clear", "adopt"):
    asks(app, _key)(command_of(_key))


def _path(pool: PoolApi, kind: DrainTarget, which: str) -> str:
    """The API's path of a place; a GPU may be named by its index."""
    if kind is DrainTarget.SLICE:
        if not which.isdecimal():
            raise typer.BadParameter(
                f"{which!r} is not a slice; `miglab pool status` lists their numbers."
            )
        return f"/slices/{which}"
    if not which.isdecimal():
        return f"/gpus/{quote(which, safe='')}"
    gpus = pool.call("GET", "/pool")["gpus"]
    uuid = next((gpu["uuid"] for gpu in gpus if gpu["index"] == int(which)), None)
    if uuid is None:
        raise RefusedError(f"This lab has no GPU {which}; it has {len(gpus)}.", "unknown-gpu")
    return f"/gpus/{quote(uuid, safe='')}"


# -- the queue ------------------------------------------------------------------------------------


@asks(app)
def cancel(pool: PoolApi, ticket: int) -> Told:
    """Remove a ticket from the queue."""
    answer = pool.call("DELETE", f"/tickets/{ticket}")
    return answer, of_thing(answer, "ticket")


@asks(app, "next")
def next_(
    pool: PoolApi,
    ticket: int,
    reason: Annotated[
        str, typer.Option("--reason", help="Why; required unless you give --undo.")
    ] = "",
    undo: Annotated[
        bool, typer.Option("--undo", help="Return the ticket to its own position.")
    ] = False,
) -> Told:
    """Give a ticket the next slices that fit; no running lease is ended for it."""
    if not undo and not reason:
        raise typer.BadParameter("give a reason with --reason", param_hint="--reason")
    body = None if undo else {"reason": reason}
    answer = pool.call("DELETE" if undo else "POST", f"/tickets/{ticket}/next", body)
    where = f"position {answer['position']}" if answer["position"] else "not in the queue"
    return answer, f"{of_thing(answer, 'ticket')}, {where}"


# -- messages -------------------------------------------------------------------------------------


@asks(app)
def message(
    pool: PoolApi,
    text: Annotated[str, typer.Argument(help="The message.")],
    user: Annotated[str | None, typer.Option(help="To this user.")] = None,
    server: Annotated[str | None, typer.Option(help="Only at this server of the user.")] = None,
    course: Annotated[str | None, typer.Option(help="To everybody in this course.")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="To everybody.")] = False,
    shown_for: Annotated[
        str, typer.Option("--for", help="How long it is shown: 15m, 1.5h.")
    ] = "60m",
) -> Told:
    """Show a message in JupyterLab, with your name."""
    if sum((user is not None, course is not None, everybody)) != 1:
        raise typer.BadParameter("say who gets the message: --user, --course or --all")
    named = {"to_user": user, "to_server": server, "to_course": course}
    to = {key: value for key, value in named.items() if value is not None}
    body = {"text": text, "all": everybody, "minutes": seconds(shown_for) / 60, **to}
    answer = pool.call("POST", "/messages", body)
    return answer, f"message {answer['id']} is shown to {_addressee(answer)}"


@asks(app)
def messages(pool: PoolApi) -> Told:
    """List the messages that are being shown."""
    answer = pool.call("GET", "/messages")
    made = table("id", "to", "by", "text")
    for one in answer:
        cells = (_addressee(one), who(one["by"]), one["text"])
        made.add_row(str(one["id"]), *(cell(each) for each in cells))
    return answer, made if answer else "No messages are being shown."


@asks(app)
def recall(pool: PoolApi, message_id: int, reason: Why = "") -> Told:
    """Withdraw a message."""
    answer = pool.call("DELETE", f"/messages/{message_id}", reason=reason)
    return answer, f"message {message_id} has been withdrawn"


def _addressee(message: dict[str, Any]) -> str:
    """Whom a message is for."""
    if message["to_user"] is None:
        return shown(f"course {message['to_course']}" if message["to_course"] else "everybody")
    server = message["to_server"]
    at = "" if server is None else f" at {server or 'the default server'}"
    return shown(f"{message['to_user']}{at}")


# -- the pool --------------------------------------------------------------------------------------


@asks(app)
def pause(pool: PoolApi, reason: Needed) -> Told:
    """Stop granting new leases; running leases go on."""
    return pool.call("POST", "/pool/pause", {"reason": reason}), "new leases are paused"


@asks(app)
def resume(pool: PoolApi) -> Told:
    """Grant leases again."""
    return pool.call("POST", "/pool/resume"), "new leases are granted again"
