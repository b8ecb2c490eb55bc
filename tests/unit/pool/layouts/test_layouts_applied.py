"""Layouts over the simulated GPUs: cut ahead, applied by draining, and held until the next."""

from collections import Counter
from collections.abc import Callable

import pynvml
import pytest
from tests.pool_settings import changed
from tests.unit.pool.conftest import World
from tests.unit.pool.layout_drafts import draft
from tests.unit.pool.reservations.test_reservations import RULES as OF_CLASSES
from tests.unit.pool.reservations.test_reservations import before_class, reserve, state_of
from tests.unit.pool.test_pool import refusal

from miglab_api.gpus import GpuLayout
from miglab_api.tickets import TicketState
from miglab_pool.layouts.file import LayoutDraft

RULES = changed(OF_CLASSES, attach_s=7200.0, lease_s=4 * 3600.0)


@pytest.fixture
def lab(make_world: Callable[..., World]) -> World:
    """One A100, an hour before the class on a Tuesday."""
    return before_class(make_world, RULES)


@pytest.fixture
def pair(make_world: Callable[..., World]) -> World:
    """Two A100s."""
    return before_class(make_world, RULES, gpus=2)


def gpus(lab: World) -> list[str]:
    return [gpu.uuid for gpu in lab.pool.layouts.partitionable()]


def apply_layout(lab: World, partition: str, *indexes: int, name: str = "practical") -> None:
    lab.pool.layouts.apply(draft(partition, *indexes, name=name), "person:root", "week 1")
    lab.work()


def counts_on_gpu(lab: World, gpu: int = 0) -> Counter[str]:
    """The profiles that NVML shows on a GPU."""
    uuid = gpus(lab)[gpu]
    return Counter(profile for on, profile, _ in lab.raw() if on == uuid)


def current_layout(lab: World, gpu: int = 0) -> GpuLayout:
    return lab.pool.layouts.all().gpus[gpu]


def diff(lab: World, partition: str) -> GpuLayout:
    (gpu_layout,) = lab.pool.layouts.diff(draft(partition)).gpus
    return gpu_layout


def test_what_lies_elsewhere_is_remade(lab: World) -> None:
    """Made at once, before anybody asks; free slices of another layout make way, if they must."""
    apply_layout(lab, "7x1g.5gb")
    assert set(lab.states()) == {"free"}
    before = {row.generation for row in lab.ledger.state.slices.values()}
    apply_layout(lab, "3g.20gb + 3x1g.5gb", name="other")
    after = {row.generation for row in lab.ledger.state.slices.values()}
    assert counts_on_gpu(lab) == {"3g.20gb": 1, "1g.5gb": 3}
    assert len(before & after) == 3


@pytest.mark.parametrize("keep_warm", [True, False])
def test_made_anew_between_users(make_world: Callable[..., World], keep_warm: bool) -> None:
    """A lease is drawn on what is cut; after it the slice is another, in the same place."""
    lab = make_world(changed(RULES, keep_warm=keep_warm))
    apply_layout(lab, "2x3g.20gb")
    before = lab.raw()
    lease = lab.run("ada", "3g.20gb")
    assert lab.raw() == before
    lab.end(lease)
    lab.work()
    assert counts_on_gpu(lab) == {"3g.20gb": 2} and current_layout(lab).conforms
    assert lease.slices[0].slice_id not in lab.ledger.state.slices


def test_nobody_is_cut_off(lab: World) -> None:
    """Who runs where the layout has no place runs on; once they end, it is cut."""
    lease = lab.run("ada", "2g.10gb")
    apply_layout(lab, "2x3g.20gb")
    assert lab.pool.leases.find(lease.id).state == "running"
    assert counts_on_gpu(lab) == {"2g.10gb": 1, "3g.20gb": 1}
    status = current_layout(lab)
    assert not status.conforms
    assert [(drain.lease, drain.user) for drain in status.drains] == [(lease.id, "ada")]
    lab.end(lease)
    lab.work()
    assert counts_on_gpu(lab) == {"3g.20gb": 2}
    assert current_layout(lab).conforms
    assert not [row for row in lab.ledger.history("slice") if "made anew" in row["reason"]]


def test_when_it_could_be_done(lab: World) -> None:
    """The diff says who must end, and when that is at the latest; else it is unknown."""
    assert diff(lab, "7g.40gb").ready_at == lab.at
    first = lab.run("ada", "2g.10gb")
    lab.pass_time(600)
    second = lab.run("bob", "1g.5gb")
    planned = diff(lab, "7g.40gb")
    assert {(drain.lease, drain.ends_at) for drain in planned.drains} == {
        (first.id, None), (second.id, None),
    }  # fmt: skip
    assert planned.ready_at is None
    assert [place.profile for place in planned.makes] == ["7g.40gb"]
    assert (planned.removes, counts_on_gpu(lab)) == ((), {"2g.10gb": 1, "1g.5gb": 1})
    for lease, warning_s in ((first, 3600.0), (second, 600.0)):
        lab.pool.staff.reclaim(lease.id, "A new layout.", "person:ina", warning_s)
    assert diff(lab, "7g.40gb").ready_at == lab.at + 3600
    assert current_layout(lab).layout == ""


def test_foreign_is_never_touched(lab: World) -> None:
    """A foreign slice stands in the way, and is named; what has room beside it is cut."""
    uuid = gpus(lab)[0]
    geometry = lab.pool.layouts.partitionable()[0].geometry
    profile = geometry.by_name["1g.5gb"]
    lab.driver.create(uuid, profile, profile.placements[5])
    lab.pool.reconcile()
    apply_layout(lab, "2x3g.20gb")
    assert counts_on_gpu(lab) == {"1g.5gb": 1, "3g.20gb": 1}
    (reason,) = current_layout(lab).blocked
    assert "is foreign: adopt it" in reason
    assert not current_layout(lab).conforms
    (foreign,) = [row for row in lab.ledger.state.slices.values() if row.state == "foreign"]
    lab.pool.staff.adopt(foreign.id, "person:root")
    lab.work()
    assert current_layout(lab).conforms


@pytest.mark.parametrize("function", ["CreateGpuInstanceWithPlacement", "GetGpuInstances"])
def test_foreign_that_nobody_has_seen_yet(lab: World, function: str) -> None:
    """What somebody made by hand a moment ago, just where and as the layout wants it, stays."""
    uuid, profile = gpus(lab)[0], lab.pool.layouts.partitionable()[0].geometry.by_name["1g.5gb"]
    lab.driver.create(uuid, profile, profile.placements[0])
    (theirs,) = [slice_["uuid"] for gpu in lab.machine.view()["gpus"] for slice_ in gpu["slices"]]
    lab.fail(f"nvmlDevice{function}", pynvml.NVML_ERROR_UNKNOWN)
    apply_layout(lab, "7x1g.5gb")
    lab.settle()
    uuid_by_start = {
        slice_["start"]: slice_["uuid"]
        for gpu in lab.machine.view()["gpus"]
        for slice_ in gpu["slices"]
    }
    assert uuid_by_start[0] == theirs
    states = {row.start: row.state for row in lab.ledger.state.slices.values()}
    assert states == dict.fromkeys(range(1, 7), "free") | {0: "foreign"}


def test_after_a_reboot(lab: World) -> None:
    """Instances are gone after a reboot: the layout is cut anew, before anything is granted."""
    apply_layout(lab, "4g.20gb + 1g.5gb")
    lab.machine.reboot()
    lab.crash()
    ticket = lab.wait("ada", "2g.10gb")
    assert state_of(lab, ticket.id) == TicketState.WAITING
    assert counts_on_gpu(lab) == {"4g.20gb": 1, "1g.5gb": 1}
    assert (current_layout(lab).layout, current_layout(lab).conforms) == ("practical", True)
    apply_layout(lab, "")
    assert (current_layout(lab).layout, state_of(lab, ticket.id)) == ("", TicketState.OFFERED)


def test_a_failing_driver_is_not_asked_without_end(lab: World) -> None:
    """Where a slice cannot be made it is tried again after a pause, and says so."""
    lab.fail("nvmlDeviceCreateGpuInstanceWithPlacement", pynvml.NVML_ERROR_UNKNOWN, 3)
    apply_layout(lab, "7g.40gb")
    assert not current_layout(lab).conforms
    lab.settle()
    assert current_layout(lab).conforms


def test_each_gpu_has_the_last(pair: World) -> None:
    """A layout of some GPUs leaves the others theirs; the log has each, with who and why."""
    apply_layout(pair, "7g.40gb", name="base")
    apply_layout(pair, "2x3g.20gb", 0, name="left")
    assert [current_layout(pair, n).layout for n in (0, 1)] == ["left", "base"]
    steps = [row for row in pair.ledger.history("gpu") if row["action"] == "apply"]
    assert [(row["by"], row["reason"]) for row in steps] == [
        ("person:root", "left: 2x3g.20gb (week 1)"),
        *[("person:root", "base: 7g.40gb (week 1)")] * 2,
    ]


def test_all_or_none(pair: World) -> None:
    """One GPU that cannot be cut so keeps all of them from it."""
    both = draft("7g.40gb", 0).groups + draft("5g.20gb", 1).groups
    bad_draft = LayoutDraft("bad", both)
    for call in (pair.pool.layouts.diff, lambda d: pair.pool.layouts.apply(d, "person:root")):
        error = refusal(lambda call=call: call(bad_draft))
        assert (error.reason, error.status) == ("bad-layout", 422)
        assert "GPU 1 (NVIDIA A100" in error.message
    assert [current_layout(pair, n).layout for n in (0, 1)] == ["", ""]


def test_a_gpu_with_mig_off(make_world: Callable[..., World]) -> None:
    """A GPU that is leased whole cannot be cut."""
    lab = make_world(RULES, mig=False)
    error = refusal(lambda: apply_layout(lab, "1g.5gb"))
    assert "there is no GPU that can be cut now" in error.message


def test_reserving_under_a_layout(pair: World) -> None:
    """What the layouts have no places for cannot be reserved; what they leave free is room."""
    apply_layout(pair, "7x1g.5gb")
    error = refusal(lambda: reserve(pair, shape="3g.20gb", count=1))
    assert error.reason == "impossible-reservation"
    assert "the lab's 2 GPUs as the layouts cut them" in error.message
    assert "none would" in error.message
    assert "lies there; 14 would" in refusal(lambda: reserve(pair, count=15)).message
    apply_layout(pair, "", 1)
    reserve(pair, shape="3g.20gb", count=2)
    reserve(pair)
    assert pair.run("ada", "2g.10gb").slices[0].gpu == 1, "it is cut on demand again"


def test_what_is_reserved_is_named(pair: World) -> None:
    """A layout that takes slices from a class is refused, unless somebody says why; diff warns."""
    reserve(pair, shape="3g.20gb", count=4)
    new_layout = draft("7x1g.5gb", 0)
    (broken_promise,) = pair.pool.layouts.diff(new_layout).breaks
    assert "On 2026-06-02 at 10:00 CEST reservation 1 (4 times 3g.20gb for deep" in broken_promise
    assert broken_promise.endswith("would have 2 of its slices instead of 4.")
    error = refusal(lambda: pair.pool.layouts.apply(new_layout, "person:root"))
    assert (error.reason, broken_promise in error.message) == ("breaks-reservation", True)
    pair.pool.layouts.apply(new_layout, "person:root", anyway="exam")
    assert current_layout(pair).layout == "practical"
    assert pair.ledger.history("gpu")[0]["reason"] == "practical: 7x1g.5gb (anyway: exam)"
    pair.pool.layouts.apply(draft("2x3g.20gb", 1), "person:root")


def test_the_snapshot_says_what_holds(lab: World) -> None:
    """Each GPU says which layout it has, each slice whether it gives way to it."""
    lab.run("ada")
    apply_layout(lab, "7g.40gb")
    gpu = lab.pool.snapshot().gpus[0]
    assert gpu.layout == "practical"
    assert [slice_.blocks_layout for slice_ in gpu.slices] == ["practical"]
    apply_layout(lab, "")
    gpu = lab.pool.snapshot().gpus[0]
    assert (gpu.layout, [slice_.blocks_layout for slice_ in gpu.slices]) == ("", [""])


def test_a_drained_gpu_is_blocked(lab: World) -> None:
    """Nothing is cut there, so nobody can say when it is done."""
    lab.pool.staff.drain(gpus(lab)[0], "fan", "person:ina")
    apply_layout(lab, "7g.40gb")
    view = current_layout(lab)
    assert (view.conforms, view.ready_at) == (False, None)
    assert view.blocked == ("the GPU is drained: fan",)
