"""A lab of miglab's own on a Slurm of its own, for the time of a check."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miglab_bench.harness.processes import logs_below
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_slurm_bench.cluster import SlurmCluster

PROGRAMS = Path(sys.executable).parent
PROLOGUE = f"export PATH={PROGRAMS}:$PATH"
SHAPES = ("1g.5gb", "3g.20gb", "cpu")
PARTITIONS = (
    "PartitionName=lab Nodes={nodes} Default=YES MaxTime=240",
    "PartitionName=labcpu Nodes={nodes} MaxTime=240",
)
SITE = """
[slurm]
partition = "lab"
run_as = ""
python = "{python}"
prologue = {prologue}
home = "{folder}/homes/{{username}}"
notebooks = "{notebooks}"
{more}

[slurm.shapes."1g.5gb"]
gres = "gpu:1g.5gb:1"
gpu_memory_gib = 4.75
sm_count = 14
{shape}

[slurm.shapes."3g.20gb"]
gres = "gpu:3g.20gb:1"
gpu_memory_gib = 19.5
sm_count = 42

[slurm.shapes.cpu]
partition = "labcpu"
time_limit_min = 30
"""


@dataclass(frozen=True)
class SlurmLab:
    """A running lab, and the cluster beneath it."""

    lab: TemporaryLab
    cluster: SlurmCluster


@contextmanager
def slurm_lab(
    *,
    gres: Mapping[str, int] | None = None,
    partitions: tuple[str, ...] = PARTITIONS,
    settings: Mapping[str, str] | None = None,
    slurm: str = "",
    shape: str = "",
    tables: str = "",
    notebooks: str = "",
    prologue: str = PROLOGUE,
    **options: Any,
) -> Iterator[SlurmLab]:
    """A lab whose students are jobs of two nodes.

    Args:
        gres: the fake slices of each node; None for four 1g.5gb and one 3g.20gb.
        partitions: lines of slurm.conf.
        settings: more of slurm.conf.
        slurm: more lines of [slurm].
        shape: more lines of the table of 1g.5gb.
        tables: more tables of lab.toml.
        notebooks: a folder of notebooks for the students.
        prologue: of [slurm].
        options: of `temporary_lab`.
    """
    with SlurmCluster(gres=gres, partitions=partitions, settings=settings) as cluster:
        site = site_of(cluster, notebooks=notebooks, lines=slurm, shape=shape, prologue=prologue)
        with lab_on(cluster, site + tables, **options) as lab:
            yield SlurmLab(lab, cluster)


@contextmanager
def lab_on(cluster: SlurmCluster, site: str, **options: Any) -> Iterator[TemporaryLab]:
    """A lab on a cluster that runs.

    Args:
        cluster: it stays when the lab ends.
        site: what lab.toml says of it.
        options: of `temporary_lab`.
    """
    with (
        logs_below(cluster.folder),
        temporary_lab(
            docker=False, slurm=cluster.environment, shapes=SHAPES, more=site, **options
        ) as lab,
    ):
        yield lab


def site_of(
    cluster: SlurmCluster,
    *,
    notebooks: str = "",
    lines: str = "",
    shape: str = "",
    prologue: str = PROLOGUE,
) -> str:
    """What a lab.toml says of a cluster; the arguments are as in `slurm_lab`."""
    return SITE.format(
        python=sys.executable,
        prologue=json.dumps(prologue),
        folder=cluster.folder,
        notebooks=notebooks,
        more=lines,
        shape=shape,
    )
