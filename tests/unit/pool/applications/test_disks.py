"""Disks on pages, in metrics and in health: staff learn of a low one, everybody of a full one."""

from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.pool.conftest import World

from miglab_pool.applications.management_app import management_app
from miglab_pool.applications.pool_runner import PoolRunner
from miglab_pool.http.access.auth import SignIn
from miglab_pool.worker import disks
from miglab_pool.worker.disks import DiskUse

from .conftest import as_, visiting

GIB = 1 << 30
LOW = DiskUse(("ledger", "logs"), Path("/srv"), 95.4, 9 * GIB, 200 * GIB)
FULL = DiskUse(("ledger", "logs"), Path("/srv"), 100.0, 0, 200 * GIB)
WELL = DiskUse(("homes",), Path("/homes"), 40.0, 600 * GIB, 1000 * GIB)
UNKNOWN = DiskUse(("homes",), Path("/homes"), problem="Stale file handle")


def app_of(runner: PoolRunner, sign_in: SignIn) -> FastAPI:
    return management_app(runner, sign_in, default_course="everyone")


async def page(runner: PoolRunner, sign_in: SignIn, person: str) -> str:
    async with visiting(app_of(runner, sign_in), **as_(f"{person}-token")) as browser:
        answer = await browser.get("/")
        assert answer.status_code == 200
        return answer.text


@pytest.mark.parametrize(
    ("person", "is_told"), [("instructor", True), ("admin", True), ("alice", False)]
)
async def test_staff_are_told_on_every_page_before_a_disk_is_full(
    runner: PoolRunner, sign_in: SignIn, world: World, person: str, is_told: bool
) -> None:
    """At 95 %: which, how full, and who can mend it; students could do nothing about it."""
    world.pool.disks = (LOW, WELL)
    banner = "disk of the ledger and logs: 95 % used, 9.0 GiB free"
    assert (banner in await page(runner, sign_in, person)) is is_told
    world.pool.disks = (WELL,)
    assert "disk of the" not in await page(runner, sign_in, person)


async def test_a_full_disk_is_no_health(
    runner: PoolRunner, sign_in: SignIn, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever watches the lab sees it, without a name; and it is over when it is over."""
    async with visiting(app_of(runner, sign_in)) as watcher:
        assert (await health(watcher))["ok"]
        monkeypatch.setattr("miglab_pool.pool.read_disks", lambda _folders: [FULL])
        world.pool.watch_disks()
        answer = await health(watcher)
        assert (answer["ok"], answer["is_disk_full"]) == (False, True)
        assert answer["disks_low"] == ["ledger", "logs"]
        monkeypatch.undo()
        world.pool.watch_disks()
        assert (await health(watcher))["ok"]


async def health(watcher: httpx.AsyncClient) -> dict[str, object]:
    answer: dict[str, object] = (await watcher.get("/api/health")).json()
    return answer


async def test_prometheus_reads_each_disk_by_what_lies_there(
    runner: PoolRunner, sign_in: SignIn, world: World
) -> None:
    """How full each is, and whether nothing is granted; what is unknown has no sample."""
    world.pool.disks, world.pool.store.disk_full = (LOW, UNKNOWN), disks.FULL
    async with visiting(app_of(runner, sign_in), "http://lab") as prometheus:
        text = (await prometheus.get("/metrics")).text
    samples = {
        (sample.name, sample.labels.get("holds")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["miglab_disk_full", None] == 1
    assert samples["miglab_disk_used_ratio", "ledger"] == pytest.approx(0.954)
    assert ("miglab_disk_used_ratio", "homes") not in samples
