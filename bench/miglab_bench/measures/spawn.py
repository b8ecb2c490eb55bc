"""`./lab bench spawn`: how much longer than plain DockerSpawner's a server with a slice takes.

One hub, the real pool service, the real Docker engine, and two students, or so many pairs at once.
One's server is MIGDockerSpawner's, as lab.toml makes it; the other's is plain DockerSpawner's with
the same image, network, volume and removal, and by the same device request a slice that is held all
the time.  They start and end in turns, who goes first changing each round; a start is timed to the
first answer, and the end until the containers are gone.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from miglab_bench.harness.pool_operator import SHAPE
from miglab_bench.harness.results import compare_times, ratio_of, say
from miglab_bench.harness.temporary import prepared_lab, running_pool

BOUND = 1.05
SLICES_PER_GPU = 7
OURS, PLAIN = "ours", "plain"


@dataclass(frozen=True)
class Round:
    """One start and end of each spawner's servers, all of them at once.

    Attributes:
        ours_s: from asking the hub to a server's first HTTP answer, median of the servers.
        plain_s: the same.
        ours_stop_s: from asking the hub until the engine has none of their containers.
        plain_stop_s: the same.
    """

    ours_s: float
    plain_s: float
    ours_stop_s: float
    plain_stop_s: float


def bench_spawn(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    rounds: Annotated[
        int, typer.Option(min=2, help="Starts of each spawner; an even number is fairer.")
    ] = 20,
    at_once: Annotated[
        int, typer.Option(min=1, help="How many servers of a spawner start, and end, at once.")
    ] = 1,
) -> None:
    """Spawn: MIGDockerSpawner compared with DockerSpawner, until the first HTTP answer.

    Needs a Docker engine and the student image.
    """
    from miglab_bench.measures.both_spawners import (
        measure,  # takes seconds: JupyterHub, and all it needs
    )

    both = [[f"{prefix}-{number}" for number in range(at_once)] for prefix in (OURS, PLAIN)]
    with prepared_lab(
        spawner="docker",
        shapes=(SHAPE, "cpu"),
        course=f"members = {json.dumps([*both[0], *both[1]])}",
        gpus=-(-2 * at_once // SLICES_PER_GPU),  # also for what plain DockerSpawner starts
    ) as settings:
        with running_pool(settings):
            measured = [Round(*times) for times in asyncio.run(measure(settings, rounds, *both))]
        _show(measured, settings.servers.image, at_once, as_json=as_json)  # whatever cleaning says


def _show(measured: Sequence[Round], image: str, at_once: int, *, as_json: bool) -> None:
    starts = [r.ours_s for r in measured], [r.plain_s for r in measured]
    stops = [r.ours_stop_s for r in measured], [r.plain_stop_s for r in measured]
    ratio, stop = ratio_of(*starts), ratio_of(*stops)
    method = (
        f"{len(measured)} rounds after one that does not count, {at_once} of each at once, "
        f"{image}, who "
        f"goes first changes each round; median of the rounds' ratios, 95 % bootstrap interval; "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the end"
    )
    start = compare_times("MIGDockerSpawner", "DockerSpawner", *starts)
    end = compare_times("The end of all", "DockerSpawner", *stops)
    report = {
        "ratio": asdict(ratio), "bound": BOUND, "stop_ratio": asdict(stop), "at_once": at_once,
        "rounds": [asdict(r) for r in measured], "how": method,
    }  # fmt: skip
    say(report, f"{start}; {ratio.verdict_on(BOUND)}", end, method, as_json=as_json)
