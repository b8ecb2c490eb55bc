"""A server that runs without a GPU keeps its place, and learns how its ticket ended."""

import pytest
from tests.refusals import because

from miglab_api.tickets import TicketState, TicketView
from miglab_pool.refused import Refused

from .conftest import SETTINGS, World


def full(world: World) -> None:
    """Seven others hold all there is."""
    for n in range(7):
        world.run(f"student{n}")


def ticket_of(
    world: World, user: str = "ada", server: str = "", known: int | None = None
) -> TicketView:
    found = world.pool.tickets.server_status(user, server, known).ticket
    assert found is not None
    return found


def test_asking_keeps_the_position_through_a_restart(world: World) -> None:
    """The ticket outlives many grace times and a restart of the pool while its server asks.

    Neither another server of the same student nor another student attends a ticket.
    """
    full(world)
    ticket, other = world.ask("ada", server="lab 2"), world.ask("ada", server="lab")
    for _ in range(4):
        world.pass_time(SETTINGS.pool.attend_grace_s - 1)
        found = ticket_of(world, server="lab 2")
        assert world.pool.tickets.server_status("ada", "").ticket is None
        assert world.pool.tickets.server_status("bo", "lab", other.id).ticket is None
        world.work()
    assert (found.id, found.position) == (ticket.id, 1)
    assert world.pool.tickets.find(other.id).reason == "unattended"
    world.crash()
    found = ticket_of(world, server="lab 2")
    assert (found.id, found.state) == (ticket.id, TicketState.WAITING)


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
    ended = ticket_of(world, known=ticket.id)
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


def instead(world: World, ticket: int) -> list[str]:
    return [offer.shape for offer in world.pool.tickets.alternatives(ticket)]


def test_what_is_held_for_oneself_is_an_alternative(world: World) -> None:
    """Who waits for the whole GPU may have any part of it that is free; and gets it."""
    world.run("bo", "3g.20gb")
    ticket = world.wait("ada", "7g.40gb")
    assert instead(world, ticket.id) == ["1g.5gb", "2x1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb"]
    assert world.ask("ada", "4g.20gb").id != ticket.id
    world.work()
    assert ticket_of(world).state is TicketState.OFFERED


def test_what_is_free_is_granted_in_the_same_step(world: World) -> None:
    """Nothing can come between giving up the place and the slices."""
    world.run("bo", "3g.20gb")
    before = world.ask("ada", "7g.40gb")
    after = world.ask("ada", "4g.20gb", only_if_free=True)
    lease = world.pool.leases.of_server("ada", "")
    assert lease is not None and lease.ticket == after.id
    assert world.pool.tickets.find(before.id).state is TicketState.CANCELLED
    assert world.ask("ada", "4g.20gb", only_if_free=True).id == after.id  # asked for already


def test_what_somebody_took_meanwhile_costs_nobody_the_position(world: World) -> None:
    """Seen free, then given to another: refused in words and in the ledger, the place is kept."""
    world.run("bo", "3g.20gb")
    ticket = world.ask("ada", "7g.40gb")
    assert "4g.20gb" in instead(world, ticket.id)
    behind = world.ask("dee", "7g.40gb")
    other = world.ask("cy", "4g.20gb")
    world.pool.staff.put_in_front(other.id, "Exam.", "person:ina")
    world.work()
    with pytest.raises(Refused, check=because("not-free")) as no:
        world.ask("ada", "4g.20gb", only_if_free=True)
    assert no.value.status == 409
    for _ in range(2):
        line = world.pool.snapshot().waiting
        assert [(one.id, one.position) for one in line] == [(ticket.id, 1), (behind.id, 2)]
        world.crash()
    (refused,) = world.ledger.history("ticket", str(other.id + 2))  # + 1 is the one undone
    assert (refused["to_state"], refused["reason"]) == ("refused", no.value.message)


def test_a_refusal_undoes_what_others_would_have_had(world: World) -> None:
    """The place given up would have served who is behind: as it is not, neither is the other."""
    world.run("bo", "3g.20gb")
    ticket = world.ask("ada", "7g.40gb")
    behind = world.ask("cy", "3g.20gb")
    told: list[tuple[str, str]] = []
    world.pool.store.unserved = lambda *ended: told.append(ended)
    with pytest.raises(Refused, check=because("not-free")):
        world.ask("ada", "4g.20gb", only_if_free=True)
    world.work()
    assert world.pool.leases.of_server("cy", "") is None and told == []
    assert [one.id for one in world.pool.snapshot().waiting] == [ticket.id, behind.id]
    world.ask("ada", "4g.20gb")  # giving up the place without more is another matter
    assert told == [("cancelled", "replaced")]


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
