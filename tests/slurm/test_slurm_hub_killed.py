"""A hub that is killed: who runs is found again, who waits keeps the place."""

from collections.abc import Iterator

import pytest
from tests.students import asking, served

from miglab_bench.harness.student import wait_for
from miglab_slurm_bench.cluster import missing
from miglab_slurm_bench.lab import SlurmLab, slurm_lab

from .test_slurm_spawner import jobs

pytestmark = pytest.mark.long
SHAPE = "1g.5gb"


@pytest.fixture(scope="module")
def module_lab() -> Iterator[SlurmLab]:
    """Two nodes with one slice each."""
    if absent := missing():
        pytest.skip(f"no Slurm here ({absent})")
    with slurm_lab(gres={SHAPE: 1}) as lab:
        yield lab


@pytest.fixture
def on_slurm(module_lab: SlurmLab) -> Iterator[SlurmLab]:
    """No job is left of a test."""
    yield module_lab
    wait_for(lambda: jobs(module_lab.cluster) == [], "no job to be left")


def test_a_killed_hub_loses_neither_server_nor_position(on_slurm: SlurmLab) -> None:
    """Two servers are found again; cy's job waits on, and the next start adopts it."""
    lab, cluster = on_slurm.lab, on_slurm.cluster
    ada, bo = (served(lab, name, SHAPE) for name in ("ada", "bo"))
    cy = asking(lab, "cy", SHAPE)
    wait_for(lambda: bool(jobs(cluster, "PENDING")), "cy to wait")
    servers, (ticket,) = set(jobs(cluster, "RUNNING")), jobs(cluster, "PENDING")
    lab.kill("hub")
    for student in (ada, bo):
        wait_for(student.is_ready, f"the hub to know the server of {student.name} again")
    assert set(jobs(cluster, "RUNNING")) == servers
    assert jobs(cluster, "PENDING") == [ticket]
    cy.ask(SHAPE)
    ada.leave()
    cy.wait_until_ready()
    assert ticket in jobs(cluster, "RUNNING")
    assert len(servers & set(jobs(cluster))) == 1
    for student in (bo, cy):
        student.leave()
    for student in (ada, bo, cy):
        student.close()
