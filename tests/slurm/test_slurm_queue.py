"""Positions against Slurm's own order, and what those who wait cost; jobs are submitted here."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from pwd import getpwnam

import pytest

from miglab_api.tickets import TicketView
from miglab_slurm.backend import SlurmBackend
from miglab_slurm.lab import SlurmSite
from miglab_slurm.reader import SlurmReader
from miglab_slurm.records import Tag
from miglab_slurm.submissions import Submissions
from miglab_slurm.views import ticket_of
from miglab_slurm_bench.cluster import SlurmCluster

from .conftest import SITE
from .test_slurm_spawner import hold, jobs

pytestmark = pytest.mark.long
SHAPE, LAB = "1g.5gb", "miglab"
MANY = 200


@pytest.fixture
async def reader(slurm: SlurmCluster, tmp_path: Path) -> AsyncIterator[SlurmReader]:
    """One reader for all who wait."""
    submissions = Submissions(tmp_path / "jobs.sqlite", LAB)
    reader = SlurmReader(submissions, SlurmSite.model_validate({**SITE, "attend_grace_s": 600}))
    yield reader
    await reader.close()


def wait_for_slice(reader: SlurmReader, slurm: SlurmCluster, name: str) -> int:
    """A student's job, submitted as the spawner would."""
    tag = Tag(LAB, name, "", "everyone", SHAPE, name)
    name = reader.submissions.intend(tag, "root", time.time()).name
    return slurm.submit("sleep 600", "--gres=gpu:1g.5gb:1", f"--job-name={name}")


async def tickets(reader: SlurmReader) -> dict[int, TicketView]:
    """What the waiting pages show of a new picture."""
    picture = await reader.picture(newer_than=asyncio.get_running_loop().time())
    waiting = (job for job in picture.jobs.values() if job.tag and job.is_pending)
    return {job.id: ticket_of(picture, job) for job in waiting}


async def expect_positions(reader: SlurmReader, waiting: list[int]) -> None:
    """They are 1st, 2nd, … of all, and each has an estimate; backfill may have to come by first."""
    expected = {job: (number, len(waiting)) for number, job in enumerate(waiting, 1)}
    async with asyncio.timeout(60):
        while True:
            views = await tickets(reader)
            positions = {job: (ticket.position, ticket.waiting) for job, ticket in views.items()}
            if positions == expected and all(ticket.estimate for ticket in views.values()):
                return


async def test_positions_are_the_order_of_starts(reader: SlurmReader, slurm: SlurmCluster):
    """Also while a node is drained, reserved, or has a job on its way out; then they are served."""
    holders = hold(slurm, 8)
    waiting = [wait_for_slice(reader, slurm, f"s{number}") for number in range(4)]
    await expect_positions(reader, waiting)
    open_node, other = slurm.nodes
    slurm.command("scontrol", "update", f"nodename={other}", "state=drain", "reason=test")
    await expect_positions(reader, waiting)
    slurm.command("scontrol", "update", f"nodename={other}", "state=resume")
    reservation = ("reservationname=exam", "starttime=now", "duration=10", "users=root")
    slurm.command(
        "scontrol", "create", "reservation", *reservation, f"nodes={other}", "flags=ignore_jobs"
    )
    try:
        await expect_positions(reader, waiting)
    finally:
        slurm.command("scontrol", "delete", "reservationname=exam")
    ending = next(job for job in holders if slurm.job(job)["NodeList"] == open_node)
    with slurm.stopped(open_node):
        slurm.command("scancel", str(ending))
        slurm.until(lambda: ending in jobs(slurm, "COMPLETING"), "it is completing")
        await expect_positions(reader, waiting)
    while waiting:
        first = waiting.pop(0)
        slurm.until(lambda job=first: job in jobs(slurm, "RUNNING"), "the first is served")
        assert set(jobs(slurm, "PENDING")) == set(waiting)
        if waiting:
            holders = [job for job in holders if job in jobs(slurm, "RUNNING")]
            slurm.command("scancel", str(holders.pop()))


async def test_two_hundred_who_wait_cost_as_much_as_one(reader: SlurmReader, slurm: SlurmCluster):
    """Each attends a job of its own; Slurm is asked every `every_s`, whatever their number."""
    hold(slurm, 8)
    loop = asyncio.get_running_loop()
    waiting = [wait_for_slice(reader, slurm, f"s{number}") for number in range(MANY)]
    tickets = {job: f"s{number}" for number, job in enumerate(waiting)}
    backend = SlurmBackend(
        reader, lambda: getpwnam("root"), lambda *_: "", lambda _: "/", "", tickets=tickets
    )
    await reader.picture(newer_than=loop.time())
    before, began_s = reader.readings, loop.time()
    tickets_ = await asyncio.gather(*(backend.attend(job, 3.0) for job in waiting))
    elapsed_s = loop.time() - began_s
    assert [ticket.position for ticket in tickets_] == list(range(1, MANY + 1))
    assert reader.readings - before <= elapsed_s / reader.site.every_s + 1
