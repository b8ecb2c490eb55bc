"""`./lab bench faults`: the pool under seeded faults, and whether its invariants hold after each.

A real pool service over two simulated A100s, with real containers as students' servers where an
engine has the student's image (processes elsewhere).  The hub has no part in it: students speak to
the pool as the spawner does.  How long each kind takes to be well again is measured from the end of
the fault until health is good and every server that ended is released.
"""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from miglab_bench.faults.run import FaultRun, KindResult


def bench_faults(
    count: Annotated[int, typer.Option(min=1, help="How many faults.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed of the faults; the same one replays them.")] = 1,
    docker: Annotated[
        bool | None,
        typer.Option(help="Run servers in containers; by default wherever Docker works."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """The pool under seeded faults: kills, clocks, disk, NVML, a restored ledger."""
    run = FaultRun(seed, docker=docker, tell=lambda line: typer.echo(line, err=True))
    try:
        results = run.run(count)
    finally:
        run.close()
    if as_json:
        print(json.dumps(summary(results), indent=1))
    else:
        _print(results)
    if any(result.breaches for result in results.values()):
        raise typer.Exit(1)


def summary(results: dict[str, KindResult]) -> dict[str, object]:
    """The results as JSON has them."""
    rows = [
        {
            "kind": kind,
            "faults": result.faults,
            "breaches": len(result.breaches),
            "recovery_p95_s": round(result.recovery_p95_s, 2),
        }
        for kind, result in results.items()
    ]
    said = [one for result in results.values() for one in result.breaches]
    faults = sum(result.faults for result in results.values())
    return {"faults": faults, "breaches": len(said), "rows": rows, "said": said}


def _print(results: dict[str, KindResult]) -> None:
    table = Table(box=None)
    for column in ("kind", "faults", "breaches", "recovery p95, s"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    for kind, result in results.items():
        count, found = str(result.faults), str(len(result.breaches))
        table.add_row(kind, count, found, f"{result.recovery_p95_s:.1f}")
    Console().print(table)
    for result in results.values():
        for one in result.breaches:
            print(one)
