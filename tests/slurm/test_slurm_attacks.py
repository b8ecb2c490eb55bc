"""Attacks on a lab through Slurm, which shows every user's jobs to all and prints any comment."""

import time
from pathlib import Path
from typing import Any

import pytest
from tests.hubs import Hub
from traitlets.config import Config

from miglab_hub.settings.lab_toml import load
from miglab_slurm.service.leases import SlurmLeases
from miglab_slurm.submissions import look_alike_warning
from miglab_slurm_bench.cluster import SlurmCluster

from .test_slurm_faults import running
from .test_slurm_spawner import fresh, jobs

pytestmark = pytest.mark.long
ALICE, MALLORY = "games", "news"
"""Unix accounts that every Debian has."""
CLAIM = '{"miglab":1,"lab":"miglab","user":"ada","server":"","course":"everyone",'
CLAIM += '"shape":"1g.5gb","ticket":"0"}'
LAB = """
[accept_risk]
students_can_act_as_staff = true
[servers]
spawner = "slurm"
[slurm]
partition = "lab"
run_as = ""
[slurm.shapes."1g.5gb"]
gres = "gpu:1g.5gb:1"
[slurm.shapes.cpu]
[courses.everyone]
shapes = ["1g.5gb", "cpu"]
"""


@pytest.fixture
def hub_config(hub_config: Config, tmp_path: Path) -> Config:
    """What nobody attends goes at once; where the lab keeps its jobs is known."""
    spawner = hub_config.MIGSlurmSpawner
    spawner.slurm = {**spawner.slurm, "attend_grace_s": 3.0}
    spawner.slurm_jobs_file = str(tmp_path / "jobs.sqlite")
    return hub_config


async def looked_often(spawner: Any) -> None:
    """Wait until whatever nobody attends would have been cancelled."""
    until_s = time.monotonic() + 2 * spawner.site.attend_grace_s
    while time.monotonic() < until_s:
        await fresh(spawner)


def submit(slurm: SlurmCluster, account: str, *options: str) -> int:
    """A job of somebody else."""
    return slurm.submit("sleep 600", f"--uid={account}", *options)


async def test_a_comment_forges_nobodys_job(hub: Hub, slurm: SlurmCluster):
    """Rows after a line break, in the form of squeue's, do not make another's job the lab's."""
    thesis = submit(slurm, ALICE)
    row = f"{thesis}|RUNNING|None|1|1|9|1||{ALICE}|{slurm.nodes[0]}|lab|{CLAIM}"
    submit(slurm, MALLORY, f"--comment=x\n{row}")
    spawner, job = await running(hub)
    await looked_often(spawner)
    assert thesis in jobs(slurm, "RUNNING")
    assert (await spawner.reader.picture()).jobs[thesis].account == ALICE
    assert job in jobs(slurm, "RUNNING")


async def test_a_copied_comment_is_nobodys_ticket(hub: Hub, slurm: SlurmCluster):
    """Of all jobs with a server's own signed comment, one is adopted, whose account ever."""
    spawner, job = await running(hub)
    comment = slurm.command("squeue", "-h", "-j", str(job), "-o", "%k")
    copies = [submit(slurm, account, f"--comment={comment}") for account in (MALLORY, "root")]
    await looked_often(spawner)
    picture = await spawner.reader.picture()
    assert [job_.id for job_ in picture.lab_jobs()] == [job]
    assert set(copies) <= set(jobs(slurm))


async def test_a_decoy_hides_no_idle_slice(hub: Hub, slurm: SlurmCluster, tmp_path: Path):
    """A second job, without a GPU, that says it is the server: the slice is still judged."""
    spawner, job = await running(hub)
    comment = slurm.command("squeue", "-h", "-j", str(job), "-o", "%k")
    decoy = slurm.submit("sleep 600", f"--comment={comment}", "--partition=cpu")
    slurm.until(lambda: decoy in jobs(slurm, "RUNNING"), "the decoy runs")
    await fresh(spawner)
    (tmp_path / "lab.toml").write_text(LAB)
    leases = SlurmLeases(load(tmp_path / "lab.toml", {}))
    leases.update(await spawner.reader.picture())
    assert [case.lease.id for case in leases.lease_cases()] == [job]


async def test_a_lab_leaves_the_jobs_of_another_of_its_name(
    hub: Hub, slurm: SlurmCluster, tmp_path: Path, caplog: Any
):
    """Also those of its own from before its key was lost: it tells of them, and acts on none."""
    spawner, job = await running(hub)
    spawner.slurm_jobs_file = str(tmp_path / "another.sqlite")
    spawner.slurm = {**spawner.slurm, "offer_s": 61.0}
    await looked_often(spawner)
    assert job in jobs(slurm, "RUNNING")
    assert f"did not submit them: {job} (root)" in caplog.text
    picture = await spawner.reader.picture()
    assert str(job) in look_alike_warning("miglab", picture.jobs.values())
    assert not list(picture.lab_jobs())
    assert await spawner.poll() is None
    await spawner.give_back()
    assert job in jobs(slurm, "RUNNING")


class TestSignIn:
    """Names that people chose at sign-in."""

    @pytest.fixture
    def hub_config(self, hub_config: Config) -> Config:
        """The hub submits as whoever asks."""
        spawner = hub_config.MIGSlurmSpawner
        accounts = {"run_as": "runuser -u {username} --", "unix_group": "root"}
        spawner.slurm = {**spawner.slurm, **accounts, "home": "/tmp"}
        return hub_config

    @pytest.mark.parametrize("name", ["root", "daemon", "-s"])
    async def test_no_name_is_a_system_account(self, hub: Hub, slurm: SlurmCluster, name: str):
        """Root, other system accounts and an option are refused before any command."""
        refused = await hub.refused(name, shape="cpu")
        assert refused.reason == "account-refused"
        assert "no account on the cluster" in refused.jupyterhub_message
        assert jobs(slurm) == []
