"""The clusters of several sites, each a few lines that differ from a plain one.

What holds of a lab on Slurm holds on every one of them: the suite's core runs on all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from miglab_slurm_bench import accounted, cluster
from miglab_slurm_bench.accounted import AccountedCluster
from miglab_slurm_bench.accounts import accounts_of_a_directory
from miglab_slurm_bench.cluster import SlurmCluster
from miglab_slurm_bench.power_saving import PowerSavingCluster

PARTITIONS = (
    "PartitionName=lab Nodes={nodes} Default=YES MaxTime=240",
    "PartitionName=cpu Nodes={nodes} MaxTime=240",
    "PartitionName=night Nodes={nodes} MaxTime=240 State=DOWN",
)
STUDENTS = {"ada": "games", "bo": "news", "cy": "man"}
"""Sign-in names, and the Unix accounts of them, which every Debian has."""
LABS_ACCOUNT = "proxy"
READING = ("squeue", "sinfo", "scontrol", "sacct")
_AS_LABS_ACCOUNT = """#!/bin/sh
[ "$(id -u)" = 0 ] || exec /usr/bin/{name} "$@"
exec runuser -u {account} -- /usr/bin/{name} "$@"
"""


@dataclass(frozen=True)
class SlurmSiteKind:
    """What a site sets, where that is not what ours has.

    Attributes:
        settings: of slurm.conf.
        partitions: lines of slurm.conf.
        gres: fake slices of every node, or one table for each node.
        hardware: cores and memory of every node, as slurm.conf says them.
        make: the class of its cluster.
        students: sign-in name to Unix account.
        reads_as: the Unix account as which the lab reads what Slurm lists; empty for root, from
            whom Slurm hides nothing.
        prepare: what its operator does when the cluster is up.
        slurm: what the lab's own table says besides.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[str, ...] = PARTITIONS
    gres: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None
    hardware: str = cluster.HARDWARE
    make: type[SlurmCluster] = SlurmCluster
    students: Mapping[str, str] = field(default_factory=lambda: STUDENTS)
    reads_as: str = ""
    prepare: Callable[[SlurmCluster], None] = lambda _cluster: None
    slurm: Mapping[str, Any] = field(default_factory=dict)

    @property
    def missing(self) -> str:
        """What must be installed before it can be started; empty if nothing."""
        return accounted.missing() if self.make is AccountedCluster else cluster.missing()

    @contextmanager
    def running(self) -> Iterator[SlurmCluster]:
        """Its cluster, up and prepared, with homes for its students."""
        with ExitStack() as stack:
            if unknown := sorted(set(self.students.values()) - set(STUDENTS.values())):
                stack.enter_context(accounts_of_a_directory(unknown))
            cluster_of_site = self.make(
                settings=self.settings,
                partitions=self.partitions,
                gres=self.gres,
                hardware=self.hardware,
            )
            running = stack.enter_context(cluster_of_site)
            for folder in ("homes", "bin"):
                (running.folder / folder).mkdir()
            (running.folder / "homes").chmod(0o1777)
            for name in READING if self.reads_as else ():
                program = running.folder / "bin" / name
                program.write_text(_AS_LABS_ACCOUNT.format(name=name, account=self.reads_as))
                program.chmod(0o755)
            self.prepare(running)
            yield running


def _one_job_each(running: SlurmCluster) -> None:
    assert isinstance(running, AccountedCluster)
    running.command("sacctmgr", "-i", "add", "qos", "unlimited")
    running.command("sacctmgr", "-i", "modify", "qos", "normal", "set", "MaxJobsPerUser=1")
    running.allow("vision", *STUDENTS.values())
    running.allow("vision", "root", qos="normal,unlimited")


SITES: dict[str, SlurmSiteKind] = {
    "plain": SlurmSiteKind(),
    "private data": SlurmSiteKind(
        settings={"PrivateData": "jobs,reservations,usage"}, reads_as=LABS_ACCOUNT
    ),
    "power saving": SlurmSiteKind(make=PowerSavingCluster),
    "one job each": SlurmSiteKind(
        make=AccountedCluster, prepare=_one_job_each, slurm={"account": "vision"}
    ),
    "unlike nodes": SlurmSiteKind(gres=({"1g.5gb": 4, "a100": 1}, {"1g.5gb": 2, "h100": 2})),
    "names with a domain": SlurmSiteKind(
        students={"ada": "ada@example.edu", "bo": r"EXAMPLE\bo", "cy": "Cy.Doe+lab"}
    ),
    "preemption": SlurmSiteKind(
        settings={"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"},
        partitions=(
            *PARTITIONS,
            "PartitionName=urgent Nodes={nodes} PriorityTier=10 PreemptMode=off",
        ),
    ),
    "short memory": SlurmSiteKind(settings={"MinJobAge": "2"}),
}
"""By what is set there.  In the last one slurmctld forgets a job seconds after its end, and tests
kill it and delete its state."""
