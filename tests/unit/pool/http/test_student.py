"""The student listener: one's own lease, nothing else."""

import httpx
import pytest

from miglab_api.leases import LeaseState, LeaseWarning, WarningKind
from miglab_api.staff import StaffMessage
from miglab_api.tickets import TicketRequest, TicketState
from miglab_pool.http.student_app import WRITES_BURST
from miglab_pool.reclaim.activity import SignalBoard

from .conftest import as_
from .fakes import SECRET, FakePool, FakeTokens, lease_view


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
    for method, path in (
        ("GET", "/api/lease"),
        ("POST", "/api/lease/release"),
        ("POST", "/api/lease/signals"),
        ("POST", "/api/lease/keepalive"),
        ("GET", "/api/server"),
        ("POST", "/api/server/signals"),
        ("POST", "/api/ticket/cancel"),
        ("POST", "/api/ticket/requeue"),
    ):
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


SAID = {
    "kernels": [{"busy": True, "last_execution_age_s": 3.5}, {"busy": None}],
    "terminals": 0,
    "terminal_age_s": None,
    "browsers": 1,
    "browser_age_s": 12.0,
    "unsaved": 2,
    "cpu_s": 81.5,
}


async def test_signals(student: httpx.AsyncClient, pool: FakePool, board: SignalBoard) -> None:
    """What a server says is kept for its own lease, and answered with how that stands."""
    answer = await student.post("/api/lease/signals", json=SAID, headers=as_("alice-lab2"))
    assert (answer.status_code, answer.json()["id"]) == (200, 3)
    known = board.known(3)
    assert known is not None and known.busy is True and known.unsaved == 2
    assert board.known(1) is None and pool.names() == []


async def test_a_warning_is_in_the_answer(student: httpx.AsyncClient, pool: FakePool) -> None:
    """Whoever reports learns in the same breath that the lease is to be taken back, and why."""
    warning = LeaseWarning(
        at=1000.0, reclaim_at=1300.0, reason="Unused.", kind=WarningKind.IDLE, keepalives_left=1
    )
    pool.held[1] = lease_view(1, "alice", state=LeaseState.WARNED, warning=warning, others_wait=2)
    said = (await student.post("/api/lease/signals", json={}, headers=as_("alice-server"))).json()
    assert said["warning"] == {
        "at": 1000.0, "reclaim_at": 1300.0, "reason": "Unused.", "kind": "idle",
        "keepalives_left": 1,
    }  # fmt: skip
    assert said["others_wait"] == 2


@pytest.mark.parametrize(
    "absurd",
    [{"browser_age_s": -1}, {"terminals": 10**12}, {"gpu_busy": True}, {"kernels": [{}] * 5000}],
)
async def test_absurd_signals(
    student: httpx.AsyncClient, board: SignalBoard, absurd: dict[str, object]
) -> None:
    """They are refused with what is wrong, and nothing of them is kept."""
    answer = await student.post("/api/lease/signals", json=absurd, headers=as_("alice-server"))
    assert (answer.status_code, answer.json()["reason"]) == (422, "bad-input")
    assert next(iter(absurd)) in answer.json()["message"]
    assert len(board) == 0


async def test_endless_numbers(student: httpx.AsyncClient, board: SignalBoard) -> None:
    """What JSON allows and no clock says is refused too."""
    headers = as_("alice-server") | {"Content-Type": "application/json"}
    for number in ("1e999", "NaN"):
        body = f'{{"cpu_s": {number}}}'
        answer = await student.post("/api/lease/signals", content=body, headers=headers)
        assert answer.status_code == 422
    assert len(board) == 0


async def test_a_flood_of_signals(student: httpx.AsyncClient) -> None:
    """Reports beyond any need are refused, in words."""
    answers = [
        await student.post("/api/lease/signals", json={}, headers=as_("alice-server"))
        for _ in range(12)
    ]
    assert answers[0].status_code == 200
    assert (answers[-1].status_code, answers[-1].json()["reason"]) == (429, "too-often")


async def test_still_here(student: httpx.AsyncClient, pool: FakePool) -> None:
    """It is said for the own lease, in the server's name."""
    await student.post("/api/lease/keepalive", headers=as_("alice-lab2"))
    assert pool.calls == [("keepalive", 3, "server:alice/lab2")]


async def test_a_server_without_a_slice(student: httpx.AsyncClient, pool: FakePool) -> None:
    """It sees its own place, and asking is what keeps it; the course of its student is told."""
    pool.held.clear()
    pool.tickets.request(TicketRequest(user="alice", server="", course="ml", shape="1g.5gb"))
    pool.messages.append(StaffMessage(id=4, at=990.0, by="ina", text="<b>Hi</b>", until=2000.0))
    said = (await student.get("/api/server?known=7", headers=as_("alice-server"))).json()
    assert (said["lease"], said["ticket"]["position"]) == (None, 1)
    assert said["messages"][0]["text"] == "<b>Hi</b>"
    assert ("server_status", "alice", "", 7) in pool.calls
    assert ("messages_for", "alice", "", ("everyone",)) in pool.calls
    assert (await student.get("/api/server", headers=as_("alice-lab2"))).json()["ticket"] is None


async def test_signals_of_any_server(
    student: httpx.AsyncClient, pool: FakePool, board: SignalBoard
) -> None:
    """With a lease they are kept for it; without one they are no more than attendance."""
    answer = await student.post("/api/server/signals", json=SAID, headers=as_("alice-lab2"))
    assert (answer.status_code, answer.json()["lease"]["id"]) == (200, 3)
    assert board.known(3) is not None
    pool.held.clear()
    answer = await student.post("/api/server/signals", json=SAID, headers=as_("alice-server"))
    assert (answer.status_code, answer.json()["lease"]) == (200, None)
    assert len(board) == 1


async def test_a_ticket_given_up_and_asked_for_again(
    student: httpx.AsyncClient, pool: FakePool
) -> None:
    """The own one, in the server's name; another server of the same person has none."""
    number = pool.request_of_alice().id
    other = await student.post("/api/ticket/cancel", headers=as_("alice-lab2"))
    assert (other.status_code, other.json()["reason"]) == (404, "unknown-ticket")
    given_up = await student.post("/api/ticket/cancel", headers=as_("alice-server"))
    assert given_up.json()["state"] == TicketState.CANCELLED
    assert ("cancel", number, "server:alice/") in pool.calls
    await student.post("/api/ticket/requeue", json={"ticket": number}, headers=as_("alice-server"))
    assert pool.calls[-1] == ("requeue", "alice", "", number, ("everyone",))


async def test_a_student_cannot_fill_the_ledger(student: httpx.AsyncClient, pool: FakePool) -> None:
    """So many changes at once, whichever server asks and whatever for; others are not held up."""
    answers = [
        await student.post("/api/lease/keepalive", headers=as_("alice-server")) for _ in range(40)
    ]
    taken = sum(answer.status_code == 200 for answer in answers)
    assert WRITES_BURST <= taken < WRITES_BURST + 5
    assert answers[-1].json()["reason"] == "too-often"
    for path in ("/api/ticket/cancel", "/api/lease/release"):
        answer = await student.post(path, json={}, headers=as_("alice-lab2"))
        assert answer.status_code == 429
    assert len(pool.calls) == taken
