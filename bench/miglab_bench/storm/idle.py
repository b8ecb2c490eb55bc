"""`./lab bench idle`: what a lab costs in which nothing happens.

Proxy, hub and pool as `./lab up` starts them; so many students have a server that only answers, and
sit still.  Then the processor's time of each process is read, a while apart.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from miglab_bench.storm.lab import processor_times, running_lab, temporary_settings
from miglab_bench.storm.waves import arrive
from miglab_hub.errors import StartError

LEASES = (0, 50, 500)
ARRIVALS_PER_S = 4.0
REST_S = 5.0  # what the last start still causes is over by then


@dataclass(frozen=True)
class IdleRow:
    """Processor seconds a minute, while so many leases run and nobody does anything.

    Attributes:
        leases: how many.
        gpus: how many simulated GPUs there were for them.
        hub_cpu_s: of the hub.
        pool_cpu_s: of the pool.
        proxy_cpu_s: of the proxy.
    """

    leases: int
    gpus: int
    hub_cpu_s: float
    pool_cpu_s: float
    proxy_cpu_s: float


def bench_idle(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    leases: Annotated[
        list[int] | None, typer.Option(min=0, help="How many; may be given more than once.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long nothing happens.")] = 60.0,
) -> None:
    """Idle: processor time of hub, pool and proxy while leases run and nothing happens."""
    rows = [measure(each, seconds) for each in (LEASES if leases is None else leases)]
    how = (
        f"processor seconds a minute over {seconds:.0f} s; servers that only answer, simulated "
        f"GPUs; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the end"
    )
    if as_json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "how": how}))
        return
    Console().print(_table(rows), how)


def measure(leases: int, seconds: float) -> IdleRow:
    """Let students come, and look at the lab while they sit still.

    Raises:
        StartError: somebody got no server.
    """
    with temporary_settings(leases) as settings, running_lab(settings) as siblings:
        names = [f"miglab-{number}" for number in range(leases)]
        reasons = {one.why_not for one in arrive(settings, names, leases / ARRIVALS_PER_S)} - {""}
        if reasons:
            raise StartError(f"not everybody got a server: {'; '.join(sorted(reasons))}")
        time.sleep(REST_S)
        before = processor_times(siblings)
        began = time.monotonic()
        time.sleep(seconds)
        minutes = (time.monotonic() - began) / 60
        after = processor_times(siblings)
        spent = {name: round((after[name] - before[name]) / minutes, 2) for name in before}
        return IdleRow(leases, settings.gpus.count, spent["hub"], spent["pool"], spent["proxy"])


def _table(rows: Sequence[IdleRow]) -> Table:
    table = Table(title="processor seconds a minute while nothing happens")
    for column in ("leases", "GPUs", "hub", "pool", "proxy"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(str(value) for value in asdict(row).values()))
    return table
