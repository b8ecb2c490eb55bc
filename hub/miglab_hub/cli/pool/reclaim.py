"""`miglab pool reclaim`: reclaims a lease; shows what the reclaimer thinks of one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from miglab_api.wording import server_in_words
from miglab_hub.cli.pool.output import of_thing, shown
from miglab_hub.cli.pool.reserve import seconds

UNKNOWN = "unknown"


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
