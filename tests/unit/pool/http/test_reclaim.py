"""From a server's report to its slice in another's hands, over the real pool and both listeners."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.pool_settings import changed
from tests.unit.pool.conftest import Keep
from tests.unit.pool.reclaimer.test_round import ReclaimWorld

from miglab_pool.http.metrics import Metrics
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.reclaim.activity import SignalBoard
from miglab_pool.settings import Course, Reclaim

from .conftest import LAB, as_
from .fakes import SECRET

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


@pytest.fixture
def lab(tmp_path: Path, keep: Keep[ReclaimWorld]) -> ReclaimWorld:
    """One GPU, which alice has as a whole."""
    lab = keep(ReclaimWorld(tmp_path, SETTINGS, limits=LIMITS))
    lab.run("alice", "7g.40gb", course="ml")
    return lab


@pytest.fixture
async def runner(lab: ReclaimWorld) -> AsyncIterator[PoolRunner]:
    runner = PoolRunner(lab.pool, Metrics(), reclaimer=lab.reclaimer)
    yield runner
    await runner.stop()


@pytest.fixture
def board(lab: ReclaimWorld) -> SignalBoard:
    return lab.board


@pytest.fixture
def server(student: httpx.AsyncClient) -> httpx.AsyncClient:
    """Alice's server on the student listener."""
    student.headers.update(as_("alice-server"))
    return student


def look(lab: ReclaimWorld) -> None:
    """Read the GPUs, and look at all leases."""
    lab.pool.sample()
    lab.reclaimer.round(lab.pool)


def pass_time(lab: ReclaimWorld, seconds: float) -> None:
    lab.pass_time(seconds)
    lab.ticks += seconds


async def test_from_a_report_to_the_next_in_the_queue(
    lab: ReclaimWorld, server: httpx.AsyncClient
) -> None:
    """Warned in the answer to a report; kept by "still here"; then taken back for who waits."""
    look(lab)
    lab.ask("bob", "7g.40gb", course="ml")
    pass_time(lab, 200)
    said = (await server.post("/api/lease/signals", json=QUIET)).json()
    assert (said["state"], said["warning"], said["others_wait"]) == ("running", None, 1)
    look(lab)
    said = (await server.post("/api/lease/signals", json=QUIET)).json()
    assert said["warning"]["reclaim_at"] == lab.at + 60
    assert said["warning"]["kind"] == "idle" and "1 other is waiting" in said["warning"]["reason"]
    assert (await server.post("/api/lease/keepalive")).json()["state"] == "running"
    pass_time(lab, 1900)
    await server.post("/api/lease/signals", json=QUIET)
    look(lab)
    refusal = await server.post("/api/lease/keepalive")
    assert (refusal.status_code, refusal.json()["reason"]) == (409, "no-keepalive")
    pass_time(lab, 61)
    await server.post("/api/lease/signals", json=QUIET)
    look(lab)
    lease = lab.pool.leases.find(1)
    assert lease.state == "releasing" and lease.release_requested_at == lab.at
    lab.holders.there.clear()  # as the hub does
    assert lab.run("bob", "7g.40gb", course="ml").id > lease.id
    assert [told.user for told in lab.reclaimer.explain(lab.pool)] == ["bob"]
    assert lab.reclaims == ["idle"]


async def test_explained_to_staff(
    lab: ReclaimWorld, server: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    """With figures and ages for staff; students are told of their own by their server only."""
    await server.post("/api/lease/signals", json=QUIET)
    look(lab)
    path = "/api/reclaim?user=alice"
    assert (await client.get(path, headers=as_("alice-token"))).status_code == 403
    (told,) = (await client.get(path, headers=as_("staff-token"))).json()
    assert (told["user"], told["decision"], told["activity"]) == ("alice", "keep", "active")
    assert told["figures"]["kernels"] == 1 and told["figures"]["execution_age_s"] == 5000.0
    assert (await client.get("/api/reclaim?user=eve", headers=as_(SECRET))).json() == []
