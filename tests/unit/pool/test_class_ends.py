"""A class that is over makes way for the next, for as many as need it, and strangers never do."""

from collections.abc import Callable
from typing import Any

import pytest

from miglab_api.leases import LeaseView
from miglab_pool.reservations import ahead as class_ends

from .conftest import World
from .test_reservations import LEAD_S, RULES, TUESDAY, go_to, reserve

HOUR_S = 3600.0
OVER = TUESDAY + 2 * HOUR_S  # 12:00 on the wall
NEXT: dict[str, Any] = {"course": "everyone", "from_time": "12:00", "to_time": "14:00"}


@pytest.fixture
def lab(make_world: Callable[..., World]) -> World:
    """One A100 during a class that ends at 12:00; leases have no end of their own."""
    world = make_world(RULES)
    world.at = TUESDAY - HOUR_S
    world.pool.reconcile()
    reserve(world)
    go_to(world, 0)
    return world


def ends(lab: World) -> dict[int, float]:
    found = class_ends.ends(lab.pool.view, HOUR_S)
    return {lease: one.at for lease, one in found.items()}


def class_of(lab: World, count: int = 7) -> list[LeaseView]:
    return [lab.run(f"student{n}", course="deep") for n in range(count)]


def test_a_class_makes_way_for_another(lab: World) -> None:
    """Every lease of the class ends with it where another needs all places, and says so."""
    leases = class_of(lab)
    reserve(lab, **NEXT)
    assert ends(lab) == {}  # it is still far
    go_to(lab, 1.5 * HOUR_S)
    assert ends(lab) == {lease.id: OVER for lease in leases}
    found = class_ends.ends(lab.pool.view, HOUR_S)
    assert found[leases[0].id].reason == (
        "The class that reserved this slice is over at 12:00 CEST, and others need it."
    )


def test_only_as_many_as_are_needed(lab: World) -> None:
    """The others run on."""
    class_of(lab)
    reserve(lab, **NEXT, count=3)
    go_to(lab, 1.5 * HOUR_S)
    assert len(ends(lab)) == 3


def test_two_reservations_at_one_time(lab: World) -> None:
    """Each lease counts as drawn from one of them: none is left out for the other's sake."""
    lab.pool.reservations.cancel(1, "ina")
    reserve(lab, count=3)
    reserve(lab, count=4)
    leases = class_of(lab)
    reserve(lab, **NEXT)
    go_to(lab, 1.5 * HOUR_S)
    assert ends(lab) == {lease.id: OVER for lease in leases}


def test_free_slots_are_taken_first(lab: World) -> None:
    """Nobody makes way where there is room beside them."""
    class_of(lab, count=3)
    reserve(lab, **NEXT, count=4)
    go_to(lab, 1.5 * HOUR_S)
    assert ends(lab) == {}


def test_nobody_needs_it(lab: World) -> None:
    """Without anything reserved after it a lease outlasts its class."""
    class_of(lab)
    go_to(lab, 2 * HOUR_S)
    assert ends(lab) == {}


def test_who_reserved_nothing_runs_on(lab: World) -> None:
    """Strangers on the places of a class are never cut off for it."""
    lab.pool.reservations.cancel(1, "ina")
    strangers = [lab.run(f"stranger{n}") for n in range(7)]
    reserve(lab, from_time="12:00", to_time="14:00")
    go_to(lab, 1.9 * HOUR_S)
    assert strangers and ends(lab) == {}


def test_the_same_people_may_go_on(lab: World) -> None:
    """Into its own course's next class a lease runs on, unless somebody waits for one there."""
    class_of(lab)
    reserve(lab, from_time="12:00", to_time="14:00")
    go_to(lab, 1.9 * HOUR_S)
    assert ends(lab) == {}
    lab.ask("second group", course="deep")
    lab.pool.turn()
    assert list(ends(lab).values()) == [OVER]


def test_what_runs_on_makes_way_later(lab: World) -> None:
    """A lease that outlasted its class ends when the places of a later one are first kept."""
    leases = class_of(lab)
    reserve(lab, **{**NEXT, "from_time": "13:00"})
    go_to(lab, 2.5 * HOUR_S)
    kept = TUESDAY + 3 * HOUR_S - LEAD_S
    assert ends(lab) == {lease.id: kept for lease in leases}
    assert "from 12:45 CEST on" in class_ends.ends(lab.pool.view, HOUR_S)[leases[0].id].reason


def test_a_class_held_once_is_not_forgotten(lab: World) -> None:
    """When its only time is over the leases drawn from it still make way, after a restart too."""
    lab.pool.reservations.cancel(1, "ina")
    reserve(lab, weekdays=(), date="2026-06-02", from_time="10:30", to_time="12:00")
    go_to(lab, HOUR_S / 2)
    leases = class_of(lab)
    reserve(lab, **NEXT)
    for _ in range(2):
        go_to(lab, 2 * HOUR_S + 60)
        assert ends(lab) == {lease.id: lab.at for lease in leases}
        lab.crash()


def test_more_than_were_reserved(lab: World) -> None:
    """Who has a slice of the course beyond what is reserved drew on nothing."""
    lab.pool.reservations.cancel(1, "ina")
    reserve(lab, count=2)
    go_to(lab, 901)
    leases = class_of(lab)
    reserve(lab, **NEXT)
    go_to(lab, 1.5 * HOUR_S)
    assert ends(lab) == {lease.id: OVER for lease in leases[:2]}
