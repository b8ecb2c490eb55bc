"""The kinds of faults: how each begins and ends, and whether it ends a student's server."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import psutil

from miglab_bench.harness.student import CheckFailed, wait_for
from miglab_bench.harness.temporary import SMALLEST_SERVER
from miglab_slurm_bench.cluster import ClusterError, SlurmCluster
from miglab_slurm_bench.faults.lesson import RUNNING, SlurmLesson

DIES_AFTER_S = 3.0
SAVED_WITHIN_S = 10.0
"""slurmctld saves its state every five seconds, where there is something new."""


@dataclass
class FaultScene:
    """What a fault works on.

    Attributes:
        victim: the job that it picked; 0 for none.
        node: the node that it picked.
    """

    lesson: SlurmLesson
    rng: Random
    victim: int = 0
    node: str = ""

    @property
    def cluster(self) -> SlurmCluster:
        """The cluster."""
        return self.lesson.on.cluster

    def pick(self) -> None:
        """A running job, and its node."""
        running = [job for job in self.lesson.jobs() if job.state == RUNNING]
        job = self.rng.choice(running) if running else None
        self.victim = job.id if job else 0
        self.node = job.node if job else self.rng.choice(self.cluster.nodes)

    def control(self, *arguments: str) -> None:
        """An operator's command, which may be refused."""
        self.cluster.command("scontrol", *arguments, check=False)


Step = Callable[[FaultScene], None]


@dataclass(frozen=True)
class SlurmFaultKind:
    """One kind.

    Attributes:
        begin: the fault.
        end: what ends it.
        ends_victim: whether the job that it picked is over then, and no other may be.
        ends_node: whether every job of the node may be over.
        forgets: whether Slurm itself may forget jobs: the lab can keep no position then.
    """

    begin: Step
    end: Step = lambda _scene: None
    ends_victim: bool = False
    ends_node: bool = False
    forgets: bool = False


def _down(part: str) -> Step:
    def step(scene: FaultScene) -> None:
        scene.pick()
        if part == "slurmctld":
            with contextlib.suppress(ClusterError):  # nothing has changed, so all is saved
                scene.cluster.until_saved(
                    SAVED_WITHIN_S
                )  # what it has not saved is unknown to the next one
        scene.cluster.kill(scene.node if part == "slurmd" else part)

    return step


def _killed_at_once(scene: FaultScene) -> None:
    """What slurmctld has not saved, the last few seconds, is unknown to the next one."""
    scene.pick()
    scene.cluster.kill("slurmctld")


def _up(scene: FaultScene) -> None:
    """As its operator does: slurmctld drains a node that still runs another job of a number."""
    scene.cluster.start_daemons()
    for node in scene.cluster.nodes:
        scene.control("update", f"nodename={node}", "state=resume")
    scene.cluster.start()


def _node_fails(scene: FaultScene) -> None:
    scene.pick()
    scene.control("update", f"nodename={scene.node}", "state=down", "reason=fault")


def _node_is_back(scene: FaultScene) -> None:
    scene.control("update", f"nodename={scene.node}", "state=resume")
    scene.cluster.start()


def _on_victim(*arguments: str) -> Step:
    def step(scene: FaultScene) -> None:
        if arguments[0] != "resume":
            scene.pick()
        if scene.victim:
            scene.control(*arguments, str(scene.victim))

    return step


def _preempted(scene: FaultScene) -> None:
    scene.pick()
    options = ("--partition=urgent", f"--nodelist={scene.node}", "--gres=gpu:1g.5gb:1", "--time=5")
    scene.victim = 0  # which of the node's jobs it is, is Slurm's choice
    scene.cluster.submit("sleep 3", *options)


def _ends_by_time(scene: FaultScene) -> None:
    scene.pick()
    if scene.victim:
        scene.control("update", f"jobid={scene.victim}", "endtime=now")
        with contextlib.suppress(CheckFailed):
            wait_for(
                lambda: all(job.id != scene.victim for job in scene.lesson.jobs()), "its end", 90
            )


def _dies(scene: FaultScene) -> None:
    time.sleep(DIES_AFTER_S)
    scene.pick()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_its = process.environ().get("SLURM_JOB_ID") == str(scene.victim)
            if is_its and SMALLEST_SERVER[-1] in process.cmdline():
                process.kill()


KINDS: dict[str, SlurmFaultKind] = {
    "hub killed": SlurmFaultKind(lambda scene: scene.lesson.on.lab.kill("hub")),
    "reclaimer killed": SlurmFaultKind(lambda scene: scene.lesson.on.lab.kill("reclaimer")),
    "slurmctld down": SlurmFaultKind(_down("slurmctld"), _up),
    "slurmctld killed unsaved": SlurmFaultKind(_killed_at_once, _up, ends_node=True, forgets=True),
    "slurmd down": SlurmFaultKind(_down("slurmd"), _up),
    "munged down": SlurmFaultKind(_down("munged"), _up),
    "node failed": SlurmFaultKind(_node_fails, _node_is_back, ends_node=True),
    "job suspended": SlurmFaultKind(_on_victim("suspend"), _on_victim("resume")),
    "job requeued": SlurmFaultKind(_on_victim("requeue")),
    "job preempted": SlurmFaultKind(_preempted, ends_node=True),
    "ended by its time limit": SlurmFaultKind(_ends_by_time, ends_victim=True),
    "died after three seconds": SlurmFaultKind(_dies, ends_victim=True),
}
