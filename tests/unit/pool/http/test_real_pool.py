"""The service over the real pool and simulated GPUs: from asking to an empty GPU again."""

from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from tests.pool_settings import changed
from tests.unit.pool.conftest import World

from miglab_api.leases import LeaseView
from miglab_api.tickets import borrower_of
from miglab_hub.service.assembly import release_what_is_due
from miglab_pool.http.metrics import Metrics
from miglab_pool.http.pool_runner import PoolRunner, Times
from miglab_pool.pool import Pool
from miglab_pool.settings import Course

from .conftest import LAB, as_
from .fakes import SECRET

ASK = {"user": "alice", "server": "", "course": "ml", "shape": "3g.20gb"}
HOLDER = "container:" + "a" * 64


SETTINGS = changed(
    LAB,
    courses={"ml": Course(shapes=("1g.5gb", "3g.20gb"), lends=("3g.20gb",), default="1g.5gb")},
    borrow_s=100.0,
    probe_s=0.0,
    keep_warm=False,
)


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world(SETTINGS)


@pytest.fixture
async def runner(world: World) -> AsyncIterator[PoolRunner]:
    times = Times(turn_s=0.01, jobs_s=0.01, holders_s=0.01, reconcile_s=3600)
    runner = PoolRunner(world.pool, Metrics({"3g.20gb"}), times)
    world.holders.there.add(HOLDER)
    await runner.start()
    yield runner
    assert await runner.stop()


@pytest.fixture
def spawner(client: httpx.AsyncClient) -> httpx.AsyncClient:
    client.headers.update(as_(SECRET))
    return client


async def leased(spawner: httpx.AsyncClient, **ask: str) -> dict[str, object]:
    """Ask, wait, take, attach and run, as the spawner does."""
    ticket = (await spawner.post("/api/tickets", json={**ASK, **ask})).json()
    while ticket["state"] == "waiting":
        ticket = (await spawner.get(f"/api/tickets/{ticket['id']}?wait_s=20")).json()
    lease = (await spawner.post(f"/api/tickets/{ticket['id']}/take")).json()
    attach = {"generation": lease["generation"], "holder": HOLDER}
    await spawner.post(f"/api/leases/{lease['id']}/attach", json=attach)
    answer = await spawner.post(
        f"/api/leases/{lease['id']}/running", json={"generation": lease["generation"]}
    )
    assert answer.status_code == 200, answer.text
    running: dict[str, object] = answer.json()
    return running


async def until_empty(spawner: httpx.AsyncClient, runner: PoolRunner) -> None:
    """Wait until no slice is left."""
    while True:
        seen = runner.notifier.version
        if not (await spawner.get("/api/pool")).json()["gpus"][0]["slices"]:
            return
        await runner.notifier.beyond(seen, 5)


async def test_from_asking_to_an_empty_gpu(
    spawner: httpx.AsyncClient, runner: PoolRunner, world: World
) -> None:
    """A student's lease lives until its holder is gone, and then nothing is left on the GPU."""
    assert (await spawner.post("/api/tickets", json=ASK)).status_code == 201
    assert (await spawner.post("/api/tickets", json=ASK)).status_code == 200
    lease = await leased(spawner)
    assert lease["state"] == "running"
    (gpu,) = (await spawner.get("/api/pool")).json()["gpus"]
    assert [(s["profile"], s["user"], s["state"]) for s in gpu["slices"]] == [
        ("3g.20gb", "alice", "leased")
    ]
    metrics = (await spawner.get("http://lab/metrics")).text
    for line in (
        'miglab_leases{shape="3g.20gb",state="running"} 1.0',
        'miglab_slices{state="leased"} 1.0',
        'miglab_wait_seconds_count{shape="3g.20gb"} 1.0',
        'miglab_job_seconds_count{kind="create"} 1.0',
        'miglab_gpus{state="ok"} 1.0',
    ):
        assert line in metrics
    done = {"reason": "done", "generation": lease["generation"], "ledger": lease["ledger"]}
    await spawner.post(f"/api/leases/{lease['id']}/release", json=done)
    held = (await spawner.get("/api/leases")).json()
    assert [one["state"] for one in held] == ["releasing"]
    world.holders.there.discard(HOLDER)
    await until_empty(spawner, runner)
    assert (await spawner.get("/api/leases")).json() == []


async def test_what_is_due_is_taken_back(
    spawner: httpx.AsyncClient, runner: PoolRunner, world: World
) -> None:
    """A borrow at its end, and what staff asked back, in their name; each with its words."""
    lease = await leased(spawner, server=borrower_of(""), purpose="borrow")
    counted: list[str] = []

    def due(pool: Pool) -> list[LeaseView]:
        return release_what_is_due(pool, counted.append)

    world.pass_time(99)
    assert [one.state for one in await runner.decide(due)] == ["running"]
    world.pass_time(2)
    (late,) = await runner.decide(due)
    assert (late.id, late.state.value) == (lease["id"], "releasing")
    assert "time is up" in late.reason  # and the pool ends the runner itself
    await until_empty(spawner, runner)
    world.holders.there.add(HOLDER)
    path = f"/api/leases/{(await leased(spawner))['id']}/reclaim"
    body = {"reason": "Exam.", "warning_s": 30}
    await spawner.post(path, json=body, headers=as_("instructor-token"))
    world.pass_time(29)
    assert [one.state for one in await runner.decide(due)] == ["warned"]
    world.pass_time(1)
    assert [one.state for one in await runner.decide(due)] == ["releasing"]
    assert counted == ["time", "staff"]
    (entry, *_) = (await spawner.get("/api/audit?kind=lease")).json()
    assert (entry["by"], entry["to_state"]) == ("person:ilse", "releasing")
