"""The core of the suite on the cluster of every site: see `SITES`."""

import asyncio

import pytest
from tests.hubs import Hub
from tests.polling import until
from traitlets.config import Config

from miglab_slurm_bench.cluster import SlurmCluster
from miglab_slurm_bench.sites import SITES, SlurmSiteKind

from .conftest import command_of, people_of
from .test_slurm_spawner import fresh, jobs, until_waiting

pytestmark = [
    pytest.mark.long,
    pytest.mark.parametrize("site", SITES, indirect=True, scope="module"),
]
SHAPE = "1g.5gb"


@pytest.fixture
def hub_config(hub_config: Config, site: SlurmSiteKind, slurm: SlurmCluster) -> Config:
    """Students' jobs are their own accounts'; what nobody attends goes soon."""
    spawner = hub_config.MIGSlurmSpawner
    spawner.cmd = command_of(slurm)
    spawner.slurm = {**people_of(site, slurm), "attend_grace_s": 10.0}
    return hub_config


def fill(slurm: SlurmCluster, site: SlurmSiteKind) -> list[int]:
    """Jobs of the operator on every slice; they run when this returns."""
    count = sum(f"-{SHAPE}-" in device.name for device in slurm.devices())
    account = [f"--account={site.slurm['account']}"] if "account" in site.slurm else []
    qos = ["--qos=unlimited"] if account else []
    options = (f"--gres=gpu:{SHAPE}:1", "--time=60", *account, *qos)
    fillers = [slurm.submit("sleep 600", *options) for _ in range(count)]
    slurm.until(lambda: set(fillers) <= set(jobs(slurm, "RUNNING")), "the operator's jobs run")
    return fillers


async def test_a_server_is_one_job_of_its_account(
    hub: Hub, slurm: SlurmCluster, site: SlurmSiteKind
):
    """It has its slice, is still there after many looks, and is over with the server."""
    environment = await hub.start("ada", shape=SHAPE)
    job = slurm.job(int(environment["SLURM_JOB_ID"]))
    assert job["UserId"].partition("(")[0] == site.students["ada"]
    assert environment["SLURM_JOB_GPUS"] in "0123"
    spawner = hub.spawner("ada")
    for _ in range(3):
        await fresh(spawner)
        assert await spawner.poll() is None
    assert jobs(slurm) == [int(job["JobId"])]
    await hub.stop("ada")
    assert jobs(slurm) == []


async def test_who_waits_is_served_in_turn_by_one_job_each(
    hub: Hub, slurm: SlurmCluster, site: SlurmSiteKind
):
    """A start that is broken off and asked for again is the same job, at the same position."""
    fillers = fill(slurm, site)
    await hub.begin("ada", shape=SHAPE)
    await until_waiting(hub, "ada")
    (ticket,) = jobs(slurm, "PENDING")
    await hub.begin("bo", shape=SHAPE)
    await until_waiting(hub, "bo")
    start = hub.spawner("ada")._spawn_future
    start.cancel()
    await asyncio.wait([start])
    hub.spawner("ada")._spawn_future = None
    await hub.begin("ada", shape=SHAPE)
    await until_waiting(hub, "ada")
    assert ticket in jobs(slurm, "PENDING")
    assert len(jobs(slurm, "PENDING")) == 2
    slurm.command("scancel", str(fillers[0]))
    await hub.settled("ada")
    assert (await hub.environment("ada"))["SLURM_JOB_ID"] == str(ticket)
    await hub.stop("bo")
    await until(lambda: jobs(slurm, "PENDING") == [], "bo's job is cancelled", 30)
    assert ticket in jobs(slurm, "RUNNING")
