"""The line: one answer for each state in which a person can stand."""

import pytest
from tests.unit.pool.conftest import World

from miglab_api.leases import LeaseState, WarningKind
from miglab_api.line import LineAct, Standing, StandingState


def standing(world: World, user: str = "ada") -> Standing:
    """The only one of a person."""
    (only,) = world.pool.tickets.line(user).standings
    return only


def test_whoever_asked_for_nothing_stands_nowhere(world: World) -> None:
    """The answer is empty, and has the service's moment all the same."""
    line = world.pool.tickets.line("ada")
    assert (line.standings, line.now) == ((), world.at)


def test_from_the_queue_to_the_release(world: World) -> None:
    """Each step of a ticket and its lease is one state, with the acts that fit."""
    whole = world.run("bo", "7g.40gb")
    ticket = world.ask("ada", "1g.5gb")
    in_line = standing(world)
    assert (in_line.state, in_line.position, in_line.ticket) == ("waiting", 1, ticket.id)
    assert in_line.acts == (LineAct.RESUME, LineAct.LEAVE)
    world.end(whole)
    world.work()
    offer = standing(world)
    assert (offer.state, offer.since) == (StandingState.OFFERED, world.at)
    assert offer.until is not None and offer.until > world.at
    assert offer.acts == (LineAct.TAKE, LineAct.DECLINE)
    lease = world.pool.tickets.take(ticket.id)
    assert standing(world).state is StandingState.STARTING
    world.pool.leases.attach(lease.id, lease.generation, world.new_holder())
    world.pool.leases.running(lease.id)
    held = standing(world)
    assert (held.state, held.lease) == (StandingState.HOLDING, lease.id)
    assert held.guaranteed_until is not None and held.guaranteed_until > world.at
    assert held.acts[-2:] == (LineAct.OPEN, LineAct.RELEASE)
    world.pool.leases.release(lease.id, "ada", "done")
    assert (standing(world).state, standing(world).acts) == (StandingState.RELEASING, ())


def test_who_is_granted_a_slice_that_is_still_made_stands_in_line_once(world: World) -> None:
    """The lease exists, and its ticket waits until the slice does."""
    ticket = world.ask("ada", "7g.40gb")
    world.pool.turn()
    (lease,) = world.pool.store.current.leases.values()
    assert (lease.state, lease.ticket) == (LeaseState.GRANTED, ticket.id)
    assert (standing(world).state, standing(world).ticket) == (StandingState.WAITING, ticket.id)


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        (WarningKind.IDLE, LineAct.KEEPALIVE),
        (WarningKind.TIME, LineAct.EXTEND),
        (WarningKind.NEEDED, LineAct.OPEN),
    ],
)
def test_a_warning_offers_what_ends_it(world: World, kind: WarningKind, first: LineAct) -> None:
    """The pool refuses an extension of what somebody needs, so nobody is offered one."""
    lease = world.run("ada")
    world.pool.leases.warn(lease.id, kind, "Said so.", world.at + 60)
    warned = standing(world)
    assert (warned.state, warned.message) == (StandingState.WARNED, "Said so.")
    assert (warned.since, warned.until) == (world.at, world.at + 60)
    assert warned.acts[0] is first
    if first is LineAct.EXTEND:
        world.pool.leases.extend(lease.id, warned.extension_s, "ada")
        assert standing(world).state is StandingState.HOLDING


def test_what_needs_an_answer_comes_first(world: World) -> None:
    """Of two servers, the one whose slice goes back stands before the one that waits."""
    lease = world.run("ada")
    world.ask("ada", "7g.40gb", server="lab2")
    world.pool.leases.warn(lease.id, WarningKind.IDLE, "Unused.", world.at + 60)
    states = [one_state.state for one_state in world.pool.tickets.line("ada").standings]
    assert states == [StandingState.WARNED, StandingState.WAITING]


def test_asking_attends_nothing(world: World) -> None:
    """A page that only looks keeps nobody's position."""
    world.run("bo", "7g.40gb")
    ticket = world.ask("ada", "1g.5gb")
    expires_at = ticket.expires_at
    world.pass_time(10.0)
    world.pool.tickets.line("ada")
    assert world.pool.tickets.find(ticket.id).expires_at == expires_at
