"""What staff do by hand, over HTTP: who may, what reaches the pool, and how a second is told."""

import csv
import io
from typing import Any

import httpx
import pytest

from miglab_api.spreadsheet import BOM
from miglab_api.staff import SentMessage
from miglab_pool.http.pool_runner import PoolRunner

from .conftest import as_
from .fakes import FakePool, entry

ILSE, TIMO, VERA = as_("instructor-token"), as_("assistant-token"), as_("vision-token")
ROOT, ALICE = as_("admin-token"), as_("alice-token")
WHY = {"reason": "The fan is broken."}


@pytest.mark.parametrize("thing", ["gpus/GPU-0", "slices/1"])
@pytest.mark.parametrize(("action", "body"), [("drain", WHY), ("undrain", None)])
async def test_instructors_drain_what_is_assigned_to_their_course(
    client: httpx.AsyncClient, pool: FakePool, thing: str, action: str, body: object
) -> None:
    """On a GPU of their course, slices included; nobody else's instructors, and no assistants."""
    pool.gpu_course = "ml"
    found = [
        (await client.post(f"/api/{thing}/{action}", json=body, headers=who)).status_code
        for who in (ILSE, ROOT, TIMO, VERA, ALICE)
    ]
    assert found == [200, 200, 403, 403, 403]
    kind = thing.split("/")[0].removesuffix("s")
    assert [call[3] for call in pool.calls if call[0] == f"{action}_{kind}"] == [
        "person:ilse", "person:root",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "body", "call"),
    [
        ("POST", "gpus/GPU-0/drain", WHY | {"expected": "ok"},
         ("drain_gpu", "GPU-0", "The fan is broken.", "person:root", "ok")),
        ("POST", "slices/4/quarantine", WHY | {"expected": "free"},
         ("quarantine", 4, "The fan is broken.", "person:root", "free")),
        ("POST", "slices/4/clear", None, ("clear", 4, "person:root", "", None)),
        ("POST", "slices/4/adopt", {"expected": "foreign"},
         ("adopt", 4, "person:root", "", "foreign")),
        ("POST", "leases/1/reclaim", WHY,
         ("reclaim", 1, "The fan is broken.", "person:root", 300.0, None)),
        ("POST", "leases/1/reclaim", WHY | {"warning_s": 0, "expected": "running"},
         ("reclaim", 1, "The fan is broken.", "person:root", 0.0, "running")),
        ("POST", "leases/1/extend", {"by_s": 60, "reason": "Exam.", "expected": "running"},
         ("staff_extend", 1, 60.0, "person:root", "Exam.", "running")),
        ("POST", "tickets/1/next", WHY,
         ("put_in_front", 1, "The fan is broken.", "person:root", None)),
        ("DELETE", "tickets/1/next", None, ("put_back", 1, "person:root", "", None)),
    ],
)  # fmt: skip
async def test_what_reaches_the_pool(
    client: httpx.AsyncClient, pool: FakePool, method: str, path: str, body: object, call: object
) -> None:
    """Who, why, and what was seen, as they were sent."""
    pool.request_of_alice()
    answer = await client.request(method, f"/api/{path}", json=body, headers=ROOT)
    assert answer.status_code == 200, answer.text
    assert call in pool.calls


async def test_a_holder_extends_as_a_holder(client: httpx.AsyncClient, pool: FakePool) -> None:
    """One's own lease is extended within what holders may, also by staff."""
    for headers, name in ((ALICE, "extend"), (TIMO, "staff_extend")):
        pool.calls.clear()
        await client.post("/api/leases/1/extend", json={"by_s": 60}, headers=headers)
        assert name in pool.names()


async def test_what_is_taken_back_at_once_is_counted(
    client: httpx.AsyncClient, runner: PoolRunner
) -> None:
    """A reclaim by staff is a reclaim; one that only warns is counted when it is one."""
    counted = runner.metrics.registry.get_sample_value
    for warning_s, count in ((60, None), (0, 1.0)):
        body = WHY | {"warning_s": warning_s}
        await client.post("/api/leases/1/reclaim", json=body, headers=ILSE)
        assert counted("miglab_reclaims_total", {"reason": "staff"}) == count


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("gpus/GPU-0/drain", {}),
        ("gpus/GPU-0/drain", {"reason": ""}),
        ("gpus/GPU-0/drain", {"reason": " \t"}),
        ("gpus/GPU-0/drain", {"reason": "x" * 501}),
        ("gpus/GPU-0/drain", WHY | {"expected": "x" * 33}),
        ("gpus/GPU-0/drain", WHY | {"colour": "red"}),
        ("leases/1/reclaim", WHY | {"warning_s": -1}),
        ("leases/1/reclaim", WHY | {"warning_s": 3601}),
        ("messages", {"text": "Hi."}),
        ("messages", {"text": "Hi.", "all": True, "to_user": "alice"}),
        ("messages", {"text": " ", "all": True}),
    ],
)
async def test_what_cannot_be_read_does_not_reach_the_pool(
    client: httpx.AsyncClient, pool: FakePool, path: str, body: dict[str, Any]
) -> None:
    """No reason, too much of one, or what is no act."""
    answer = await client.post(f"/api/{path}", json=body, headers=ROOT)
    assert (answer.status_code, answer.json()["reason"]) == (422, "bad-input")
    assert [name for name in pool.names() if name != "snapshot"] == []


@pytest.mark.parametrize("path", ["gpus/GPU-9/drain", "slices/99/drain"])
async def test_what_is_not_there(client: httpx.AsyncClient, path: str) -> None:
    """404 with a word and a sentence."""
    answer = await client.post(f"/api/{path}", json=WHY, headers=ROOT)
    assert answer.status_code == 404 and answer.json()["reason"].startswith("unknown-")


# -- messages -------------------------------------------------------------------------------------

TO: dict[str, dict[str, Any]] = {
    "her own": {"to_user": "alice"},
    "her server": {"to_user": "alice", "to_server": "lab2"},
    "his own": {"to_user": "bob"},  # bob's lease is of ml too
    "somebody": {"to_user": "zed"},  # who holds nothing
    "ml": {"to_course": "ml"},
    "vision": {"to_course": "vision"},
    "all": {"all": True},
}


@pytest.mark.parametrize(
    ("principal", "may"),
    [
        (ROOT, set(TO)),
        (ILSE, {"her own", "her server", "his own", "ml"}),
        (TIMO, {"her own", "her server", "his own", "ml"}),
        (VERA, {"vision"}),
        (ALICE, set()),
    ],
)
async def test_whom_one_may_tell(
    client: httpx.AsyncClient, principal: dict[str, str], may: set[str]
) -> None:
    """One's courses, and whoever has or waits for a slice in them; everybody is the admin's."""
    told = set()
    for name, to in TO.items():
        body = {"text": "Come to room 2.", **to}
        answer = await client.post("/api/messages", json=body, headers=principal)
        assert answer.status_code in (201, 403)
        if answer.status_code == 201:
            told.add(name)
    assert told == may


def note(number: int, by: str, **to: str) -> SentMessage:
    return SentMessage(id=number, at=1000.0, by=by, text="Room 2.", until=2000.0, **to)


@pytest.mark.parametrize(
    ("principal", "seen", "ended"),
    [
        (ROOT, [1, 2, 3, 4], [1, 2, 3, 4]),
        (ILSE, [1, 2, 4], [1, 2]),
        (VERA, [3, 4], [3]),
    ],
)
async def test_whose_messages_one_sees_and_ends(
    client: httpx.AsyncClient,
    pool: FakePool,
    principal: dict[str, str],
    seen: list[int],
    ended: object,
) -> None:
    """One's own and one's courses'; those for all are seen by all staff, and an admin's to end."""
    pool.sent = {
        1: note(1, "person:ilse", to_user="alice"),
        2: note(2, "person:timo", to_course="ml"),
        3: note(3, "person:root", to_course="vision"),
        4: note(4, "person:root"),
    }
    listed = (await client.get("/api/messages", headers=principal)).json()
    assert [one["id"] for one in listed] == seen
    done = [
        number
        for number in (1, 2, 3, 4)
        if (await client.delete(f"/api/messages/{number}", headers=principal)).status_code == 200
    ]
    assert done == ended


# -- the audit ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("principal", "query", "courses"),
    [
        (ROOT, "", None),
        (ROOT, "?course=vision", {"vision"}),
        (ILSE, "", {"ml"}),
        (ILSE, "?course=ml", {"ml"}),
        (VERA, "?everything=true", {"vision"}),
    ],
)
async def test_one_reads_of_ones_courses(
    client: httpx.AsyncClient,
    pool: FakePool,
    principal: dict[str, str],
    query: str,
    courses: set[str] | None,
) -> None:
    """Whatever is asked, the pool is asked for no other course's."""
    assert (await client.get(f"/api/audit{query}", headers=principal)).status_code == 200
    (asked,) = [call[1] for call in pool.calls if call[0] == "audit"]
    assert (asked.courses if asked.courses is None else set(asked.courses)) == courses


@pytest.mark.parametrize(
    "query", [
        "limit=0", "limit=1001", "since=nan", "since=-1", "until=1700000000000", "course=",
        "before=0", "before=9223372036854775808", "format=xlsx",
    ],
)  # fmt: skip
async def test_an_audit_that_cannot_be_read(client: httpx.AsyncClient, query: str) -> None:
    """Too much, or times that are none (or are in milliseconds)."""
    assert (await client.get(f"/api/audit?{query}", headers=ROOT)).status_code == 422


async def test_the_audit_as_a_sheet(client: httpx.AsyncClient, pool: FakePool) -> None:
    """A file to keep: when in words, and no reason that a spreadsheet would run."""
    pool.done = [entry(3, reason='=HYPERLINK("x")\nnow', by="person:ilse")]
    answer = await client.get("/api/audit?format=csv&before=9", headers=ILSE)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert 'filename="audit.csv"' in answer.headers["content-disposition"]
    (row,) = csv.DictReader(io.StringIO(answer.content.decode().removeprefix(BOM)))
    assert row["at_utc"] == "2001-09-09 01:46:40" and row["by"] == "person:ilse"
    assert row["reason"] == """'=HYPERLINK("x") now"""
    (asked,) = [call[1] for call in pool.calls if call[0] == "audit"]
    assert asked.before == 9
