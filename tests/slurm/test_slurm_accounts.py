"""A Slurm that keeps accounts: limits, associations, preemption by QOS, and usage from sacct."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hubs import STUDENT, Hub
from tests.polling import until
from traitlets.config import Config

from miglab_api.tickets import TicketRequest, TicketState
from miglab_slurm.service.leases import MOVED_S, JobRecord
from miglab_slurm.service.page import SACCT, usage
from miglab_slurm.submissions import Submissions
from miglab_slurm_bench.accounted import AccountedCluster, missing
from miglab_slurm_bench.cluster import SlurmCluster
from miglab_spawner.backends import RefusedByBackend

from .conftest import SITE
from .test_slurm_spawner import fresh

pytestmark = pytest.mark.long
ADA, BO, NOBODY = "games", "news", "daemon"
"""Unix accounts that every Debian has; the last one has none in Slurm."""
PYTHON = "/usr/bin/python3"
SHAPES = {
    "1g.5gb": {"gres": "gpu:1g.5gb:1", "options": {"qos": "one"}},
    "2x1g.5gb": {"gres": "gpu:1g.5gb:2", "options": {"qos": "one"}},
    "3g.20gb": {"gres": "gpu:3g.20gb:1", "account": "somebody-elses"},
    "urgent": {"gres": "gpu:1g.5gb:4", "options": {"qos": "urgent"}},
    "cpu": {},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """One slice at a time for each student; what is urgent ends others after a grace."""
    if absent := missing():
        pytest.skip(f"no slurmdbd here ({absent}): apt-get install slurmdbd mariadb-server-core")
    with AccountedCluster() as cluster:
        change = ("sacctmgr", "-i")
        cluster.command(*change, "add", "qos", "one", "flags=DenyOnLimit", "gracetime=600")
        cluster.command(*change, "modify", "qos", "one", "set", "MaxTRESPerUser=gres/gpu=1")
        cluster.command(*change, "add", "qos", "urgent", "priority=100", "preempt=one")
        cluster.allow("vision", "root", ADA, BO, qos="normal,one,urgent")
        homes = cluster.folder / "homes"
        homes.mkdir()
        homes.chmod(0o1777)
        yield cluster


@pytest.fixture
def hub_config(hub_config: Config, slurm: SlurmCluster) -> Config:
    """Jobs are the students' own; each has an association, or has not."""
    server = shutil.copy(STUDENT, slurm.folder)  # no student reads the checkout
    hub_config.MIGSlurmSpawner.cmd = [PYTHON, "-S", str(server)]
    hub_config.MIGSlurmSpawner.slurm = {
        **SITE,
        "python": f"{PYTHON} -S",
        "run_as": "runuser -u {username} --",
        "unix_accounts": {name: name for name in (ADA, BO, NOBODY)},
        "least_uid": 1,
        "home": str(slurm.folder / "homes"),
        "account": "vision",
        "shapes": SHAPES,
        "courses": {"everyone": {"title": "Open lab", "shapes": list(SHAPES)}},
    }
    return hub_config


async def keeps_the_position(hub: Hub, server: str) -> None:
    """Another shape instead, which Slurm refuses: the job that waits is still there."""
    spawner = hub.spawner(ADA, server)
    before = (await spawner.backend.server_status(ADA, server)).ticket
    other = TicketRequest(user=ADA, server=server, course="everyone", shape="3g.20gb")
    with pytest.raises(RefusedByBackend, match="may not use this partition"):
        await spawner.backend.request(other)
    await fresh(spawner)
    after = (await spawner.backend.server_status(ADA, server)).ticket
    assert after.id == before.id
    assert after.state is TicketState.WAITING


async def test_a_limit_an_account_and_more_than_one_may_use(
    hub: Hub, slurm: SlurmCluster, caplog: pytest.LogCaptureFixture
):
    """A second server waits and says for what; what can never be had is refused, with a reason."""
    await hub.start(ADA, shape="1g.5gb")
    await hub.begin(ADA, "second", shape="1g.5gb")
    async with asyncio.timeout(60):
        while "You already use all that one person may" not in (
            message := await until_waiting_of(hub, ADA, "second")
        ):
            await fresh(hub.spawner(ADA, "second"))
    assert "when another server or job of yours ends" in message
    assert "in the queue" not in message
    assert not (await hub.spawner(ADA, "second").waiting_status())["alternatives"]
    await keeps_the_position(hub, "second")
    await hub.stop(ADA)
    await hub.settled(ADA, "second")
    await hub.stop(ADA, "second")
    never = await hub.refused(BO, shape="2x1g.5gb")
    assert never.reason == "over-limit"
    assert "more than one person may use" in never.jupyterhub_message
    foreign = await hub.refused(BO, shape="3g.20gb")
    assert foreign.reason == "account-refused"
    assert "may not use this partition" in foreign.jupyterhub_message
    logged = next(line for line in caplog.messages if "Slurm refused a job" in line)
    assert "sbatch --parsable" in logged and "policy" in caplog.text
    stranger = await hub.refused(NOBODY, shape="cpu")
    assert stranger.reason == "account-refused"


async def until_waiting_of(hub: Hub, name: str, server: str) -> str:
    """What the waiting page of a server says, once it waits."""
    return str((await until(hub.spawner(name, server).waiting_status, "it waits", 60))["message"])


async def test_preemption_is_seen_before_it_ends_a_server(hub: Hub, slurm: SlurmCluster):
    """Slurm moves the end to the end of the grace; the reclaimer reads that, and says why."""
    environment = await hub.start(ADA, shape="1g.5gb")
    spawner, number = hub.spawner(ADA), int(environment["SLURM_JOB_ID"])
    record = JobRecord((await spawner.reader.picture()).jobs[number], 0.0)
    at_first = record.job.ends_at
    urgent_jobs = [
        slurm.submit(
            "sleep 600", "--qos=urgent", "--account=vision", "--time=60", "--gres=gpu:1g.5gb:4"
        )
        for _ in slurm.nodes
    ]
    async with asyncio.timeout(60):
        while record.job.ends_at > at_first - MOVED_S:
            await fresh(spawner)
            record = record.with_job((await spawner.reader.picture()).jobs[number])
    assert "another job goes first" in record.end_reason
    slurm.command("scancel", *map(str, urgent_jobs))
    await hub.stop(ADA)


async def test_usage_is_from_sacct(hub: Hub, slurm: SlurmCluster, tmp_path: Path):
    """Where slurmdbd is, the instructors' page adds up what Slurm itself has counted."""
    await hub.start(BO, shape="1g.5gb")
    site, submissions = hub.spawner(BO).site, hub.spawner(BO).reader.submissions
    await hub.stop(BO)

    async def counted() -> Any:
        return (await usage(site, submissions))[0]

    (row,) = await until(counted, "sacct to have counted it", 60)
    assert (row.course, (await usage(site, submissions))[1]) == ("everyone", SACCT)
    assert row.servers >= 1
    other_lab = Submissions(tmp_path / "another.sqlite", submissions.lab)
    assert (await usage(site, other_lab))[0] == []
