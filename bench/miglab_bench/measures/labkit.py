"""`./lab bench labkit`: labkit's times over other people's timers, on what this machine has."""

import json
from typing import Annotated

import typer
from rich.console import Console

from miglab_bench.harness.tables import table_of

MISSING = 2


def bench_labkit(
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    count: Annotated[int, typer.Option(min=10, help="How many alternating blocks.")] = 10,
) -> None:
    """Compare labkit's timing with torch's own (CPU) or triton's (GPU)."""
    try:
        from miglab_bench.measures import timers

        ratios = timers.all_ratios(count)
    except ImportError as error:
        typer.echo(f"{error.name} is not installed here: pip install ./notebooks[torch]", err=True)
        raise typer.Exit(MISSING) from error
    if as_json:
        typer.echo(json.dumps({"ratios": ratios}))
        return
    title = f"labkit's time over other timers', medians of {count} alternated blocks"
    rows = [{"what": name, "ratio": f"{ratio:.4f}"} for name, ratio in ratios.items()]
    Console().print(table_of(rows, title))
