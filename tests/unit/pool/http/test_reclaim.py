"""From a server's report to its slice in another's hands, over the real pool and both listeners."""

from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from tests.pool_settings import changed
from tests.unit.pool.conftest import World

from miglab_api.tickets import TicketRequest
from miglab_pool.http.metrics import Metrics
from miglab_pool.http.pool_runner import PoolRunner, Times
from miglab_pool.reclaim.activity import SignalBoard
from miglab_pool.reclaim.policy import Rules
from miglab_pool.reclaim.round import Reclaimer
from miglab_pool.settings import Course, Reclaim

from .conftest import LAB, as_
from .fakes import SECRET

HOLDERS = {"alice": "container:" + "a" * 64, "bob": "container:" + "b" * 64}
QUIET = {
    "kernels": [{"busy": False, "last_execution_age_s": 5000.0}],
    "terminals": 0,
    "browsers": 0,
    "unsaved": 0,
    "cpu_s": 1.0,
}
LIMITS = Reclaim(idle_s=1000, idle_wanted_s=100, warning_s=60, stale_s=90, unused_s=600)
SETTINGS = changed(
    LAB,
    courses={"ml": Course(title="ML", shapes=("7g.40gb",))},
    attend_grace_s=1e6,
    reclaim=Reclaim(keepalives=1, warning_s=60),
    probe_s=0.0,
)


class ReclaimService:
    """The service with a reclaimer that looks when the test says so; every clock is the test's."""

    def __init__(self, world: World) -> None:
        self.world, self.ticks = world, 0.0
        self.pool, self.metrics = world.pool, Metrics()
        self.board = SignalBoard(clock=lambda: self.ticks)
        self.reclaimer = Reclaimer(
            Rules(limits=LIMITS), self.board, self.metrics.reclaimed, lambda: self.ticks
        )
        times = Times(turn_s=0.01, jobs_s=0.01, reconcile_s=3600, sample_s=3600, reclaim_s=3600)
        self.runner = PoolRunner(world.pool, self.metrics, times, None, self.reclaimer)

    def pass_time(self, seconds: float) -> None:
        self.world.at, self.ticks = self.world.at + seconds, self.ticks + seconds

    async def look(self, seconds: float = 0.0) -> None:
        """Let time pass for every clock, read the GPUs, and look at all leases."""
        self.pass_time(seconds)
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
        self.world.holders.there.add(HOLDERS[user])
        number, generation = lease.id, lease.generation
        await self.runner.decide(lambda pool: pool.leases.attach(number, generation, HOLDERS[user]))
        await self.runner.decide(lambda pool: pool.leases.running(number))
        return number

    async def ask(self, user: str) -> int:
        request = TicketRequest(user=user, course="ml", shape="7g.40gb")
        return (await self.runner.decide(lambda pool: pool.tickets.request(request))).id


@pytest.fixture
async def lab(make_world: Callable[..., World]) -> AsyncIterator[ReclaimService]:
    lab = ReclaimService(make_world(SETTINGS))
    await lab.runner.start()
    yield lab
    assert await lab.runner.stop()


@pytest.fixture
def runner(lab: ReclaimService) -> PoolRunner:
    return lab.runner


@pytest.fixture
def board(lab: ReclaimService) -> SignalBoard:
    return lab.board


@pytest.fixture
def server(student: httpx.AsyncClient) -> httpx.AsyncClient:
    """Alice's server on the student listener."""
    student.headers.update(as_("alice-server"))
    return student


async def test_from_a_report_to_the_next_in_the_queue(
    lab: ReclaimService, server: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    """Warned in the answer to a report; kept by "still here"; then taken back for who waits."""
    number = await lab.start("alice")
    await lab.look()
    await lab.ask("bob")
    lab.pass_time(200)
    said = (await server.post("/api/lease/signals", json=QUIET)).json()
    assert (said["state"], said["warning"], said["others_wait"]) == ("running", None, 1)
    await lab.look()
    said = (await server.post("/api/lease/signals", json=QUIET)).json()
    assert said["warning"]["reclaim_at"] == lab.world.at + 60
    assert said["warning"]["kind"] == "idle" and "1 other is waiting" in said["warning"]["reason"]
    assert (await server.post("/api/lease/keepalive")).json()["state"] == "running"
    lab.pass_time(1900)
    await server.post("/api/lease/signals", json=QUIET)
    await lab.look()
    refusal = await server.post("/api/lease/keepalive")
    assert (refusal.status_code, refusal.json()["reason"]) == (409, "no-keepalive")
    lab.pass_time(61)
    await server.post("/api/lease/signals", json=QUIET)
    await lab.look()
    lease = await lab.runner.decide(lambda pool: pool.leases.find(number))
    assert lease.state == "releasing" and lease.release_requested_at == lab.world.at
    lab.world.holders.there.clear()  # as the hub does
    assert await lab.start("bob") > number
    (told,) = lab.reclaimer.explain(lab.pool)
    assert told.user == "bob"
    text = (await client.get("http://lab/metrics", headers=as_(SECRET))).text
    assert 'miglab_reclaims_total{reason="idle"} 1.0' in text


async def test_explained_to_staff(
    lab: ReclaimService, server: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    """With figures and ages for staff; students are told of their own by their server only."""
    await lab.start("alice")
    await server.post("/api/lease/signals", json=QUIET)
    await lab.look()
    path = "/api/reclaim?user=alice"
    assert (await client.get(path, headers=as_("alice-token"))).status_code == 403
    (told,) = (await client.get(path, headers=as_("staff-token"))).json()
    assert (told["user"], told["decision"], told["activity"]) == ("alice", "keep", "active")
    assert told["figures"]["kernels"] == 1 and told["figures"]["execution_age_s"] == 5000.0
    assert (await client.get("/api/reclaim?user=eve", headers=as_(SECRET))).json() == []
