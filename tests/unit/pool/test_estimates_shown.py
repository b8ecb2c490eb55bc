"""The pool's own estimates: from its rows, told with ticket and offer."""

from collections.abc import Callable

import pytest
from tests.pool_settings import changed

from miglab_api.leases import LeaseView
from miglab_api.tickets import TicketView, WaitEstimate
from miglab_pool.queue import gather

from .conftest import SETTINGS, World
from .test_reservations import RULES, before_class, reserve

MakeWorld = Callable[..., World]
OF_AN_HOUR = changed(SETTINGS, lease_s=3600.0, extensions=0)


@pytest.fixture
def full(make_world: MakeWorld) -> tuple[World, list[LeaseView]]:
    """Seven leases of an hour, begun five minutes apart, without extensions."""
    world = make_world(OF_AN_HOUR)
    leases = []
    for n in range(7):
        leases.append(world.run(f"student{n}"))
        world.pass_time(300)
    return world, leases


def free_in(world: World, lease: LeaseView) -> float:
    """When its guarantee, and then a warning, is over."""
    assert lease.guaranteed_until is not None
    return lease.guaranteed_until + 300 - world.at


def told(world: World, ticket: TicketView) -> WaitEstimate:
    world.pool.estimate()
    found = world.pool.tickets.find(ticket.id).estimate
    assert found is not None
    return found


def test_first_and_second_are_told(full: tuple[World, list[LeaseView]]) -> None:
    """Without a history they are told the ends of the leases, which come nearer."""
    world, leases = full
    for user, lease in (("ada", leases[0]), ("bob", leases[1])):
        ticket = world.ask(user)
        assert ticket.estimate is None
        found = told(world, ticket)
        assert (found.low_s, found.high_s) == (0.0, pytest.approx(free_in(world, lease)))
    world.pass_time(60)
    later = world.pool.tickets.find(ticket.id).estimate
    assert later is not None and later.high_s == pytest.approx(found.high_s - 60)


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


def test_history_is_used(world: World) -> None:
    """Once some leases are over the estimate is made from how long they lasted."""
    for n in range(6):
        lease = world.run(f"early{n}")
        world.pass_time(600 + 60 * n)
        world.end(lease)
    for n in range(7):
        world.run(f"student{n}")
    found = told(world, world.ask("ada"))
    assert "6 leases" in found.basis
    assert 550 < found.low_s <= found.high_s < 910


def test_history_is_short(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long leases last is told by those that ended last, who comes by those that began last."""
    monkeypatch.setattr(gather, "LATELY", 2)
    leases = []
    for user in ("a", "b", "c"):
        leases.append(world.run(user))
        world.pass_time(100)
    for after_s, lease in ((0, leases[1]), (200, leases[2]), (500, leases[0])):
        world.pass_time(after_s)
        world.end(lease)
    lately = gather.look(world.pool.view).lately
    assert [round(lasted_s, -2) for lasted_s in lately.lasted_s] == [300, 1000]
    assert [one.user for one in lately.comers] == ["b", "c"]


def test_the_offer_says_it_too(full: tuple[World, list[LeaseView]]) -> None:
    """The spawn page is told what somebody would wait who asked now, for each shape."""
    world, leases = full
    world.pool.estimate()
    offers = {one.shape: one.wait for one in world.pool.offers(["everyone"]).courses[0].shapes}
    for shape, lease in (("1g.5gb", leases[0]), ("7g.40gb", leases[6])):
        wait = offers[shape]
        assert wait is not None and wait.high_s == pytest.approx(free_in(world, lease))
    assert offers["cpu"] is None


def test_a_server_that_stops_frees_at_once(full: tuple[World, list[LeaseView]]) -> None:
    """A lease being released ends in seconds, whatever its end was."""
    world, leases = full
    ticket = world.ask("ada")
    world.pool.leases.release(leases[6].id, "ada", "stop")
    assert told(world, ticket).high_s == 0.0


def test_slots_reserved_now_are_told_as_well(make_world: MakeWorld) -> None:
    """While a class keeps all that is free, strangers are told the end of the class at worst."""
    world = before_class(make_world, changed(RULES, lease_s=3000.0, extensions=0), by_s=60)
    reserve(world)
    world.work()
    student, stranger = world.ask("ada", course="deep"), world.ask("bob")
    found = told(world, stranger)
    assert found.high_s == 60 + 2 * 3600
    assert world.pool.tickets.find(student.id).estimate is None  # it has its place
