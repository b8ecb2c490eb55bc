"""Warned before it is taken back: what the states allow, and who waits for what."""

from collections.abc import Callable

import pytest
from tests.pool_settings import changed
from tests.refusals import because
from tests.unit.pool.conftest import SETTINGS, World
from tests.unit.pool.reservations.test_reservations import before_class, reserve

from miglab_api.leases import LeaseState, LeaseView, WarningKind
from miglab_pool.refused import Refused

MakeWorld = Callable[..., World]
IDLE, TIME, NEEDED = WarningKind.IDLE, WarningKind.TIME, WarningKind.NEEDED


def warned(world: World, kind: WarningKind = IDLE) -> LeaseView:
    lease = world.run("ada")
    return world.pool.leases.warn(lease.id, kind, "Unused.", world.at + 60)


@pytest.mark.parametrize("in_s", [60.0, 0.0, -60.0])
def test_a_warning_says_when_and_why(world: World, in_s: float) -> None:
    """In view and ledger, forgotten by no restart, and never over before it began."""
    number = world.run("ada").id
    lease = world.pool.leases.warn(number, IDLE, "Unused.", world.at + in_s)
    assert lease.state is LeaseState.WARNED and lease.warning is not None
    assert (lease.warning.at, lease.warning.reclaim_at) == (world.at, world.at + max(0.0, in_s))
    assert (lease.warning.reason, lease.warning.keepalives_left) == ("Unused.", 2)
    note = world.ledger.history("lease", str(lease.id))[0]
    assert (note["to_state"], note["by"], note["reason"]) == ("warned", "reclaimer", "Unused.")
    world.crash()
    assert world.pool.leases.find(lease.id).warning == lease.warning


def test_it_ends_without_a_trace_in_the_view(world: World) -> None:
    """A warning that is over is over; why is in the ledger."""
    lease = warned(world)
    after = world.pool.leases.end_warning(lease.id, "reclaimer", "It is in use.")
    assert (after.state, after.warning) == (LeaseState.RUNNING, None)
    assert world.ledger.history("lease", str(lease.id))[0]["reason"] == "It is in use."
    assert world.pool.leases.end_warning(lease.id, "reclaimer", "again") == after


def test_the_end_of_a_warning_is_moved(world: World) -> None:
    """It stays staff's, in the words that the holder is told now; else nothing moves."""
    lease, calm = world.run("bob"), world.run("ada")
    world.pool.staff.reclaim(lease.id, "Exam.", "person:ina", 600.0)
    assert world.pool.leases.move_end(calm.id, world.at + 1, "Sooner.") == calm
    after = world.pool.leases.move_end(
        lease.id, world.at + 60, "Sooner.", "The lab closes."
    ).warning
    assert after is not None and after.kind is WarningKind.STAFF
    assert (after.reclaim_at, after.reason) == (world.at + 60, "The lab closes.")
    world.crash()
    assert world.pool.leases.find(lease.id).warning == after
    world.end(lease)
    over = world.pool.leases.move_end(lease.id, world.at + 60, "Sooner.")
    assert over.state is LeaseState.RELEASED


def test_only_what_is_in_use_is_warned(world: World) -> None:
    """A grant without a server, and a lease that ends, are nobody's to warn."""
    granted, lease = world.grant("ada"), world.run("bob")
    world.pool.leases.release(lease.id, "bob", "done")
    for number in (granted.id, lease.id):
        with pytest.raises(Refused, check=because("stale-lease")):
            world.pool.leases.warn(number, IDLE, "Unused.", world.at + 60)


def test_a_harder_end_takes_over(world: World) -> None:
    """An idle warning gives way to one that activity does not end; never the other way round."""
    lease = warned(world)
    harder = world.pool.leases.warn(lease.id, NEEDED, "Somebody needs it.", world.at + 30).warning
    assert harder is not None and harder.kind is NEEDED
    with pytest.raises(Refused):
        world.pool.leases.warn(lease.id, IDLE, "Unused.", world.at + 60)
    for call in (
        lambda: world.pool.leases.keepalive(lease.id, "ada"),
        lambda: world.pool.leases.extend(lease.id, 60, "ada"),
    ):
        with pytest.raises(Refused, match="Somebody needs it"):
            call()


def test_no_stays(make_world: MakeWorld) -> None:
    """A site may allow none; the refusal says what to do, and is in the ledger."""
    world = make_world(changed(SETTINGS, keepalives=0))
    lease = warned(world)
    with pytest.raises(Refused, check=because("no-keepalive")):
        world.pool.leases.keepalive(lease.id, "ada")
    assert world.pool.leases.find(lease.id).state is LeaseState.WARNED
    assert "Run something" in world.ledger.history("lease", str(lease.id))[0]["reason"]


def test_extending_counts_as_being_there(make_world: MakeWorld) -> None:
    """An extension ends an idle warning too, as often as one may extend."""
    world = make_world(changed(SETTINGS, lease_s=600.0, extensions=1))
    lease = warned(world)
    assert world.pool.leases.extend(lease.id, 60, "ada").warning is None
    (case,) = world.pool.leases.lease_cases()
    assert case.keepalive_until == world.at + SETTINGS.reclaim.still_here_s
    world.pool.leases.warn(lease.id, IDLE, "Unused.", world.at + 60)
    with pytest.raises(Refused):
        world.pool.leases.extend(lease.id, 60, "ada")


def waits_for(world: World, lease: LeaseView) -> int:
    return world.pool.leases.find(lease.id).others_wait


def test_others_wait(world: World) -> None:
    """Everyone counts who could use the place; a big shape where its place is kept alone."""
    leases = [world.run(f"student{n}") for n in range(7)]
    assert waits_for(world, leases[0]) == 0
    ticket_ids = [world.ask(name).id for name in ("one", "two", "three")]
    assert {waits_for(world, lease) for lease in leases} == {3}
    for ticket in ticket_ids:
        world.pool.tickets.cancel(ticket, "one")
    world.ask("big", "3g.20gb")
    inside = {lease.slices[0].start for lease in leases if waits_for(world, lease)}
    assert inside in ({0, 1, 2, 3}, {4, 5, 6})


def test_who_cannot_use_it_does_not_wait_for_it(world: World) -> None:
    """It frees nothing for its own user, while the pool is paused, or on a GPU that is silent."""
    lease = world.run("ada", "7g.40gb")
    world.ask("ada", server="mine")
    assert waits_for(world, lease) == 0
    world.ask("bob")
    assert waits_for(world, lease) == 1
    world.pool.staff.pause("Repairs.", "root")
    assert waits_for(world, lease) == 0
    world.pool.staff.resume("root")
    with world.pool.store.write() as tx:
        world.pool.store.mark_gpu(tx, world.driver.gpus()[0].uuid, "unknown", "it is stuck")
    assert waits_for(world, lease) == 0


def test_a_class_waits_for_its_reserved_slots(make_world: MakeWorld) -> None:
    """From its lead on a reservation counts for the leases that lie in its places, no others."""
    world = before_class(make_world, changed(SETTINGS, lease_s=600.0), by_s=1800)
    leases = [world.run(f"student{n}") for n in range(7)]
    reserve(world, course="vision", count=2)
    assert sum(waits_for(world, lease) for lease in leases) == 0
    world.pass_time(29 * 60)
    world.pool.turn()
    assert sum(waits_for(world, lease) for lease in leases) == 2
