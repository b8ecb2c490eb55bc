"""`./lab bench slurm-spawn`: from a free slice to the first answer, beside plain batchspawner.

One hub, a real Slurm of two nodes on this machine, and two students.  One student's server is
MIGSlurmSpawner's, the other's is batchspawner's: the same command, gres and partition.
They start in turns, who goes first changing each round, and each is timed to its first answer.
"""

import asyncio
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any
from unittest import mock

import typer

from miglab_bench.harness.pool_operator import SHAPE
from miglab_bench.harness.results import compare_times, ratio_of, say
from miglab_bench.harness.temporary import prepared_lab
from miglab_hub.settings.lab_toml import Settings
from miglab_slurm_bench.cluster import SlurmCluster, require_slurm
from miglab_slurm_bench.lab import PARTITIONS, SHAPES, site_of

BOUND = 1.0
OURS, PLAIN = "ada", "games"
"""batchspawner asks for the Unix account of its student; every Debian has this one."""
GRES = "gpu:1g.5gb:1"


@dataclass(frozen=True)
class SlurmRound:
    """One start of each: seconds from asking the hub to the server's first HTTP answer."""

    ours_s: float
    plain_s: float


def bench_slurm_spawn(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    rounds: Annotated[
        int, typer.Option(min=2, help="Starts of each spawner; an even number is fairer.")
    ] = 30,
) -> None:
    """Start on Slurm: MIGSlurmSpawner compared with batchspawner, until the first HTTP answer.

    Needs root, Slurm, and batchspawner, which the tests' requirements install.
    """
    require_slurm("slurm-spawn")
    members = f"members = {json.dumps([OURS, PLAIN])}"
    with (
        SlurmCluster(partitions=PARTITIONS) as cluster,
        mock.patch.dict(os.environ, cluster.environment),
        prepared_lab(
            spawner="slurm", shapes=SHAPES, course=members, more=site_of(cluster)
        ) as settings,
    ):
        measured = asyncio.run(_measure(cluster, settings, rounds))
    both = [round_.ours_s for round_ in measured], [round_.plain_s for round_ in measured]
    ratio, of_medians = ratio_of(*both), median(both[0]) / median(both[1])
    conditions = (
        f"{len(measured)} rounds after one that does not count, jupyterhub-singleuser, who goes "
        f"first changes each round; ratio of the medians, and before it the median of the rounds' "
        f"ratios with its 95 % bootstrap interval; load "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the end"
    )
    samples = [asdict(round_) for round_ in measured]
    result = {"ratio": asdict(ratio), "ratio_of_medians": of_medians, "bound": BOUND}
    sentence = f"{compare_times('MIGSlurmSpawner', 'batchspawner', *both)}, ratio {of_medians:.3f}"
    verdict = f"the bound of {BOUND} {'holds' if of_medians <= BOUND else 'DOES NOT HOLD'}"
    result |= {"rounds": samples, "how": conditions}
    say(result, f"{sentence}; {verdict}", conditions, as_json=as_json)


async def _measure(cluster: SlurmCluster, settings: Settings, rounds: int) -> list[SlurmRound]:
    import batchspawner  # its import adds its route to the hub's
    from traitlets.config import Config

    from miglab_bench.harness.hub_here import hub_here, in_turns, time_start
    from miglab_hub.configure import configure
    from miglab_slurm.reader import close_readers

    config = Config()
    configure(config, settings)

    async def taken_s(user: Any, **options: str) -> float:
        """One start, every time with all slices free."""
        took_s = await time_start(user, **options)
        await user.stop("")
        await asyncio.to_thread(
            cluster.until, lambda: not cluster.command("squeue", "-h"), "all slices free"
        )
        return took_s

    async def ours() -> float:
        return await taken_s(hub.users[OURS], shape=SHAPE)

    async def plain() -> float:
        user, spawner = hub.users[PLAIN], batchspawner.MultiSlurmSpawner
        user.spawners[""] = user._new_spawner("", spawner, **_plain_traits(cluster))
        return await taken_s(user)

    async with hub_here(config) as hub:
        try:
            return [SlurmRound(*both) for both in await in_turns(ours, plain, rounds)]
        finally:
            await close_readers()


def _plain_traits(cluster: SlurmCluster) -> dict[str, Any]:
    """Batchspawner at its fastest: without ``--get-user-env=L``, which starts a login shell."""
    from batchspawner import SlurmSpawner

    programs, script = Path(sys.executable).parent, SlurmSpawner.batch_script.default_value
    return {
        "batch_script": script.replace("#SBATCH --get-user-env=L\n", ""),
        "exec_prefix": "",
        "env_keep": ["SLURM_CONF", "PATH"],
        "ip": "0.0.0.0",
        "cmd": [str(programs / "jupyterhub-singleuser")],
        "args": ["--allow-root"],
        "daemon_resolver": dict.fromkeys(cluster.nodes, "127.0.0.1"),
        "batchspawner_singleuser_cmd": str(programs / "batchspawner-singleuser"),
        "req_homedir": str(cluster.folder),
        "req_partition": "lab",
        "req_gres": GRES,
        "req_runtime": "120",
        "http_timeout": 120,
        "start_timeout": 120,
    }
