"""Thirty students on eight slices of two nodes: everybody is served, in Slurm's order."""

import asyncio

import pytest
from tests.hubs import Hub
from tests.polling import until

from miglab_slurm_bench.cluster import SlurmCluster

from .test_slurm_spawner import jobs

pytestmark = pytest.mark.long
STUDENTS = [f"student{number:02}" for number in range(30)]
CLASS_S = 360.0  # thirty servers start one after the other on few cores


async def test_thirty_students_share_eight_slices(hub: Hub, slurm: SlurmCluster):
    """Each gets a server of its own job, never more than eight run, and none is left over."""
    served: dict[str, int] = {}
    most_running = 0

    async def one(name: str) -> None:
        nonlocal most_running
        async with asyncio.timeout(CLASS_S):
            while (start := hub.spawner(name)._spawn_future) is not None and not start.done():
                await asyncio.wait([start], timeout=0.5)
        environment = await hub.environment(name)
        served[name] = int(environment["SLURM_JOB_ID"])
        most_running = max(most_running, len(jobs(slurm, "RUNNING")))
        await hub.stop(name)

    for name in STUDENTS:
        assert (await hub.begin(name, shape="1g.5gb")).status_code in (201, 202)
    await until(
        lambda: len(jobs(slurm, "PENDING")) >= 22 - len(served), "the others are waiting", CLASS_S
    )
    await asyncio.gather(*(one(name) for name in STUDENTS))
    assert sorted(served) == STUDENTS
    assert len(set(served.values())) == len(STUDENTS)
    assert most_running <= 8
    assert jobs(slurm) == []
