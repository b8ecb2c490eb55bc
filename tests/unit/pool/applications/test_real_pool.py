"""The service over the real pool: from asking to an empty GPU, and from a report to the end."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.pool_settings import changed
from tests.unit.pool.conftest import Keep, World
from tests.unit.pool.reclaim.test_round import ReclaimWorld

from miglab_api.leases import LeaseView
from miglab_api.tickets import borrower_of
from miglab_hub.service.__main__ import release_due_leases
from miglab_pool.applications.management_app import management_app
from miglab_pool.applications.metrics import Metrics
from miglab_pool.applications.pool_runner import PoolRunner, Times
from miglab_pool.applications.student_app import student_app
from miglab_pool.http.access.auth import SignIn
from miglab_pool.pool import Pool
from miglab_pool.settings import Course, Reclaim

from .conftest import LAB, as_, visiting
from .fakes import SECRET, FakeTokens

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
    world.holders.present.add(HOLDER)
    await runner.start()
    yield runner
    assert await runner.stop()


@pytest.fixture
def spawner(client: httpx.AsyncClient) -> httpx.AsyncClient:
    client.headers.update(as_(SECRET))
    return client


async def lease_and_run(spawner: httpx.AsyncClient, **ask: str) -> dict[str, object]:
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
        version = runner.notifier.version
        if not (await spawner.get("/api/pool")).json()["gpus"][0]["slices"]:
            return
        await runner.notifier.beyond(version, 5)


async def test_from_asking_to_an_empty_gpu(
    spawner: httpx.AsyncClient, runner: PoolRunner, world: World
) -> None:
    """A student's lease lives until its holder is gone, and then nothing is left on the GPU."""
    assert (await spawner.post("/api/tickets", json=ASK)).status_code == 201
    assert (await spawner.post("/api/tickets", json=ASK)).status_code == 200
    lease = await lease_and_run(spawner)
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
    release = {"reason": "done", "generation": lease["generation"], "ledger": lease["ledger"]}
    await spawner.post(f"/api/leases/{lease['id']}/release", json=release)
    leases = (await spawner.get("/api/leases")).json()
    assert [lease_json["state"] for lease_json in leases] == ["releasing"]
    world.holders.present.discard(HOLDER)
    await until_empty(spawner, runner)
    assert (await spawner.get("/api/leases")).json() == []


async def test_what_is_due_is_taken_back(
    spawner: httpx.AsyncClient, runner: PoolRunner, world: World
) -> None:
    """A borrow at its end, and what staff asked back, in their name; each with its words."""
    lease = await lease_and_run(spawner, server=borrower_of(""), purpose="borrow")
    counted: list[str] = []

    def due(pool: Pool) -> list[LeaseView]:
        return release_due_leases(pool, counted.append)

    world.pass_time(99)
    assert [lease_view.state for lease_view in await runner.decide(due)] == ["running"]
    world.pass_time(2)
    (late,) = await runner.decide(due)
    assert (late.id, late.state.value) == (lease["id"], "releasing")
    assert "time is up" in late.reason  # and the pool ends the runner itself
    await until_empty(spawner, runner)
    world.holders.present.add(HOLDER)
    path = f"/api/leases/{(await lease_and_run(spawner))['id']}/reclaim"
    body = {"reason": "Exam.", "warning_s": 30}
    await spawner.post(path, json=body, headers=as_("instructor-token"))
    world.pass_time(29)
    assert [lease_view.state for lease_view in await runner.decide(due)] == ["warned"]
    world.pass_time(1)
    assert [lease_view.state for lease_view in await runner.decide(due)] == ["releasing"]
    assert counted == ["time", "staff"]
    (entry, *_) = (await spawner.get("/api/audit?kind=lease")).json()
    assert (entry["by"], entry["to_state"]) == ("person:ilse", "releasing")


KERNEL = {"busy": False, "last_execution_age_s": 5000.0}
QUIET = {"kernels": [KERNEL], "terminals": 0, "browsers": 0, "unsaved": 0, "cpu_s": 1.0}
LIMITS = Reclaim(idle_s=1000, idle_wanted_s=100, warning_s=60, stale_s=90, unused_s=600)
RECLAIMING = changed(
    LAB,
    courses={"ml": Course(title="ML", shapes=("7g.40gb",))},
    attend_grace_s=1e6,
    reclaim=Reclaim(keepalives=1, warning_s=60),
)


async def test_from_a_report_to_the_end(
    tmp_path: Path, keep: Keep[ReclaimWorld], tokens: FakeTokens, sign_in: SignIn
) -> None:
    """Warned in the answer to a report; kept by "still here", once; then taken back.

    Staff are told why, with figures and ages.
    """
    lab = keep(ReclaimWorld(tmp_path, RECLAIMING, limits=LIMITS))
    lab.run("alice", "7g.40gb", course="ml")
    runner = PoolRunner(lab.pool, Metrics(), reclaimer=lab.reclaimer)
    app = student_app(runner, tokens, lab.board, default_course="everyone")
    server = visiting(app, "http://student", **as_("alice-server"))
    staff = visiting(management_app(runner, sign_in, default_course="everyone"))

    async def report_after(seconds: float) -> Any:
        lab.pass_time(seconds)
        lab.ticks += seconds
        lease = (await server.post("/api/lease/signals", json=QUIET)).json()
        lab.pool.sample()
        lab.reclaimer.round(lab.pool)
        return lease

    await report_after(0)
    lab.ask("bob", "7g.40gb", course="ml")
    lease = await report_after(200)
    assert (lease["state"], lease["warning"], lease["others_wait"]) == ("running", None, 1)
    (explanation,) = (await staff.get("/api/reclaim?user=alice", headers=as_("staff-token"))).json()
    assert (explanation["user"], explanation["decision"]) == ("alice", "warn")
    assert (
        explanation["figures"]["kernels"] == 1
        and explanation["figures"]["execution_age_s"] == 5000.0
    )
    warning = (await report_after(0))["warning"]
    assert (warning["reclaim_at"], warning["kind"]) == (lab.at + 60, "idle")
    assert "1 other is waiting" in warning["reason"]
    assert (await server.post("/api/lease/keepalive")).json()["state"] == "running"
    await report_after(1900)
    refusal = await server.post("/api/lease/keepalive")
    assert (refusal.status_code, refusal.json()["reason"]) == (409, "no-keepalive")
    await report_after(61)
    assert (lab.pool.leases.find(1).state, lab.reclaims) == ("releasing", ["idle"])
    await runner.stop()
