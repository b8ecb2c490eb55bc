"""`./lab bench slurm-faults`: a lab on Slurm under seeded faults, and what is lost by them.

A real slurmctld and slurmd of two nodes, proxy, hub and reclaimer as `./lab up` starts them; eight
students on four slices, whose servers are the smallest there are.  After each fault hub and Slurm
must agree again within two minutes: no server lost or doubled, no job that nobody owns.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from random import Random
from typing import Annotated

import httpx
import typer

from miglab_bench.faults.series import FaultSeries, run_and_say
from miglab_bench.harness.temporary import SMALLEST_SERVER
from miglab_slurm.job import POLL_S
from miglab_slurm_bench.cluster import require_slurm
from miglab_slurm_bench.faults.kinds import KINDS, FaultScene, SlurmFaultKind
from miglab_slurm_bench.faults.lesson import PENDING, SlurmLesson
from miglab_slurm_bench.lab import slurm_lab

GRES = {"1g.5gb": 2}
SITE = "attend_grace_s = 15.0\noffer_s = 10.0\ncommand_timeout_s = 4.0\n"
SETTINGS = {"PreemptType": "preempt/partition_prio", "PreemptMode": "CANCEL"}
PARTITIONS = (
    "PartitionName=lab Nodes={nodes} Default=YES MaxTime=240 PriorityTier=1 PreemptMode=CANCEL",
    "PartitionName=labcpu Nodes={nodes} MaxTime=240 PreemptMode=off",
    "PartitionName=urgent Nodes={nodes} PriorityTier=10 PreemptMode=off",
)
HUB_CONFIG = f"""
from miglab_hub.configure import configure
from miglab_hub.settings.lab_toml import load

configure(c, load())
c.MIGSlurmSpawner.cmd = {SMALLEST_SERVER}
"""
BEFORE, DURING = 4, 2
LASTS_S = (0.2, 4.0)
BOUND_S = 120.0
"""How long servers and jobs may take to agree again; generous, because a machine may be busy."""
QUIET_S = POLL_S + 2.0
"""So long after that they are looked at again: the hub has looked at every job meanwhile."""


class SlurmFaultRun(FaultSeries):
    """A lab on Slurm, its class, and one fault after another; see `FaultSeries`."""

    def __init__(
        self,
        seed: int,
        kinds: Sequence[str] = tuple(sorted(KINDS)),
        tell: Callable[[str], None] = lambda _line: None,
    ) -> None:
        super().__init__(seed, kinds, tell)
        self._stack = ExitStack()
        lab = slurm_lab(gres=GRES, slurm=SITE, settings=SETTINGS, partitions=PARTITIONS,
                        testing="reclaim.every_s = 2", hub_config=HUB_CONFIG)  # fmt: skip
        self.lesson = SlurmLesson(self._stack.enter_context(lab))

    def close(self) -> None:
        """End everything."""
        self.lesson.close()
        self._stack.close()

    def strike(self, number: int, kind: str) -> list[str]:
        """One fault; what does not hold after it."""
        rng = Random(f"{self.seed}:{number}")
        fault, scene = KINDS[kind], FaultScene(self.lesson, rng)
        self._acts(rng, BEFORE)
        time.sleep(rng.uniform(*LASTS_S))  # where in a start it strikes is what is tried
        before = {job.id: job for job in self.lesson.jobs()}
        had = {name: job for name, job in self.lesson.ready().items() if job in before}
        waited = {job.user: job.id for job in before.values() if job.state == PENDING}
        fault.begin(scene)
        self._come_back(waited)
        self._acts(rng, DURING)
        time.sleep(rng.uniform(*LASTS_S))
        fault.end(scene)
        self._come_back(waited)
        healed_at = time.monotonic()
        wrong = self._disagreement()
        if not wrong:
            self.results[kind].recoveries_s.append(time.monotonic() - healed_at)
            time.sleep(QUIET_S)
            wrong = self._disagreement()
        lost = [] if fault.forgets or fault.ends_node else self._lost_positions(waited)
        return [*wrong, *lost, *self._lost(scene, fault, had)]

    def _come_back(self, waited: Mapping[str, int]) -> None:
        with suppress(httpx.HTTPError, OSError):  # what is down does not answer
            self.lesson.come_back(waited)

    def _acts(self, rng: Random, count: int) -> None:
        for _ in range(count):
            with suppress(httpx.HTTPError, OSError):  # what is down does not answer
                self.lesson.act(rng)

    def _disagreement(self) -> list[str]:
        """What hub and Slurm do not agree on in time."""
        deadline = time.monotonic() + BOUND_S
        while (wrong := self.lesson.wrong()) and time.monotonic() < deadline:
            time.sleep(0.5)
        return wrong

    def _lost_positions(self, waited: dict[str, int]) -> list[str]:
        """Positions in the queue whose job is there no more, though its student waits on."""
        alive = {job.id for job in self.lesson.jobs()}
        return [
            f"{student} waited as job {job}, which is there no more"
            for student, job in waited.items()
            if job not in alive and student not in self.lesson.stopped
        ]

    def _lost(self, scene: FaultScene, kind: SlurmFaultKind, had: dict[str, int]) -> Iterator[str]:
        """Servers that were there, whose job still runs, and which are there no more."""
        running = {(job.id, job.user) for job in self.lesson.jobs()}
        ready = self.lesson.ready()
        for student, job in had.items():
            is_running = (job, student) in running
            if is_running and ready.get(student) != job and student not in self.lesson.stopped:
                yield f"{student}'s server, job {job}, still runs, and the hub has lost it"
            may_end = kind.ends_node or (kind.ends_victim and job == scene.victim)
            if not is_running and not may_end and student not in self.lesson.stopped:
                yield f"{student}'s server, job {job}, was ended by nobody"
        self.lesson.stopped.clear()


def bench_slurm_faults(
    count: Annotated[int, typer.Option(min=1, help="How many faults.")] = 11,
    seed: Annotated[
        int, typer.Option(help="Seed of the faults; the same seed draws the same ones.")
    ] = 1,
    kind: Annotated[
        list[str] | None, typer.Option(help="A kind of fault; all kinds if none is named.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """A lab on Slurm under seeded faults: daemons, nodes, jobs, hub and reclaimer; needs root."""
    require_slurm("slurm-faults")
    if unknown := sorted(set(kind or ()) - set(KINDS)):
        typer.echo(f"no such kind: {', '.join(unknown)}; there are {', '.join(KINDS)}", err=True)
        raise typer.Exit(2)
    kinds = tuple(sorted(kind or KINDS))
    run = SlurmFaultRun(seed, kinds, tell=lambda line: typer.echo(line, err=True))
    run_and_say(run, count, as_json=as_json, settled_max_s=lambda took_s: max(took_s, default=0.0))
