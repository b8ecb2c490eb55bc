"""From a server's report to its slice in another's hands, over the real pool and both listeners."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.empty import empty_ledger
from tests.unit.pool.conftest import FakeHolders

from miglab_api.tickets import TicketRequest
from miglab_pool.gpu.open import open_gpus
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.management_app import management_app
from miglab_pool.http.metrics import Metrics
from miglab_pool.http.pool_runner import PoolRunner, Times
from miglab_pool.http.student_app import student_app
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.pool import Pool
from miglab_pool.reclaim.activity import SignalBoard
from miglab_pool.reclaim.policy import Rules
from miglab_pool.reclaim.round import Reclaimer
from miglab_pool.settings import Course, PoolSettings, Reclaim, Tuning
from miglab_pool.settings import Pool as PoolTable

from .conftest import as_
from .fakes import ACCESS, BOOK, PREFIX, SECRET, FakePool, FakeTokens

HOLDERS = {"alice": "container:" + "a" * 64, "bob": "container:" + "b" * 64}
QUIET = {
    "kernels": [{"busy": False, "last_execution_age_s": 5000.0}],
    "terminals": 0,
    "browsers": 0,
    "unsaved": 0,
    "cpu_s": 1.0,
}
LIMITS = Reclaim(idle_s=1000, idle_wanted_s=100, warning_s=60, stale_s=90, unused_s=600)


class ReclaimService:
    """The service with a reclaimer that looks when the test says so; every clock is the test's."""

    def __init__(self, folder: Path) -> None:
        SimulatedMachine.create(folder / "gpus", 1, "A100-40GB")
        self.at, self.ticks = 1_800_000_000.0, 0.0
        self.holders = FakeHolders()
        self.driver = open_gpus(simulated_state=folder / "gpus")
        (folder / "ledger.sqlite").write_bytes(empty_ledger())
        self.ledger = Ledger(folder / "ledger.sqlite")
        settings = PoolSettings(
            courses={"ml": Course(title="ML", shapes=("7g.40gb",))},
            pool=PoolTable(attend_grace_s=1e6),
            reclaim=Reclaim(keepalives=1, warning_s=60),
            tuning=Tuning(probe_s=0.0),
        )
        pool = Pool(settings, self.ledger, self.driver, self.holders, lambda: self.at)
        self.pool, self.metrics = pool, Metrics()
        self.board = SignalBoard(clock=lambda: self.ticks)
        self.reclaimer = Reclaimer(
            Rules(limits=LIMITS), self.board, self.metrics.reclaimed, lambda: self.ticks
        )
        times = Times(turn_s=0.01, jobs_s=0.01, reconcile_s=3600, sample_s=3600, reclaim_s=3600)
        self.runner = PoolRunner(pool, self.metrics, times, None, self.reclaimer)

    async def look(self, seconds: float = 0.0) -> None:
        """Let time pass for every clock, read the GPUs, and look at all leases."""
        self.at, self.ticks = self.at + seconds, self.ticks + seconds
        await self.runner.on_gpu_thread(lambda pool: pool.sample())
        await self.runner.decide(self.reclaimer.round)

    async def start(self, user: str) -> int:
        """Ask, wait, take, attach, run; returns the lease's number."""
        ticket = await self.ask(user)
        while (
            await self.runner.decide(lambda pool: pool.tickets.attend(ticket))
        ).state == "waiting":
            await self.runner.notifier.beyond(self.runner.notifier.version, 5)
        lease = await self.runner.decide(lambda pool: pool.tickets.take(ticket))
        self.holders.there.add(HOLDERS[user])
        number, generation = lease.id, lease.generation
        await self.runner.decide(lambda pool: pool.leases.attach(number, generation, HOLDERS[user]))
        await self.runner.decide(lambda pool: pool.leases.running(number))
        return number

    async def ask(self, user: str) -> int:
        request = TicketRequest(user=user, course="ml", shape="7g.40gb")
        return (await self.runner.decide(lambda pool: pool.tickets.request(request))).id

    async def close(self) -> None:
        assert await self.runner.stop()
        assert self.pool.check_invariants() == []
        self.ledger.close()
        self.driver.close()


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[ReclaimService]:
    lab = ReclaimService(tmp_path)
    await lab.runner.start()
    yield lab
    await lab.close()


@pytest.fixture
async def server(lab: ReclaimService) -> AsyncIterator[httpx.AsyncClient]:
    """Alice's server on the student listener."""
    transport = httpx.ASGITransport(student_app(lab.runner, FakeTokens(ACCESS), lab.board))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://student", headers=as_("alice-server")
    ) as client:
        yield client


@pytest.fixture
async def staff(lab: ReclaimService) -> AsyncIterator[httpx.AsyncClient]:
    """The management listener."""
    app = management_app(
        lab.runner, SignIn(ACCESS, SECRET, BOOK, FakeTokens(ACCESS)), default_course="everyone"
    )
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://lab{PREFIX}") as client:
        yield client


async def test_from_a_report_to_the_next_in_the_queue(
    lab: ReclaimService, server: httpx.AsyncClient, staff: httpx.AsyncClient
) -> None:
    """Warned in the answer to a report; kept by "still here"; then taken back for who waits."""
    number = await lab.start("alice")
    await lab.look()
    await lab.ask("bob")
    lab.at, lab.ticks = lab.at + 200, lab.ticks + 200
    said = (await server.post("/api/lease/signals", json=QUIET)).json()
    assert (said["state"], said["warning"], said["others_wait"]) == ("running", None, 1)
    await lab.look()
    said = (await server.post("/api/lease/signals", json=QUIET)).json()
    assert said["warning"]["reclaim_at"] == lab.at + 60
    assert said["warning"]["kind"] == "idle" and "1 other is waiting" in said["warning"]["reason"]
    assert (await server.post("/api/lease/keepalive")).json()["state"] == "running"
    lab.at, lab.ticks = lab.at + 1900, lab.ticks + 1900
    await server.post("/api/lease/signals", json=QUIET)
    await lab.look()
    refusal = await server.post("/api/lease/keepalive")
    assert (refusal.status_code, refusal.json()["reason"]) == (409, "no-keepalive")
    lab.at, lab.ticks = lab.at + 61, lab.ticks + 61
    await server.post("/api/lease/signals", json=QUIET)
    await lab.look()
    lease = await lab.runner.decide(lambda pool: pool.leases.find(number))
    assert lease.state == "releasing" and lease.release_requested_at == lab.at
    lab.holders.there.clear()  # as the hub does
    assert await lab.start("bob") > number
    (told,) = lab.reclaimer.explain(lab.pool)
    assert told.user == "bob"
    text = (await staff.get("http://lab/metrics", headers=as_(SECRET))).text
    assert 'miglab_reclaims_total{reason="idle"} 1.0' in text


async def test_explained_to_staff(
    lab: ReclaimService, server: httpx.AsyncClient, staff: httpx.AsyncClient
) -> None:
    """With figures and ages for staff; students are told of their own by their server only."""
    await lab.start("alice")
    await server.post("/api/lease/signals", json=QUIET)
    await lab.look()
    path = "/api/reclaim?user=alice"
    assert (await staff.get(path, headers=as_("alice-token"))).status_code == 403
    (told,) = (await staff.get(path, headers=as_("staff-token"))).json()
    assert (told["user"], told["decision"], told["activity"]) == ("alice", "keep", "active")
    assert told["figures"]["kernels"] == 1 and told["figures"]["execution_age_s"] == 5000.0
    assert (await staff.get("/api/reclaim?user=eve", headers=as_(SECRET))).json() == []


async def test_the_service_looks_by_itself() -> None:
    """The reclaimer's round is one of the service's loops."""
    looked = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Looks:
        def round(self, pool: object) -> None:
            loop.call_soon_threadsafe(looked.set)

    runner = PoolRunner(FakePool(), Metrics(), Times(reclaim_s=0.01), None, Looks())  # type: ignore[arg-type]
    await runner.start()
    async with asyncio.timeout(60):
        await looked.wait()
    assert await runner.stop()
