"""The wall clock is set, or the pool stands still: nobody loses a place or waits for it."""

import pytest

from miglab_api.leases import LeaseState
from miglab_api.tickets import TicketState
from miglab_pool.pool import Pool

from .conftest import World

Clocks = tuple[World, list[float]]


@pytest.fixture
def clocks(world: World) -> Clocks:
    """A pool that watches both clocks; the list is the one that never jumps."""
    steady = [50.0]
    parts = (world.settings, world.ledger, world.driver, world.holders)
    world.pool = Pool(*parts, lambda: world.at, lambda: steady[0])
    world.pool.reconcile()
    return world, steady


def busy(world: World) -> tuple[int, int, int]:
    """A grant that was taken, an offer, and one who waits; all attended now."""
    lease = world.grant("ada", "4g.20gb")
    offered = world.ask("bob", "3g.20gb")
    waiting = world.wait("cy", "7g.40gb")
    assert world.pool.tickets.find(offered.id).state == TicketState.OFFERED
    return lease.id, offered.id, waiting.id


def states(world: World, lease_id: int, offered_id: int, waiting_id: int) -> list[str]:
    tickets = [str(world.pool.tickets.find(number).state) for number in (offered_id, waiting_id)]
    return [str(world.pool.leases.find(lease_id).state), *tickets]


HELD = [LeaseState.GRANTED, TicketState.OFFERED, TicketState.WAITING]
OVER = [LeaseState.EXPIRED, TicketState.ASIDE, TicketState.EXPIRED]
STEPS = {"set forward": (172_800.0, 0.0), "stopped": (600.0, 600.0), "set back": (-3600.0, 0.0)}


@pytest.mark.parametrize(("wall_s", "steady_s"), STEPS.values(), ids=STEPS)
def test_all_graces_begin_anew(clocks: Clocks, wall_s: float, steady_s: float) -> None:
    """Nobody is thrown out for what the clock did; afterwards the graces are what they were."""
    world, steady = clocks
    numbers = busy(world)
    world.at += wall_s
    steady[0] += steady_s
    world.pool.turn()
    assert states(world, *numbers) == HELD
    started_at = world.pool.store.started_at
    for _ in range(700):  # turns as they come, nobody attending
        world.at += 1.02
        steady[0] += 1
        world.pool.turn()
    assert world.pool.store.started_at == started_at, "ordinary time renews nothing"
    assert states(world, *numbers) == OVER


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_a_failed_destroy_pauses_for_as_long_as_it_would_have(
    clocks: Clocks, step_s: float
) -> None:
    """One failed destroy and a step of an hour: it is tried again when it was to be."""
    world, steady = clocks
    lease = world.run("ada")
    world.fail("nvmlGpuInstanceDestroy", times=2)
    world.end(lease)
    (before,) = world.ledger.state.slices.values()
    pause_s = before.retry_at - world.at
    world.at += step_s
    world.work()
    (after,) = world.ledger.state.slices.values()
    assert (after.attempts, after.retry_at - world.at) == (1, pytest.approx(pause_s))
    world.at += pause_s
    steady[0] += pause_s
    world.work()
    (again,) = world.ledger.state.slices.values()
    assert again.attempts == 2
    assert again.retry_at - world.at > 1.5 * pause_s, "the second pause is longer"


def test_a_clock_set_back_leaves_the_order_and_the_longest_wait(clocks: Clocks) -> None:
    """Who comes after a step stands behind, and who came before waits no longer for it."""
    world, _ = clocks
    world.grant("ada", "7g.40gb")
    first = world.ask("bob", "7g.40gb")
    before = first.created_at - world.at
    world.at -= 3600
    world.pool.turn()
    second = world.ask("cy", "7g.40gb")
    assert [row.id for row in world.pool.view.queued] == [first.id, second.id]
    assert world.pool.tickets.find(first.id).created_at - world.at == pytest.approx(before)


def test_the_clock_is_set_only_with_what_counts_from_it(
    clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two turns nothing sees a step; a ledger that refuses it is asked again."""
    world, _ = clocks
    numbers = busy(world)
    before = world.pool.now
    world.at += 172_800
    assert world.pool.now == before

    def refuse() -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(world.ledger, "commit", refuse)
        with pytest.raises(OSError, match="full"):
            world.pool.turn()
    assert world.pool.now == before
    world.pool.turn()
    assert world.pool.now == world.at
    assert states(world, *numbers) == HELD


def test_a_restart_on_a_clock_set_back_keeps_nothing_for_longer(world: World) -> None:
    """What is ahead of the clock counts from the restart; a destroy is tried after its pause."""
    numbers = busy(world)
    world.at -= 86_400
    world.crash()
    world.pool.turn()
    assert states(world, *numbers) == HELD
    world.at += 700
    world.work()
    assert states(world, *numbers) == OVER
    lease = world.run("dee", "7g.40gb")
    world.fail("nvmlGpuInstanceDestroy", times=1)
    world.end(lease)
    world.at -= 86_400
    world.crash()
    world.at += world.settings.tuning.retry_max_s
    world.work()
    (row,) = world.ledger.state.slices.values()
    assert (row.state, row.attempts) == ("free", 0), "destroyed and made anew"
