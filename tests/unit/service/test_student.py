"""The student listener: one's own lease, nothing else."""

import httpx
import pytest

from .conftest import as_
from .fakes import SECRET, FakePool, FakeTokens


async def test_the_own_lease(student: httpx.AsyncClient) -> None:
    """A server sees the lease of that very server."""
    assert (await student.get("/api/lease", headers=as_("alice-server"))).json()["id"] == 1
    assert (await student.get("/api/lease", headers=as_("alice-lab2"))).json()["id"] == 3


@pytest.mark.parametrize(
    ("token", "status"),
    [
        ("", 401),
        ("unknown", 401),
        (SECRET, 401),
        ("alice-token", 403),
        ("user-wide", 403),
        ("alice-two", 403),
        ("forged-server", 403),
        ("service-token-alice", 403),
    ],
)
async def test_any_other_token(
    student: httpx.AsyncClient, pool: FakePool, token: str, status: int
) -> None:
    """Neither a person's token nor the spawner's secret nor two servers' token opens it."""
    for method, path in (("GET", "/api/lease"), ("POST", "/api/lease/release")):
        answer = await student.request(method, path, json={}, headers=as_(token) if token else {})
        assert answer.status_code == status
    assert pool.names() == []


async def test_no_lease(student: httpx.AsyncClient, pool: FakePool) -> None:
    """A server without a slice is told so."""
    pool.held.clear()
    answer = await student.get("/api/lease", headers=as_("alice-server"))
    assert (answer.status_code, answer.json()["reason"]) == (404, "unknown-lease")


async def test_extend_and_release(student: httpx.AsyncClient, pool: FakePool) -> None:
    """Both act on the own lease, in the server's name."""
    await student.post("/api/lease/extend", json={"by_s": 600}, headers=as_("alice-lab2"))
    await student.post("/api/lease/release", json={"reason": "done"}, headers=as_("alice-lab2"))
    assert pool.calls == [
        ("extend", 3, 600.0, "server:alice/lab2"),
        ("release", 3, "server:alice/lab2", "done"),
    ]


@pytest.mark.parametrize(
    "path",
    ["/api/pool", "/api/tickets/1", "/api/leases", "/api/leases/1", "/metrics", "/", "/api/offers"],
)
async def test_nothing_else_is_there(student: httpx.AsyncClient, path: str) -> None:
    """What the management listener has, this one has not."""
    answer = await student.get(path, headers=as_("alice-server"))
    assert (answer.status_code, answer.json()["reason"]) == (404, "no-such-page")


async def test_a_silent_hub(student: httpx.AsyncClient, tokens: FakeTokens, pool: FakePool) -> None:
    """A hub that does not answer is neither a yes nor a no, and ends no lease."""
    tokens.silent = True
    answer = await student.post("/api/lease/release", json={}, headers=as_("alice-server"))
    assert (answer.status_code, answer.json()["reason"]) == (503, "hub-silent")
    assert pool.names() == []


async def test_health(student: httpx.AsyncClient) -> None:
    """Health needs no token and tells nothing."""
    assert (await student.get("/api/health")).json() == {"ok": True}
