"""Who waits keeps their place while they ask, is asked in the end, and learns how it ended."""

import pytest
from tests.refusals import because
from tests.unit.pool.conftest import SETTINGS, World

from miglab_api.tickets import Purpose, TicketState, TicketView
from miglab_pool.queue.order import ANSWER_S, ASIDE_S
from miglab_pool.refused import Refused


@pytest.fixture
def full(world: World) -> World:
    """Nothing is free, and nobody's lease ends by itself."""
    for n in range(7):
        world.run(f"holder{n}")
    return world


def ticket_of(
    world: World, user: str = "ada", server: str = "", ticket_id: int | None = None
) -> TicketView:
    ticket = world.pool.tickets.server_status(user, server, ticket_id).ticket
    assert ticket is not None
    return ticket


def test_asking_keeps_the_position_through_a_restart(full: World) -> None:
    """The ticket outlives many grace times and a restart of the pool while its server asks.

    Neither another server of the same student nor another student attends a ticket.
    """
    ticket, other = full.ask("ada", server="lab 2"), full.ask("ada", server="lab")
    for _ in range(4):
        full.pass_time(SETTINGS.pool.attend_grace_s - 1)
        ticket_now = ticket_of(full, server="lab 2")
        assert full.pool.tickets.server_status("ada", "").ticket is None
        assert full.pool.tickets.server_status("bo", "lab", other.id).ticket is None
        full.work()
    assert (ticket_now.id, ticket_now.position) == (ticket.id, 1)
    assert full.pool.tickets.find(other.id).reason == "unattended"
    full.crash()
    ticket_now = ticket_of(full, server="lab 2")
    assert (ticket_now.id, ticket_now.state) == (ticket.id, TicketState.WAITING)


@pytest.mark.parametrize("is_granted", [False, True])
def test_how_a_known_ticket_ended_is_told(world: World, is_granted: bool) -> None:
    """Who names the ticket it had learns why it is over; who names none does not."""
    ticket = world.wait("ada", "7g.40gb")
    if is_granted:
        world.pool.tickets.take(ticket.id)
    else:
        world.pool.tickets.cancel(ticket.id, "ada")
        world.ask("bo", "7g.40gb")
        ticket = world.ask("ada", "7g.40gb")
    world.work_after(max(SETTINGS.pool.attach_s, SETTINGS.pool.attend_grace_s))
    assert world.pool.tickets.server_status("ada", "").ticket is None
    ended = ticket_of(world, ticket_id=ticket.id)
    reason = "never-attached" if is_granted else "unattended"
    assert (ended.state, ended.reason) == (TicketState.EXPIRED, reason)
    assert world.states() == ["free"]


def test_a_lapsed_offer_is_asked_for_again(world: World) -> None:
    """The same ticket waits on, with its age; not another's, and only by the server."""
    ticket = world.wait("ada", "at least 9 GiB", course="vision")
    world.work_after(SETTINGS.pool.offer_s)
    with pytest.raises(Refused, check=because("not-in-course")):
        world.pool.tickets.requeue("ada", "", ticket.id, ["everyone"])
    again = world.pool.tickets.requeue("ada", "", ticket.id, ["vision"])
    assert (again.id, again.created_at) == (ticket.id, ticket.created_at)
    assert again.state is TicketState.WAITING
    for user, server in (("bo", ""), ("ada", "other")):
        with pytest.raises(Refused, check=because("unknown-ticket")):
            world.pool.tickets.requeue(user, server, ticket.id, ["vision"])


def test_who_holds_a_slice_waits_in_no_queue(world: World) -> None:
    """Else the place would age while the slice is used, and the next one come before all others."""
    lease = world.run("ada")
    with pytest.raises(Refused, check=because("already-done")):
        world.pool.tickets.requeue("ada", "", lease.ticket or 0, ["everyone"])
    assert world.pool.tickets.server_status("ada", "").ticket is None


def alternatives(world: World, ticket: int) -> list[str]:
    return [offer.shape for offer in world.pool.tickets.alternatives(ticket)]


def test_what_is_held_for_oneself_is_an_alternative(world: World) -> None:
    """Who waits for the whole GPU may have any part of it that is free; and gets it."""
    world.run("bo", "3g.20gb")
    ticket = world.wait("ada", "7g.40gb")
    assert alternatives(world, ticket.id) == [
        "1g.5gb",
        "2x1g.5gb",
        "2g.10gb",
        "3g.20gb",
        "4g.20gb",
    ]
    assert world.ask("ada", "4g.20gb").id != ticket.id
    world.work()
    assert ticket_of(world).state is TicketState.OFFERED


def test_what_is_free_is_granted_in_the_same_step(world: World) -> None:
    """Nothing can come between giving up the place and the slices."""
    world.run("bo", "3g.20gb")
    before = world.ask("ada", "7g.40gb")
    after = world.ask("ada", "4g.20gb", only_if_free=True)
    lease = world.pool.leases.lease_of_server("ada", "")
    assert lease is not None and lease.ticket == after.id
    assert world.pool.tickets.find(before.id).state is TicketState.CANCELLED
    assert world.ask("ada", "4g.20gb", only_if_free=True).id == after.id  # asked for already


def test_what_somebody_took_meanwhile_costs_nobody_the_position(world: World) -> None:
    """Seen free, then given to another: refused in words and in the ledger, the place is kept."""
    world.run("bo", "3g.20gb")
    ticket = world.ask("ada", "7g.40gb")
    assert "4g.20gb" in alternatives(world, ticket.id)
    behind = world.ask("dee", "7g.40gb")
    other = world.ask("cy", "4g.20gb")
    world.pool.staff.put_in_front(other.id, "Exam.", "person:ina")
    world.work()
    with pytest.raises(Refused, check=because("not-free")) as no:
        world.ask("ada", "4g.20gb", only_if_free=True)
    assert no.value.status == 409
    for _ in range(2):
        line = world.pool.snapshot().waiting
        assert [(t.id, t.position) for t in line] == [(ticket.id, 1), (behind.id, 2)]
        world.crash()
    (refused,) = world.ledger.history("ticket", str(other.id + 2))  # + 1 is the one undone
    assert (refused["to_state"], refused["reason"]) == ("refused", no.value.message)


def test_a_refusal_undoes_what_others_would_have_had(world: World) -> None:
    """The place given up would have served who is behind: as it is not, neither is the other."""
    world.run("bo", "3g.20gb")
    ticket = world.ask("ada", "7g.40gb")
    behind = world.ask("cy", "3g.20gb")
    unserved: list[tuple[str, str]] = []
    world.pool.store.unserved = lambda *ended: unserved.append(ended)
    with pytest.raises(Refused, check=because("not-free")):
        world.ask("ada", "4g.20gb", only_if_free=True)
    world.work()
    assert world.pool.leases.lease_of_server("cy", "") is None and unserved == []
    assert [t.id for t in world.pool.snapshot().waiting] == [ticket.id, behind.id]
    world.ask("ada", "4g.20gb")  # giving up the place without more is another matter
    assert unserved == [("cancelled", "replaced")]


def test_an_offer_is_kept_when_another_shape_is_not_free(world: World) -> None:
    """Nor is who has no place put in line by asking for what is free only."""
    world.run("bo", "3g.20gb")
    world.wait("ada")
    for user in ("ada", "cy"):
        with pytest.raises(Refused, check=because("not-free")):
            world.ask(user, "7g.40gb", only_if_free=True)
        world.work()
    assert ticket_of(world).state is TicketState.OFFERED
    assert world.pool.tickets.server_status("cy", "").ticket is None


LONGEST_S = SETTINGS.pool.longest_wait_s


def attend_for(world: World, number: int, for_s: float) -> TicketView:
    """Time passes while the waiting page is open."""
    for _ in range(int(for_s / 60)):
        world.pass_time(60)
        world.pool.tickets.attend(number)
        world.work()
    return world.pool.tickets.find(number)


def test_who_has_waited_long_is_asked(full: World) -> None:
    """They wait on meanwhile, in their position; to ask again is the answer, and loses no age."""
    ticket = full.ask("ada")
    assert attend_for(full, ticket.id, LONGEST_S - 60).answer_by is None
    answer_pending = attend_for(full, ticket.id, 60)
    assert (answer_pending.state, answer_pending.position) == (TicketState.WAITING, 1)
    assert answer_pending.answer_by == full.at + ANSWER_S
    attend_for(full, ticket.id, ANSWER_S - 60)
    assert full.ask("ada").id == ticket.id
    later = attend_for(full, ticket.id, LONGEST_S - 60)
    assert (later.state, later.answer_by) == (TicketState.WAITING, None)
    assert later.created_at == ticket.created_at


def ticket_set_aside(world: World, shape: str = "1g.5gb") -> TicketView:
    """A ticket of ada, who was asked and did not answer."""
    ticket = attend_for(world, world.ask("ada", shape).id, LONGEST_S + ANSWER_S)
    assert (ticket.state, ticket.reason) == (TicketState.ASIDE, "not-answered")
    assert "return to the queue" in ticket.message
    return ticket


def test_a_ticket_that_steps_aside_returns_with_its_age(full: World) -> None:
    """It counts for nobody, is offered nothing, also after a crash; then it is the first again."""
    ticket = ticket_set_aside(full)
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
    ticket = ticket_set_aside(full)
    full.work_after(ASIDE_S)
    over = full.pool.tickets.find(ticket.id)
    assert (over.state, over.reason) == (TicketState.EXPIRED, "aside-too-long")
    again = ticket_set_aside(full)
    assert again.id != ticket.id
    other = ticket_set_aside(full, "2g.10gb")
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
    attend_for(full, ticket.id, LONGEST_S + ANSWER_S - 60)
    full.fail("nvmlDeviceCreateGpuInstance")
    lease = full.pool.leases.live()[0]
    full.holders.present.discard(lease.holder)
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
    over = attend_for(world, ticket.id, LONGEST_S + 60)
    assert (over.state, over.reason) == (TicketState.REFUSED, "waited-too-long")
    assert "60 minutes" in over.message or "1 hour" in over.message
