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

from miglab_api.plain_text import printable
from miglab_api.staff import STAFF_ACTIONS, StaffAction
from miglab_api.wording import server_in_words
from miglab_hub.cli.pool.output import (
    CommandOutput,
    Reason,
    cell,
    describe,
    person_name,
    pool_command,
    table,
)
from miglab_hub.cli.pool.reserve import seconds
from miglab_hub.cli.pool.show import guarantee_left
from miglab_hub.errors import RefusedError
from miglab_hub.pool_api import PoolApi

app = typer.Typer()

RequiredReason = Annotated[
    str,
    typer.Option(
        "--reason", help="Why; the audit records it, and the people concerned can read it."
    ),
]
Anyway = Annotated[
    str, typer.Option("--anyway", help="Why, even though it takes slices from a reservation.")
]


# -- leases ----------------------------------------------------------------------------------------


@pool_command(app)
def release(pool: PoolApi, lease: int, reason: Reason = "") -> CommandOutput:
    """Release a lease: its server is stopped, and then its slices are free."""
    answer = pool.call("POST", f"/leases/{lease}/release", {"reason": reason})
    return answer, describe(answer, "lease")


@pool_command(app)
def extend(
    pool: PoolApi,
    lease: int,
    minutes: Annotated[float, typer.Argument(help="How many minutes longer.", min=1)],
    reason: Reason = "",
) -> CommandOutput:
    """Give a lease more time; this also ends a warning by staff."""
    body = {"by_s": minutes * 60} | ({"reason": reason} if reason else {})
    answer = pool.call("POST", f"/leases/{lease}/extend", body)
    return answer, f"{describe(answer, 'lease')}, guaranteed: {guarantee_left(answer)}"


@pool_command(app, "reclaim")
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
) -> CommandOutput:
    """Reclaim a lease; without one, show what the reclaimer thinks of each lease, and why."""
    if lease is not None:
        if not reason:
            raise typer.BadParameter("give a reason with --reason", param_hint="--reason")
        body = {"reason": reason, "warning_s": seconds("0" if now else warning)}
        answer = pool.call("POST", f"/leases/{lease}/reclaim", body)
        lease_warning = answer["warning"]
        end = (
            f"; it ends in {lease_warning['reclaim_at'] - lease_warning['at']:.0f} s"
            if lease_warning
            else ""
        )
        return answer, f"{describe(answer, 'lease')}{end}"
    answer = pool.call("GET", "/reclaim", user=explain)
    parts = _reclaim_lines(answer, with_figures=explain is not None)
    return answer, Group(*parts) if answer else "No lease is in use."


def _reclaim_lines(
    leases: Sequence[Mapping[str, Any]], *, with_figures: bool
) -> Iterator[RenderableType]:
    """Yield a sentence for each lease, and on request the figures behind the decision."""
    for lease in leases:
        yield Text(_reclaim_sentence(lease))
        if with_figures:
            figures = {**lease["figures"], "keepalives": lease["keepalives"]}
            table = Table(box=None, pad_edge=False, show_header=False)
            for name, value in figures.items():
                table.add_row("", name, "unknown" if value is None else str(value))
            yield table


def _reclaim_sentence(lease: Mapping[str, Any]) -> str:
    """Describe the reclaimer's decision on one lease in a sentence."""
    server = f" ({server_in_words(lease['server'])})" if lease["server"] else ""
    acts = "" if lease["is_acted_on"] else " [reported only: dry run, or switched off]"
    return printable(
        f"lease {lease['lease']} of {lease['user']}{server}, {lease['shape']}: "
        f"{lease['activity']}, {lease['decision']}{acts}. {lease['reason']}"
    )


# -- GPUs and slices ------------------------------------------------------------------------------


class DrainTarget(StrEnum):
    """What can be drained."""

    GPU = "gpu"
    SLICE = "slice"


Kind = Annotated[DrainTarget, typer.Argument(help="gpu or slice.")]
TargetName = Annotated[str, typer.Argument(help="A GPU's index or UUID, or a slice's number.")]


def staff_command(action: StaffAction) -> Callable[..., CommandOutput]:
    """Return the command of a staff action on a slice or GPU."""
    parameters: dict[str, tuple[Any, Any]] = {"pool": (PoolApi, Parameter.empty)}
    if "gpu" in action.kinds:
        parameters |= {"kind": (Kind, Parameter.empty), "which": (TargetName, Parameter.empty)}
    else:
        parameters |= {"slice_id": (int, Parameter.empty)}
    if action.needs_no_reason:
        parameters |= {"reason": (Reason, "")}
    else:
        parameters |= {"reason": (RequiredReason, Parameter.empty), "anyway": (Anyway, "")}

    def command(pool: PoolApi, reason: str, **arguments: Any) -> CommandOutput:
        kind = arguments.get("kind", DrainTarget.SLICE)
        target = str(arguments.get("which", arguments.get("slice_id")))
        body = {"reason": reason} | {k: v for k, v in arguments.items() if k == "anyway" and v}
        answer = pool.call("POST", f"{_target_path(pool, kind, target)}/{action.key}", body)
        sentence = action.confirmation.format(
            kind=kind.value, which=printable(target), reason=printable(reason)
        )
        return answer, sentence

    vars(command)["__signature__"] = Signature(
        [
            Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for name, (kind, default) in parameters.items()
        ]
    )
    command.__doc__ = action.summary
    return command


for _action in STAFF_ACTIONS:
    pool_command(app, _action.key)(staff_command(_action))


def _target_path(pool: PoolApi, kind: DrainTarget, target: str) -> str:
    """Return the API's path of a slice or GPU; a GPU may be named by its index."""
    if kind is DrainTarget.SLICE:
        if not target.isdecimal():
            raise typer.BadParameter(
                f"{target!r} is not a slice; `miglab pool status` lists their numbers."
            )
        return f"/slices/{target}"
    if not target.isdecimal():
        return f"/gpus/{quote(target, safe='')}"
    gpus = pool.call("GET", "/pool")["gpus"]
    uuid = next((gpu["uuid"] for gpu in gpus if gpu["index"] == int(target)), None)
    if uuid is None:
        raise RefusedError(f"This lab has no GPU {target}; it has {len(gpus)}.", "unknown-gpu")
    return f"/gpus/{quote(uuid, safe='')}"


# -- the queue ------------------------------------------------------------------------------------


@pool_command(app)
def cancel(pool: PoolApi, ticket: int) -> CommandOutput:
    """Remove a ticket from the queue."""
    answer = pool.call("DELETE", f"/tickets/{ticket}")
    return answer, describe(answer, "ticket")


@pool_command(app, "next")
def next_(
    pool: PoolApi,
    ticket: int,
    reason: Annotated[
        str, typer.Option("--reason", help="Why; required unless you give --undo.")
    ] = "",
    undo: Annotated[
        bool, typer.Option("--undo", help="Return the ticket to its own position.")
    ] = False,
) -> CommandOutput:
    """Give a ticket the next slices that fit; no running lease is ended for it."""
    if not undo and not reason:
        raise typer.BadParameter("give a reason with --reason", param_hint="--reason")
    body = None if undo else {"reason": reason}
    answer = pool.call("DELETE" if undo else "POST", f"/tickets/{ticket}/next", body)
    position = f"position {answer['position']}" if answer["position"] else "not in the queue"
    return answer, f"{describe(answer, 'ticket')}, {position}"


# -- messages -------------------------------------------------------------------------------------


@pool_command(app)
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
) -> CommandOutput:
    """Show a message in JupyterLab, with your name."""
    if sum((user is not None, course is not None, everybody)) != 1:
        raise typer.BadParameter("say who gets the message: --user, --course or --all")
    addressees = {"to_user": user, "to_server": server, "to_course": course}
    to = {key: value for key, value in addressees.items() if value is not None}
    body = {"text": text, "all": everybody, "minutes": seconds(shown_for) / 60, **to}
    answer = pool.call("POST", "/messages", body)
    return answer, f"message {answer['id']} is shown to {_addressee(answer)}"


@pool_command(app)
def messages(pool: PoolApi) -> CommandOutput:
    """List the messages that are being shown."""
    answer = pool.call("GET", "/messages")
    message_table = table("id", "to", "by", "text")
    for message in answer:
        cells = (_addressee(message), person_name(message["by"]), message["text"])
        message_table.add_row(str(message["id"]), *(cell(text) for text in cells))
    return answer, message_table if answer else "No messages are being shown."


@pool_command(app)
def recall(pool: PoolApi, message_id: int, reason: Reason = "") -> CommandOutput:
    """Withdraw a message."""
    answer = pool.call("DELETE", f"/messages/{message_id}", reason=reason)
    return answer, f"message {message_id} has been withdrawn"


def _addressee(message: dict[str, Any]) -> str:
    """Return whom a message is for, in words."""
    if message["to_user"] is None:
        return printable(f"course {message['to_course']}" if message["to_course"] else "everybody")
    server = message["to_server"]
    at = "" if server is None else f" at {server or 'the default server'}"
    return printable(f"{message['to_user']}{at}")


# -- the pool --------------------------------------------------------------------------------------


@pool_command(app)
def pause(pool: PoolApi, reason: RequiredReason) -> CommandOutput:
    """Stop granting new leases; running leases go on."""
    return pool.call("POST", "/pool/pause", {"reason": reason}), "new leases are paused"


@pool_command(app)
def resume(pool: PoolApi) -> CommandOutput:
    """Grant leases again."""
    return pool.call("POST", "/pool/resume"), "new leases are granted again"
