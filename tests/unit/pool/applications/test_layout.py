"""Layouts as files and over HTTP: mistakes with their line, and who may cut and see what."""

import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.maximal_layouts import maximal_layouts
from tests.pool_settings import changed
from tests.unit.pool.conftest import World

from miglab_api.gpus import GpuLayout, LayoutDrain, PlacedSlice
from miglab_api.tickets import TicketState, TicketView
from miglab_pool.gpu.geometry import Geometry, Profile
from miglab_pool.gpu.simulated.geometry import model_geometry
from miglab_pool.gpu.simulated.rules import models
from miglab_pool.layouts.file import (
    LayoutDraft,
    LayoutError,
    PartitionableGpu,
    dump,
    parse_layout,
    resolve,
)
from miglab_pool.layouts.page import GpuChange, changes, examples

from .conftest import LAB, actions_taken, as_, visiting
from .fakes import gpu_view, slice_view, snapshot, ticket_view
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
        message = answer.json()["message"]
        assert message.startswith("practical.yaml:3: mig-configs.practical.0: GPU 0 (")
        assert "it has no 9g.5gb; it can be cut into 1g.5gb, " in message


async def test_one_of_a_file_and_back_as_one(client: httpx.AsyncClient, world: World) -> None:
    """By name one applies one of a file's configurations; it can be had as a file again."""
    text = FILE + "  rest: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}]\n"
    body = {"text": text, "name": "other"}
    answer = await client.put("/api/layout", json=body, headers=as_("admin-token"))
    assert "there are practical, rest" in answer.json()["message"]
    body |= {"name": "rest", "reason": "week 1"}
    answer = await client.put("/api/layout", json=body, headers=as_("admin-token"))
    assert answer.status_code == 200, answer.text
    assert [(step[0], *step[2:]) for step in actions_taken(world)] == [
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
    assert len(actions_taken(world)) == (status == 200)


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
        gpu_lists = [
            (await client.get("/api/layout", headers=as_(token))).json()["gpus"],
            (await client.post("/api/layout/diff", json=TEXT, headers=as_(token))).json()["gpus"],
        ]
        for gpus in gpu_lists:
            drains = [drain["user"] for gpu in gpus for drain in gpu["drains"]]
            assert drains and set(drains) <= users


@pytest.mark.parametrize(
    "text", ["", "<script>alert(1)</script>", "\x00", "[" * 30_000, "x" * 40_000]
)
async def test_hostile_text(client: httpx.AsyncClient, text: str) -> None:
    """Whatever is sent, also by the page: a refusal in JSON, which repeats no more than helps."""
    for method, path in (("PUT", "/api/layout"), ("POST", "/layouts/preview")):
        answer = await client.request(method, path, json={"text": text}, headers=as_("admin-token"))
        assert answer.status_code == 422 and len(answer.text) < 500
        assert answer.json().keys() == {"reason", "message", "way_on"}


# -- the page --------------------------------------------------------------------------------------


async def test_a_layout_is_drawn_as_fields(client: httpx.AsyncClient) -> None:
    """How many of each profile, as the file has it; what it replaces, and whose slice it drains.

    Who may not cut finds no form to apply; what cannot lie there has none, but the reason why.
    """
    applied = (await client.get("/layouts", headers=as_("admin-token"))).text
    assert "GPU 0" in applied and "Make a layout" in applied

    async def preview(token: str, partition: str) -> str:
        body = {"text": EXAMPLE.replace("1g.5gb: 7", partition)}
        answer = await client.post("/layouts/preview", json=body, headers=as_(token))
        assert answer.status_code == 200
        return answer.text

    assert 'id="apply"' not in await preview("assistant-token", "3g.20gb: 2")
    page = await preview("admin-token", "3g.20gb: 2")
    fields = re.findall(r'value="(\d+)" data-profile="([^"]+)"', page)
    assert [profile for count, profile in fields if count == "2"] == ["3g.20gb"]
    assert "no named layout on GPU 0" in page and "alice, 1g.5gb on GPU 0" in page
    assert 'id="apply"' in page
    hidden = await preview("vision-token", "3g.20gb: 2")
    assert "somebody, 1g.5gb on GPU 0" in hidden and "alice" not in hidden
    wrong = await preview("admin-token", "4g.20gb: 2")
    assert 'value="2" data-profile="4g.20gb"' in wrong
    assert "there is no place for 4g.20gb" in wrong and 'id="apply"' not in wrong


# -- a GPU before and after ------------------------------------------------------------------------


NOW = 1000.0


def drain(slice_id: int, **fields: object) -> LayoutDrain:
    values = {"profile": "2g.10gb", "start": 0, "size": 2, "user": "bob", "course": "ml"}
    return LayoutDrain(slice_id=slice_id, lease=slice_id, **(values | fields))


def place(profile: str, start: int, size: int) -> PlacedSlice:
    return PlacedSlice(profile=profile, start=start, size=size)


def change(*offers: TicketView, **fields: object) -> GpuChange:
    """The one GPU: bob on a 2g.10gb, a free 1g.5gb, one that is not the lab's."""
    view = gpu_view(
        slice_view(1, 0, "bob", size=2, profile="2g.10gb"),
        slice_view(2, 2),
        slice_view(3, 6, state="foreign"),
    )
    values = {"layout": "small", "conforms": False}
    layout = GpuLayout(gpu="GPU-0", index=0, **(values | fields))
    pool = snapshot(view, offered=offers)
    (gpu_change,) = changes([layout], pool, NOW, {"ml": "Machine Learning"})
    return gpu_change


def test_before_and_after() -> None:
    """What is held is waited for, what is free and not wanted goes, what is wanted is new."""
    gpu_change = change(
        drains=[drain(1, ends_at=NOW + 600)],
        removes=[place("1g.5gb", 2, 1)],
        makes=[place("1g.5gb", 0, 1), place("1g.5gb", 1, 1)],
        ready_at=NOW + 600,
    )
    assert [(p.start, p.size, p.fate) for p in gpu_change.present_segments] == [
        (0, 2, "held"),
        (2, 1, "goes"),
        (3, 3, "gap"),
        (6, 1, "other"),
        (7, 1, "gap"),
    ]
    assert [(p.start, p.size, p.fate) for p in gpu_change.planned_segments] == [
        (0, 1, "new"),
        (1, 1, "new"),
        (2, 6, "gap"),
    ]
    assert gpu_change.summary == (
        "2 to create, 1 to remove, waiting for 1 in use, done in 10 minutes at the latest"
    )
    assert gpu_change.waiting_for == (
        "bob (Machine Learning) holds 2g.10gb: the lease ends in 10 minutes",
    )


@pytest.mark.parametrize(
    ("fields", "status", "waiting_for"),
    [
        ({}, "offered to bob, held for 4 min", ()),
        (
            {"drains": [drain(1)]},
            "offered to bob, held for 4 min, then removed",
            ("bob (Machine Learning) is offered 2g.10gb, held for 4 minutes",),
        ),
    ],
)
def test_an_offer_is_no_use(
    fields: dict[str, Any], status: str, waiting_for: tuple[str, ...]
) -> None:
    """It is drawn as an offer, for whom and for how long, whether or not it must go."""
    offer = ticket_view(7, "bob", state=TicketState.OFFERED, lease=1, expires_at=NOW + 240)
    gpu_change = change(offer, **fields)
    assert (gpu_change.present_segments[0].fate, gpu_change.present_segments[0].status) == (
        "offered",
        status,
    )
    assert gpu_change.waiting_for == waiting_for


def test_who_must_not_be_named_is_somebody() -> None:
    """And where a lease has no end, it is said that the time is not known."""
    gpu_change = change(drains=[drain(1, user=None, course="")])
    assert gpu_change.waiting_for == ("somebody holds 2g.10gb: the lease has no set end",)
    assert "has no set end" in gpu_change.summary
    assert gpu_change.present_segments[0].status == "somebody, then removed"


def test_as_it_is_to_be_and_without_a_layout() -> None:
    """Both are said; without a layout it is to become nothing; a GPU that is gone is left out."""
    conforming = change(conforms=True, keeps=[place("2g.10gb", 0, 2)])
    assert conforming.summary == "Conforms"
    assert (conforming.planned_segments[0].fate, conforming.planned_segments[0].label) == (
        "stays",
        "2g.10gb",
    )
    free = change(layout="")
    assert (free.planned_segments, free.summary) == ((), "No layout: partitioned on demand")
    gone = GpuLayout(gpu="GPU-9", index=9, conforms=False)
    assert changes([gone], snapshot(gpu_view()), NOW, {}) == []


A100 = model_geometry("A100-40GB")
A30 = Geometry(4, (Profile("1g.6gb", 14, 0, 1, 1, 14, 5952, 4, (0, 1, 2, 3)),))
GPUS = [PartitionableGpu(f"GPU-{n}", n, "NVIDIA A100", A100, 0x20B010DE) for n in range(3)]
MIXED = [*GPUS[:1], PartitionableGpu("GPU-a30", 1, "NVIDIA A30", A30)]

MIG_PARTED = os.environ.get("MIGLAB_MIG_PARTED_CONFIG", "")
EXAMPLE = examples(GPUS[:1])[0][1]

WHOLE = """\
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false

  all-enabled:
    - devices: all
      mig-enabled: true
      mig-devices: {}

  # the GPUs of the practical
  practical:
    - devices: [0, 2]
      mig-enabled: true
      mig-devices:
        "4g.20gb": 1
        "1g.5gb": 3
        "2g.10gb": 0
    - devices: [1]
      mig-enabled: true
      mig-devices: {7g.40gb: 1}

  all-balanced:
    - device-filter: ["0x20B010DE", "0x20B110DE"]
      devices: all
      mig-enabled: true
      mig-devices:
        "3g.20gb": 1
"""


def partitions(
    text: str, name: str = "", gpus: list[PartitionableGpu] = GPUS
) -> dict[str, tuple[str, ...]]:
    return resolve(parse_layout(text, "practical.yaml", name), gpus)


def test_read() -> None:
    """A configuration means what it says, others' oddities aside; the only one needs no name."""
    small = ("1g.5gb", "1g.5gb", "1g.5gb", "4g.20gb")
    assert partitions(WHOLE, "practical") == {
        "GPU-0": small, "GPU-2": small, "GPU-1": ("7g.40gb",),
    }  # fmt: skip
    assert partitions(WHOLE, "all-enabled") == dict.fromkeys(("GPU-0", "GPU-1", "GPU-2"), ())
    text = "version: v1\nmig-configs: {a: [{devices: [1], mig-enabled: true, mig-devices: {}}]}"
    assert (parse_layout(text, "a.yaml").name, partitions(text)) == ("a", {"GPU-1": ()})


@pytest.mark.parametrize("model", models())
def test_the_examples_fit_each_model(model: str) -> None:
    """All small fills a GPU, Mixed sizes has more than one, and On demand has none.

    Two models have two groups, each with its own profiles.
    """
    gpu = PartitionableGpu("GPU-0", 0, model, model_geometry(model))
    small, mixed, none = (partitions(text, gpus=[gpu])["GPU-0"] for _, text in examples([gpu]))
    assert len(small) == max(profile.max_count for profile in gpu.geometry.profiles)
    assert 1 < len(set(mixed)) < len(mixed) and none == ()
    text = dict(examples(MIXED))["All small"]
    assert partitions(text, gpus=MIXED) == {"GPU-0": ("1g.5gb",) * 7, "GPU-a30": ("1g.6gb",) * 4}


PARTITIONS = sorted(
    {
        tuple(sorted(slice_.profile.name for slice_ in layout))
        for layout in maximal_layouts(A100, [profile.name for profile in A100.profiles])
    }
)


BY_MODEL = """\
version: v1
mig-configs:
  all-balanced:
    - device-filter: ["0x20B010DE", "0x20B110DE"]
      devices: all
      mig-enabled: true
      mig-devices: {"3g.20gb": 2}
    - device-filter: "0x20B710DE"
      devices: all
      mig-enabled: true
      mig-devices: {"1g.6gb": 4}
    - device-filter: "0x20B210DE:0x134F10DE"
      devices: [1]
      mig-enabled: true
      mig-devices: {}
"""


def test_a_filter_names_the_gpus_of_its_models() -> None:
    """Each group is of those GPUs, among its devices, that have one of its PCI ids."""
    a30 = replace(MIXED[1], pci_device_id=0x20B710DE)
    gpus = [GPUS[0], a30]
    expected = {"GPU-0": ("3g.20gb",) * 2, "GPU-a30": ("1g.6gb",) * 4}
    assert partitions(BY_MODEL, gpus=gpus) == expected
    board = replace(a30, pci_device_id=0x20B210DE, pci_subsystem_id=0x134F10DE)
    assert partitions(BY_MODEL, gpus=[GPUS[0], board]) == {**expected, "GPU-a30": ()}
    other = replace(board, pci_subsystem_id=0x134E10DE)
    assert partitions(BY_MODEL, gpus=[GPUS[0], other]) == {"GPU-0": expected["GPU-0"]}


def test_a_filter_needs_what_nvml_tells() -> None:
    """Of a GPU whose id is unknown nobody knows whether it is meant; its index alone serves."""
    with pytest.raises(LayoutError, match="NVML does not tell the PCI ids of GPU 1"):
        partitions(BY_MODEL, gpus=MIXED)
    text_with_filter = (
        HEAD + "{devices: [0], mig-enabled: true, mig-devices: {}, device-filter: '0x20B210DE'}"
    )
    with pytest.raises(LayoutError, match="GPU 0 has 0x20B010DE, GPU 1 has an unknown id"):
        partitions(text_with_filter, gpus=MIXED)
    text = HEAD + ON % ("[1]", "1g.6gb: 4")
    assert partitions(text, gpus=MIXED) == {"GPU-a30": ("1g.6gb",) * 4}


def one_of_each_model() -> list[PartitionableGpu]:
    return [
        PartitionableGpu(f"GPU-{n}", 0, name, model_geometry(name), int(model.pci_device_id, 16))
        for n, (name, model) in enumerate(models().items())
    ]


def has(gpu: PartitionableGpu, group: dict[str, Any]) -> bool:
    """Whether a group of a file is of this GPU, by its filter."""
    ids = group.get("device-filter") or []
    ids = [ids] if isinstance(ids, str) else ids
    return not ids or gpu.pci_device_id in {int(text, 16) for text in ids}


def outcome(text: str, name: str, groups: list[dict[str, Any]]) -> str:
    """Which kind of answer a configuration gets; the answer is checked against the plain file."""
    if not all(group["mig-enabled"] for group in groups):
        with pytest.raises(LayoutError, match="the lab changes no MIG mode"):
            parse_layout(text, "config.yaml", name)
        return "refused: MIG off"
    draft = parse_layout(text, "config.yaml", name)
    kinds = {_on(gpu, draft, groups) for gpu in one_of_each_model()}
    return "loads" if "loads" in kinds else f"refused: {', '.join(sorted(kinds))}"


def _on(gpu: PartitionableGpu, draft: LayoutDraft, groups: list[dict[str, Any]]) -> str:
    groups = [group for group in groups if has(gpu, group)]
    try:
        (names,) = resolve(draft, [gpu]).values()
    except LayoutError as error:
        if not groups:
            assert "none of its groups names a GPU here" in error.problem
            return "no such model"
        (profiles,) = (group["mig-devices"] for group in groups)
        unknown = sorted(set(profiles) - set(gpu.geometry.by_name))
        assert unknown and f"it has no {unknown[0]}" in error.problem
        return "no such profile"
    (profiles,) = (group["mig-devices"] for group in groups)
    assert Counter(names) == profiles
    return "loads"


@pytest.mark.skipif(not MIG_PARTED, reason="MIGLAB_MIG_PARTED_CONFIG names no file")
def test_configurations_of_mig_parted() -> None:
    """Each of a host's file loads on a simulated model, or is refused for a reason that holds."""
    text = Path(MIG_PARTED).read_text()
    configs = yaml.safe_load(text)["mig-configs"]
    outcomes = {name: outcome(text, name, groups) for name, groups in configs.items()}
    for kind, count in Counter(outcomes.values()).items():
        print(f"{count} configurations: {kind}")
    assert "loads" in outcomes.values()


@given(st.lists(st.sampled_from([(), *PARTITIONS]), min_size=3, max_size=3))
@settings(max_examples=3 * settings.default.max_examples)
def test_round_trip(three: list[tuple[str, ...]]) -> None:
    """What is written of any layouts is read as those very layouts."""
    gpus = [
        GpuLayout(gpu=f"GPU-{n}", index=n, partition=partition, conforms=True)
        for n, partition in enumerate(three)
    ]
    assert partitions(dump(gpus)) == {gpu.gpu: gpu.partition for gpu in gpus}


# -- what is wrong --------------------------------------------------------------------------------

HEAD = "version: v1\nmig-configs:\n  a:\n    - "
FEW = "{devices: all, mig-enabled: true, mig-devices: "
ON = "devices: %s\n      mig-enabled: true\n      mig-devices: {%s}"
AT = "practical.yaml:4: mig-configs.a.0"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "practical.yaml:1: it is empty; begin with version: v1."),
        ("# nothing\n", "practical.yaml:1: it is empty"),
        ("just words", "practical.yaml:1: it must be a mapping with the keys version, mig-configs"),
        ("- a\n- b", "practical.yaml:1: it must be a mapping"),
        ("version: v1", "practical.yaml:1: the key mig-configs is missing."),
        ("mig-configs: {}", "practical.yaml:1: the key version is missing."),
        ("version: 1\nlayouts: {}", "practical.yaml:2: layouts: there is no such key; allo"),
        ("version: v2\nmig-configs: {}", "practical.yaml:1: version: this miglab reads version v1"),
        ("version: [1]\nmig-configs: {}", "practical.yaml:1: version: it must be one word"),
        ("version: v1\nmig-configs: {}", "practical.yaml:2: mig-configs: say which configuration "
         "is meant; there are none."),
        ("version: v1\nmig-configs: []", "practical.yaml:2: mig-configs: it must be a mapping"),
        (WHOLE, "say which configuration is meant; there are all-disabled, all-enabled, practical"),
        (HEAD[:-7] + " {}", "practical.yaml:3: mig-configs.a: it must be a list."),
        (HEAD[:-7] + " []", "practical.yaml:3: mig-configs.a: it has no group with devices"),
        (HEAD + "all", f"{AT}: it must be a mapping with the keys devices, mig-enabled, mig-dev"),
        (HEAD + "device: all", f"{AT}.device: there is no such key; allowed here: devices, mig-en"),
        (HEAD + "devices: all", f"{AT}: the key mig-enabled is missing."),
        (HEAD + "{devices: all, mig-enabled: true}", f"{AT}: the key mig-devices is missing."),
        (HEAD + FEW + "{}, device-filter: '20B0'}", f"{AT}.device-filter: it must be a PCI device "
         'id such as "0x20B010DE", or with its subsystem "0x20B010DE:0x134F10DE", or a list'),
        (HEAD + FEW + "{}, device-filter: []}", f"{AT}.device-filter: it names no PCI device id"),
        (HEAD + FEW + "{}, device-filter: '0x20B210DE'}", f"{AT}: none of its groups names a GPU "
         "here by its device-filter; GPU 0 has 0x20B010DE, GPU 1 has 0x20B010DE, GPU 2 has"),
        (HEAD + FEW + "{}, device-filter: '0x20B010DE:0x134F10DE'}", f"{AT}: NVML does not tell "
         "the PCI ids of GPU 0, which device-filter needs: name devices by index"),
        (HEAD + "{devices: all, mig-enabled: false}", f"{AT}.mig-enabled: it must be true: the "
         "lab changes no MIG mode."),
        (HEAD + FEW + "7}", f"{AT}.mig-devices: it must be a mapping"),
        (HEAD + FEW + "{1g.5gb: some}}", f"{AT}.mig-devices.1g.5gb: it must be a count such as 7."),
        (HEAD + FEW + "{1g.5gb: -1}}", "it must be a count"),
        (HEAD + FEW + "{1g.5gb: ¹}}", "it must be a count"),
        (HEAD + FEW + "{1g.5gb: 1.5}}", "it must be a count"),
        (HEAD + FEW + "{1g.5gb: [1]}}", f"{AT}.mig-devices.1g.5gb: it must be one word or text."),
        (HEAD + FEW + "{1g.5gb: 65}}", f"{AT}.mig-devices: these are more than 64 slices"),
        (HEAD + FEW + "{1g.5gb: 1, 1g.5gb: 2}}", "it stands there already, in line 4."),
        (HEAD + ON % ("all", "4g.20gb: 1, 1g.5gb: 4"), f"{AT}: GPU 0 (NVIDIA A100): 4g.20gb + "
         "4x1g.5gb do not fit on it: beside 4g.20gb + 3x1g.5gb, which would fit, there is no place "
         "for 1g.5gb."),
        (HEAD + ON % ("all", "1c.3g.20gb: 1"), "GPU 0 (NVIDIA A100): it has no 1c.3g.20gb; it can "
         "be cut into 1g.5gb, 2g.10gb"),
        (HEAD + ON % ("[3]", ""), f"{AT}: there is no GPU 3 that can be cut; there are 0, 1, 2."),
        (HEAD + ON % ("[0, 0]", ""), f"{AT}: GPU 0 is named twice."),
        (HEAD + ON % ("all", "") + "\n    - " + ON % ("[2]", ""), "practical.yaml:7: mig-configs.a."
         "1: GPU 2 is named twice."),
        (HEAD + ON % ("none", ""), f"{AT}.devices: it must be a list."),
        (HEAD + ON % ("[]", ""), f"{AT}.devices: it must be all, or a list of indexes"),
        (HEAD + ON % ("[GPU-1]", ""), f"{AT}.devices: it must be all, or a list of indexes"),
        (HEAD + ON % ("[-1]", ""), f"{AT}.devices: it must be all, or a list of indexes"),
        ("version: v1\nmig-configs: {a/b: []}", "mig-configs.a/b: a name has letters"),
        ("version: v1\nmig-configs: {? [a] : []}", "mig-configs.?: it must be one word"),
        ("version: v1\nmig-configs: {a: &x [], b: *x}", "anchors, aliases and tags"),
        ("version: !!str v1\nmig-configs: {}", "anchors, aliases and tags"),
        ("version: v1\n---\nversion: v1", "practical.yaml:2: a layout file is one document"),
        ("[" * 5000, "practical.yaml:1: a layout file is one document"),
        ("version: v1\nmig-configs:\n\ta: 1", "practical.yaml:3: this is no YAML: found character"),
        ("version: v1\nmig-configs: {a: [", "practical.yaml:2: this is no YAML"),
        ("version: v1\na\x00", "practical.yaml:2: this is no YAML: no text."),
        ("version: 'v1", "this is no YAML"),
    ],
)  # fmt: skip
def test_wrong(text: str, problem: str) -> None:
    """Whatever is wrong: file, line, key, why, and what would do."""
    with pytest.raises(LayoutError) as error:
        partitions(text)
    assert problem in str(error.value)
    assert str(error.value).startswith("practical.yaml:")


@pytest.mark.parametrize(
    ("text", "name", "gpus", "problem"),
    [
        (WHOLE, "other", GPUS, "no configuration 'other'; there are all-disabled, all"),
        (WHOLE, "all-enabled", [], "no GPU that can be cut now"),
        (HEAD + ON % ("all", "1g.5gb: 1"), "", MIXED,
         r"GPU 1 \(NVIDIA A30\): it has no 1g\.5gb"),
    ],
)  # fmt: skip
def test_what_does_not_fit(
    text: str, name: str, gpus: list[PartitionableGpu], problem: str
) -> None:
    """A name that is not there, no GPU to cut, a profile that one of the GPUs has not."""
    with pytest.raises(LayoutError, match=problem):
        partitions(text, name, gpus)


WORDS = st.lists(st.sampled_from(sorted(set(WHOLE.replace(":", " : ").split()))), max_size=40)


@given(st.text(max_size=300) | WORDS.map(" ".join) | WORDS.map("\n".join))
@settings(max_examples=5 * settings.default.max_examples)
def test_any_text(text: str) -> None:
    """No text, nor the words of a good file in any order, does anything but be read or refused."""
    try:
        partitions(text)
    except LayoutError as error:
        assert error.message.startswith("practical.yaml:")
