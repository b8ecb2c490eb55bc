"""What students see on sites that are not ours: nodes that are off, unlike nodes, one job each."""

import asyncio
from typing import Any

import pytest
from tests.hubs import Hub
from tests.polling import until
from traitlets.config import Config

from miglab_api.tickets import TicketState, TicketView
from miglab_bench.harness.student import STEP_S
from miglab_slurm_bench.cluster import SlurmCluster
from miglab_slurm_bench.power_saving import BOOT_S, PowerSavingCluster
from miglab_slurm_bench.sites import SlurmSiteKind

from .conftest import command_of, people_of
from .test_slurm_sites import SHAPE, fill
from .test_slurm_spawner import fresh, jobs, page_says, until_waiting

pytestmark = pytest.mark.long
SHAPES = {
    "1g.5gb": {"gres": "gpu:1g.5gb:1"},
    "2x1g.5gb": {"gres": "gpu:1g.5gb:2"},
    "a100": {"gres": "gpu:a100:1"},
    "h100": {"gres": "gpu:h100:1"},
    "cpu": {"partition": "cpu"},
}


def on(site: str) -> pytest.MarkDecorator:
    """A test on the cluster of this site."""
    return pytest.mark.parametrize("site", [site], indirect=True, scope="module")


@pytest.fixture
def hub_config(hub_config: Config, site: SlurmSiteKind, slurm: SlurmCluster) -> Config:
    """Students' jobs are their own accounts'; each shape that a node of these sites has."""
    spawner = hub_config.MIGSlurmSpawner
    spawner.cmd = command_of(slurm)
    types = {device.name.split("-")[1] for device in slurm.devices()}
    shapes = {name: shape for name, shape in SHAPES.items() if name in ("cpu", "2x1g.5gb", *types)}
    courses = {"everyone": {"title": "Open lab", "shapes": list(shapes)}}
    spawner.slurm = {**people_of(site, slurm), "shapes": shapes, "courses": courses}
    return hub_config


@on("power saving")
async def test_nodes_that_are_off_are_free_and_take_their_time(hub: Hub, slurm: SlurmCluster):
    """The page says how long a node may take to boot, and so does the wait; then it runs."""
    assert isinstance(slurm, PowerSavingCluster)
    resume = slurm.folder / "resume"  # which takes longer here than a look at Slurm
    resume.write_text(resume.read_text().replace(f"sleep {BOOT_S}", "sleep 12"))
    await asyncio.to_thread(slurm.until_off)
    spawner = hub.spawner("ada")
    await page_says(spawner, "8 of 8 free, its nodes are switched off to save power: a start takes")
    assert "Always free; its nodes are switched off" in await spawner.render_spawn_page()
    await hub.begin("ada", shape=SHAPE)
    page_state = await until_waiting(hub, "ada")
    async with asyncio.timeout(STEP_S):
        while "is being switched on" not in page_state["message"]:
            await fresh(spawner)
            page_state = await until_waiting(hub, "ada")
    assert "takes up to 1 minute" in page_state["message"]
    await hub.settled("ada")
    assert (await hub.environment("ada"))["MIGLAB_SHAPE"] == SHAPE


@on("unlike nodes")
async def test_types_are_counted_where_they_are(hub: Hub, slurm: SlurmCluster):
    """A type that is taken, and has a queue, holds up no other; who waits has alternatives."""
    spawner = hub.spawner("bo")
    await page_says(spawner, "6 of 6 free")
    holder = slurm.submit("sleep 600", "--gpus=h100:2", "--time=60")
    slurm.until(lambda: holder in jobs(slurm, "RUNNING"), "the H100s are taken")
    await hub.begin("ada", shape="h100")
    waiting = await until_waiting(hub, "ada")
    async with asyncio.timeout(STEP_S):
        while not waiting["alternatives"]:
            await fresh(hub.spawner("ada"))
            waiting = await until_waiting(hub, "ada")
    names = [shape["shape"] for shape in waiting["alternatives"]]
    assert names == ["1g.5gb", "2x1g.5gb", "a100"]
    await fresh(spawner)
    page = await spawner.render_spawn_page()
    assert "4 of 6 free" in page  # the slices beside the H100s are kept for ada's start
    assert "0 of 2 free" in page
    environment = await hub.start("bo", shape="a100")
    assert slurm.job(int(environment["SLURM_JOB_ID"]))["NodeList"] == slurm.nodes[0]
    await hub.spawner("ada").switch_to("1g.5gb")
    await hub.settled("ada")


@on("unlike nodes")
async def test_arrays_and_untyped_jobs_are_before_whoever_comes_later(
    hub: Hub, slurm: SlurmCluster
):
    """Three tasks that wait are three in the queue, though Slurm lists one job."""
    slurm.submit("sleep 600", "--gres=gpu:1g.5gb:2", "--array=0-5", "--time=60")
    slurm.until(lambda: len(jobs(slurm, "RUNNING")) == 3, "all slices are taken")
    await hub.begin("ada", shape=SHAPE)
    async with asyncio.timeout(STEP_S):
        while "4th of 4" not in (await until_waiting(hub, "ada"))["message"]:
            await fresh(hub.spawner("ada"))
    slurm.command("scancel", *map(str, jobs(slurm, "RUNNING")))


async def ticket_of_server(hub: Hub, name: str) -> TicketView:
    """What JupyterLab is told of the slice that this server waits for, from a new picture."""
    spawner = hub.spawner(name)
    await fresh(spawner)
    ticket: TicketView = (await spawner.backend.server_status(name, "")).ticket
    return ticket


@on("one job each")
async def test_the_server_without_a_gpu_ends_before_the_slice_starts(
    hub: Hub, slurm: SlurmCluster, site: SlurmSiteKind
):
    """Where a person may run one job: said before, and the position is the same job's."""
    holders = fill(slurm, site)
    await hub.begin("ada", shape=SHAPE)
    await until_waiting(hub, "ada")
    (ticket,) = jobs(slurm, "PENDING")
    waiting = await until_waiting(hub, "ada")
    assert "no 1g.5gb start beside a server without a GPU" in waiting["meanwhile"]
    assert "save your work" in waiting["meanwhile"]
    await hub.spawner("ada").switch_to("cpu")
    await hub.settled("ada")
    async with asyncio.timeout(STEP_S):
        while (
            "after this server has ended"
            not in (offer := await ticket_of_server(hub, "ada")).message
        ):
            assert offer.state is TicketState.WAITING
    assert (offer.id, offer.state) == (ticket, TicketState.WAITING)
    slurm.command("scancel", str(holders[0]))
    async with asyncio.timeout(STEP_S):
        while (offer := await ticket_of_server(hub, "ada")).state is not TicketState.OFFERED:
            pass
    assert "this server ends first" in offer.message
    options: dict[str, Any] = await hub.spawner("ada").take_offer()
    assert len(jobs(slurm, "PENDING")) == 1
    await hub.stop("ada")
    await hub.start("ada", **options)
    assert (await hub.environment("ada"))["SLURM_JOB_ID"] == str(ticket)
    own_jobs = slurm.command("squeue", "-h", "-o", "%i", "-u", site.students["ada"])
    assert own_jobs.split() == [str(ticket)]
    await until(lambda: jobs(slurm, "PENDING") == [], "nothing is left", 30)


@on("unlike nodes")
async def test_options_of_the_site_choose_the_node(hub: Hub, slurm: SlurmCluster):
    """A node that `[slurm.options]` excludes is neither counted nor used."""
    spawner = hub.spawner("ada")
    spawner.slurm = {**spawner.slurm, "options": {"exclude": slurm.nodes[0]}}
    await page_says(spawner, "2 of 2 free")
    assert "Not available: No node of this site has such a slice." in (
        await spawner.render_spawn_page()
    )
    environment = await hub.start("ada", shape=SHAPE)
    assert slurm.job(int(environment["SLURM_JOB_ID"]))["NodeList"] == slurm.nodes[1]
