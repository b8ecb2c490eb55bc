"""Students' servers as Slurm jobs: start, wait, be refused, stop."""

import asyncio
from typing import Any

import pytest
from tests.hubs import Hub
from tests.polling import until

from miglab_bench.harness.student import STEP_S
from miglab_slurm_bench.cluster import SlurmCluster
from miglab_spawner.refusals import NotStarted

pytestmark = pytest.mark.long


def jobs(slurm: SlurmCluster, *states: str) -> list[int]:
    """The jobs in these states; of all states that are not over if none is named."""
    filters = ("-t", ",".join(states)) if states else ()
    return [int(line) for line in slurm.command("squeue", "-h", "-o", "%i", *filters).splitlines()]


def hold(slurm: SlurmCluster, count: int, gres: str = "gpu:1g.5gb:1") -> list[int]:
    """Jobs of somebody else, each with slices; they run when this returns."""
    holders = [slurm.submit("sleep 600", f"--gres={gres}", "--time=60") for _ in range(count)]
    slurm.until(lambda: set(holders) <= set(jobs(slurm, "RUNNING")), "somebody else's jobs run")
    return holders


async def until_waiting(hub: Hub, name: str) -> dict[str, Any]:
    """What a waiting student's page shows, once it waits."""
    return dict(await until(hub.spawner(name).waiting_status, "it waits", STEP_S))


async def test_a_server_gets_its_slice(hub: Hub, slurm: SlurmCluster):
    """A server starts in a job of its own that holds exactly the slice; stopping ends the job."""
    environment = await hub.start("ada", shape="1g.5gb")
    assert environment["MIGLAB_SHAPE"] == "1g.5gb"
    assert environment["SLURM_JOB_GPUS"] in "0123"
    assert "MIGLAB_TICKET" not in environment
    job = slurm.job(int(environment["SLURM_JOB_ID"]))
    assert (job["JobState"], job["Requeue"], job["TimeLimit"]) == ("RUNNING", "0", "02:00:00")
    await hub.stop("ada")
    assert jobs(slurm) == []


async def test_who_waits_sees_position_and_estimate_and_is_served(hub: Hub, slurm: SlurmCluster):
    """With all eight slices held two wait, in Slurm's order, and each gets the next free one."""
    holders = hold(slurm, 8)
    for name in ("ada", "bo"):
        await hub.begin(name, shape="1g.5gb")
        first = await until_waiting(hub, name)
    assert "You are 2nd of 2 in the queue, waiting for 1g.5gb." in first["message"]
    assert "Estimated wait: at most" in first["message"]
    assert first["meanwhile"] == ""  # no limit is in the way of a server without a GPU
    saved = hub.spawner("bo").orm_spawner.state["miglab"]  # what a hub says that died meanwhile
    assert "position is kept" in saved["news"]
    slurm.command("scancel", str(holders[0]))
    await hub.settled("ada")
    assert (await hub.environment("ada"))["MIGLAB_SHAPE"] == "1g.5gb"
    slurm.command("scancel", str(holders[1]))
    await hub.settled("bo")
    assert hub.spawner("bo").news == ""


async def test_who_waits_can_take_what_is_free_or_give_up(hub: Hub, slurm: SlurmCluster):
    """Another shape, no GPU, and giving up; each leaves no job behind in the queue."""
    hold(slurm, 8)
    for name in ("ada", "bo", "cy"):
        await hub.begin(name, shape="1g.5gb")
        await until_waiting(hub, name)
    async with asyncio.timeout(STEP_S):  # until backfill has planned the starts of those who wait
        while not (view := await until_waiting(hub, "ada"))["alternatives"]:
            await fresh(hub.spawner("ada"))
    assert [shape["shape"] for shape in view["alternatives"]] == ["3g.20gb"]
    cys = max(jobs(slurm, "PENDING"))
    await hub.spawner("ada").switch_to("3g.20gb")
    await hub.settled("ada")
    assert (await hub.environment("ada"))["MIGLAB_SHAPE"] == "3g.20gb"
    await hub.spawner("bo").switch_to("cpu")
    await hub.settled("bo")
    without = await hub.environment("bo")
    assert without["MIGLAB_SHAPE"] == "cpu"
    assert "SLURM_JOB_GPUS" not in without
    assert "MIGLAB_LEASE" not in without
    (kept_job,) = set(jobs(slurm, "PENDING")) - {cys}
    assert hub.spawner("bo").get_state()["miglab"]["kept"] == kept_job
    await hub.stop("bo")
    slurm.command("scancel", str(kept_job))
    await hub.spawner("cy").switch_to("")
    with pytest.raises(NotStarted, match="left the queue"):
        await hub.settled("cy")
    assert jobs(slurm, "PENDING") == []


@pytest.mark.parametrize(
    ("shape", "reason", "message"),
    [
        ("7g.40gb", "impossible-shape", "No node of this site has such a slice"),
        ("night", "partition-down", "partition is closed now"),
        ("nonsense", "shape-not-offered", "This site has no"),
        ("long", "never-runs", "can never start"),
    ],
)
async def test_what_can_never_run_is_said(
    hub: Hub, slurm: SlurmCluster, shape: str, reason: str, message: str
):
    """A shape that no node has, a closed partition, a limit above the partition's: a sentence."""
    refused = await hub.refused("ada", shape=shape)
    assert refused.reason == reason
    assert message in refused.jupyterhub_message
    await until(lambda: jobs(slurm) == [], "no job is left")


async def test_the_spawn_page_counts_what_is_free(hub: Hub, slurm: SlurmCluster):
    """Free and total, without drained, reserved and completing nodes; and what cannot be had."""
    spawner = hub.spawner("ada")
    page = await spawner.render_spawn_page()
    assert "8 of 8 free" in page
    assert "2 of 2 free" in page
    assert "Not available: No node of this site has such a slice." in page
    assert "Not available: The partition is closed now." in page
    hold(slurm, 1)
    drained, other = slurm.nodes[1], slurm.nodes[0]
    slurm.command("scontrol", "update", f"nodename={drained}", "state=drain", "reason=a|b")
    await page_says(spawner, "3 of 8 free")
    slurm.command("scontrol", "update", f"nodename={drained}", "state=resume")
    slurm.command(
        "scontrol", "create", "reservation", "reservationname=exam", "starttime=now",
        "duration=10", f"nodes={drained}", "users=root", "flags=ignore_jobs",
    )  # fmt: skip
    try:
        await page_says(spawner, "3 of 8 free")
    finally:
        slurm.command("scontrol", "delete", "reservationname=exam")
    ending = slurm.submit("sleep 600", f"--nodelist={other}", "--gres=gpu:3g.20gb:1")
    slurm.until(lambda: ending in jobs(slurm, "RUNNING"), "the job runs")
    with slurm.stopped(other):  # it stays on its way out for as long as the page takes
        slurm.command("scancel", str(ending))
        slurm.until(lambda: ending in jobs(slurm, "COMPLETING"), "it is completing")
        await page_says(spawner, "4 of 8 free")


async def test_nodes_that_are_down_and_reservations_to_come_are_said(hub: Hub, slurm: SlurmCluster):
    """On the spawn page, for servers without a GPU too; who waits reads when Slurm plans it."""
    spawner, nodes = hub.spawner("ada"), ",".join(slurm.nodes)
    slurm.command("scontrol", "update", f"nodename={nodes}", "state=down", "reason=test")
    await page_says(spawner, "0 of 8 free. Its nodes are down or being serviced.")
    assert "Always free" not in await spawner.render_spawn_page()
    slurm.command("scontrol", "update", f"nodename={nodes}", "state=resume")
    await page_says(spawner, "Always free")
    slurm.command(
        "scontrol", "create", "reservation", "reservationname=exam", "starttime=now+600",
        "duration=60", f"nodes={nodes}", "users=root", "flags=ignore_jobs",
    )  # fmt: skip
    try:
        await page_says(spawner, "0 of 8 free. Others have reserved its nodes")
        await hub.begin("ada", shape="1g.5gb")
        async with asyncio.timeout(STEP_S):
            while (
                "Slurm plans its start in 1 hour"
                not in (view := await until_waiting(hub, "ada"))["message"]
            ):
                await fresh(spawner)
        assert "Others have reserved the nodes" in view["message"]
        assert view["alternatives"] == []
    finally:
        slurm.command("scontrol", "delete", "reservationname=exam")
    await hub.settled("ada")


async def page_says(spawner: Any, text: str) -> None:
    """Wait until the spawn page, made of a new picture each time, says this."""
    async with asyncio.timeout(STEP_S):
        while text not in await spawner.render_spawn_page():
            await fresh(spawner)


async def fresh(spawner: Any) -> None:
    """Wait for a picture asked for from now on."""
    await spawner.reader.picture(newer_than=asyncio.get_running_loop().time())


async def test_sbatch_that_hangs_is_said(
    hub: Hub, slurm: SlurmCluster, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
):
    """A command that does not end is ended, and the student reads that Slurm is silent."""
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("MIGLAB_SLURM_PATH", str(tmp_path))
    spawner = hub.spawner("ada")
    spawner.slurm = {**spawner.slurm, "command_timeout_s": 1.0}
    spawner.longest_wait_s = 5  # for so long a silent Slurm is asked again
    refused = await hub.refused("ada", shape="1g.5gb")
    assert "scheduler does not answer" in refused.jupyterhub_message
    assert refused.reason == "slurm-unreachable"
