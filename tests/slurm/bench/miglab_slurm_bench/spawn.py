"""`./lab bench slurm-spawn`: from a free slice to the first answer, beside plain batchspawner.

One hub, a real Slurm of two nodes on this machine, and two students.  One student's server is
MIGSlurmSpawner's, the other's is batchspawner's: the same command, gres and partition, under srun.
They start in turns, who goes first changing each round, and each is timed to its first answer.
"""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from miglab_bench.harness.pool_operator import SHAPE
from miglab_bench.harness.ports import free_ports
from miglab_bench.measures.ratio import Ratio, ratio_of
from miglab_slurm_bench.cluster import SlurmCluster, missing
from miglab_slurm_bench.commands import commands_find

if TYPE_CHECKING:  # takes seconds: JupyterHub, and all it needs
    from miglab_bench.harness.hub_here import HubHere

BOUND = 1.0
OURS, PLAIN = "ada", "games"
"""batchspawner asks for the Unix account of its student; every Debian has this one."""
GRES = "gpu:1g.5gb:1"
EVERY_S = 3.0
"""As often as a lab asks Slurm by default."""


@dataclass(frozen=True)
class SlurmRound:
    """One start of each: seconds from asking the hub to the server's first HTTP answer."""

    ours_s: float
    plain_s: float


def bench_slurm_spawn(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    rounds: Annotated[
        int, typer.Option(min=2, help="Starts of each spawner; an even number is fairer.")
    ] = 20,
) -> None:
    """Start on Slurm: MIGSlurmSpawner compared with batchspawner, until the first HTTP answer.

    Needs root, Slurm, and batchspawner, which the tests' requirements install.
    """
    if absent := missing():
        typer.echo(f"slurm-spawn needs {absent}", err=True)
        raise typer.Exit(2)
    with SlurmCluster() as cluster, commands_find(cluster):
        measured = asyncio.run(_measure(cluster, rounds))
    ratio = ratio_of([each.ours_s for each in measured], [each.plain_s for each in measured])
    how = (
        f"{len(measured)} rounds after one that does not count, jupyterhub-singleuser, who goes "
        f"first changes each round; median of the rounds' ratios, 95 % bootstrap interval; load "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the end"
    )
    if as_json:
        samples = [asdict(each) for each in measured]
        said = {"ratio": asdict(ratio), "bound": BOUND, "rounds": samples, "how": how}
        print(json.dumps(said))
        return
    print(_sentence(ratio, measured), how, sep="\n")


async def _measure(cluster: SlurmCluster, rounds: int) -> list[SlurmRound]:
    import batchspawner  # noqa: F401 -- adds its route to the hub's

    from miglab_bench.harness.hub_here import hub_here
    from miglab_slurm.reader import close_readers

    folder = Path(tempfile.mkdtemp(prefix="miglab-bench-"))
    try:
        async with hub_here(_config(cluster, folder)) as hub:
            bench = SlurmTurns(hub, cluster)
            try:
                await bench.round(is_ours_first=True)
                return [await bench.round(is_ours_first=bool(n % 2)) for n in range(rounds)]
            finally:
                await close_readers()
    finally:
        shutil.rmtree(folder)


def _config(cluster: SlurmCluster, folder: Path) -> Any:
    from traitlets.config import Config

    from miglab_slurm.hub_setup import set_up

    c = Config()
    set_up(c)
    port = free_ports()
    c.JupyterHub.bind_url = f"http://127.0.0.1:{port}/"
    c.JupyterHub.hub_ip, c.JupyterHub.hub_port = "127.0.0.1", port + 1
    c.JupyterHub.db_url = f"sqlite:///{folder}/hub.sqlite"
    c.JupyterHub.cookie_secret_file = f"{folder}/cookie_secret"
    c.JupyterHub.authenticator_class = "dummy"
    c.Authenticator.allow_all = True
    c.JupyterHub.load_groups = {"everyone": {"users": [OURS, PLAIN]}}
    c.JupyterHub.spawner_class = "mig-slurm"
    c.Spawner.cmd = [str(Path(sys.executable).parent / "jupyterhub-singleuser")]
    c.Spawner.http_timeout = 120
    c.MIGSlurmSpawner.poll_interval = 3600
    c.MIGSlurmSpawner.slurm_jobs_file = f"{folder}/slurm-jobs.sqlite"
    c.MIGSlurmSpawner.slurm = {
        "partition": "lab",
        "run_as": "",
        "python": sys.executable,
        "home": str(cluster.folder),
        "every_s": EVERY_S,
        "shapes": {SHAPE: {"gres": GRES}, "cpu": {}},
        "courses": {"everyone": {"shapes": [SHAPE, "cpu"], "default": SHAPE}},
    }
    return c


class SlurmTurns:
    """Starts now one's server, now the other's."""

    def __init__(self, hub: "HubHere", cluster: SlurmCluster) -> None:
        self._hub, self._cluster = hub, cluster

    async def round(self, *, is_ours_first: bool) -> SlurmRound:
        """One start of each, every time with all slices free."""
        if is_ours_first:
            ours_s = await self._ours_s()
            return SlurmRound(ours_s, await self._plain_s())
        plain_s = await self._plain_s()
        return SlurmRound(await self._ours_s(), plain_s)

    async def _ours_s(self) -> float:
        return await self._taken_s(self._hub.users[OURS], shape=SHAPE)

    async def _plain_s(self) -> float:
        from batchspawner import MultiSlurmSpawner

        user = self._hub.users[PLAIN]
        user.spawners[""] = user._new_spawner("", MultiSlurmSpawner, **self._plain_traits())
        return await self._taken_s(user)

    async def _taken_s(self, user: Any, **options: str) -> float:
        from miglab_bench.harness.hub_here import time_start

        taken_s = await time_start(user, **options)
        await user.stop("")
        await asyncio.to_thread(self._until_free)
        return taken_s

    def _plain_traits(self) -> dict[str, Any]:
        """Batchspawner at its fastest: without ``--get-user-env=L``, which starts a login shell."""
        from batchspawner import SlurmSpawner

        script = SlurmSpawner.batch_script.default_value
        return {
            "batch_script": script.replace("#SBATCH --get-user-env=L\n", ""),
            "exec_prefix": "",
            "env_keep": ["SLURM_CONF", "PATH"],
            "ip": "0.0.0.0",
            "args": ["--allow-root"],
            "daemon_resolver": dict.fromkeys(self._cluster.nodes, "127.0.0.1"),
            "batchspawner_singleuser_cmd": str(
                Path(sys.executable).parent / "batchspawner-singleuser"
            ),
            "req_homedir": str(self._cluster.folder),
            "req_partition": "lab",
            "req_gres": GRES,
            "req_runtime": "120",
            "start_timeout": 120,
        }

    def _until_free(self) -> None:
        self._cluster.until(lambda: not self._cluster.command("squeue", "-h"), "all slices free")


def _sentence(ratio: Ratio, rounds: list[SlurmRound]) -> str:
    ours_s = median(each.ours_s for each in rounds)
    plain_s = median(each.plain_s for each in rounds)
    return (
        f"MIGSlurmSpawner takes {ratio} of plain batchspawner's time; "
        f"medians {ours_s:.2f} s and {plain_s:.2f} s; {ratio.within(BOUND, by_low=True)}"
    )
