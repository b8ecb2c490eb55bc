"""What goes wrong under a server or a wait, and what neither may lose."""

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from tests.hubs import Hub
from tests.polling import until
from traitlets.config import Config

from miglab_slurm.records import Tag
from miglab_slurm.submissions import Submissions
from miglab_slurm_bench.cluster import SlurmCluster
from miglab_spawner.backends import BackendUnreachable

from .test_slurm_spawner import fresh, hold, jobs, until_waiting

pytestmark = pytest.mark.long


async def running(hub: Hub, name: str = "ada") -> tuple[Any, int]:
    """A student's running server: its spawner and its job."""
    environment = await hub.start(name, shape="1g.5gb")
    return hub.spawner(name), int(environment["SLURM_JOB_ID"])


@pytest.mark.parametrize("part", ["slurmctld", "munged", "slurmd"])
async def test_a_silent_slurm_stops_nobody(hub: Hub, slurm: SlurmCluster, part: str):
    """While a daemon is down a server counts as running, and a wait goes on; both work after."""
    spawner, job = await running(hub)
    hold(slurm, 7)
    await hub.begin("bo", shape="1g.5gb")
    await until_waiting(hub, "bo")
    victim = slurm.job(job)["NodeList"] if part == "slurmd" else part
    slurm.until_saved()
    slurm.kill(victim)
    if part != "slurmd":
        with pytest.raises(BackendUnreachable):
            await fresh(spawner)
        async with asyncio.timeout(60):  # until the last picture is too old to be shown
            while (answer := await hub.ask("bo", "GET", "api/miglab/waiting/bo/")).is_success:
                pass
        began_s = time.monotonic()
        assert "Always free" not in await spawner.render_spawn_page()
        assert time.monotonic() - began_s < 1  # nobody waits for Slurm to be silent once more
        assert (answer.status_code, answer.json()["reason"]) == (503, "slurm-unreachable")
        assert "cluster's scheduler" in answer.json()["message"]
    assert await spawner.poll() is None
    assert (await hub.environment("ada"))["SLURM_JOB_ID"] == str(job)
    slurm.start()
    await until(lambda: spawner.reader._trouble is None, "Slurm answers again")
    assert await spawner.poll() is None
    await hub.stop("ada")
    await hub.settled("bo")
    assert (await hub.environment("bo"))["MIGLAB_SHAPE"] == "1g.5gb"


async def test_a_suspended_server_is_kept(hub: Hub, slurm: SlurmCluster):
    """SUSPENDED is no end; resumed, the same server answers."""
    spawner, job = await running(hub)
    slurm.command("scontrol", "suspend", str(job))
    await fresh(spawner)
    assert await spawner.poll() is None
    slurm.command("scontrol", "resume", str(job))
    assert (await hub.environment("ada"))["SLURM_JOB_ID"] == str(job)


async def test_an_end_by_slurm_is_said(hub: Hub, slurm: SlurmCluster):
    """A job that Slurm ended is gone for the hub, and the student reads why."""
    spawner, job = await running(hub)
    node = slurm.job(job)["NodeList"]
    slurm.command("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        await fresh(spawner)
        assert await spawner.poll() == 1
        assert "The node of your server failed." in spawner.news
    finally:
        slurm.command("scontrol", "update", f"nodename={node}", "state=resume", check=False)


async def test_a_server_that_dies_at_once_is_said_at_once(
    hub: Hub, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
):
    """A server that ends before it answers fails the start long before its time-out."""
    hub.spawner("ada").cmd = ["true"]
    refused = await hub.refused("ada", shape="1g.5gb")
    assert refused.reason == "job-ended"
    assert "ended before it answered" in refused.jupyterhub_message
    await until(lambda: jobs(slurm) == [], "no job is left")


async def test_a_start_that_is_broken_off_keeps_its_position(hub: Hub, slurm: SlurmCluster):
    """The job waits on; the next start of the same server finds it and gets its slice."""
    holders = hold(slurm, 8)
    await hub.begin("ada", shape="1g.5gb")
    await until_waiting(hub, "ada")
    (ticket,) = jobs(slurm, "PENDING")
    start = hub.spawner("ada")._spawn_future
    start.cancel()
    await asyncio.wait([start])
    hub.spawner("ada")._spawn_future = None
    assert jobs(slurm, "PENDING") == [ticket]
    await hub.begin("ada", shape="1g.5gb")
    await until_waiting(hub, "ada")
    slurm.command("scancel", str(holders[0]))
    await hub.settled("ada")
    assert (await hub.environment("ada"))["SLURM_JOB_ID"] == str(ticket)


async def test_a_start_that_is_stopped_leaves_the_queue(hub: Hub, slurm: SlurmCluster):
    """Long before the grace of a start that was only broken off; nobody else's job ends."""
    holders = hold(slurm, 8)
    await hub.begin("ada", shape="1g.5gb")
    await until_waiting(hub, "ada")
    await hub.stop("ada")
    await until(lambda: jobs(slurm, "PENDING") == [], "her job is cancelled", 30)
    assert set(jobs(slurm)) == set(holders)


async def test_a_stop_is_one_scancel(
    hub: Hub, slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its job is over already when the slice is given back, and estimates learn its stay."""
    called, scancel = tmp_path / "called", shutil.which("scancel")
    (tmp_path / "scancel").write_text(f'#!/bin/sh\necho >> {called}\nexec {scancel} "$@"\n')
    (tmp_path / "scancel").chmod(0o755)
    spawner, _ = await running(hub)
    monkeypatch.setenv("MIGLAB_SLURM_PATH", str(tmp_path))
    await hub.stop("ada")
    assert called.read_text() == "\n"
    await fresh(spawner)
    assert len(spawner.reader.latest.stays_s["gpu:1g.5gb"]) == 1


class TestNobodyComes:
    """Jobs of the lab that nobody attends."""

    @pytest.fixture
    def hub_config(self, hub_config: Config) -> Config:
        """Nobody is waited for long."""
        site = hub_config.MIGSlurmSpawner.slurm
        hub_config.MIGSlurmSpawner.slurm = {**site, "attend_grace_s": 3.0, "offer_s": 3.0}
        return hub_config

    async def test_they_are_cancelled(self, hub: Hub, slurm: SlurmCluster, tmp_path: Path):
        """After the grace, pending or running; a job of another lab, and a server, are left."""
        spawner, job = await running(hub)
        tag = Tag("miglab", "bo", "", "everyone", "1g.5gb", "0")
        submissions, other_lab = (
            spawner.reader.submissions,
            Submissions(tmp_path / "another", "miglab"),
        )
        orphan, foreign_job = (
            slurm.submit("sleep 600", f"--job-name={lab.intend(tag, 'root', time.time()).name}")
            for lab in (submissions, other_lab)
        )
        await until(lambda: orphan not in jobs(slurm), "the orphan is cancelled")
        await fresh(spawner)
        assert set(jobs(slurm)) == {job, foreign_job}


async def test_only_the_jobs_own_secret_opens_the_door(hub: Hub, slurm: SlurmCluster):
    """The route that hands environments over refuses a report with a wrong secret."""
    tag = Tag("miglab", "ada", "", "everyone", "1g.5gb", "0")
    report = {"tag": tag.__dict__, "secret": "0" * 64, "job": 1, "port": 2000}
    path = "api/miglab/slurm/handover"
    assert (await hub.http.post(path, json=report)).status_code == 403
    assert (await hub.http.post(path, json={**report, "exec_prefix": "x"})).status_code == 400


async def test_an_operators_scancel_is_said(hub: Hub, slurm: SlurmCluster):
    """A server that neither its student, staff nor the lab stopped."""
    spawner, job = await running(hub)
    slurm.command("scancel", str(job))
    await until(lambda: job not in jobs(slurm), "the job is over")
    await fresh(spawner)
    assert await spawner.poll() == 1
    assert "by the cluster's operator or by hand" in spawner.news
