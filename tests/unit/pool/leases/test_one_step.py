"""A lease that is requested, granted and taken in one step."""

import pytest
from tests.refusals import because
from tests.unit.pool.conftest import Crash, World

from miglab_api.leases import LeaseState
from miglab_api.tickets import TicketState
from miglab_pool.refused import Refused


@pytest.fixture
def warm(world: World) -> World:
    """A free slice that exists, as somebody left it."""
    world.end(world.run("bo"))
    assert world.states() == ["free"]
    return world


def test_a_slice_that_is_free_is_taken_in_the_request_s_own_step(warm: World) -> None:
    """Without a turn; who repeats the request, as its answer was lost, gets the same lease."""
    requested = warm.ask_for_lease("ada")
    ticket, lease = requested.ticket, requested.taken_lease
    assert ticket.state is TicketState.TAKEN and lease is not None
    assert len(lease.uuids) == 1 and lease.state is LeaseState.GRANTED
    assert warm.ask_for_lease("ada") == requested
    assert warm.pool.tickets.take(ticket.id) == lease


def test_what_is_not_there_yet_is_waited_for(world: World) -> None:
    """A slice that must be created is granted, and offered once it exists."""
    requested = world.ask_for_lease("ada")
    ticket = requested.ticket
    assert requested.taken_lease is None and ticket.message == "Your slices are being made."
    world.work()
    assert world.pool.tickets.find(ticket.id).state is TicketState.OFFERED
    lease_taken = world.ask_for_lease("ada").taken_lease
    assert lease_taken is not None and lease_taken.ticket == ticket.id


def test_nobody_is_passed(warm: World) -> None:
    """Who was there first is served first, whoever's request serves the queue."""
    first = warm.ask("cy")
    requested = warm.ask_for_lease("ada", "7g.40gb")
    assert warm.pool.tickets.find(first.id).state is TicketState.OFFERED
    assert requested.taken_lease is None and requested.ticket.position == 1


def test_a_server_that_is_attached_gets_no_second_lease(warm: World) -> None:
    """It is refused, nothing is written, and the old holder is looked after."""
    lease = warm.run("ada")
    before = len(warm.ledger.history())
    with pytest.raises(Refused, check=because("still-attached")):
        warm.ask_for_lease("ada")
    assert len(warm.ledger.history()) == before
    assert lease.id in warm.pool.store.suspects
    assert leases_of_server(warm, "ada") == [lease.id]
    warm.end(lease)
    lease_taken = warm.ask_for_lease("ada").taken_lease
    assert lease_taken is not None and leases_of_server(warm, "ada") == [lease_taken.id] != [
        lease.id
    ]


def leases_of_server(world: World, user: str) -> list[int]:
    return [lease.id for lease in world.pool.leases.live(user) if not lease.server]


@pytest.mark.parametrize("point", range(2))
def test_a_pool_that_dies_in_the_step_has_done_all_of_it_or_nothing(
    warm: World, point: int
) -> None:
    """Before the commit nothing is leased; after it the repeated request finds the lease."""
    warm.fuse.points_left = point
    with pytest.raises(Crash):
        warm.ask_for_lease("ada")
    warm.crash()
    assert len(leases_of_server(warm, "ada")) == point
    lease_taken = warm.ask_for_lease("ada").taken_lease
    assert lease_taken is not None and leases_of_server(warm, "ada") == [lease_taken.id]


def test_a_lease_that_nobody_attaches_goes_back(warm: World) -> None:
    """The hub died after the answer: the slice is free again after the usual grace."""
    assert warm.ask_for_lease("ada").taken_lease is not None
    warm.work_after(warm.settings.pool.attach_s + 1)
    assert not leases_of_server(warm, "ada") and warm.states() == ["free"]
