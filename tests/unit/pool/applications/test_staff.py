"""What staff do by hand, over HTTP: who may, what is done and told, and how a second is told."""

import csv
import io
from typing import Any

import httpx
import pytest
from tests.unit.pool.conftest import World

from miglab_api.leases import WarningKind
from miglab_api.staff import MessageRequest
from miglab_api.usage import BOM
from miglab_pool.applications.pool_runner import PoolRunner

from .conftest import actions_taken, as_, enqueue, foreign_slice, free_slice
from .test_layout import of_course

ILSE, TIMO, VERA = as_("instructor-token"), as_("assistant-token"), as_("vision-token")
ROOT, ALICE = as_("admin-token"), as_("alice-token")
WHY = {"reason": "The fan is broken."}


async def test_who_is_still_there_says_so_on_the_page(
    client: httpx.AsyncClient, world: World
) -> None:
    """Where JupyterLab cannot ask; nobody else's student says it for them."""
    lease = world.pool.leases.live("alice")[0]
    world.pool.leases.warn(lease.id, WarningKind.IDLE, "Unused.", world.at + 300)
    path = f"/api/leases/{lease.id}/keepalive"
    assert (await client.post(path, headers=as_("bob-token"))).status_code == 404
    answer = await client.post(path, headers=ALICE)
    assert (answer.status_code, answer.json()["warning"]) == (200, None)


@pytest.mark.parametrize("kind", ["gpu", "slice"])
async def test_a_gpu_of_a_course(world: World, gpu: str, kind: str) -> None:
    """Its instructors drain it and its slices; nobody else's instructors do, and no assistants.

    Who still runs there from before it was the course's stays another course's secret.
    """
    leased_id = world.run("victor", course="vision").slices[0].slice_id
    target, statuses = gpu if kind == "gpu" else leased_id, []
    async with of_course(world, "ml") as client:
        for principal in (TIMO, VERA, ALICE, ILSE, ROOT):
            for act in ("drain", "undrain"):
                answer = await client.post(
                    f"/api/{kind}s/{target}/{act}", json=WHY, headers=principal
                )
                statuses.append(answer.status_code)
                is_told = "victor" in answer.text or '"vision"' in answer.text
                assert principal is ROOT or not is_told
    assert statuses == [403, 403] * 3 + [200, 200] * 2
    assert [(act, actor) for act, _, actor, _ in reversed(actions_taken(world))] == [
        (act, actor) for actor in ("person:ilse", "person:root") for act in ("drain", "undrain")
    ]


@pytest.mark.parametrize(
    ("method", "path", "state", "act"),
    [
        ("POST", "gpus/{gpu}/drain", "ok", "drain"),
        ("POST", "slices/1/drain", "leased", "drain"),
        ("POST", "slices/{free}/quarantine", "free", "quarantine"),
        ("POST", "slices/{foreign}/adopt", "foreign", "adopt"),
        ("POST", "leases/1/reclaim", "running", "reclaim"),
        ("POST", "leases/1/extend", "running", "extend"),
        ("POST", "tickets/{ticket}/next", "waiting", "next"),
    ],
)
async def test_what_is_done_and_told(
    client: httpx.AsyncClient, world: World, gpu: str, method: str, path: str, state: str, act: str
) -> None:
    """Who, what and why are in the audit; the second, who saw the same, is told by whom and why."""
    targets = {"gpu": gpu, "free": free_slice(world), "foreign": foreign_slice(world)}
    path = "/api/" + path.format(**targets, ticket=enqueue(world).id)
    body = WHY | {"expected": state} | ({"by_s": 60} if act == "extend" else {})
    wrong = await client.request(method, path, json=body | {"expected": "odd"}, headers=ROOT)
    assert (wrong.status_code, wrong.json()["reason"]) == (409, "changed-meanwhile")
    answer = await client.request(method, path, json=body, headers=ROOT)
    assert answer.status_code == 200, answer.text
    target = path.split("/")[3]
    assert actions_taken(world) == [(act, target, "person:root", WHY["reason"])]
    if act != "extend":
        second = await client.request(method, path, json=body, headers=as_("staff-token"))
        assert second.status_code in (403, 409)
        second = await client.request(method, path, json=body, headers=ROOT)
        assert (second.status_code, second.json()["reason"]) == (409, "changed-meanwhile")
        assert "root" in second.json()["message"]


async def test_a_holder_extends_as_a_holder(client: httpx.AsyncClient, world: World) -> None:
    """One's own lease within what holders may, and counted; staff's extension is not."""
    remaining = [world.pool.leases.find(1).extensions_left]
    for headers in (ALICE, TIMO):
        await client.post("/api/leases/1/extend", json={"by_s": 60}, headers=headers)
        remaining.append(world.pool.leases.find(1).extensions_left)
    assert remaining == [3, 2, 2]


async def test_what_is_taken_back_at_once_is_counted(
    client: httpx.AsyncClient, runner: PoolRunner
) -> None:
    """A reclaim by staff is a reclaim; one that only warns is counted when it is one."""
    counted = runner.metrics.registry.get_sample_value
    for warning_s, count in ((60, None), (0, 1.0)):
        body = WHY | {"warning_s": warning_s}
        await client.post("/api/leases/1/reclaim", json=body, headers=ILSE)
        assert counted("miglab_reclaims_total", {"reason": "staff"}) == count


# -- messages -------------------------------------------------------------------------------------

TO: dict[str, dict[str, Any]] = {
    "her own": {"to_user": "alice"},
    "her server": {"to_user": "alice", "to_server": "lab2"},
    "his own": {"to_user": "bob"},  # bob's lease is of ml too
    "somebody": {"to_user": "zed"},  # who holds nothing
    "who waits": {"to_user": "wanda"},  # in ml
    "ml": {"to_course": "ml"},
    "vision": {"to_course": "vision"},
    "all": {"all": True},
}
OF_ML = {"her own", "her server", "his own", "who waits", "ml"}


@pytest.mark.parametrize(
    ("principal", "may"),
    [(ROOT, set(TO)), (ILSE, OF_ML), (TIMO, OF_ML), (VERA, {"vision"}), (ALICE, set())],
)
async def test_whom_one_may_tell(
    client: httpx.AsyncClient, world: World, principal: dict[str, str], may: set[str]
) -> None:
    """One's courses, and whoever has or waits for a slice in them; everybody is the admin's."""
    enqueue(world, "wanda")
    reached = set()
    for name, to in TO.items():
        body = {"text": "Come to room 2.", **to}
        answer = await client.post("/api/messages", json=body, headers=principal)
        assert answer.status_code in (201, 403)
        if answer.status_code == 201:
            reached.add(name)
    assert reached == may


@pytest.mark.parametrize(
    ("principal", "listed_ids", "ended"),
    [
        (ROOT, [4, 3, 2, 1], [1, 2, 3, 4]),
        (ILSE, [4, 2, 1], [1, 2]),
        (VERA, [4, 3], [3]),
    ],
)
async def test_whose_messages_one_sees_and_ends(
    client: httpx.AsyncClient,
    world: World,
    principal: dict[str, str],
    listed_ids: list[int],
    ended: object,
) -> None:
    """One's own and one's courses'; those for all are seen by all staff, and an admin's to end."""
    for sender, to in (
        ("ilse", {"to_user": "alice"}),
        ("timo", {"to_course": "ml"}),
        ("root", {"to_course": "vision"}),
        ("root", {"all": True}),
    ):
        world.pool.staff.send(MessageRequest(text="Room 2.", **to), f"person:{sender}")  # type: ignore[arg-type]
    listed = (await client.get("/api/messages", headers=principal)).json()
    assert [message["id"] for message in listed] == listed_ids
    deleted = [
        number
        for number in (1, 2, 3, 4)
        if (await client.delete(f"/api/messages/{number}", headers=principal)).status_code == 200
    ]
    assert deleted == ended


# -- the audit ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("principal", "query", "courses"),
    [
        (ROOT, "", {"ml", "vision", ""}),
        (ROOT, "?course=vision", {"vision"}),
        (ILSE, "", {"ml"}),
        (ILSE, "?course=ml", {"ml"}),
        (VERA, "?everything=true", {"vision"}),
    ],
)
async def test_one_reads_of_ones_courses(
    client: httpx.AsyncClient,
    world: World,
    principal: dict[str, str],
    query: str,
    courses: set[str],
) -> None:
    """Whatever is asked, nobody is told of another course."""
    world.pool.staff.reclaim(1, "Exam.", "person:ilse", 60.0)
    world.pool.staff.reclaim(world.run("victor", course="vision").id, "Exam.", "person:vera", 60.0)
    world.pool.staff.pause("Repairs.", "person:root")
    answer = await client.get(f"/api/audit{query}", headers=principal)
    assert {audit_entry["course"] for audit_entry in answer.json()} == courses


async def test_the_audit_as_a_sheet(client: httpx.AsyncClient, world: World) -> None:
    """A file to keep: when in words, and no reason that a spreadsheet would run."""
    world.pool.staff.put_in_front(enqueue(world).id, '=HYPERLINK("x")\nnow', "person:ilse")
    before = world.ledger.history("ticket")[0]["id"] + 1
    world.pool.staff.reclaim(1, "Exam.", "person:ilse", 60.0)
    answer = await client.get(f"/api/audit?format=csv&before={before}", headers=ILSE)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert 'filename="audit.csv"' in answer.headers["content-disposition"]
    (row,) = csv.DictReader(io.StringIO(answer.content.decode().removeprefix(BOM)))
    assert (row["at_utc"], row["by"]) == ("2026-06-01 08:00:00", "person:ilse")
    assert row["reason"] == """'=HYPERLINK("x") now"""
