"""Every route against every role: who may, who may not, and with which words."""

import copy
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from miglab_api.staff import SentMessage
from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.errors import LONGEST_BODY
from miglab_pool.http.management_app import management_app
from miglab_pool.http.metrics import Metrics
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.ledger.file import LedgerUnwritable

from .conftest import as_
from .fake_staff import FakeStaff
from .fakes import PREFIX, SECRET, FakePool, FakeTokens, reservation_view
from .test_rights import routes

TICKET = {"user": "alice", "server": "", "course": "ml", "shape": "1g.5gb"}
ATTACH = {"generation": 1, "holder": "process:1,1,boot"}
RESERVATION = {
    "course": "ml", "shape": "1g.5gb", "count": 7, "weekdays": ["tue"],
    "from_time": "10:00", "to_time": "12:00", "tz": "Europe/Berlin", "reason": "week 1",
}  # fmt: skip
WHY = {"reason": "The fan is broken."}
NOTE = SentMessage(id=1, at=1000.0, by="person:ina", to_course="ml", text="Room 2.", until=2000.0)
# Who asks, and what they are.  Lease, ticket and reservation 1 are of the course ml, and alice's.
ASKERS = {
    "spawner": SECRET,
    "admin": "admin-token",
    "all": "staff-token",  # instructs every course
    "ilse": "instructor-token",  # instructs ml
    "timo": "assistant-token",  # assists in ml
    "vera": "vision-token",  # instructs vision, and nothing of ml is hers
    "alice": "alice-token",
    "bob": "bob-token",  # a student as alice is
    "eve": "outsider-token",  # may not use the service
    "nobody": "",
}
LAYOUT = {
    "text": "version: v1\nmig-configs: {a: [{devices: all, mig-enabled: true, mig-devices: {}}]}"
}
#             spawner admin all ilse timo vera alice bob eve nobody
LOOK = "          200   200 200  200  200  200   200 200 403 401"
SPAWN = "         200   403 403  403  403  403   403 403 403 401"
TAKE = "          409   403 403  403  403  403   403 403 403 401"  # not offered
SEE_NAMES = "     200   200 200  200  200  404   200 404 403 401"
EXTEND = "        200   200 200  200  200  404   200 404 403 401"
RELEASE = "       200   200 200  200  403  404   200 404 403 401"
EXPLAIN = "       200   200 200  200  200  200   403 403 403 401"  # empty for vera: see below
OF_ALICE = "      200   200 200  200  200  403   200 403 403 401"
LEASES_OF = "     200   200 200  200  200  200   200 403 403 401"  # empty for vera: see below
RESERVE = "       201   201 201  201  403  403   403 403 403 401"
UNRESERVE = "     200   200 200  200  403  403   403 403 403 401"
LAYOUTS = "       200   200 200  200  200  200   403 403 403 401"
USAGE = "         200   200 200  200  200  200   403 403 403 401"  # of own courses alone
HEALTH = "        200   200 200  200  403  200   403 403 403 401"
ADMIN = "         200   200 403  403  403  403   403 403 403 401"
TEACH = "         200   200 200  200  403  404   403 404 403 401"  # alice may not, of her own
NEXT = "          200   200 200  200  403  404   403 403 403 401"
TELL = "          201   201 201  201  201  403   403 403 403 401"
TOLD = "          200   200 200  200  200  404   403 403 403 401"
AUDIT = "         200   200 200  200  200  200   403 403 403 401"  # of own courses alone
AUDIT_ML = "      200   200 200  200  200  403   403 403 403 401"
OPEN = "          200   200 200  200  200  200   200 200 200 200"
SIGNS_IN = "      200   200 200  200  200  200   200 200 403 302"
STAFF_PAGE = "    200   200 200  200  200  200   403 403 403 302"
LOG_ML = "        200   200 200  200  200  403   403 403 403 302"
HEALTH_PAGE = "   200   200 200  200  403  200   403 403 403 302"
STAFF_DETAILS = (
    "    200   200 200  200  200  200   404 404 403 401"  # a slice that nobody holds, a GPU
)
SLICE_DETAILS = "    200   200 200  200  200  200   200 404 403 401"  # alice's; vera reads no name
RESERVE_DETAILS = "  200   200 200  200  403  200   403 403 403 401"
WAY_BACK = "      403   403 403  403  403  403   403 403 403 403"  # without the browser's state
ROUTES = [
    ("POST", "/api/tickets", TICKET, SPAWN),
    ("GET", "/api/tickets/1", None, SEE_NAMES),
    ("DELETE", "/api/tickets/1", None, RELEASE),
    ("POST", "/api/tickets/1/take", None, TAKE),
    ("GET", "/api/server?user=alice", None, SPAWN),
    ("GET", "/api/tickets/1/alternatives", None, SPAWN),
    ("GET", "/api/leases", None, LOOK),
    ("GET", "/api/leases?user=alice", None, LEASES_OF),
    ("GET", "/api/leases/1", None, SEE_NAMES),
    ("POST", "/api/leases/1/attach", ATTACH, SPAWN),
    ("POST", "/api/leases/1/running", {"generation": 1}, SPAWN),
    ("POST", "/api/leases/1/release", {"generation": 1}, RELEASE),
    ("POST", "/api/leases/1/extend", {"by_s": 60}, EXTEND),
    ("GET", "/api/offers?user=alice&course=ml", None, OF_ALICE),
    ("GET", "/api/pool", None, LOOK),
    ("POST", "/api/pool/pause", {"reason": "Repairs."}, ADMIN),
    ("POST", "/api/pool/resume", None, ADMIN),
    ("POST", "/api/slices/1/adopt", None, ADMIN),
    ("POST", "/api/slices/1/clear", None, ADMIN),
    ("POST", "/api/slices/1/drain", WHY, ADMIN),
    ("POST", "/api/slices/1/undrain", None, ADMIN),
    ("POST", "/api/slices/1/quarantine", WHY, ADMIN),
    ("POST", "/api/gpus/GPU-0/drain", WHY, ADMIN),
    ("POST", "/api/gpus/GPU-0/undrain", None, ADMIN),
    ("POST", "/api/leases/1/reclaim", WHY, TEACH),
    ("POST", "/api/tickets/1/next", WHY, NEXT),
    ("DELETE", "/api/tickets/1/next", None, NEXT),
    ("POST", "/api/messages", {"to_user": "alice", "text": "Hi."}, TELL),
    ("GET", "/api/messages", None, AUDIT),
    ("DELETE", "/api/messages/1?reason=x", None, TOLD),
    ("GET", "/api/audit", None, AUDIT),
    ("GET", "/api/audit?course=ml", None, AUDIT_ML),
    ("GET", "/api/reservations", None, LOOK),
    ("POST", "/api/reservations", RESERVATION, RESERVE),
    ("POST", "/api/reservations/preview", RESERVATION, RESERVE.replace("201", "200")),
    ("PUT", "/api/reservations/1", RESERVATION, UNRESERVE),
    ("DELETE", "/api/reservations/1?reason=ill", None, UNRESERVE),
    ("GET", "/api/layout", None, LAYOUTS),
    ("GET", "/api/layout/file", None, LAYOUTS),
    ("POST", "/api/layout/diff", LAYOUT, LAYOUTS),
    ("PUT", "/api/layout", LAYOUT, ADMIN),
    ("GET", "/api/reclaim?user=alice", None, EXPLAIN),
    ("GET", "/api/classes/ml", None, LOOK),  # students: themselves alone
    ("POST", "/api/classes/ml/messages", {"users": ["alice"], "text": "Hi."}, TELL),
    ("GET", "/class?course=ml", None, SIGNS_IN),
    ("GET", "/api/usage", None, USAGE),
    ("GET", "/api/usage?by=user&format=csv", None, USAGE),
    ("GET", "/api/invariants", None, HEALTH),
    ("GET", "/api/health", None, OPEN),
    ("GET", "/api/openapi.json", None, OPEN),
    ("GET", "/", None, SIGNS_IN),
    ("GET", "/log", None, STAFF_PAGE),
    ("GET", "/log?course=ml", None, LOG_ML),
    ("GET", "/usage", None, STAFF_PAGE),
    ("GET", "/health", None, HEALTH_PAGE),
    ("GET", "/fragment", None, LOOK),
    ("GET", "/reservations", None, SIGNS_IN),
    ("GET", "/layouts", None, STAFF_PAGE),
    ("POST", "/layouts/preview", LAYOUT, LAYOUTS),
    ("GET", "/details/lease/1", None, SEE_NAMES),
    ("GET", "/details/ticket/1", None, SEE_NAMES),
    ("GET", "/details/slice/1", None, SLICE_DETAILS),
    ("GET", "/details/slice/4", None, STAFF_DETAILS),
    ("GET", "/details/gpu/GPU-0", None, STAFF_DETAILS),
    ("GET", "/details/message/1", None, TOLD),
    ("GET", "/details/pool", None, STAFF_DETAILS),
    ("GET", "/details/reserve", None, RESERVE_DETAILS),
    ("GET", "/details/reservation/1", None, LOOK),
    ("GET", "/oauth_callback", None, WAY_BACK),
]


@pytest.mark.parametrize("route", ROUTES, ids=[f"{method} {path}" for method, path, *_ in ROUTES])
async def test_every_route_and_role(
    client: httpx.AsyncClient, pool: FakePool, route: tuple[str, str, object, str]
) -> None:
    """Each route lets in whom the table says, and nobody else; a refusal has word and sentence."""
    method, path, body, statuses = route
    pool.request_of_alice()
    pool.reserved[1] = reservation_view(1)
    pool.sent[1] = NOTE
    before = copy.deepcopy(vars(pool))
    found = {}
    for who, token in ASKERS.items():
        vars(pool).update(copy.deepcopy(before))
        answer = await client.request(method, path, json=body, headers=as_(token) if token else {})
        found[who] = answer.status_code
        if answer.status_code >= 400 and "/api/" in path:
            assert answer.json().keys() == {"reason", "message"}
    assert found == dict(zip(ASKERS, map(int, statuses.split()), strict=True))


@pytest.mark.parametrize("token", ["", "alice-token"])
async def test_an_endless_request_is_not_read(client: httpx.AsyncClient, token: str) -> None:
    """The service stops reading long before memory does, whoever sends, and says so."""
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 100 * LONGEST_BODY:
            sent += 4096
            yield b" " * 4096

    headers = {"Content-Type": "application/json", **(as_(token) if token else {})}
    answer = await client.post("/api/leases/1/release", content=body(), headers=headers)
    assert (answer.status_code, answer.json()["reason"]) == (413, "bad-input")
    assert sent <= LONGEST_BODY + 4096


STREAMS = {"/api/events", "/live"}  # they never end; who sees what in them: test_live.py


def test_the_table_names_every_route(client: httpx.AsyncClient) -> None:
    """A route that is added, page or API, must be added to the table too."""
    asked = [(method, path.split("?")[0]) for method, path, *_ in ROUTES]
    missing = {
        (method, route.path)
        for route in routes(client)
        for method in route.methods
        if not any(m == method and route.path_regex.match(path) for m, path in asked)
    }
    assert missing == {("GET", path) for path in STREAMS | {"/metrics"}}


READS = [path for method, path, *_ in ROUTES if method == "GET" and "alice" not in path]


@pytest.mark.parametrize("token", ["vision-token", "bob-token"])
async def test_no_answer_names_whom_one_may_not_see(
    client: httpx.AsyncClient, pool: FakePool, token: str
) -> None:
    """Whatever is read, another course's instructor and another student never find alice."""
    pool.request_of_alice()
    pool.reserved[1] = reservation_view(1, made_by="alice", message="for alice")
    for path in READS:
        answer = await client.get(path, headers=as_(token))
        assert "alice" not in answer.text, path


@pytest.mark.parametrize("token", ["admin-token", "staff-token"])
async def test_names_are_for_staff(client: httpx.AsyncClient, token: str) -> None:
    """Staff and admins see who holds what."""
    answer = await client.get("/api/pool", headers=as_(token))
    assert [s["user"] for s in answer.json()["gpus"][0]["slices"]] == ["alice", "bob", None]


async def test_what_everybody_sees_of_a_reservation(client: httpx.AsyncClient) -> None:
    """Course, shape and times are for all; who made it and what for, for staff."""
    made = await client.post("/api/reservations", json=RESERVATION, headers=as_("staff-token"))
    assert (made.json()["made_by"], made.json()["message"]) == ("person:ina", "week 1")
    (seen,) = (await client.get("/api/reservations", headers=as_("bob-token"))).json()
    assert (seen["made_by"], seen["message"]) == (None, "")
    assert (seen["course"], seen["shape"], seen["count"]) == ("ml", "1g.5gb", 7)
    assert seen["starts_at"] < seen["ends_at"]


async def test_a_refused_reservation_says_why(client: httpx.AsyncClient) -> None:
    """The pool's refusal reaches who asked: its word, its sentence, its status."""
    asked = RESERVATION | {"count": 8}
    answer = await client.post("/api/reservations", json=asked, headers=as_("staff-token"))
    assert (answer.status_code, answer.json()["reason"]) == (409, "reservation-clash")


@pytest.mark.parametrize(
    "more",
    [{"from_time": "24:00"}, {"from_time": "9:00"}, {"weekdays": ["tuesday"]}, {"count": 0},
     {"grace_s": -1}, {"date": "2026-02-30"}, {"tz": ""}, {"colour": "red"}],
)  # fmt: skip
async def test_a_reservation_that_cannot_be_read(
    client: httpx.AsyncClient, pool: FakePool, more: dict[str, object]
) -> None:
    """What has not the form of a reservation does not reach the pool."""
    answer = await client.post(
        "/api/reservations", json=RESERVATION | more, headers=as_("staff-token")
    )
    assert (answer.status_code, answer.json()["reason"]) == (422, "bad-input")
    assert pool.reserved == {}


async def test_an_admin_adopts(client: httpx.AsyncClient) -> None:
    """What the lab did not make is an admin's to take over; an instructor's it is not."""
    answer = await client.post("/api/slices/1/adopt", headers=as_("admin-token"))
    assert answer.status_code == 200


async def test_a_student_sees_only_the_own_name(client: httpx.AsyncClient, pool: FakePool) -> None:
    """Of others a student sees place, profile and state; no name, server, course or UUID."""
    pool.request_of_alice()
    snapshot = (await client.get("/api/pool", headers=as_("bob-token"))).json()
    first, second, _ = snapshot["gpus"][0]["slices"]
    assert (first["user"], first["server"], first["course"], first["uuid"]) == (None,) * 4
    assert (first["profile"], first["start"], first["state"]) == ("1g.5gb", 0, "leased")
    assert second["user"] == "bob"
    assert snapshot["waiting"][0]["user"] is None
    assert "alice" not in str(snapshot)


async def test_a_service_is_not_the_person_of_its_name(client: httpx.AsyncClient) -> None:
    """A hub service called alice holds nothing of alice's."""
    headers = as_("service-token-alice")
    assert (await client.get("/api/leases", headers=headers)).json() == []
    assert (await client.get("/api/leases/1", headers=headers)).status_code == 404


@pytest.mark.parametrize("token", ["alice-server", "user-wide"])
async def test_a_servers_token_opens_nothing_here(client: httpx.AsyncClient, token: str) -> None:
    """A student's server reaches the student listener only."""
    assert (await client.get("/api/pool", headers=as_(token))).status_code == 403


async def test_offers_are_for_the_own_courses(client: httpx.AsyncClient) -> None:
    """A person asks about the courses they are in, and the default one."""
    answer = await client.get(
        "/api/offers", params={"course": ["ml", "secret", "everyone"]}, headers=as_("alice-token")
    )
    assert [course["course"] for course in answer.json()["courses"]] == ["ml", "everyone"]


async def test_a_silent_hub_is_not_a_no(
    client: httpx.AsyncClient, tokens: FakeTokens, pool: FakePool
) -> None:
    """While the hub is silent people get 503, the spawner goes on, and no lease ends."""
    tokens.silent = True
    answer = await client.get("/api/pool", headers=as_("alice-token"))
    assert (answer.status_code, answer.json()["reason"]) == (503, "hub-silent")
    assert (await client.get("/api/pool", headers=as_(SECRET))).status_code == 200
    assert "release" not in pool.names()


async def test_health_is_not_ok_while_rounds_fail(
    client: httpx.AsyncClient, runner: PoolRunner
) -> None:
    """A pool whose loop fails, or that has compared nothing yet, does not call itself well."""
    assert (await client.get("/api/health")).json()["ok"]
    runner._failing.add("turn")
    said = (await client.get("/api/health")).json()
    assert (said["ok"], said["failing"]) == (False, ["turn"])
    runner._failing.clear()
    runner._is_reconciled = False
    said = (await client.get("/api/health")).json()
    assert (said["ok"], said["is_reconciled"]) == (False, False)


class PoolThatBreaks(FakePool):
    """Fails at what nobody foresaw."""

    def snapshot(self) -> Any:
        raise ZeroDivisionError("a secret detail")


async def test_what_nobody_foresaw_is_a_refusal_too(sign_in: SignIn) -> None:
    """500 with reason, what to do and the headers; counted, and without the error's own words."""
    runner = PoolRunner(PoolThatBreaks(), Metrics())  # type: ignore[arg-type]
    app = management_app(runner, sign_in, default_course="everyone")
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://lab{PREFIX}") as client:
        answer = await client.get("/api/pool", headers=as_(SECRET))
    await runner.stop()
    assert (answer.status_code, answer.json()["reason"]) == (500, "unforeseen")
    assert "Try again" in answer.json()["message"] and "secret" not in answer.text
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    counted = runner.metrics.registry.get_sample_value
    assert counted("miglab_refusals_total", {"reason": "unforeseen"}) == 1


class StaffOnAFullDisk(FakeStaff):
    """Whatever they do cannot be written."""

    def pause(self, *_: Any) -> None:
        raise LedgerUnwritable("The lab cannot write to its disk: make room.")


class PoolOnAFullDisk(FakePool):
    """Cannot write."""

    @property
    def staff(self) -> FakeStaff:
        return StaffOnAFullDisk(self)


async def test_a_full_disk_is_told_in_words(sign_in: SignIn) -> None:
    """507 with the ledger's own words: what was not done, and what to do."""
    runner = PoolRunner(PoolOnAFullDisk(), Metrics())  # type: ignore[arg-type]
    app = management_app(runner, sign_in, default_course="everyone")
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://lab{PREFIX}") as client:
        answer = await client.post("/api/pool/pause", json={"reason": "Exam."}, headers=as_(SECRET))
    await runner.stop()
    assert (answer.status_code, answer.json()["reason"]) == (507, "bad-disk")
    assert "make room" in answer.json()["message"]


async def test_health_names_nobody(client: httpx.AsyncClient, pool: FakePool) -> None:
    """Health is open to all, so it tells counts only; a GPU in trouble is not fine."""
    pool.gpu_state = "unknown"
    answer = await client.get("/api/health")
    assert answer.json() == {
        "ok": False, "gpus": 1, "gpus_troubled": 1, "is_stuck": False,
        "is_reconciled": True, "failing": [], "unknown_to_hub": 0, "left_alone": 0,
        "is_other_engine": False, "silent_servers": 0,
    }  # fmt: skip
