"""The pool's own estimates: from its rows, told with ticket and offer."""

from collections.abc import Callable

import pytest
from tests.pool_settings import changed

from miglab_api.leases import LeaseView
from miglab_api.tickets import WaitEstimate

from .conftest import SETTINGS, World
from .test_queue import placed
from .test_reservations import RULES, TUESDAY, reserve

MakeWorld = Callable[..., World]


@pytest.fixture
def full(make_world: MakeWorld) -> tuple[World, list[LeaseView]]:
    """Seven leases of an hour, begun five minutes apart, without extensions."""
    world = make_world(changed(SETTINGS, lease_s=3600.0, extensions=0))
    leases = []
    for n in range(7):
        leases.append(world.run(f"student{n}"))
        world.pass_time(300)
    return world, leases


def free_in(world: World, lease: LeaseView) -> float:
    """When its guarantee, and then a warning, is over."""
    assert lease.guaranteed_until is not None
    return lease.guaranteed_until + 300 - world.at


def told(world: World, ticket: int) -> WaitEstimate | None:
    world.pool.estimate()
    return world.pool.tickets.find(ticket).estimate


def test_first_and_second_are_told(full: tuple[World, list[LeaseView]]) -> None:
    """Without a history those in line are told the ends of the leases, first and second."""
    world, leases = full
    first, second = world.ask("ada"), world.ask("bob")
    assert world.pool.tickets.find(first.id).estimate is None
    for ticket, lease in ((first, leases[0]), (second, leases[1])):
        found = told(world, ticket.id)
        assert found is not None
        assert (found.low_s, found.high_s) == (0.0, pytest.approx(free_in(world, lease)))


def test_news_are_a_change(full: tuple[World, list[LeaseView]]) -> None:
    """A new estimate wakes who waits for news; the same again does not."""
    world, _ = full
    world.ask("ada")
    before = world.pool.version
    world.pool.estimate()
    changed = world.pool.version
    assert changed > before
    world.pool.estimate()
    assert world.pool.version == changed
    assert world.pool.snapshot().waiting[0].estimate is not None


def test_time_counts_down(full: tuple[World, list[LeaseView]]) -> None:
    """What is left of an estimate gets shorter while it is not made anew."""
    world, _ = full
    ticket = world.ask("ada")
    found = told(world, ticket.id)
    world.pass_time(60)
    later = world.pool.tickets.find(ticket.id).estimate
    assert found is not None
    assert later is not None
    assert later.high_s == pytest.approx(found.high_s - 60)


def test_history_is_used(make_world: MakeWorld) -> None:
    """Once some leases are over the estimate is made from how long they lasted."""
    world = make_world()
    for n in range(6):
        lease = world.run(f"early{n}")
        world.pass_time(600 + 60 * n)
        world.end(lease)
    for n in range(7):
        world.run(f"student{n}")
    found = told(world, world.ask("ada").id)
    assert found is not None
    assert "6 leases" in found.basis
    assert 550 < found.low_s <= found.high_s < 910


def test_nothing_known_nothing_said(make_world: MakeWorld) -> None:
    """Leases that nobody ends in a new lab: no figure is invented."""
    world = make_world(changed(SETTINGS, enabled=False))
    for n in range(7):
        world.run(f"student{n}")
    assert told(world, world.ask("ada").id) is None


def test_the_offer_says_it_too(full: tuple[World, list[LeaseView]]) -> None:
    """The spawn page is told what somebody would wait who asked now, for each shape."""
    world, leases = full
    world.pool.estimate()
    offers = {one.shape: one.wait for one in world.pool.offers(["everyone"]).courses[0].shapes}
    small, whole = offers["1g.5gb"], offers["7g.40gb"]
    assert small is not None
    assert whole is not None
    assert small.high_s == pytest.approx(free_in(world, leases[0]))
    assert whole.high_s == pytest.approx(free_in(world, leases[6]))
    assert offers["cpu"] is None


def test_a_server_that_stops_frees_at_once(full: tuple[World, list[LeaseView]]) -> None:
    """A lease being released ends in seconds, whatever its end was."""
    world, leases = full
    ticket = world.ask("ada")
    world.pool.leases.release(leases[6].id, "ada", "stop")
    found = told(world, ticket.id)
    assert found is not None
    assert found.high_s == 0.0


def test_whole_gpus_are_estimated(make_world: MakeWorld) -> None:
    """Who waits for a whole GPU with MIG off waits for the end of the lease on it."""
    world = make_world(changed(SETTINGS, lease_s=3600.0, extensions=0), mig=False)
    world.pool.sample()
    lease = world.run("ada", "full")
    found = told(world, world.ask("bob", "full").id)
    assert found is not None
    assert found.high_s == pytest.approx(free_in(world, lease))


def test_what_is_foreign_never_ends(make_world: MakeWorld) -> None:
    """Somebody who wants a place where something foreign lies has no estimate."""
    world = make_world(changed(SETTINGS, lease_s=3600.0))
    item = placed("1g.5gb", 6)
    info = world.driver.gpus()[0]
    world.driver.create(info.uuid, info.geometry.by_name["1g.5gb"], item.placement)
    world.pool.reconcile()
    world.run("bob", "3g.20gb")
    assert told(world, world.ask("ada", "7g.40gb").id) is None


def test_a_class_ahead_is_reckoned_with(make_world: MakeWorld) -> None:
    """Slices whose leases end while they are kept are told as free when the class lets go of them.

    When it has been cancelled they are told as free at the leases' ends.
    """
    world = make_world(changed(RULES, lease_s=3000.0, extensions=0))
    world.at = TUESDAY - 3600
    world.pool.reconcile()
    for n in range(7):
        world.run(f"student{n}")
    made = reserve(world)
    ticket = world.ask("ada")
    found = told(world, ticket.id)
    assert found is not None
    assert (found.likely_s, found.high_s) == (3600 + 900, 3600 + 3300)
    world.pool.reservations.cancel(made.id, "ina")
    again = told(world, ticket.id)
    assert again is not None
    assert again.high_s == 3300


def test_slots_reserved_now_are_told_as_well(make_world: MakeWorld) -> None:
    """While a class keeps all that is free, strangers are told the end of its grace at best."""
    world = make_world(changed(RULES, lease_s=3000.0, extensions=0))
    world.at = TUESDAY - 60
    world.pool.reconcile()
    reserve(world)
    world.work()
    student, stranger = world.ask("ada", course="deep"), world.ask("bob")
    found = told(world, stranger.id)
    assert found is not None
    assert (found.likely_s, found.high_s) == (60 + 900, 60 + 3300)
    assert world.pool.tickets.find(student.id).estimate is None  # it has its place
