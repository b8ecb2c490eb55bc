"""Views of the pool: when a new one is made, and what it shares with the last."""

from dataclasses import replace

from tests.unit.pool.conftest import World

from miglab_pool.gpu.readings import Usage


def test_a_view_is_the_same_while_nothing_changes(world: World) -> None:
    """One object for a version and a second; another when either has passed."""
    first, snapshot = world.pool.view, world.pool.snapshot()
    world.pass_time(0.5)
    assert world.pool.view is first and world.pool.snapshot() is snapshot
    world.pass_time(1)
    later = world.pool.view
    assert later is not first
    assert later.version == first.version
    world.ask("ada")
    view_after_request = world.pool.view
    assert view_after_request.version > first.version
    assert not later.tickets  # a view never changes
    (gpu,) = view_after_request.gpus
    assert view_after_request.gpus[gpu] is later.gpus[gpu]
    world.work()
    assert world.pool.view.gpus[gpu] is not view_after_request.gpus[gpu]


def test_what_is_undone_is_in_no_view(world: World) -> None:
    """Inside a transaction the store's view has what was put; nobody else sees it, ever."""
    version = world.pool.version
    ticket = world.ledger.state.tickets[world.ask("ada").id]
    world.pool.tickets.cancel(ticket.id, "ada")
    published = world.pool.view
    try:
        with world.pool.store.write() as tx:
            tx.put(replace(ticket, id=world.ledger.new_id("ticket")))
            assert world.pool.store.view(tx.at).tickets
            assert world.pool.view is published
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert not world.pool.store.view().tickets
    assert not world.pool.view.tickets
    assert world.pool.version > version


def test_small_moves_are_seen_and_wake_nobody(world: World) -> None:
    """The reclaimer sees the activity that was read last, also where it is no news to readers."""
    lease = world.run("ada")
    world.pool.sample()
    version, (number,) = world.pool.version, world.ledger.state.leases[lease.id].slices
    store = world.pool.store
    store.slice_usage = {number: Usage(7, (), 0.5)}
    store.publish_change(list(world.ledger.state.gpus), is_news=False)
    assert world.pool.version == version
    (case,) = world.pool.leases.lease_cases()
    assert case.activity_pct == 0.5
