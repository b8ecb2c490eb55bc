"""Views of the pool: when a new one is made, and what it shares with the last."""

from dataclasses import replace

from miglab_pool.gpu.readings import Usage

from .conftest import World


def test_a_view_is_the_same_while_nothing_changes(world: World) -> None:
    """One object for a version and a second; another when either has passed."""
    first = world.pool.view
    world.pass_time(0.5)
    assert world.pool.view is first
    world.pass_time(1)
    later = world.pool.view
    assert later is not first
    assert later.version == first.version
    world.ask("ada")
    assert world.pool.view.version > first.version
    assert not later.tickets  # a view never changes


def test_only_touched_gpus_are_made_anew(world: World) -> None:
    """A ticket touches no GPU, a grant does."""
    (before,) = world.pool.view.gpus.values()
    world.ask("ada")
    (after,) = world.pool.view.gpus.values()
    assert after is before
    world.work()
    assert next(iter(world.pool.view.gpus.values())) is not before


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
    store.usage = {number: Usage(7, (), 0.5)}
    store.changed(list(world.ledger.state.gpus), is_news=False)
    assert world.pool.version == version
    (case,) = world.pool.leases.cases()
    assert case.activity_pct == 0.5
