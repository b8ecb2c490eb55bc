"""Whose a job is, and whether it is over, where Slurm shows it late, cut off, or under a number
that another job has by now."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.hubs import Hub
from tests.polling import until
from traitlets.config import Config

from miglab_slurm import unshown
from miglab_slurm.service.runner import SlurmRunner
from miglab_slurm_bench.cluster import SlurmCluster
from miglab_slurm_bench.sites import SlurmSiteKind

from .conftest import command_of, people_of
from .test_slurm_faults import running
from .test_slurm_spawner import fresh, hold, jobs, until_waiting

pytestmark = pytest.mark.long
SHAPE = "1g.5gb"
SHOWS_NOBODYS = """#!/bin/sh
case "$*" in *-u*) exec {real} "$@" ;; esac
"""
SHOWS_NOTHING = "#!/bin/sh\n"
LOSES_ITS_ANSWER = """#!/bin/sh
echo >>{calls}
[ $(wc -l <{calls}) -gt 1 ] && exec {real} "$@"
{real} "$@" >/dev/null
echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
exit 1
"""
COMES_LATE = """#!/bin/sh
echo >>{calls}
[ $(wc -l <{calls}) -gt 1 ] && exec {real} "$@"
script=$(mktemp -p {folder}); cat >$script; chmod a+r $script
(until [ -e {folder}/released ]; do sleep 0.1; done
 {real} "$@" <$script; : >{folder}/come) >/dev/null 2>&1 &
echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
exit 1
"""
LOSES_NAME_AND_COMMENT = """#!/bin/sh
exec {real} --job-name=course --comment=none $(echo "$@" | sed -E 's/--(comment|job-name)=[^ ]*//g')
"""
Replace = Callable[[str, str], Path]


@pytest.fixture
def hub_config(hub_config: Config, site: SlurmSiteKind, slurm: SlurmCluster) -> Config:
    """Students' jobs are their own accounts'; what nobody attends goes soon."""
    spawner = hub_config.MIGSlurmSpawner
    spawner.cmd = command_of(slurm)
    spawner.slurm = {**people_of(site, slurm), "attend_grace_s": 10.0}
    return hub_config


@pytest.fixture
def replace(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Replace:
    """Put a script in the place of one of Slurm's commands; the file that counts its calls."""
    folder = slurm.folder / "replaced"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    folder.chmod(0o1777)
    calls = folder / "calls"
    calls.touch()
    calls.chmod(0o666)

    def put(name: str, script: str) -> Path:
        program = folder / name
        real = shutil.which(name)
        program.write_text(script.format(real=real, calls=calls, folder=folder))
        program.chmod(0o755)
        monkeypatch.setenv("MIGLAB_SLURM_PATH", str(folder))
        return calls

    return put


async def extend(spawner: Any, job: int, by_s: float) -> None:
    """As staff do on the cluster's page, with the hub's own picture."""
    site = spawner.site.model_copy(update={"operator": True})
    limits = SimpleNamespace(extensions=2, extension_s=by_s)
    settings: Any = SimpleNamespace(slurm_site=site, pool=limits)
    nobody: Any = None  # no round is made, so nobody reclaims or ends anything
    runner = SlurmRunner(settings, spawner.reader, nobody, nobody)
    runner.door.leases.update(await spawner.reader.picture())
    await runner.decide(lambda door: door.leases.extend_as_staff(job, by_s, "user:staff"))


async def looked(spawner: Any, times: int = 4) -> None:
    """Wait until the hub has looked at Slurm so often."""
    for _ in range(times):
        await fresh(spawner)


async def test_a_listing_without_the_job_ends_no_server(
    hub: Hub, slurm: SlurmCluster, replace: Replace, monkeypatch: pytest.MonkeyPatch
):
    """Neither a cut-off list, nor a Slurm that shows it to nobody, while its server answers."""
    monkeypatch.setattr(unshown, "UNKNOWN_S", 0.0)  # the second look is late enough
    spawner, job = await running(hub)
    for script in (SHOWS_NOBODYS, SHOWS_NOTHING):
        replace("squeue", script)
        await looked(spawner)
        assert await spawner.poll() is None
        assert jobs(slurm) == [job]
        assert (await hub.environment("ada"))["SLURM_JOB_ID"] == str(job)


async def test_a_job_that_nobody_shows_is_lost_when_its_server_is_silent(
    hub: Hub, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
):
    """slurmctld has lost its state, and the node has ended the job: a minute later, not before."""
    monkeypatch.setattr(unshown, "UNKNOWN_S", 5.0)
    spawner, _ = await running(hub)
    slurm.lose_state()
    await until(spawner.is_silent, "the node to have ended the job")
    await fresh(spawner)
    assert await spawner.poll() is None
    async with asyncio.timeout(60):
        while await spawner.poll() is None:
            await fresh(spawner)
    assert "Slurm has lost your server's job" in spawner.news


async def test_a_number_that_is_given_again_is_nobodys_to_cancel(
    hub: Hub, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
):
    """Not the student's other job, not another's, and not when the server is stopped."""
    monkeypatch.setattr(unshown, "UNKNOWN_S", 2.0)
    spawner, job = await running(hub)
    other = next(node for node in slurm.nodes if node != slurm.job(job)["NodeList"])
    slurm.lose_state()
    options = (f"--uid={spawner.account().pw_name}", "--partition=cpu", f"--nodelist={other}")
    given_again = 0
    while given_again < job:
        given_again = slurm.submit("sleep 600", *options)
    slurm.until(lambda: job in jobs(slurm, "RUNNING"), "the job of the same number runs")
    await hub.stop("ada")
    await looked(spawner)
    assert given_again == job
    assert job in jobs(slurm, "RUNNING")


async def test_a_position_in_a_queue_that_slurmctld_lost_is_asked_for_anew(
    hub: Hub, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
):
    """A job that waited is submitted once more, and served, and is one job then."""
    monkeypatch.setattr(unshown, "UNKNOWN_S", 3.0)
    hold(slurm, 8)
    await hub.begin("ada", shape=SHAPE)
    await until_waiting(hub, "ada")
    slurm.lose_state()
    await hub.settled("ada")
    environment = await hub.environment("ada")
    assert jobs(slurm) == [int(environment["SLURM_JOB_ID"])]


@pytest.mark.parametrize("script", [LOSES_ITS_ANSWER, COMES_LATE])
async def test_a_lost_answer_of_sbatch_is_one_job(
    hub: Hub, slurm: SlurmCluster, replace: Replace, script: str
):
    """Slurm has taken the job, or takes it when it is asked for again: one is left, and serves."""
    calls = replace("sbatch", script)
    if script is COMES_LATE:
        assert (await hub.refused("ada", shape=SHAPE)).reason == "slurm-unreachable"
    environment = await hub.start("ada", shape=SHAPE)
    assert len(calls.read_text()) == (1 if script is LOSES_ITS_ANSWER else 2)
    if script is COMES_LATE:
        (calls.parent / "released").touch()
        await until((calls.parent / "come").exists, "the late one is there", 30)
    await until(lambda: len(jobs(slurm)) == 1, "one job is left", 30)
    assert jobs(slurm) == [int(environment["SLURM_JOB_ID"])]


async def test_a_plugin_that_changes_name_and_comment_loses_nothing(
    hub: Hub, slurm: SlurmCluster, replace: Replace
):
    """The number that sbatch printed is enough; stopping ends that job and no other of the name."""
    replace("sbatch", LOSES_NAME_AND_COMMENT)
    environment = await hub.start("ada", shape=SHAPE)
    job = int(environment["SLURM_JOB_ID"])
    account = hub.spawner("ada").account().pw_name
    assert slurm.job(job)["JobName"] == "course"
    other = slurm.submit("sleep 600", "--job-name=course", f"--uid={account}", "--partition=cpu")
    await looked(hub.spawner("ada"))
    limits = [slurm.job(number)["TimeLimit"] for number in (job, other)]
    await extend(hub.spawner("ada"), job, 1800)
    assert slurm.job(job)["TimeLimit"] != limits[0]
    assert slurm.job(other)["TimeLimit"] == limits[1]
    await hub.stop("ada")
    assert jobs(slurm) == [other]


async def test_nobody_is_renamed_while_a_server_of_theirs_is_a_job(hub: Hub, slurm: SlurmCluster):
    """Jobs are found by names: neither one that waits nor one that runs is lost."""
    hold(slurm, 8)
    await hub.begin("ada", shape=SHAPE)
    await until_waiting(hub, "ada")
    (waits,) = jobs(slurm, "PENDING")
    await hub.start("bo", shape="cpu")
    for name in ("ada", "bo"):
        answer = await hub.ask_as_admin("PATCH", f"api/users/{name}", json={"name": "lovelace"})
        assert answer.status_code == 409
        assert f"{name} cannot be renamed while a server" in answer.json()["message"]
    assert jobs(slurm, "PENDING") == [waits]
    await hub.stop("bo")
    await hub.rename("bo", "lovelace")
    assert hub.user("lovelace").name == "lovelace"


async def test_what_is_given_up_goes_when_slurm_is_back(hub: Hub, slurm: SlurmCluster):
    """A start is stopped while slurmctld is down, and nobody remembers it but the lab's file."""
    hold(slurm, 8)
    await hub.begin("ada", shape=SHAPE)
    await until_waiting(hub, "ada")
    (ticket,) = jobs(slurm, "PENDING")
    slurm.until_saved()
    slurm.kill("slurmctld")
    await hub.stop("ada")
    hub.spawner("ada").reader._held.clear()
    hub.spawner("ada").reader._claims.clear()
    slurm.start()
    await until(lambda: ticket not in jobs(slurm), "the job is cancelled", 5)


async def test_an_end_that_slurmctld_forgot_is_none(hub: Hub, slurm: SlurmCluster, tmp_path: Path):
    """It is killed before it has saved that a job was cancelled: the job is cancelled again."""
    hold(slurm, 8)
    await hub.begin("ada", shape=SHAPE)
    await until_waiting(hub, "ada")
    (ticket,) = jobs(slurm, "PENDING")
    slurm.until_saved()
    state = slurm.folder / "state"
    with slurm.stopped("slurmctld"):  # it writes there
        shutil.copytree(state, tmp_path / "state")
    await hub.stop("ada")
    await until(lambda: ticket not in jobs(slurm), "the job is cancelled", 30)
    await looked(hub.spawner("ada"), 2)
    slurm.kill("slurmctld")
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "state", state)
    slurm.start()
    assert ticket in jobs(slurm, "PENDING")
    await until(lambda: ticket not in jobs(slurm), "the job is cancelled again", 30)


async def test_a_job_that_is_put_back_into_the_queue_serves_nobody(hub: Hub, slurm: SlurmCluster):
    """By an operator, against `--no-requeue`: its server is over, and the job is cancelled."""
    spawner, job = await running(hub)
    slurm.command("scontrol", "update", f"jobid={job}", "requeue=1")
    slurm.command("scontrol", "requeue", str(job))
    slurm.until(lambda: job in jobs(slurm, "PENDING"), "the job waits again")
    await fresh(spawner)
    assert await spawner.poll() == 1
    await hub.stop("ada")
    assert jobs(slurm) == []


async def test_a_job_that_is_begun_anew_is_told_to_end(hub: Hub, slurm: SlurmCluster):
    """Its server has answered before, so whoever reports under its ticket is another process."""
    spawner, job = await running(hub)
    submission = spawner.reader.submissions.find(spawner._tickets[job])
    secret = submission.tag.secret(spawner.user.settings["cookie_secret"])
    report = {"tag": submission.tag.__dict__, "secret": secret, "job": job, "port": 2000}
    answer = await hub.http.post("api/miglab/slurm/handover", json=report)
    assert answer.status_code == 404
    assert "begun anew" in answer.json()["message"]
    assert await spawner.poll() is None


@pytest.mark.parametrize("site", ["power saving"], indirect=True, scope="module")
async def test_a_job_whose_node_boots_is_the_one_job(
    hub: Hub, slurm: SlurmCluster, site: SlurmSiteKind
):
    """CONFIGURING: it is neither submitted again nor cancelled, and its student reads why."""
    slurm.until_off()  # type: ignore[attr-defined]
    await hub.begin("ada", shape=SHAPE)
    await until(lambda: jobs(slurm, "CONFIGURING"), "the node boots", 60)
    (job,) = jobs(slurm)
    await fresh(hub.spawner("ada"))
    start = hub.spawner("ada")._spawn_future
    start.cancel()
    await asyncio.wait([start])
    hub.spawner("ada")._spawn_future = None
    await hub.begin("ada", shape=SHAPE)
    view = await until_waiting(hub, "ada")
    boots = ("The node of your server is being switched on", "Its node is being made ready")
    assert any(phrase in view["message"] for phrase in boots)
    assert jobs(slurm) == [job]
    await hub.settled("ada")
    assert (await hub.environment("ada"))["SLURM_JOB_ID"] == str(job)
