"""Every route against every role: who may, who may not, and with which words."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.unit.pool.conftest import World

from miglab_api.reservations import ReservationRequest
from miglab_api.staff import TEXT_MAX, MessageRequest
from miglab_pool.applications.pool_runner import PoolRunner
from miglab_pool.gpu.simulated.machine import Break
from miglab_pool.http.errors import LONGEST_BODY
from miglab_pool.pool import Pool

from .conftest import as_, enqueue, foreign_slice, free_slice, visiting
from .fakes import SECRET
from .full_lab import apps
from .test_rights import routes

TICKET = {"user": "alice", "server": "", "course": "ml", "shape": "1g.5gb"}
ATTACH = {"generation": "{generation}", "holder": "{holder}"}
RUNNING = {"generation": "{generation}"}
RESERVATION = {
    "course": "ml", "shape": "1g.5gb", "count": 2, "weekdays": ["tue"],
    "from_time": "10:00", "to_time": "12:00", "tz": "Europe/Berlin", "reason": "week 1",
}  # fmt: skip
WHY = {"reason": "The fan is broken."}
LONG_NOTE = {"all": True, "text": "x" * TEXT_MAX}
NOTE = MessageRequest(to_course="ml", text="Room 2.")
# Who asks, and what they are.  Lease 1, the ticket and reservation 1 are of ml, and alice's.
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
    "service": "service-token-alice",  # of the hub, not the person of its name
    "server": "alice-server",  # reaches the student listener only
}
LAYOUT = {
    "text": "version: v1\nmig-configs: {a: [{devices: all, mig-enabled: true, mig-devices: {}}]}"
}
# In the order of ASKERS: the spawner first, the server last.
LOOK = "          200 200 200 200 200 200 200 200 403 401 200 403"
CLASS = "         200 200 200 200 200 200 200 200 403 401 403 403"  # people alone
SPAWN = "         200 403 403 403 403 403 403 403 403 401 403 403"
PROVE = "         409 403 403 403 403 403 403 403 403 401 403 403"  # no proof runs
ASK = "           201 403 403 403 403 403 403 403 403 401 403 403"
TAKE = "          409 403 403 403 403 403 403 403 403 401 403 403"  # not offered
SEE_NAMES = "     200 200 200 200 200 404 200 404 403 401 404 403"
EXTEND = "        200 200 200 200 200 404 200 404 403 401 404 403"
RELEASE = "       200 200 200 200 403 404 200 404 403 401 404 403"
EXPLAIN = "       200 200 200 200 200 200 403 403 403 401 403 403"  # empty for vera
OF_ALICE = "      200 200 200 200 200 403 200 403 403 401 403 403"
LEASES_OF = "     200 200 200 200 200 200 200 403 403 401 403 403"  # empty for vera
RESERVE = "       201 201 201 201 403 403 403 403 403 401 403 403"
UNRESERVE = "     200 200 200 200 403 403 403 403 403 401 403 403"
LAYOUTS = "       200 200 200 200 200 200 403 403 403 401 403 403"
USAGE = "         200 200 200 200 200 200 403 403 403 401 403 403"  # of own courses alone
HEALTH = "        200 200 200 200 403 200 403 403 403 401 403 403"
ADMIN = "         200 200 403 403 403 403 403 403 403 401 403 403"
UNDO = "          409 409 403 403 403 403 403 403 403 401 403 403"  # nothing is paused or drained
TEACH = "         200 200 200 200 403 404 403 404 403 401 404 403"  # alice may not, of her own
NEXT = "          200 200 200 200 403 404 403 403 403 401 403 403"
BACK = "          409 409 409 409 403 404 403 403 403 401 403 403"  # neither in front nor offered
TELL = "          201 201 201 201 201 403 403 403 403 401 403 403"
TOLD = "          200 200 200 200 200 404 403 403 403 401 403 403"
AUDIT = "         200 200 200 200 200 200 403 403 403 401 403 403"  # of own courses alone
AUDIT_ML = "      200 200 200 200 200 403 403 403 403 401 403 403"
OPEN = "          200 200 200 200 200 200 200 200 200 200 200 200"
SIGNS_IN = "      200 200 200 200 200 200 200 200 403 302 200 403"
CLASS_PAGE = "    200 200 200 200 200 200 200 200 403 302 403 403"
STAFF_PAGE = "    200 200 200 200 200 200 403 403 403 302 403 403"
LOG_ML = "        200 200 200 200 200 403 403 403 403 302 403 403"
HEALTH_PAGE = "   200 200 200 200 403 200 403 403 403 302 403 403"
STAFF_DETAILS = "    200 200 200 200 200 200 404 404 403 401 404 403"  # a free slice, a GPU
SLICE_DETAILS = "    200 200 200 200 200 200 200 404 403 401 404 403"  # alice's; vera reads no name
RESERVE_DETAILS = "  200 200 200 200 403 200 403 403 403 401 403 403"
WAY_BACK = "      403 403 403 403 403 403 403 403 403 403 403 403"  # without the browser's state
ROUTES = [
    ("POST", "/api/tickets", TICKET, ASK),
    ("GET", "/api/tickets/{ticket}", None, SEE_NAMES),
    ("DELETE", "/api/tickets/{ticket}", None, RELEASE),
    ("POST", "/api/tickets/{ticket}/take", None, TAKE),
    ("GET", "/api/server?user=alice", None, SPAWN),
    ("GET", "/api/line?user=alice", None, CLASS),
    ("GET", "/api/tickets/{ticket}/alternatives", None, SPAWN),
    ("POST", "/api/leases", TICKET | {"server": "lab 2"}, ASK),
    ("GET", "/api/leases", None, LOOK),
    ("GET", "/api/leases?user=alice", None, LEASES_OF),
    ("GET", "/api/leases/1", None, SEE_NAMES),
    ("POST", "/api/leases/1/attach", ATTACH, SPAWN),
    ("POST", "/api/leases/1/running", RUNNING, SPAWN),
    ("POST", "/api/leases/1/release", RUNNING, RELEASE),
    ("POST", "/api/leases/1/extend", {"by_s": 60}, EXTEND),
    ("POST", "/api/leases/1/keepalive", None, EXTEND),
    ("GET", "/api/offers?user=alice&course=ml", None, OF_ALICE),
    ("GET", "/api/pool", None, LOOK),
    ("POST", "/api/pool/pause", {"reason": "Repairs."}, ADMIN),
    ("POST", "/api/pool/resume", None, UNDO),
    ("POST", "/api/slices/{foreign}/adopt", None, ADMIN),
    ("POST", "/api/slices/{aside}/clear", None, ADMIN),
    ("POST", "/api/slices/1/drain", WHY, ADMIN),
    ("POST", "/api/slices/{drained}/undrain", None, ADMIN),
    ("POST", "/api/slices/{free}/quarantine", WHY, ADMIN),
    ("POST", "/api/gpus/{gpu}/drain", WHY | {"anyway": "it smells"}, ADMIN),
    ("POST", "/api/gpus/{gpu}/undrain", None, UNDO),
    ("POST", "/api/leases/1/reclaim", WHY, TEACH),
    ("POST", "/api/proof", None, PROVE),
    ("DELETE", "/api/proof", None, SPAWN),
    ("POST", "/api/tickets/{ticket}/next", WHY, NEXT),
    ("DELETE", "/api/tickets/{ticket}/next", None, BACK),
    ("POST", "/api/tickets/{ticket}/call", WHY, BACK),
    ("POST", "/api/tickets/{ticket}/pass", WHY, BACK),
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
    ("GET", "/api/classes/ml", None, CLASS),  # students: themselves alone
    ("POST", "/api/classes/ml/messages", {"users": ["alice"], "text": "Hi."}, TELL),
    ("GET", "/class?course=ml", None, CLASS_PAGE),
    ("GET", "/api/usage", None, USAGE),
    ("GET", "/api/usage?by=user&format=csv", None, USAGE),
    ("GET", "/api/invariants", None, HEALTH),
    ("GET", "/api/health", None, OPEN),
    ("GET", "/api/openapi.json", None, OPEN),
    ("GET", "/static/steps.css", None, OPEN),
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
    ("GET", "/details/ticket/{ticket}", None, SEE_NAMES),
    ("GET", "/details/slice/1", None, SLICE_DETAILS),
    ("GET", "/details/slice/{free}", None, STAFF_DETAILS),
    ("GET", "/details/gpu/{gpu}", None, STAFF_DETAILS),
    ("GET", "/details/message/1", None, TOLD),
    ("GET", "/details/pool", None, STAFF_DETAILS),
    ("GET", "/details/reserve", None, RESERVE_DETAILS),
    ("GET", "/details/reservation/1", None, LOOK),
    ("GET", "/oauth_callback", None, WAY_BACK),
]


@dataclass
class RolesLab:
    """A lab with something of each kind, closed; and the numbers that are in the addresses."""

    world: World
    ids: dict[str, str]

    def opened(self, folder: Path) -> tuple[World, httpx.AsyncClient]:
        """A copy of it that is open, and a client of its management listener."""
        world = self.world.copied(folder)
        return world, visiting(apps(world.pool)[0])

    def filled(self, text: str) -> str:
        for name, value in self.ids.items():
            text = text.replace(f'"{{{name}}}"', value).replace(f"{{{name}}}", value.strip('"'))
        return text


@pytest.fixture(scope="module")
def roles_lab(furnished: World, tmp_path_factory: pytest.TempPathFactory) -> RolesLab:
    world = furnished.copied(tmp_path_factory.mktemp("roles") / "lab")
    staff, lease = world.pool.staff, world.pool.leases.find(1)
    aside, drained = (world.run(user).slices[0].slice_id for user in ("dave", "erin"))
    staff.drain(drained, "Dust.", "person:root")
    for lease_of_dave in world.pool.leases.live("dave"):
        world.end(lease_of_dave)
    aside = free_slice(world)
    staff.quarantine(aside, "Dust.", "person:root")
    world.end(world.run("carol"))
    ids = {
        "foreign": foreign_slice(world), "aside": aside, "drained": drained,
        "free": free_slice(world), "ticket": enqueue(world).id, "gpu": world.driver.uuids[0],
        "generation": lease.generation, "holder": f'"{lease.holder}"',
    }  # fmt: skip
    staff.send(NOTE, "person:ina")
    world.pool.reservations.make(ReservationRequest.model_validate(RESERVATION), "person:alice")
    world.check()
    world.close()
    return RolesLab(world, {name: str(value) for name, value in ids.items()})


@pytest.mark.parametrize("route", ROUTES, ids=[f"{method} {path}" for method, path, *_ in ROUTES])
async def test_every_route_and_role(
    roles_lab: RolesLab, tmp_path: Path, route: tuple[str, str, object, str]
) -> None:
    """Each route lets in whom the table says, and nobody else; a refusal has word and sentence.

    Whoever is not let in changes nothing.
    """
    method, path, body, statuses = route
    path, body = roles_lab.filled(path), json.loads(roles_lab.filled(json.dumps(body)))
    status_by_role, (world, client) = {}, roles_lab.opened(tmp_path / "first")
    for role, token in ASKERS.items():
        before = world.pool.version
        answer = await client.request(method, path, json=body, headers=as_(token) if token else {})
        status_by_role[role] = answer.status_code
        if answer.status_code >= 400 and "/api/" in path:
            assert answer.json().keys() == {"reason", "message", "way_on"}
        if answer.status_code in (401, 403, 404):
            assert world.pool.version == before
        elif method != "GET":
            world.close()
            world, client = roles_lab.opened(tmp_path / role)
    world.close()
    assert status_by_role == dict(zip(ASKERS, map(int, statuses.split()), strict=True))


async def test_what_one_may_not_see_does_not_exist(roles_lab: RolesLab, tmp_path: Path) -> None:
    """The answer to somebody else's lease is the one to a lease that never was."""
    world, client = roles_lab.opened(tmp_path / "first")
    answers = []
    for number in ("1", "999"):
        path = f"/api/leases/{number}/extend"
        answer = await client.post(path, json={"by_s": 60}, headers=as_("bob-token"))
        answers.append((answer.status_code, answer.text.replace(number, "N")))
    world.close()
    assert answers[0] == answers[1] and answers[0][0] == 404


@pytest.mark.parametrize("token", ["", "alice-token"])
async def test_an_endless_request_is_not_read(client: httpx.AsyncClient, token: str) -> None:
    """The service stops reading long before memory does, whoever sends, and says so."""
    sent_bytes = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent_bytes
        while sent_bytes < 100 * LONGEST_BODY:
            sent_bytes += 4096
            yield b" " * 4096

    headers = {"Content-Type": "application/json", **(as_(token) if token else {})}
    answer = await client.post("/api/leases/1/release", content=body(), headers=headers)
    assert (answer.status_code, answer.json()["reason"]) == (413, "bad-input")
    assert sent_bytes <= LONGEST_BODY + 4096


STREAMS = {"/api/events", "/live"}  # they never end; who sees what in them: test_live.py


def test_the_table_names_every_route(client: httpx.AsyncClient) -> None:
    """A route that is added, page or API, must be added to the table too."""
    table_routes = [(method, path.split("?")[0]) for method, path, *_ in ROUTES]
    missing = {
        (method, route.path)
        for route in routes(client)
        for method in route.methods
        if not any(m == method and route.path_regex.match(path) for m, path in table_routes)
    }
    assert missing == {("GET", path) for path in STREAMS | {"/metrics"}}


READS = [path for method, path, *_ in ROUTES if method == "GET" and "alice" not in path]


@pytest.mark.parametrize(
    ("token", "sees"), [("vision-token", False), ("bob-token", False), ("staff-token", True)]
)
async def test_no_answer_names_whom_one_may_not_see(
    roles_lab: RolesLab, tmp_path: Path, token: str, sees: bool
) -> None:
    """Whatever is read, another course's instructor and another student never find alice."""
    world, client = roles_lab.opened(tmp_path / "lab")
    texts = [(await client.get(roles_lab.filled(path), headers=as_(token))).text for path in READS]
    world.close()
    assert any("alice" in text for text in texts) is sees


AUDITS = (
    "limit=0", "limit=1001", "since=nan", "since=-1", "until=1700000000000", "course=", "before=0",
    "before=9223372036854775808", "format=xlsx",
)  # fmt: skip
PERIODS = (
    "since=2026-11-08&until=2026-11-02", "since=2001-01-01&until=2026-11-02", "since=1999-12-31",
    "since=yesterday", "by=name", "format=xlsx",
)  # fmt: skip
RESERVATIONS: list[dict[str, object]] = [
    {"from_time": "24:00"}, {"from_time": "9:00"}, {"weekdays": ["tuesday"]}, {"count": 0},
    {"grace_s": -1}, {"date": "2026-02-30"}, {"tz": ""}, {"colour": "red"},
]  # fmt: skip
DRAINS: list[dict[str, object]] = [
    {}, {"reason": " \t"}, {"reason": "x" * 501}, WHY | {"expected": "x" * 33},
    WHY | {"colour": "red"},
]  # fmt: skip
UNREADABLE: list[tuple[str, str, object]] = [
    *(("GET", f"audit?{query}", None) for query in AUDITS),
    *(("GET", f"usage?{query}", None) for query in PERIODS),
    *(("GET", f"tickets/1?wait_s={wait_s}", None) for wait_s in ("-1", "31", "nan", "inf", "soon")),
    *(("POST", "reservations", RESERVATION | fields) for fields in RESERVATIONS),
    *(("POST", "gpus/GPU-0/drain", body) for body in DRAINS),
    *(("POST", "leases/1/reclaim", WHY | {"warning_s": seconds}) for seconds in (-1, 3601)),
    ("POST", "messages", {"text": "Hi."}),
    ("POST", "messages", {"text": "Hi.", "all": True, "to_user": "alice"}),
]


@pytest.mark.parametrize(("method", "path", "body"), UNREADABLE)
async def test_what_cannot_be_read_changes_nothing(
    client: httpx.AsyncClient, world: World, method: str, path: str, body: object
) -> None:
    """Too much, too little, times that are none, or what has not the form of it."""
    before = world.pool.version
    answer = await client.request(method, f"/api/{path}", json=body, headers=as_("admin-token"))
    assert (answer.status_code, answer.json()["reason"]) == (422, "bad-input")
    assert world.pool.version == before


@pytest.mark.parametrize(
    ("method", "path", "reason"),
    [
        ("GET", "/details/reservation/9", "no-such-page"),
        ("GET", "/details/message/9", "no-such-page"),
        ("GET", "/details/lease/" + "1" * 5000, "no-such-page"),  # Python reads no such number
        ("POST", "/api/slices/99/drain", "unknown-slice"),
        ("POST", "/api/gpus/GPU-" + "9" * 500 + "/drain", "unknown-gpu"),
    ],
    ids=["a reservation", "a message", "an endless number", "a slice", "a GPU"],
)
async def test_what_is_not_there(
    client: httpx.AsyncClient, method: str, path: str, reason: str
) -> None:
    """404 with a word and a sentence, however long its name."""
    answer = await client.request(method, path, json=WHY, headers=as_("admin-token"))
    assert (answer.status_code, answer.json()["reason"]) == (404, reason)
    assert len(answer.json()["message"]) < 200


async def test_health_names_nobody(
    client: httpx.AsyncClient, world: World, runner: PoolRunner
) -> None:
    """Health is open to all, so it tells counts only; a GPU in trouble is not fine.

    Nor is a pool whose loop fails, or that has compared nothing yet.
    """
    well = {
        "ok": True, "gpus": 1, "gpus_troubled": 0, "is_stuck": False,
        "is_reconciled": True, "failing": [], "unknown_to_hub": 0, "left_alone": 0,
        "is_other_engine": False, "silent_servers": 0,
        "is_disk_full": False, "disks_low": [],
    }  # fmt: skip

    async def ask_health() -> object:
        return (await client.get("/api/health")).json()

    assert await ask_health() == well
    runner._failing.add("turn")
    assert await ask_health() == well | {"ok": False, "failing": ["turn"]}
    runner._failing.clear()
    runner.is_reconciled = False
    assert await ask_health() == well | {"ok": False, "is_reconciled": False}
    runner.is_reconciled = True
    world.machine.break_gpu(Break.LOST)
    world.pool.reconcile()
    assert await ask_health() == well | {"ok": False, "gpus_troubled": 1}
    world.machine.break_gpu(Break.OK)


async def test_what_nobody_foresaw_is_a_refusal_too(
    client: httpx.AsyncClient, runner: PoolRunner, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 with reason, what to do and the headers; counted, and without the error's own words."""
    monkeypatch.setattr(pool, "snapshot", partial(int, "a secret detail"))
    answer = await client.get("/api/pool", headers=as_(SECRET))
    assert (answer.status_code, answer.json()["reason"]) == (500, "unforeseen")
    assert "Try again" in answer.json()["message"] and "secret" not in answer.text
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    counted = runner.metrics.registry.get_sample_value
    assert counted("miglab_refusals_total", {"reason": "unforeseen"}) == 1


async def test_a_full_disk_is_told_in_words(client: httpx.AsyncClient, world: World) -> None:
    """507 with the ledger's own words: what was not done, and what to do."""
    pages = world.ledger.connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    world.ledger.connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    world.ledger.connection.rollback()
    for _ in range(200):
        answer = await client.post("/api/messages", json=LONG_NOTE, headers=as_(SECRET))
        if answer.status_code != 201:
            break
    assert (answer.status_code, answer.json()["reason"]) == (507, "bad-disk")
    assert "make room" in answer.json()["message"].lower()
