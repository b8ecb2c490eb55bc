"""`./lab bench faults`: the lab under seeded faults, and whether its invariants hold after each.

Proxy, hub and pool over two simulated A100s, with containers of an engine of the harness's own as
students' servers where one can be had (processes elsewhere).  How long each kind takes to be well
again is measured from the end of the fault until health is good, every server that ended is
released, and every other answers through the proxy.
"""

import json
import signal
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from miglab_bench.faults.kinds import KINDS
from miglab_bench.faults.run import FaultRun, KindResult


def bench_faults(
    count: Annotated[int, typer.Option(min=1, help="How many faults.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed of the faults; the same one replays them.")] = 1,
    docker: Annotated[
        bool | None,
        typer.Option(help="Run servers in containers; by default wherever Docker works."),
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only faults of this kind; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """The lab under seeded faults: kills, clocks, disk, NVML, engine, lost and restored data."""
    if unknown := set(kind or ()) - set(KINDS):
        raise typer.BadParameter(f"no kind {min(unknown)!r}; there are: {', '.join(KINDS)}")
    kinds = tuple(kind or ())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the lab as well
    run = FaultRun(seed, docker=docker, kinds=kinds, tell=lambda line: typer.echo(line, err=True))
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
