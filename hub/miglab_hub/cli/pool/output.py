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

from miglab_hub.pool_api import PoolApi, connect

PIPE_WIDTH = 10_000  # a line of a table is never folded in a pipe

Told = tuple[Any, RenderableType]
"""The service's answer, and the same for people."""
AsJson = Annotated[bool, typer.Option("--json", help="Print the service's answer as JSON.")]
CONTEXT = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
AS_JSON = Parameter("as_json", Parameter.KEYWORD_ONLY, annotation=AsJson, default=False)
Why = Annotated[str, typer.Option("--reason", help="Why; the person concerned can read it.")]


def api(context: typer.Context) -> PoolApi:
    """The pool that the options name; closed when the command ends."""
    return context.with_resource(connect(*context.obj))


def tell(answer: Any, words: RenderableType, as_json: bool) -> None:
    """Print an answer: as it came, for programs; or a sentence or a table, for people."""
    if as_json:
        print(json.dumps(answer, indent=1))
    else:
        say(words)


def asks(app: typer.Typer, name: str | None = None) -> Callable[[Callable[..., Told]], None]:
    """Make a command of a function of the pool and its own options; it gets ``--json`` as well."""

    def register(ask: Callable[..., Told]) -> None:
        def command(context: typer.Context, *, as_json: bool, **given: Any) -> None:
            tell(*ask(api(context), **given), as_json)

        _, *own = signature(ask).parameters.values()
        options = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own]
        taken = signature(ask).replace(parameters=[CONTEXT, *options, AS_JSON])
        vars(command)["__signature__"] = taken.replace(return_annotation=None)
        command.__name__, command.__doc__ = ask.__name__, ask.__doc__
        app.command(name)(command)

    return register


def say(what: RenderableType) -> None:
    """Print a sentence or a table; in a pipe without colours, and never folded."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    console = Console(width=width, highlight=False, soft_wrap=isinstance(what, str))
    console.print(what, markup=not isinstance(what, str))


def table(*columns: str) -> Table:
    """A table without a frame."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def shown(text: str) -> str:
    """A text of somebody's as a terminal may show it: without control characters."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def cell(text: str) -> Text:
    """The same for the cell of a table, whose markup it must not be."""
    return Text(shown(text))


def who(by: str) -> str:
    """Whom the ledger names, such as ``person:ina``, as people call them."""
    return by.partition(":")[2] or by


def of_thing(answer: dict[str, Any], what: str) -> str:
    """One lease or ticket in a sentence."""
    whose = shown(str(answer["user"]))
    return f"{what} {answer['id']} of {whose} ({answer['shape']}): {answer['state']}"
