"""Runs faults at random points of a class, and counts servers lost, doubled or owned by nobody."""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx

from miglab_bench.faults.plan import order_of
from miglab_slurm.job import POLL_S
from miglab_slurm_bench import job_server
from miglab_slurm_bench.faults.kinds import KINDS, FaultScene
from miglab_slurm_bench.faults.lesson import SlurmLesson
from miglab_slurm_bench.lab import SlurmLab, slurm_lab

GRES = {"1g.5gb": 2}
SITE = "attend_grace_s = 5.0\noffer_s = 10.0\ncommand_timeout_s = 4.0\n"
SETTINGS = {"PreemptType": "preempt/partition_prio", "PreemptMode": "CANCEL"}
PARTITIONS = (
    "PartitionName=lab Nodes={nodes} Default=YES MaxTime=240 PriorityTier=1 PreemptMode=CANCEL",
    "PartitionName=labcpu Nodes={nodes} MaxTime=240 PreemptMode=off",
    "PartitionName=urgent Nodes={nodes} PriorityTier=10 PreemptMode=off",
)
BEFORE, DURING = 4, 2
LASTS_S = (0.2, 4.0)
BOUND_S = 120.0
"""How long servers and jobs may take to agree again; generous, because a machine may be busy."""
QUIET_S = POLL_S + 2.0
"""So long after that they are looked at again: the hub has looked at every job meanwhile."""


@dataclass
class SlurmFaultResult:
    """What came of the faults of one kind."""

    faults: int = 0
    breaches: list[str] = field(default_factory=list)
    settled_s: list[float] = field(default_factory=list)


class SlurmFaultRun:
    """A lab on Slurm, its class, and one fault after another.

    Args:
        seed: of everything that is drawn.
        tell: is told of each fault.
    """

    def __init__(self, seed: int, tell: Callable[[str], None] = lambda _line: None) -> None:
        self._seed, self._tell = seed, tell
        self._stack = ExitStack()
        self.results: dict[str, SlurmFaultResult] = {kind: SlurmFaultResult() for kind in KINDS}
        self.lesson = SlurmLesson(self._lab())

    def _lab(self) -> SlurmLab:
        shims = Path(tempfile.mkdtemp(prefix="miglab-shims-", dir="/tmp"))
        self._stack.callback(shutil.rmtree, shims, ignore_errors=True)
        shims.chmod(0o755)
        shim = shims / "jupyterhub-singleuser"
        shim.write_text(f"#!/bin/sh\nexec {sys.executable} -S {job_server.__file__}\n")
        shim.chmod(0o755)
        return self._stack.enter_context(
            slurm_lab(gres=GRES, slurm=SITE, first_path=str(shims), settings=SETTINGS,
                      partitions=PARTITIONS, testing="reclaim.every_s = 2")
        )  # fmt: skip

    def run(self, count: int) -> dict[str, SlurmFaultResult]:
        """So many faults, evenly of all kinds."""
        for number, kind in enumerate(order_of(self._seed, sorted(KINDS), count)):
            rng = Random(f"{self._seed}:{number}")
            result = self.results[kind]
            result.faults += 1
            found = [f"fault {number}, {kind}: {one}" for one in self._one(rng, kind)]
            result.breaches += found
            self._tell("; ".join(found) or f"fault {number}, {kind}: {result.settled_s[-1]:.1f} s")
        return self.results

    def close(self) -> None:
        """End everything."""
        self.lesson.close()
        self._stack.close()

    def _one(self, rng: Random, name: str) -> list[str]:
        kind, scene = KINDS[name], FaultScene(self.lesson, rng)
        self._acts(rng, BEFORE)
        time.sleep(rng.uniform(*LASTS_S))  # where in a start it strikes is what is tried
        before = {job.id: job for job in self.lesson.jobs()}
        had = {name: job for name, job in self.lesson.ready().items() if job in before}
        kind.begin(scene)
        self._acts(rng, DURING)
        time.sleep(rng.uniform(*LASTS_S))
        kind.end(scene)
        wrong = self._settled(name)
        if not wrong:
            time.sleep(QUIET_S)
            wrong = self._agree()[0]
        return [*wrong, *self._lost(scene, name, had)]

    def _acts(self, rng: Random, count: int) -> None:
        for _ in range(count):
            try:
                self.lesson.act(rng)
            except (httpx.HTTPError, OSError):
                continue  # what is down does not answer

    def _settled(self, name: str) -> list[str]:
        wrong, took_s = self._agree()
        if not wrong:
            self.results[name].settled_s.append(took_s)
        return wrong

    def _agree(self) -> tuple[list[str], float]:
        """What hub and Slurm do not agree on in time, and how long they took."""
        began = time.monotonic()
        while (wrong := self._wrong()) and time.monotonic() - began < BOUND_S:
            time.sleep(0.5)
        return wrong, time.monotonic() - began

    def _wrong(self) -> list[str]:
        try:
            return self.lesson.wrong()
        except httpx.HTTPError as error:
            return [f"the hub does not answer: {error}"]

    def _lost(self, scene: FaultScene, name: str, had: dict[str, int]) -> Iterator[str]:
        """Servers that were there, whose job still runs, and which are there no more."""
        running = {job.id for job in self.lesson.jobs()}
        ready = self.lesson.ready()
        for student, job in had.items():
            if job in running and ready.get(student) != job and student not in self.lesson.stopped:
                yield f"{student}'s server, job {job}, still runs, and the hub has lost it"
            may_end = KINDS[name].ends_node or (KINDS[name].ends_victim and job == scene.victim)
            if job not in running and not may_end and student not in self.lesson.stopped:
                yield f"{student}'s server, job {job}, was ended by nobody"
        self.lesson.stopped.clear()
