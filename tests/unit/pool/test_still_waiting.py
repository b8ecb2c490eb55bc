"""Nobody loses a place in the queue without being asked whether they still wait."""

import pytest

from miglab_api.tickets import Purpose, TicketState, TicketView
from miglab_pool.queue.order import ANSWER_S, ASIDE_S
from miglab_pool.refused import Refused

from .conftest import SETTINGS, World

LONGEST_S = SETTINGS.pool.longest_wait_s


@pytest.fixture
def full(world: World) -> World:
    """Nothing is free, and nobody's lease ends by itself."""
    for n in range(7):
        world.run(f"holder{n}")
    return world


def attended(world: World, number: int, for_s: float) -> TicketView:
    """Time passes while the waiting page is open."""
    for _ in range(int(for_s / 60)):
        world.pass_time(60)
        world.pool.tickets.attend(number)
        world.work()
    return world.pool.tickets.find(number)


def test_who_has_waited_long_is_asked(full: World) -> None:
    """They wait on meanwhile, in their position; to ask again is the answer, and loses no age."""
    ticket = full.ask("ada")
    assert attended(full, ticket.id, LONGEST_S - 60).answer_by is None
    asked = attended(full, ticket.id, 60)
    assert (asked.state, asked.position) == (TicketState.WAITING, 1)
    assert asked.answer_by == full.at + ANSWER_S
    attended(full, ticket.id, ANSWER_S - 60)
    assert full.ask("ada").id == ticket.id
    later = attended(full, ticket.id, LONGEST_S - 60)
    assert (later.state, later.answer_by) == (TicketState.WAITING, None)
    assert later.created_at == ticket.created_at


def aside(world: World, shape: str = "1g.5gb") -> TicketView:
    """A ticket of ada, who was asked and did not answer."""
    found = attended(world, world.ask("ada", shape).id, LONGEST_S + ANSWER_S)
    assert (found.state, found.reason) == (TicketState.ASIDE, "not-answered")
    assert "return to the queue" in found.message
    return found


def test_a_ticket_that_steps_aside_returns_with_its_age(full: World) -> None:
    """It counts for nobody, is offered nothing, also after a crash; then it is the first again."""
    ticket = aside(full)
    full.work_after(ASIDE_S - 120)
    behind = full.ask("bob")
    assert (behind.position, behind.waiting) == (1, 1)
    full.crash()
    full.end(full.pool.leases.live()[0])
    assert full.pool.tickets.find(behind.id).state is TicketState.OFFERED
    assert full.pool.tickets.find(ticket.id).state is TicketState.ASIDE
    full.ask("cy")
    assert full.ask("ada").id == ticket.id
    back = full.pool.tickets.find(ticket.id)
    assert (back.state, back.position, back.message) == (TicketState.WAITING, 1, "")


def test_nobody_is_aside_for_ever(full: World) -> None:
    """It ends after half a day, by another shape, or by leaving the queue; the next is new."""
    ticket = aside(full)
    full.work_after(ASIDE_S)
    over = full.pool.tickets.find(ticket.id)
    assert (over.state, over.reason) == (TicketState.EXPIRED, "aside-too-long")
    again = aside(full)
    assert again.id != ticket.id
    other = aside(full, "2g.10gb")
    assert full.pool.tickets.find(again.id).reason == "replaced"
    full.pool.tickets.cancel_of_server("ada", "", "server:ada/")
    assert full.pool.tickets.find(other.id).state is TicketState.CANCELLED


def test_an_offer_that_was_missed_goes_on(world: World) -> None:
    """The next in the queue is served, and whoever missed it returns by asking again."""
    ticket = world.wait("ada", "7g.40gb")
    world.pass_time(SETTINGS.pool.offer_s - 1)
    behind = world.ask("bob", "7g.40gb")
    world.work_after(1)
    aside = world.pool.tickets.find(ticket.id)
    assert (aside.state, aside.reason, aside.lease) == (TicketState.ASIDE, "offer-expired", None)
    assert world.pool.tickets.find(behind.id).state is TicketState.OFFERED
    with pytest.raises(Refused, match="still waits"):
        world.pool.tickets.take(ticket.id)
    assert world.ask("ada", "7g.40gb").state is TicketState.WAITING


def test_what_is_granted_in_the_last_second_is_served(full: World) -> None:
    """The time to create slices counts for nobody's answer; and what fails then waits on."""
    ticket = full.ask("ada")
    attended(full, ticket.id, LONGEST_S + ANSWER_S - 60)
    full.fail("nvmlDeviceCreateGpuInstance")
    lease = full.pool.leases.live()[0]
    full.holders.there.discard(lease.holder)
    full.pool.leases.release(lease.id, "hub", "stopped")
    for step_s in (59, 30, 30, 30, 30):
        full.pass_time(step_s)
        full.pool.tickets.attend(ticket.id)
        full.work()
    assert full.pool.tickets.find(ticket.id).state is TicketState.OFFERED


def test_a_measurement_is_not_asked(world: World) -> None:
    """It waits in a notebook's cell, which is told that nothing became free."""
    world.run("holder", "7g.40gb")
    ticket = world.ask("ada", purpose=Purpose.BORROW)
    over = attended(world, ticket.id, LONGEST_S + 60)
    assert (over.state, over.reason) == (TicketState.REFUSED, "waited-too-long")
    assert "60 minutes" in over.message or "1 hour" in over.message
