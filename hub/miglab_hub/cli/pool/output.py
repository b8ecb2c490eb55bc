"""What the commands of `miglab pool` share: the way to the pool, and how an answer is shown.

For people a sentence or a table, for programs (``--json``) the service's answer as it came.
"""

import json
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from miglab_hub.pool_api import PoolApi, connect

PIPE_WIDTH = 10_000  # a line of a table is never folded in a pipe

AsJson = Annotated[bool, typer.Option("--json", help="Print the service's answer as JSON.")]
Why = Annotated[str, typer.Option("--reason", help="Why; the person concerned can read it.")]


def api(context: typer.Context) -> PoolApi:
    """The pool that the options name; closed when the command ends."""
    return context.with_resource(connect(*context.obj))


def tell(answer: Any, as_json: bool, words: Callable[[], RenderableType]) -> None:
    """Print an answer.

    Args:
        answer: the service's.
        as_json: as it came, for programs.
        words: makes a sentence or a table of it, for people.
    """
    if as_json:
        print(json.dumps(answer, indent=1))
    else:
        say(words())


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
