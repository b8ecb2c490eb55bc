"""What the commands of `miglab pool` share: the way to the pool, and how an answer is shown.

For people a sentence or a table, for programs (``--json``) the service's answer as it came.
"""

import json
import sys
from collections.abc import Callable
from inspect import Parameter, signature
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from miglab_api.plain_text import printable
from miglab_hub.pool_api import PoolApi, connect

PIPE_WIDTH = 10_000  # a line of a table is never folded in a pipe

CommandOutput = tuple[Any, RenderableType]
"""The service's answer, and the same for people."""
AsJson = Annotated[bool, typer.Option("--json", help="Print the service's answer as JSON.")]
CONTEXT = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
AS_JSON = Parameter("as_json", Parameter.KEYWORD_ONLY, annotation=AsJson, default=False)
Reason = Annotated[str, typer.Option("--reason", help="Why; the person concerned can read it.")]


def api(context: typer.Context) -> PoolApi:
    """Return a client of the pool that the options name; it is closed with the command."""
    return context.with_resource(connect(*context.obj))


def print_answer(answer: Any, text: RenderableType, as_json: bool) -> None:
    """Print the service's answer as JSON, or the sentence or table made of it."""
    if as_json:
        print(json.dumps(answer, indent=1))
    else:
        print_for_people(text)


def pool_command(
    app: typer.Typer, name: str | None = None
) -> Callable[[Callable[..., CommandOutput]], None]:
    """Return a decorator that makes a command with ``--json`` of a function of the pool."""

    def register(ask: Callable[..., CommandOutput]) -> None:
        def command(context: typer.Context, *, as_json: bool, **arguments: Any) -> None:
            print_answer(*ask(api(context), **arguments), as_json)

        _, *parameters = signature(ask).parameters.values()
        options = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
        command_signature = signature(ask).replace(parameters=[CONTEXT, *options, AS_JSON])
        vars(command)["__signature__"] = command_signature.replace(return_annotation=None)
        command.__name__, command.__doc__ = ask.__name__, ask.__doc__
        app.command(name)(command)

    return register


def print_for_people(text: RenderableType) -> None:
    """Print a sentence or a table; without colours and line breaks in a pipe."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    console = Console(width=width, highlight=False, soft_wrap=isinstance(text, str))
    console.print(text, markup=not isinstance(text, str))


def table(*columns: str) -> Table:
    """Return a table without a frame."""
    plain_table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        plain_table.add_column(column, overflow="fold")
    return plain_table


def cell(text: str) -> Text:
    """Return a printable text for a table's cell, in which markup has no effect."""
    return Text(printable(text))


def person_name(actor: str) -> str:
    """Return the person's name in the ledger's form ``person:ina``."""
    return actor.partition(":")[2] or actor


def describe(answer: dict[str, Any], kind: str) -> str:
    """Describe one lease or ticket in a sentence."""
    user = printable(str(answer["user"]))
    return f"{kind} {answer['id']} of {user} ({answer['shape']}): {answer['state']}"
