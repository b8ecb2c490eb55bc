"""Layouts over HTTP: mistakes with their line, GPUs by who may cut them, names by who may see."""

import re

import httpx
import pytest
from tests.pool_settings import changed
from tests.unit.pool.conftest import World

from miglab_api.layouts import GpuLayout, LayoutDrain, PlacedSlice
from miglab_pool.gpu.simulated.models import model_named
from miglab_pool.layouts.file import PartitionableGpu
from miglab_pool.layouts.page import GpuChange, changes, examples

from .conftest import LAB, acts, as_, visiting
from .fakes import gpu_view, slice_view
from .full_lab import apps

GROUP = "[{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 1, 1g.5gb: 1}}]"
FILE = f"version: v1\nmig-configs:\n  practical: {GROUP}\n"
TEXT = {"text": FILE, "file": "practical.yaml"}


def of_course(world: World, course: str) -> httpx.AsyncClient:
    """The management listener, where the GPU is assigned to this course since the last restart."""
    if course:
        world.settings = changed(LAB, assigned={"0": course})
        world.crash()
    return visiting(apps(world.pool)[0])


async def test_what_is_wrong_is_told_with_its_line(client: httpx.AsyncClient) -> None:
    """File, line, key and what would fit, whichever way the text came."""
    body = {"text": FILE.replace("1g.5gb", "9g.5gb"), "file": "practical.yaml"}
    for method, path in (("POST", "/diff"), ("PUT", "")):
        url = f"/api/layout{path}"
        answer = await client.request(method, url, json=body, headers=as_("admin-token"))
        assert (answer.status_code, answer.json()["reason"]) == (422, "bad-layout")
        says = answer.json()["message"]
        assert says.startswith("practical.yaml:3: mig-configs.practical.0: GPU 0 (")
        assert "it has no 9g.5gb; it can be cut into 1g.5gb, " in says


async def test_one_of_a_file_and_back_as_one(client: httpx.AsyncClient, world: World) -> None:
    """By name one applies one of a file's configurations; it can be had as a file again."""
    text = FILE + "  rest: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}]\n"
    body = {"text": text, "name": "other"}
    answer = await client.put("/api/layout", json=body, headers=as_("admin-token"))
    assert "there are practical, rest" in answer.json()["message"]
    body |= {"name": "rest", "reason": "week 1"}
    answer = await client.put("/api/layout", json=body, headers=as_("admin-token"))
    assert answer.status_code == 200, answer.text
    assert [(step[0], *step[2:]) for step in acts(world)] == [
        ("apply", "person:root", "rest: 7x1g.5gb (week 1)")
    ]
    text = (await client.get("/api/layout/file", headers=as_("staff-token"))).json()["text"]
    assert "1g.5gb: 7" in text
    again = await client.put("/api/layout", json={"text": text}, headers=as_("admin-token"))
    assert again.status_code == 200


@pytest.mark.parametrize(
    ("token", "assigned", "status"),
    [
        ("admin-token", "", 200),
        ("instructor-token", "", 403),
        ("instructor-token", "ml", 200),
        ("vision-token", "ml", 403),
        ("assistant-token", "ml", 403),
    ],
)
async def test_on_whose_gpus(world: World, token: str, assigned: str, status: int) -> None:
    """An instructor cuts the GPUs assigned to the course; an admin every one."""
    async with of_course(world, assigned) as client:
        answer = await client.put("/api/layout", json=TEXT, headers=as_(token))
    assert answer.status_code == status
    assert len(acts(world)) == (status == 200)


async def test_without_now_nobody_is_asked_to_leave(
    client: httpx.AsyncClient, world: World
) -> None:
    """Applying drains; only with `now` are leases in the way asked back, with a warning."""
    answer = await client.put("/api/layout", json=TEXT, headers=as_("admin-token"))
    assert answer.json()["warned"] == [] and world.pool.leases.warned() == set()
    body = TEXT | {"now": True, "warning_s": 60, "reason": "exam"}
    answer = await client.put("/api/layout", json=body, headers=as_("admin-token"))
    warned = answer.json()["warned"]
    assert warned and world.pool.leases.warned() == set(warned)
    warning = world.pool.leases.find(warned[0]).warning
    assert warning is not None and "exam" in warning.reason
    assert warning.reclaim_at == world.at + 60


async def test_another_courses_lease_runs_on(world: World) -> None:
    """With `now` too an instructor ends nobody's lease but the own course's."""
    async with of_course(world, "vision") as client:
        body = TEXT | {"now": True}
        answer = await client.put("/api/layout", json=body, headers=as_("vision-token"))
    assert (answer.status_code, answer.json()["warned"]) == (200, [])
    assert world.pool.leases.warned() == set()


async def test_names_of_other_courses_are_not_shown(client: httpx.AsyncClient) -> None:
    """Who is in the way is named to those who may see names."""
    await client.put("/api/layout", json=TEXT, headers=as_("admin-token"))
    names = {"alice", "bob"}
    for token, users in (
        ("admin-token", names), ("assistant-token", names), ("vision-token", {None}),
    ):  # fmt: skip
        found = [
            (await client.get("/api/layout", headers=as_(token))).json()["gpus"],
            (await client.post("/api/layout/diff", json=TEXT, headers=as_(token))).json()["gpus"],
        ]
        for gpus in found:
            drains = [drain["user"] for gpu in gpus for drain in gpu["drains"]]
            assert drains and set(drains) <= users


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "\x00", "[" * 30_000, "x" * 40_000])
async def test_hostile_text(client: httpx.AsyncClient, text: str) -> None:
    """Whatever is sent: a refusal, and no more of it is repeated than helps."""
    answer = await client.put("/api/layout", json={"text": text}, headers=as_("admin-token"))
    assert answer.status_code == 422
    assert len(answer.text) < 500


# -- the page --------------------------------------------------------------------------------------


A100 = PartitionableGpu("GPU-0", 0, "NVIDIA A100", model_named("A100-40GB").geometry)
EXAMPLE = examples([A100])[0][1]


async def test_staff_see_what_is_applied(client: httpx.AsyncClient) -> None:
    """The layouts and how each GPU stands to them; who may not cut finds no form to apply."""
    page = (await client.get("/layouts", headers=as_("admin-token"))).text
    assert "GPU 0" in page and "Make a layout" in page
    for token, may in (("admin-token", True), ("assistant-token", False)):
        answer = await client.post("/layouts/preview", json={"text": EXAMPLE}, headers=as_(token))
        assert answer.status_code == 200
        assert ('id="apply"' in answer.text) is may


@pytest.mark.parametrize("text", ["", "version: v1\nmig-configs: {<script>: []}"])
async def test_a_bad_file_is_refused_with_its_line(client: httpx.AsyncClient, text: str) -> None:
    """As by the API: what is wrong, and where; as JSON, so no markup comes of it."""
    answer = await client.post("/layouts/preview", json={"text": text}, headers=as_("staff-token"))
    assert answer.status_code == 422
    assert answer.json().keys() == {"reason", "message"}


async def test_a_layout_is_drawn_as_fields(client: httpx.AsyncClient) -> None:
    """How many of each profile, as the file has it; what it replaces, and whose slice it drains."""
    asked = {"text": EXAMPLE.replace("1g.5gb: 7", "3g.20gb: 2")}
    answer = await client.post("/layouts/preview", json=asked, headers=as_("admin-token"))
    fields = re.findall(r'value="(\d+)" data-profile="([^"]+)"', answer.text)
    assert [profile for count, profile in fields if count == "2"] == ["3g.20gb"]
    assert "no named layout on GPU 0" in answer.text
    assert "alice, 1g.5gb on GPU 0" in answer.text
    hidden = await client.post("/layouts/preview", json=asked, headers=as_("vision-token"))
    assert "somebody, 1g.5gb on GPU 0" in hidden.text and "alice" not in hidden.text


async def test_what_cannot_lie_there_says_why_and_has_no_apply(client: httpx.AsyncClient) -> None:
    """The fields stay, with the reason beside them."""
    asked = {"text": EXAMPLE.replace("1g.5gb: 7", "4g.20gb: 2")}
    answer = await client.post("/layouts/preview", json=asked, headers=as_("admin-token"))
    assert answer.status_code == 200
    assert 'value="2" data-profile="4g.20gb"' in answer.text
    assert "there is no place for 4g.20gb" in answer.text and 'id="apply"' not in answer.text


# -- a GPU before and after ------------------------------------------------------------------------


NOW = 1000.0


def drain(slice_id: int, **more: object) -> LayoutDrain:
    values = {"profile": "2g.10gb", "start": 0, "size": 2, "user": "bob", "course": "ml"}
    return LayoutDrain(slice_id=slice_id, lease=slice_id, **(values | more))


def place(profile: str, start: int, size: int) -> PlacedSlice:
    return PlacedSlice(profile=profile, start=start, size=size)


def change(**more: object) -> GpuChange:
    """The one GPU: bob on a 2g.10gb, a free 1g.5gb, one that is not the lab's."""
    view = gpu_view(
        slice_view(1, 0, "bob", size=2, profile="2g.10gb"),
        slice_view(2, 2),
        slice_view(3, 6, state="foreign"),
    )
    values = {"layout": "small", "conforms": False}
    one = GpuLayout(gpu="GPU-0", index=0, **(values | more))
    (found,) = changes([one], [view], NOW, {"ml": "Machine Learning"})
    return found


def test_before_and_after() -> None:
    """What is held is waited for, what is free and not wanted goes, what is wanted is new."""
    found = change(
        drains=[drain(1, ends_at=NOW + 600)],
        removes=[place("1g.5gb", 2, 1)],
        makes=[place("1g.5gb", 0, 1), place("1g.5gb", 1, 1)],
        ready_at=NOW + 600,
    )
    assert [(p.start, p.size, p.fate) for p in found.now] == [
        (0, 2, "held"),
        (2, 1, "goes"),
        (3, 3, "gap"),
        (6, 1, "other"),
        (7, 1, "gap"),
    ]
    assert [(p.start, p.size, p.fate) for p in found.then] == [
        (0, 1, "new"),
        (1, 1, "new"),
        (2, 6, "gap"),
    ]
    assert found.says == (
        "2 to create, 1 to remove, waiting for 1 in use, done in 10 minutes at the latest"
    )
    assert found.who == ("bob (Machine Learning) holds 2g.10gb: the lease ends in 10 minutes",)


def test_who_must_not_be_named_is_somebody() -> None:
    """And where a lease has no end, it is said that the time is not known."""
    found = change(drains=[drain(1, user=None, course="")])
    assert found.who == ("somebody holds 2g.10gb: the lease has no end",)
    assert "has no end" in found.says
    assert found.now[0].word == "somebody, then removed"


def test_as_it_is_to_be_and_without_a_layout() -> None:
    """Both are said; where there is no layout there is nothing it is to become."""
    keeps = [place("2g.10gb", 0, 2)]
    conforming = change(conforms=True, keeps=keeps)
    assert conforming.says == "Conforms"
    assert (conforming.then[0].fate, conforming.then[0].what) == ("stays", "2g.10gb")
    free = change(layout="")
    assert (free.then, free.says) == ((), "No layout: partitioned on demand")


def test_a_gpu_that_is_gone_is_left_out() -> None:
    """A layout may name one that is not there any more."""
    assert changes([GpuLayout(gpu="GPU-9", index=9, conforms=False)], [gpu_view()], NOW, {}) == []
