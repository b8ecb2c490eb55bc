"""`./lab bench slurm-faults`: a lab on Slurm under seeded faults, and what is lost by them.

A real slurmctld and slurmd of two nodes, proxy, hub and reclaimer as `./lab up` starts them; eight
students on four slices, whose servers are the smallest there are.  After each fault hub and Slurm
must agree again within two minutes: no server lost or doubled, no job that nobody owns.
"""

import json
from typing import Annotated

import typer

from miglab_slurm_bench.cluster import missing
from miglab_slurm_bench.faults.run import SlurmFaultRun


def bench_slurm_faults(
    count: Annotated[int, typer.Option(min=1, help="How many faults.")] = 11,
    seed: Annotated[
        int, typer.Option(help="Seed of the faults; the same seed draws the same ones.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """A lab on Slurm under seeded faults: daemons, nodes, jobs, hub and reclaimer; needs root."""
    if absent := missing():
        typer.echo(f"slurm-faults needs {absent}", err=True)
        raise typer.Exit(2)
    run = SlurmFaultRun(seed, tell=lambda line: typer.echo(line, err=True))
    try:
        results = run.run(count)
    finally:
        run.close()
    rows = [
        {
            "kind": kind,
            "faults": result.faults,
            "breaches": len(result.breaches),
            "settled_max_s": round(max(result.settled_s, default=0.0), 1),
        }
        for kind, result in results.items()
    ]
    said = [one for result in results.values() for one in result.breaches]
    if as_json:
        print(json.dumps({"faults": count, "breaches": len(said), "rows": rows, "said": said}))
    else:
        for row in rows:
            words = f"{row['faults']} faults, {row['breaches']} breaches"
            print(f"{row['kind']:<26} {words}, agreed again after {row['settled_max_s']} s at most")
    if said:
        raise typer.Exit(1)
