"""The student listener: one's own lease, nothing else."""

import json
import math

import httpx
import pytest
from tests.unit.pool.conftest import World

from miglab_api.leases import WarningKind
from miglab_api.staff import MessageRequest
from miglab_pool.applications.student_app import WRITES_BURST, TokenBuckets
from miglab_pool.http.errors import DeniedError
from miglab_pool.reclaim.activity import SignalBoard

from .conftest import as_
from .fakes import OWNERS, SECRET, FakeTokens


async def test_the_own_lease(student: httpx.AsyncClient, world: World) -> None:
    """A server sees the lease of that very server; without a slice it is told so."""
    for token, number in (("alice-server", 1), ("alice-lab2", 3)):
        assert (await student.get("/api/lease", headers=as_(token))).json()["id"] == number
    world.end(world.pool.leases.find(1))
    answer = await student.get("/api/lease", headers=as_("alice-server"))
    assert (answer.status_code, answer.json()["reason"]) == (404, "unknown-lease")


async def test_what_has_ended_meanwhile(student: httpx.AsyncClient, world: World) -> None:
    """Why each of one's own leases ended since then, on any server; nobody else's, no older one."""
    world.end(world.pool.leases.find(1))
    begin = world.at
    world.pass_time(60)
    world.pool.leases.release(3, "reclaimer", "Nothing ran for 20 min.")
    world.end(world.pool.leases.find(2))
    world.end(world.pool.leases.find(3))
    answer = await student.get(f"/api/leases/ended?since={begin}", headers=as_("alice-server"))
    (end,) = answer.json()["ends"]
    assert (end["server"], end["shape"], end["ended_at"]) == ("lab2", "1g.5gb", world.at)
    assert end["reason"] == "Nothing ran for 20 min." and not end["is_given_back"]
    for since in ("nan", "-1", "soon"):
        answer = await student.get(f"/api/leases/ended?since={since}", headers=as_("alice-server"))
        assert answer.status_code == 422


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
    student: httpx.AsyncClient, world: World, token: str, status: int
) -> None:
    """Neither a person's token nor the spawner's secret nor two servers' token opens it."""
    before = world.pool.version
    for method, path in (
        ("GET", "/api/lease"),
        ("GET", "/api/leases/ended?since=0"),
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
    assert world.pool.version == before


async def test_what_is_asked_of_the_own_lease(student: httpx.AsyncClient, world: World) -> None:
    """To go on, "I am still here", to end: of that lease alone, in the server's name."""
    world.pool.leases.warn(3, WarningKind.IDLE, "Unused.", world.at + 60)
    before = world.pool.leases.find(1)
    for ask, body in (
        ("extend", {"by_s": 600}),
        ("keepalive", {}),
        ("release", {"reason": "done"}),
    ):
        answer = await student.post(f"/api/lease/{ask}", json=body, headers=as_("alice-lab2"))
        assert (answer.status_code, answer.json()["id"]) == (200, 3), answer.text
    step = world.ledger.history("lease", "3")[0]
    assert (step["by"], step["reason"]) == ("server:alice/lab2", "done")
    assert world.pool.leases.find(1) == before


@pytest.mark.parametrize(
    "path",
    ["/api/pool", "/api/tickets/1", "/api/leases", "/api/leases/1", "/metrics", "/", "/api/offers"],
)
async def test_nothing_else_is_there(student: httpx.AsyncClient, path: str) -> None:
    """What the management listener has, this one has not; its health needs no token."""
    assert (await student.get("/api/health")).json() == {"ok": True}
    answer = await student.get(path, headers=as_("alice-server"))
    assert (answer.status_code, answer.json()["reason"]) == (404, "no-such-page")


async def test_a_silent_hub(
    student: httpx.AsyncClient, client: httpx.AsyncClient, tokens: FakeTokens, world: World
) -> None:
    """Is neither a yes nor a no: people and servers get 503, the spawner goes on, no lease ends."""
    tokens.silent = True
    for listener, token in ((student, "alice-server"), (client, "alice-token")):
        path = "/api/lease/release" if listener is student else "/api/leases/1/release"
        answer = await listener.post(path, json={}, headers=as_(token))
        assert (answer.status_code, answer.json()["reason"]) == (503, "hub-silent")
    assert (await client.get("/api/pool", headers=as_(SECRET))).status_code == 200
    assert world.pool.leases.find(1).state == "running"


SAID = {
    "kernels": [{"busy": True, "last_execution_age_s": 3.5}, {"busy": None}],
    "terminals": 0,
    "terminal_age_s": None,
    "browsers": 1,
    "browser_age_s": 12.0,
    "unsaved": 2,
    "cpu_s": 81.5,
}


@pytest.mark.parametrize("path", ["lease", "server"])
async def test_signals(student: httpx.AsyncClient, board: SignalBoard, path: str) -> None:
    """What a server says is kept for its own lease, and answered with how that stands."""
    answer = await student.post(f"/api/{path}/signals", json=SAID, headers=as_("alice-lab2"))
    lease = answer.json() if path == "lease" else answer.json()["lease"]
    assert (answer.status_code, lease["id"]) == (200, 3)
    signals = board.activity_of(3)
    assert signals is not None and signals.busy is True and signals.unsaved == 2
    assert board.activity_of(1) is None


@pytest.mark.parametrize(
    "absurd",
    [
        {"terminals": -1},
        {"terminals": 10**9},
        {"browser_age_s": -0.1},
        {"browser_age_s": math.nan},
        {"browser_age_s": math.inf},
        {"browser_age_s": 1e12},
        {"cpu_s": -1},
        {"kernels": [{"busy": "perhaps"}]},
        {"kernels": [{}] * 1001},
        {"gpu_busy": 100},
    ],
)
async def test_absurd_signals(
    student: httpx.AsyncClient, board: SignalBoard, absurd: dict[str, object]
) -> None:
    """Negative ages, endless ones and unknown keys are refused by name, and nothing is kept."""
    headers = as_("alice-server") | {"Content-Type": "application/json"}
    body = json.dumps(absurd)
    answer = await student.post("/api/lease/signals", content=body, headers=headers)
    assert (answer.status_code, answer.json()["reason"]) == (422, "bad-input")
    assert next(iter(absurd)) in answer.json()["message"]
    assert len(board) == 0


async def test_a_flood_of_signals(student: httpx.AsyncClient) -> None:
    """Reports beyond any need are refused, in words."""
    answers = [
        await student.post("/api/lease/signals", json={}, headers=as_("alice-server"))
        for _ in range(12)
    ]
    assert answers[0].status_code == 200
    assert (answers[-1].status_code, answers[-1].json()["reason"]) == (429, "too-often")


def test_who_slows_down_is_heard_again() -> None:
    """So many at once, then so many a second; others are heard, and who has left is forgotten."""
    now = 5000.0
    buckets = TokenBuckets(2, 0.5, lambda: now, "Wait.")
    buckets.spend(1)
    buckets.spend(1)
    with pytest.raises(DeniedError, match="Wait"):
        buckets.spend(1)
    buckets.spend(2)
    now += 2
    buckets.spend(1)
    with pytest.raises(DeniedError):
        buckets.spend(1)
    for number in range(10, 1000):
        buckets.spend(number)
        now += 1
    assert len(buckets) < 10


async def test_a_server_without_a_slice(
    student: httpx.AsyncClient, world: World, board: SignalBoard
) -> None:
    """It sees its own place, and asking is what keeps it; the course of its student is told.

    The ticket is given up and asked for again in its name; another server of theirs has none.
    """
    world.end(world.pool.leases.find(1))
    ticket = world.ask("alice", "7g.40gb").id  # in a course that alice is in
    note = MessageRequest(text="<b>Hi</b>", to_course="everyone")
    world.pool.staff.send(note, "person:ina")
    world.pass_time(9.0)
    of_server, other = as_("alice-server"), as_("alice-lab2")
    server_status = (await student.post("/api/server/signals", json=SAID, headers=of_server)).json()
    assert (server_status["lease"], server_status["ticket"]["position"], len(board)) == (None, 1, 0)
    assert server_status["messages"][0]["text"] == "<b>Hi</b>"
    assert world.ledger.state.tickets[ticket].attended_at == world.at
    assert (await student.get("/api/server", headers=other)).json()["ticket"] is None
    for headers, status in ((other, 404), (of_server, 200), (of_server, 404)):
        answer = await student.post("/api/ticket/cancel", headers=headers)
        assert answer.status_code == status
    assert answer.json()["reason"] == "unknown-ticket"
    step = world.ledger.history("ticket", str(ticket))[0]
    assert (step["to_state"], step["by"]) == ("cancelled", "server:alice/")
    again = world.ask("alice", "7g.40gb").id
    world.pool.tickets.cancel(again, "alice")
    for headers, status in ((other, 404), (of_server, 200)):
        answer = await student.post("/api/ticket/requeue", json={"ticket": again}, headers=headers)
        assert answer.status_code == status
    assert (answer.json()["id"], answer.json()["shape"]) == (again + 1, "7g.40gb")


async def test_a_student_cannot_fill_the_ledger(student: httpx.AsyncClient, world: World) -> None:
    """So many changes at once, whichever server asks and whatever for; then no more."""
    answers = [
        await student.post("/api/lease/keepalive", headers=as_("alice-server")) for _ in range(40)
    ]
    let_in = sum(answer.status_code != 429 for answer in answers)
    assert WRITES_BURST <= let_in < WRITES_BURST + 5
    assert answers[-1].json()["reason"] == "too-often"
    before = world.pool.version
    for path in ("/api/ticket/cancel", "/api/lease/release"):
        answer = await student.post(path, json={}, headers=as_("alice-lab2"))
        assert answer.status_code == 429
    assert world.pool.version == before


async def test_who_has_left_the_course_leaves_its_queue(
    student: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the server asks next: the ticket is over, and the student reads why.

    What a server holds it keeps.
    """
    server = OWNERS["alice-server"]
    monkeypatch.setitem(OWNERS, "alice-server", {**server, "groups": ["ml"]})
    world.end(world.pool.leases.find(1))
    ticket = world.ask("alice", course="ml")
    request = {"headers": as_("alice-server"), "params": {"known": ticket.id}}
    assert (await student.get("/api/server", **request)).json()["ticket"]["id"] == ticket.id
    monkeypatch.setitem(OWNERS, "alice-server", {**server, "groups": ["vision"]})
    ended_ticket = (await student.get("/api/server", **request)).json()["ticket"]
    assert (ended_ticket["state"], ended_ticket["reason"]) == ("cancelled", "not-in-course")
    assert "no longer in the course ml" in ended_ticket["message"]
    lease = world.pool.leases.find(3)
    lab2 = OWNERS["alice-lab2"]
    monkeypatch.setitem(OWNERS, "alice-lab2", {**lab2, "groups": ["vision"]})
    ended_ticket = (await student.get("/api/server", headers=as_("alice-lab2"))).json()["lease"]
    assert (ended_ticket["id"], ended_ticket["state"]) == (lease.id, lease.state)


async def test_a_renamed_user_is_the_same(
    student: httpx.AsyncClient,
    client: httpx.AsyncClient,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the id that the hub says with the token, be the name of before or of now; others are not.

    An answer of the hub is believed for a while, so it may have the name of before.
    """
    owner = {**OWNERS["alice-server"], "miglab_user_id": "7t1"}
    monkeypatch.setitem(OWNERS, "alice-server", owner)
    assert (await student.get("/api/lease", headers=as_("alice-server"))).json()["id"] == 1
    world.pool.people.rename_user("7t1", "liddell")
    lease = await student.get("/api/lease", headers=as_("alice-server"))
    assert (lease.json()["id"], lease.json()["user"]) == (1, "liddell")
    new_name = {"name": "liddell", "scopes": ["custom:miglab:lease!server=liddell/"]}
    monkeypatch.setitem(OWNERS, "alice-server", {**owner, **new_name})
    assert (await student.get("/api/lease", headers=as_("alice-server"))).json()["id"] == 1
    other_owner = {**OWNERS["alice-token"], "miglab_user_id": "8t2"}
    monkeypatch.setitem(OWNERS, "alice-token", other_owner)
    assert (await client.get("/api/leases", headers=as_("alice-token"))).json() == []
    monkeypatch.setitem(OWNERS, "alice-token", {**other_owner, "miglab_user_id": "7t1"})
    leases = (await client.get("/api/leases", headers=as_("alice-token"))).json()
    assert [lease["id"] for lease in leases] == [1, 3]
