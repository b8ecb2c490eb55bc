"""A course's own GPU that a layout gives to another: asked for, offered, reserved and promised."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from tests.pool_settings import changed

from miglab_api.layouts import LayoutSpec, LayoutTime
from miglab_api.reservations import ReservationRequest
from miglab_api.tickets import TicketState
from miglab_pool.refused import Refused

from .conftest import World
from .test_assigned import RULES, ask, gpus_of
from .test_layouts_applied import CLASS, LEAD_S, TUESDAY

OTHERS = changed(RULES, assigned={"0": "vision", "1": "vision"})
SEVEN = ("1g",) * 7


@pytest.fixture
def lab(make_world: Callable[..., World]) -> World:
    """Two A100s, both vision's, an hour before a class on a Tuesday."""
    world = make_world(OTHERS, gpus=2)
    world.at = TUESDAY - 3600
    world.pool.reconcile()
    return world


def lend(
    lab: World,
    *when: LayoutTime,
    course: str = "deep",
    gpu: int = 1,
    partition: tuple[str, ...] = SEVEN,
) -> None:
    """Cut a GPU for a course."""
    uuid = lab.pool.layouts.partitionable()[gpu].uuid
    lab.pool.layouts.apply(
        [LayoutSpec(name="lent", course=course, gpus={uuid: partition}, when=when)], "root"
    )
    lab.work()


def reserve(lab: World, count: int = 7, course: str = "deep", **more: Any) -> None:
    values = {
        "course": course, "shape": "1g.5gb", "count": count, "weekdays": ("tue",),
        "from_time": "10:00", "to_time": "12:00", "tz": "Europe/Berlin",
    }  # fmt: skip
    lab.pool.reservations.make(ReservationRequest(**(values | more)), "ina")


def refused(call: Callable[[], object]) -> Refused | None:
    """How a call is refused; None if it is not."""
    try:
        call()
    except Refused as error:
        return error
    return None


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(Refused) as error:
        call()
    return error.value.reason


def may_ask(lab: World, shape: str = "1g.5gb") -> bool:
    """Whether somebody of deep's who asks gets a place in line; it is given up at once."""
    try:
        ticket = lab.ask("dan", shape, course="deep")
    except Refused as error:
        assert error.reason in ("impossible-shape", "not-yet")
        return False
    lab.pool.tickets.cancel(ticket.id, "dan")
    lab.work()
    return True


# -- asked for ------------------------------------------------------------------------------------


def test_what_is_offered_can_be_asked_for(lab: World) -> None:
    """While the layout holds, and the shapes that it cuts; whatever was answered before."""
    assert not may_ask(lab)
    lend(lab)
    (offers,) = lab.pool.offers(["deep"]).courses
    assert {one.shape: one.free_now for one in offers.shapes}["1g.5gb"] == 7
    assert may_ask(lab)
    assert not may_ask(lab, "3g.20gb")
    (ticket,) = ask(lab, 1, "deep")
    assert lab.pool.tickets.find(ticket).state is TicketState.OFFERED
    lab.pool.layouts.remove("lent", "root")
    assert not may_ask(lab)


def test_asked_for_at_its_time(lab: World) -> None:
    """A layout with times gives the GPU from the lead before each to its end."""
    lend(lab, CLASS)
    found = {}
    for moment in (-LEAD_S - 1, -LEAD_S, 7199, 7200):
        lab.at = TUESDAY + moment
        lab.work()
        found[moment] = may_ask(lab)
    assert found == {-LEAD_S - 1: False, -LEAD_S: True, 7199: True, 7200: False}


def test_asked_for_before_its_time(lab: World) -> None:
    """Who is too early reads when; the saved choice is not forgotten as a hopeless one is."""
    lend(lab, CLASS)
    early, vision, big = (
        refused(lambda: lab.ask("dan", "1g.5gb", course="deep")),
        refused(lambda: lab.ask("vic", "3g.20gb", course="vision")),
        refused(lambda: lab.ask("dan", "3g.20gb", course="deep")),
    )
    assert (early.reason, vision, big.reason) == ("not-yet", None, "impossible-shape")
    assert (
        "It can from Tuesday 2026-06-02 10:00 CEST on (layout “lent”): ask again" in early.message
    )


# -- reserved -------------------------------------------------------------------------------------


def test_reserved_where_a_layout_gives(lab: World) -> None:
    """As many as the GPU holds that is given, and they are there when the class begins."""
    assert refusal(lambda: reserve(lab)) == "impossible-reservation"
    lend(lab, CLASS)
    assert refusal(lambda: reserve(lab, 8)) == "impossible-reservation"
    assert refusal(lambda: reserve(lab, 1, shape="3g.20gb")) == "layout-clash"
    reserve(lab)
    lab.at = TUESDAY
    lab.work()
    ask(lab, 7, "deep")
    assert gpus_of(lab.pool.leases.live()) == [1] * 7


def test_no_longer_than_it_is_given(lab: World) -> None:
    """A class that lasts longer than the layout would be without its places at the end."""
    lend(lab, CLASS)
    assert refusal(lambda: reserve(lab, to_time="12:30")) == "layout-clash"
    assert refusal(lambda: reserve(lab, weekdays=("tue", "wed"))) == "layout-clash"


def test_a_class_that_begins_in_weeks(lab: World) -> None:
    """Each of its days is looked at, and each of its hours."""
    lend(lab, CLASS)
    day = "2026-06-23"
    assert refusal(lambda: reserve(lab, date=day, weekdays=("tue", "wed"))) == "layout-clash"
    assert refusal(lambda: reserve(lab, date=day, to_time="12:30")) == "layout-clash"
    reserve(lab, date=day)


def test_given_once_is_not_given_every_week(lab: World) -> None:
    """What is lent for a day in two weeks can be reserved for that day."""
    day = "2026-06-16"
    lend(lab, CLASS.model_copy(update={"weekdays": (), "date": dt.date.fromisoformat(day)}))
    assert refusal(lambda: reserve(lab, date=day)) == "layout-clash"
    assert refusal(lambda: reserve(lab, date=day, until="2026-06-23")) == "layout-clash"
    reserve(lab, date=day, until=day)
    lab.pool.reservations.cancel(3, "ina")
    reserve(lab, date=day, weekdays=())


def test_what_is_given_is_not_its_owners_too(lab: World) -> None:
    """Both GPUs for the owner's class, or one of them for another's; not both at a time."""
    lend(lab, CLASS)
    reserve(lab)
    assert refusal(lambda: reserve(lab, 8, "vision")) == "layout-clash"
    reserve(lab, 7, "vision")
    reserve(lab, 14, "vision", from_time="14:00", to_time="15:00")


def test_a_layout_on_which_a_class_counts_stays(lab: World) -> None:
    """It is not removed, nor replaced by one that gives the class nothing."""
    lend(lab, CLASS)
    reserve(lab)
    assert refusal(lambda: lab.pool.layouts.remove("lent", "root")) == "layout-clash"
    assert "not removed: On 2026-06-02 at 10:00" in lab.ledger.history("layout")[0]["reason"]
    assert refusal(lambda: lend(lab, CLASS, course="vision")) == "layout-clash"
    lab.pool.reservations.cancel(1, "ina")
    lab.pool.layouts.remove("lent", "root")


# -- promised -------------------------------------------------------------------------------------


@pytest.fixture
def pair(make_world: Callable[..., World]) -> World:
    """Two A100s, the second of them vision's."""
    world = make_world(RULES, gpus=2)
    world.at = TUESDAY - 3600
    world.pool.reconcile()
    return world


def test_a_strangers_class_counts_on_no_gpu_that_is_not_its_own(pair: World) -> None:
    """A layout that takes the room for all leaves a stranger's class nothing, the owner's all."""
    lend(pair, course="", gpu=0, partition=("3g", "3g"))
    assert refusal(lambda: reserve(pair)) == "layout-clash"
    reserve(pair, 7, "vision")
    pair.pool.layouts.remove("lent", "root")
    reserve(pair)
    assert refusal(lambda: lend(pair, course="", gpu=0, partition=("3g", "3g"))) == "layout-clash"
