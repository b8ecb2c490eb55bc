"""Layouts over the simulated GPUs: cut ahead, applied by draining, in force at their times."""

import datetime as dt
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.pool_settings import changed

from miglab_api.layouts import GpuLayout, LayoutDiff, LayoutSpec, LayoutTime
from miglab_api.reservations import ReservationRequest
from miglab_api.tickets import TicketState
from miglab_pool.layouts.rules import parse, resolve
from miglab_pool.refused import Refused
from miglab_pool.settings import Course

from .conftest import SETTINGS, SHAPES, World

LEAD_S = 900.0
TUESDAY = dt.datetime(2026, 6, 2, 8, 0, tzinfo=dt.UTC).timestamp()  # 10:00 in Berlin
RULES = changed(
    SETTINGS,
    courses=dict(SETTINGS.courses) | {"deep": Course(title="Deep learning", shapes=SHAPES)},
    attend_grace_s=7200.0,
    offer_s=7200.0,
    attach_s=7200.0,
    longest_wait_s=24 * 3600.0,
    reserve_lead_s=LEAD_S,
)
CLASS = LayoutTime(weekdays=("tue",), from_time="10:00", to_time="12:00", tz="Europe/Berlin")


@pytest.fixture
def lab(make_world: Callable[..., World]) -> World:
    """One A100, an hour before the class on a Tuesday."""
    world = make_world(RULES)
    world.at = TUESDAY - 3600
    world.pool.reconcile()
    return world


@pytest.fixture
def pair(make_world: Callable[..., World]) -> World:
    """Two A100s."""
    world = make_world(RULES, gpus=2)
    world.at = TUESDAY - 3600
    world.pool.reconcile()
    return world


def gpus(lab: World) -> list[str]:
    return [gpu.uuid for gpu in lab.pool.layouts.partitionable()]


def spec(lab: World, *partition: str, name: str = "practical", **more: Any) -> LayoutSpec:
    """A layout that cuts all GPUs alike."""
    return LayoutSpec(name=name, gpus=more.pop("gpus", dict.fromkeys(gpus(lab), partition)), **more)


def lay(lab: World, *partition: str, **more: Any) -> None:
    lab.pool.layouts.apply([spec(lab, *partition, **more)], "person:root", "week 1")
    lab.work()


def made(lab: World, gpu: int = 0) -> Counter[str]:
    """The profiles that NVML shows on a GPU."""
    uuid = gpus(lab)[gpu]
    return Counter(profile for on, profile, _ in lab.raw() if on == uuid)


def now(lab: World, gpu: int = 0) -> GpuLayout:
    return lab.pool.layouts.all().gpus[gpu]


def diff(lab: World, *partition: str, **more: Any) -> LayoutDiff:
    (found,) = lab.pool.layouts.diffs([spec(lab, *partition, **more)])
    return found


def refusal(call: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as error:
        call()
    return error.value


def state_of(lab: World, ticket: int) -> TicketState:
    return lab.pool.tickets.find(ticket).state


# -- cut ahead ------------------------------------------------------------------------------------


def test_partitioned_ahead(lab: World) -> None:
    """What is applied to an empty GPU is made at once, before anybody asks."""
    lay(lab, "4g", "1g", "1g", "1g")
    assert made(lab) == {"4g.20gb": 1, "1g.5gb": 3}
    assert now(lab).conforms
    assert set(lab.states()) == {"free"}


def test_what_lies_elsewhere_is_remade(lab: World) -> None:
    """Free slices of another layout make way; those that fit stay as they are."""
    lay(lab, *["1g"] * 7)
    before = {row.generation for row in lab.ledger.state.slices.values()}
    lay(lab, "3g", "1g", "1g", "1g", name="other")
    after = {row.generation for row in lab.ledger.state.slices.values()}
    assert made(lab) == {"3g.20gb": 1, "1g.5gb": 3}
    assert len(before & after) == 3


def test_granted_warm(lab: World) -> None:
    """A lease is drawn on what is cut: nothing is made for it."""
    lay(lab, "4g", "1g", "1g", "1g")
    before = lab.raw()
    lease = lab.run("ada", "4g.20gb")
    assert lab.raw() == before
    lab.end(lease)
    lab.work()
    assert now(lab).conforms


@pytest.mark.parametrize("keep_warm", [True, False])
def test_made_anew_between_users(make_world: Callable[..., World], keep_warm: bool) -> None:
    """After a lease the slice is another, in the same place, whatever is kept warm elsewhere."""
    lab = make_world(changed(RULES, keep_warm=keep_warm))
    lay(lab, "3g", "3g")
    lease = lab.run("ada", "3g.20gb")
    lab.end(lease)
    lab.work()
    assert made(lab) == {"3g.20gb": 2}
    assert lease.slices[0].slice_id not in lab.ledger.state.slices


def test_only_its_shapes(lab: World) -> None:
    """Another shape waits, though there would be room, until the layout is removed."""
    lay(lab, "4g", "1g")
    ticket = lab.ask("ada", "2g.10gb")
    lab.work()
    assert state_of(lab, ticket.id) == TicketState.WAITING
    lab.pool.layouts.remove("practical", "person:root", "over")
    lab.work()
    assert state_of(lab, ticket.id) == TicketState.OFFERED
    assert now(lab).layout == ""


def test_elsewhere_as_before(pair: World) -> None:
    """GPUs that no layout names are cut on demand."""
    first, second = gpus(pair)
    lay(pair, gpus={first: ("7g",)})
    assert made(pair) == {"7g.40gb": 1}
    lease = pair.run("ada", "2g.10gb")
    assert lease.slices[0].gpu == 1
    assert now(pair, 1).conforms and now(pair, 1).layout == ""
    assert second == pair.pool.layouts.all().gpus[1].gpu


def test_for_one_course(lab: World) -> None:
    """While a course's layout is in force the slices are its own; others wait until it is over."""
    lay(lab, *["1g"] * 7, course="vision")
    other, own = lab.ask("ada"), lab.ask("bob", course="vision")
    lab.work()
    assert [state_of(lab, one.id) for one in (other, own)] == ["waiting", "offered"]
    assert lab.pool.snapshot().gpus[0].course == "vision"
    lab.pool.layouts.remove("practical", "person:root")
    lab.work()
    assert state_of(lab, other.id) == TicketState.OFFERED


def test_nothing_at_all(lab: World) -> None:
    """A cut into nothing keeps the GPU empty."""
    lab.end(lab.run("ada"))
    lay(lab, gpus={gpus(lab)[0]: ()})
    assert made(lab) == {}
    assert now(lab).conforms
    ticket = lab.ask("ada")
    lab.work()
    assert state_of(lab, ticket.id) == TicketState.WAITING


# -- draining -------------------------------------------------------------------------------------


def test_nobody_is_cut_off(lab: World) -> None:
    """Who runs where the layout has no place runs on; once they end, it is cut."""
    lease = lab.run("ada", "2g.10gb")
    lay(lab, "3g", "3g")
    assert lab.pool.leases.find(lease.id).state == "running"
    assert made(lab) == {"2g.10gb": 1, "3g.20gb": 1}
    status = now(lab)
    assert not status.conforms
    assert [(drain.lease, drain.user) for drain in status.drains] == [(lease.id, "ada")]
    lab.end(lease)
    lab.work()
    assert made(lab) == {"3g.20gb": 2}
    assert now(lab).conforms


def test_what_gave_way_is_not_made_anew(lab: World) -> None:
    """A slice without a place is not kept warm when its lease ends, only to be destroyed again."""
    lease = lab.run("ada", "3g.20gb")
    lay(lab, "1g")
    lab.end(lease)
    lab.work()
    assert made(lab) == {"1g.5gb": 1}
    assert not [row for row in lab.ledger.history("slice") if "made anew" in row["reason"]]


def test_no_new_lease_in_the_way(lab: World) -> None:
    """While a place drains, small requests that would fit there wait: it only empties."""
    leases = [lab.run(user) for user in ("ada", "bob")]
    lay(lab, "7g")
    ticket = lab.ask("cy")
    lab.end(leases[0])
    lab.work()
    assert state_of(lab, ticket.id) == TicketState.WAITING
    lab.end(leases[1])
    lab.work()
    assert made(lab) == {"7g.40gb": 1}
    assert state_of(lab, ticket.id) == TicketState.WAITING


def test_when_it_could_be_done(make_world: Callable[..., World]) -> None:
    """The diff says who must end, and when that is at the latest; else it is unknown."""
    lab = make_world(changed(RULES, lease_s=3600.0))
    assert diff(lab, "7g").gpus[0].ready_at == lab.at
    first = lab.run("ada", "2g.10gb")
    lab.pass_time(600)
    second = lab.run("bob", "1g.5gb")
    found = diff(lab, "7g").gpus[0]
    assert {drain.lease for drain in found.drains} == {first.id, second.id}
    assert found.ready_at is None
    for lease, warning_s in ((first, 3600.0), (second, 600.0)):
        lab.pool.staff.reclaim(lease.id, "A new layout.", "person:ina", warning_s)
    assert diff(lab, "7g").gpus[0].ready_at == lab.at + 3600
    assert lab.pool.layouts.all().layouts == ()


def test_without_an_end(lab: World) -> None:
    """A lease without an end may last: nobody knows when it could be done."""
    lab.run("ada", "2g.10gb")
    found = diff(lab, "7g").gpus[0]
    assert found.ready_at is None
    assert found.drains[0].ends_at is None


def test_a_diff_changes_nothing(lab: World) -> None:
    """Asking what would be done does none of it."""
    lab.end(lab.run("ada"))
    before = lab.raw()
    found = diff(lab, "3g", "3g").gpus[0]
    lab.work()
    assert lab.raw() == before
    assert [place.profile for place in found.makes] == ["3g.20gb", "3g.20gb"]
    assert [place.profile for place in found.removes] == ["1g.5gb"]
    assert found.partition == ("3g.20gb", "3g.20gb")


def test_a_conforming_gpu_has_no_diff(lab: World) -> None:
    """What conforms by chance, leased or not, needs nothing; and then asserts well."""
    leases = [lab.run(user, "3g.20gb") for user in ("ada", "bob")]
    found = diff(lab, "3g", "3g")
    assert found.conforms
    assert not (found.gpus[0].makes or found.gpus[0].removes or found.gpus[0].drains)
    lab.end(leases[0])
    assert len(lab.pool.layouts.all().gpus) == 1


def test_foreign_is_never_touched(lab: World) -> None:
    """A foreign slice stands in the way, and is named; what has room beside it is cut."""
    uuid = gpus(lab)[0]
    geometry = lab.pool.layouts.partitionable()[0].geometry
    profile = geometry.by_name["1g.5gb"]
    lab.driver.create(uuid, profile, profile.placements[5])
    lab.pool.reconcile()
    lay(lab, "3g", "3g")
    assert made(lab) == {"1g.5gb": 1, "3g.20gb": 1}
    (reason,) = now(lab).blocked
    assert "is foreign: adopt it" in reason
    assert not now(lab).conforms
    (foreign,) = [row for row in lab.ledger.state.slices.values() if row.state == "foreign"]
    lab.pool.staff.adopt(foreign.id, "person:root")
    lab.work()
    assert now(lab).conforms


@pytest.mark.parametrize("function", ["CreateGpuInstanceWithPlacement", "GetGpuInstances"])
def test_foreign_that_nobody_has_seen_yet(lab: World, function: str) -> None:
    """What somebody made by hand a moment ago, just where and as the layout wants it, stays.

    Also if the driver then fails without saying what it did.
    """
    uuid, profile = gpus(lab)[0], lab.pool.layouts.partitionable()[0].geometry.by_name["1g.5gb"]
    lab.driver.create(uuid, profile, profile.placements[0])
    (theirs,) = [item["uuid"] for gpu in lab.machine.view()["gpus"] for item in gpu["slices"]]
    lab.fail(f"nvmlDevice{function}", pynvml.NVML_ERROR_UNKNOWN)
    lay(lab, *["1g"] * 7)
    lab.settle()
    there = {
        item["start"]: item["uuid"] for gpu in lab.machine.view()["gpus"] for item in gpu["slices"]
    }
    assert there[0] == theirs
    states = {row.start: row.state for row in lab.ledger.state.slices.values()}
    assert states == dict.fromkeys(range(1, 7), "free") | {0: "foreign"}


def test_it_survives_a_restart(lab: World) -> None:
    """A layout is in force before anything is granted after a restart."""
    lay(lab, "4g", "1g")
    lab.crash()
    ticket = lab.ask("ada", "2g.10gb")
    lab.work()
    assert state_of(lab, ticket.id) == TicketState.WAITING
    assert now(lab).layout == "practical"
    assert [view.state for view in lab.pool.layouts.all().layouts] == ["in-force"]


def test_after_a_reboot(lab: World) -> None:
    """Instances are gone after a reboot: the layout is cut anew."""
    lay(lab, "4g", "1g")
    lab.machine.reboot()
    lab.crash()
    lab.work()
    assert made(lab) == {"4g.20gb": 1, "1g.5gb": 1}
    assert now(lab).conforms


def test_a_failing_driver_is_not_asked_without_end(lab: World) -> None:
    """Where a slice cannot be made it is tried again after a pause, and says so."""
    lab.fail("nvmlDeviceCreateGpuInstanceWithPlacement", pynvml.NVML_ERROR_UNKNOWN, 3)
    lay(lab, "7g")
    assert not now(lab).conforms
    lab.settle()
    assert now(lab).conforms


# -- several layouts ------------------------------------------------------------------------------


def test_the_later_one_holds(pair: World) -> None:
    """Of two without times the later holds; one with nothing left is replaced, and says so."""
    first, second = gpus(pair)
    lay(pair, "7g", name="base")
    lay(pair, gpus={first: ("3g", "3g")}, name="left")
    assert [now(pair, n).layout for n in (0, 1)] == ["left", "base"]
    assert diff(pair, gpus={second: ("1g",)}, name="right").replaces == ("base",)
    lay(pair, gpus={second: ("1g",)}, name="right")
    assert [view.name for view in pair.pool.layouts.all().layouts] == ["left", "right"]
    history = pair.ledger.history("layout")
    assert any("a later layout holds" in row["reason"] for row in history)


def test_the_same_name_again(lab: World) -> None:
    """Applying a layout of the same name replaces it."""
    lay(lab, "7g")
    assert diff(lab, "3g", "3g").replaces == (lab.pool.layouts.all().layouts[0].name,)
    lay(lab, "3g", "3g")
    (view,) = lab.pool.layouts.all().layouts
    assert list(view.gpus.values()) == [("3g.20gb", "3g.20gb")]
    assert (view.made_by, view.message) == ("person:root", "week 1")
    lab.pool.layouts.remove(view.name, "person:root")
    steps = [row for row in reversed(lab.ledger.history("layout")) if row["by"] == "person:root"]
    assert [row["action"] for row in steps] == ["apply", "replace", "apply", "remove"]


def test_all_or_none(pair: World) -> None:
    """One that cannot be keeps all of them from being applied; why is in the ledger."""
    good, bad = spec(pair, "7g", name="good"), spec(pair, "5g", name="bad")
    error = refusal(lambda: pair.pool.layouts.apply([good, bad], "person:root"))
    assert error.reason == "bad-layout"
    assert "Layout bad: GPU 0 (NVIDIA A100" in error.message
    assert pair.pool.layouts.all().layouts == ()
    assert {row["to_state"] for row in pair.ledger.history("layout")} == {"refused"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gpus": {}}, "it names no GPU"),
        ({"gpus": {"GPU-nope": ("1g",)}}, "the lab has no such GPU"),
        ({"course": "nowhere"}, "there is no course 'nowhere' here"),
        ({"when": (CLASS.model_copy(update={"tz": "Mars/Olympus"}),)}, "no time zone"),
        ({"when": (CLASS.model_copy(update={"to_time": "10:00"}),)}, "must be later"),
        ({"when": (CLASS.model_copy(update={"weekdays": ()}),)}, "Say when"),
        (
            {"when": (CLASS.model_copy(update={"weekdays": (), "date": dt.date(2026, 6, 1)}),)},
            "is over",
        ),
    ],
)
def test_refused(lab: World, change: dict[str, Any], says: str) -> None:
    """What makes no sense is refused in words, by diff as by lay."""
    asked = spec(lab, "1g", **change)
    for call in (lab.pool.layouts.apply, lambda some, _by: lab.pool.layouts.diffs(some)):
        error = refusal(lambda call=call: call([asked], "person:root"))
        assert (error.reason, error.status) == ("bad-layout", 422)
        assert says in error.message


def test_a_gpu_with_mig_off(make_world: Callable[..., World]) -> None:
    """A GPU that is leased whole cannot be cut, and the refusal says why."""
    lab = make_world(RULES, mig=False)
    (uuid,) = lab.ledger.state.gpus
    error = refusal(
        lambda: lab.pool.layouts.apply([LayoutSpec(name="a", gpus={uuid: ("1g",)})], "root")
    )
    assert "its MIG mode is off" in error.message


def test_unknown_layout(lab: World) -> None:
    """Removing what is not there names what is."""
    lay(lab, "7g")
    error = refusal(lambda: lab.pool.layouts.remove("other", "person:root"))
    assert (error.reason, error.status) == ("unknown-layout", 404)
    assert "There are: practical" in error.message


# -- times ----------------------------------------------------------------------------------------


def go_to(lab: World, seconds: float) -> None:
    """To so many seconds after the class begins."""
    lab.at = TUESDAY + seconds
    lab.attend_all()
    lab.work()


def layouts_at(lab: World, moments: Sequence[float]) -> list[str]:
    found = []
    for moment in moments:
        go_to(lab, moment)
        found.append(now(lab).layout)
    return found


def test_from_the_lead_to_the_end(lab: World) -> None:
    """A layout with times holds from the lead before each to its end, and beneath it the base."""
    lay(lab, "7g", name="base")
    lay(lab, *["1g"] * 7, when=(CLASS,))
    moments = [-LEAD_S - 1, -LEAD_S, 0, 7199, 7200]
    assert layouts_at(lab, moments) == ["base", "practical", "practical", "practical", "base"]
    assert made(lab) == {"7g.40gb": 1}
    week = 7 * 24 * 3600.0
    go_to(lab, week)
    assert made(lab) == {"1g.5gb": 7}
    states = [row["to_state"] for row in lab.ledger.history("layout") if row["target"] == "2"]
    assert states[::-1] == ["planned", "in-force", "planned", "in-force"]


def test_a_class_goes_before_the_lead_of_the_next(lab: World) -> None:
    """Back to back: the one that takes place holds until its end."""
    after = CLASS.model_copy(update={"from_time": "12:00", "to_time": "14:00"})
    lay(lab, *["1g"] * 7, when=(CLASS,), name="first")
    lay(lab, "3g", "3g", when=(after,), name="second")
    assert layouts_at(lab, [0, 7200 - 1, 7200]) == ["first", "first", "second"]


def test_a_single_time(lab: World) -> None:
    """A date happens once; afterwards the layout is over."""
    once = CLASS.model_copy(update={"weekdays": (), "date": dt.date(2026, 6, 2)})
    lay(lab, "7g", when=(once,))
    (view,) = lab.pool.layouts.all().layouts
    assert (view.state, view.starts_at, view.ends_at) == ("planned", TUESDAY, TUESDAY + 7200)
    go_to(lab, 0)
    assert now(lab).until == TUESDAY + 7200
    go_to(lab, 7200)
    assert lab.pool.layouts.all().layouts == ()


def test_two_at_the_same_time(lab: World) -> None:
    """Two layouts applied together that cut one GPU at one time are refused, saying when."""
    later = CLASS.model_copy(update={"from_time": "11:00", "to_time": "13:00"})
    both = [
        spec(lab, "7g", name="one", when=(CLASS,)),
        spec(lab, "3g", name="two", when=(later,)),
    ]
    error = refusal(lambda: lab.pool.layouts.apply(both, "person:root"))
    assert error.reason == "layout-clash"
    assert "Layouts one and two both cut" in error.message
    assert "2026-06-02 at 11:00" in error.message


# -- reservations ---------------------------------------------------------------------------------


def reserve(lab: World, shape: str, count: int) -> None:
    request = ReservationRequest(
        course="deep", shape=shape, count=count, weekdays=("tue",), from_time="10:00",
        to_time="12:00", tz="Europe/Berlin", grace_s=900.0,
    )  # fmt: skip
    lab.pool.reservations.make(request, "person:ina")


def test_what_is_reserved_is_kept(lab: World) -> None:
    """A layout under which a class would not find its places is refused, naming the class."""
    reserve(lab, "3g.20gb", 2)
    error = refusal(lambda: lay(lab, *["1g"] * 7))
    assert error.reason == "layout-clash"
    assert "reservation 1 (2 times 3g.20gb for deep" in error.message
    assert "2026-06-02 at 10:00" in error.message
    lay(lab, "3g", "3g")
    go_to(lab, 0)
    assert [lab.run(user, "3g.20gb", course="deep").state for user in ("ada", "bob")]


def test_reserved_elsewhere(pair: World) -> None:
    """What the layouts leave free counts as room for a class."""
    reserve(pair, "3g.20gb", 2)
    lay(pair, *["1g"] * 7, gpus={gpus(pair)[0]: ("1g",) * 7})
    go_to(pair, 0)
    assert pair.run("ada", "3g.20gb", course="deep").slices[0].gpu == 1


def test_another_time_does_not_clash(lab: World) -> None:
    """A layout at another time than the class leaves it its places."""
    reserve(lab, "3g.20gb", 2)
    monday = CLASS.model_copy(update={"weekdays": ("mon",)})
    lay(lab, *["1g"] * 7, when=(monday,))
    assert len(lab.pool.layouts.all().layouts) == 1


def test_reserving_under_a_layout(lab: World) -> None:
    """What the layout in force then has no places for cannot be reserved."""
    lay(lab, *["1g"] * 7)
    error = refusal(lambda: reserve(lab, "3g.20gb", 1))
    assert error.reason == "impossible-reservation"
    assert "as the layouts cut them" in error.message
    reserve(lab, "1g.5gb", 7)


# -- pictures for others --------------------------------------------------------------------------


def test_the_snapshot_says_what_holds(lab: World) -> None:
    """Each GPU says which layout holds on it, each slice whether it gives way to it."""
    lab.run("ada")
    lay(lab, "7g")
    gpu = lab.pool.snapshot().gpus[0]
    assert gpu.layout == "practical"
    assert [item.blocks_layout for item in gpu.slices] == ["practical"]
    lab.pool.layouts.remove("practical", "person:root")
    gpu = lab.pool.snapshot().gpus[0]
    assert (gpu.layout, [item.blocks_layout for item in gpu.slices]) == ("", [""])


# -- over all -------------------------------------------------------------------------------------

PARTITIONS = (
    "7g", "4g + 3g", "4g + 3x1g", "3g + 3g", "3g + 4x1g", "2g + 2g + 3g", "3x2g + 1g", "7x1g",
    "1g.10gb + 3g + 2x1g", "1g.5gb+me + 6x1g", "2g", "4x1g.10gb",
)  # fmt: skip
ASKED = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


@settings(
    max_examples=settings.default.max_examples // 8,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@given(
    asked=st.lists(st.sampled_from(ASKED), max_size=7),
    partitions=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3),
    dice=st.randoms(use_true_random=False),
)
def test_applying_ends_conforming(
    asked: list[str], partitions: list[str], dice: random.Random
) -> None:
    """Whatever runs, whichever layouts follow each other, in whatever order leases end, after a
    restart in between: nobody is cut off, nothing is granted in the way, and it ends conforming.
    """
    with tempfile.TemporaryDirectory(prefix="layout-") as folder:
        room = World(Path(folder), RULES)
        running = [room.run(f"u{n}", shape) for n, shape in enumerate(asked) if fits(room, shape)]
        for partition in partitions:
            lay(room, *parse(partition))
        dice.shuffle(running)
        for number, lease in enumerate(running):
            assert room.pool.leases.find(lease.id).state == "running"
            room.ask(f"late{number}", "1g.5gb")
            before = {drain.lease for drain in now(room).drains}
            if number == len(running) // 2:
                room.crash()
            room.end(lease)
            assert len({drain.lease for drain in now(room).drains} - before) == 0
            room.check()
        leave(room)
        assert now(room).conforms
        assert made(room) == Counter(
            resolve(parse(partitions[-1]), room.pool.layouts.partitionable()[0].geometry)
        )
        room.close()


def fits(room: World, shape: str) -> bool:
    """Whether somebody who asks gets it at once."""
    ticket = room.ask("probe", shape)
    room.work()
    is_offered = room.pool.tickets.find(ticket.id).state == TicketState.OFFERED
    room.pool.tickets.cancel(ticket.id, "probe")
    room.work()
    return is_offered


def leave(room: World) -> None:
    """Who waits or was offered something gives it up."""
    for ticket in list(room.ledger.state.tickets):
        room.pool.tickets.cancel(ticket, "late")
    room.work()


def test_a_drained_gpu_is_blocked(lab: World) -> None:
    """Nothing is cut there, so nobody can say when it is done."""
    lab.pool.staff.drain_gpu(gpus(lab)[0], "fan", "person:ina")
    lay(lab, "7g")
    view = now(lab)
    assert (view.conforms, view.ready_at) == (False, None)
    assert view.blocked == ("the GPU is drained: fan",)
