"""`miglab pool reclaim`: what the reclaimer thinks of a lease, and why, as a person reads it."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

UNKNOWN = "unknown"


def show(told: Sequence[Mapping[str, Any]], console: Console, *, with_figures: bool) -> None:
    """Print what the service told of each lease.

    Args:
        told: answers of ``GET /api/reclaim``.
        console: where to.
        with_figures: also what each was decided by.
    """
    if not told:
        console.print("No lease in use.")
    for one in told:
        console.print(headline(one), markup=False, highlight=False, soft_wrap=True)
        if with_figures:
            console.print(_figures(one))


def headline(one: Mapping[str, Any]) -> str:
    """One lease in a sentence."""
    server = f" ({one['server']})" if one["server"] else ""
    acts = "" if one["is_acted_on"] else " [reported only: dry run, or switched off]"
    text = (
        f"lease {one['lease']} of {one['user']}{server}, {one['shape']}: {one['activity']}, "
        f"{one['act']}{acts}. {one['reason']}"
    )
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _figures(one: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in {**one["figures"], "stays": one["stays"]}.items():
        table.add_row("", name, UNKNOWN if value is None else str(value))
    return table
