"""The hold for the first in the queue: where it lies, and who may start beside it."""

import random
from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest
from tests.pool_settings import changed

from miglab_api.tickets import TicketState
from miglab_pool.gpu.geometry import Placed
from miglab_pool.queue.backfill import first_that_fits, hold
from miglab_pool.queue.rules import Waiting, in_order
from miglab_pool.state.placement import GpuOccupancy

from .conftest import SETTINGS, World
from .test_queue import gpu, placed

MakeWorld = Callable[..., World]
HOUR_S = 3600.0
BIG, SMALL = Waiting(1, ("7g.40gb",), 0.0), Waiting(2, ("1g.5gb",), 1.0)
HALF = placed("3g.20gb", 0)


def occupancy(name: str, *live: tuple[Placed, float]) -> GpuOccupancy:
    """A GPU on which these lie, each until its end."""
    by_mask = {item.placement.mask: ends_at for item, ends_at in live}
    return replace(gpu(name, *(item for item, _ in live)), frees_at=by_mask)


@pytest.mark.parametrize("ends_at", [0.0, HOUR_S, inf])
def test_nobody_starts_in_the_hold(ends_at: float) -> None:
    """Whenever the lease there ends: the room behind the first only empties."""
    assert first_that_fits([BIG, SMALL], [occupancy("a", (HALF, ends_at))]) is None


def test_beside_it_they_go_ahead() -> None:
    """Where there is room elsewhere a small one goes there."""
    busy = occupancy("b", (placed("3g.20gb", 4), 9 * HOUR_S))
    grant = first_that_fits([BIG, SMALL], [occupancy("a", (HALF, HOUR_S)), busy])
    assert grant is not None
    assert (grant.ticket, grant.choices[0].gpu) == (2, "b")


def test_the_room_that_is_surely_free_soonest() -> None:
    """By the ends that are set, whatever the number of leases; without ends where fewest lie."""
    one_long = occupancy("a", (HALF, 3 * HOUR_S))
    two_short = occupancy("b", (placed("1g.5gb", 0), 60.0), (placed("1g.5gb", 1), 90.0))
    assert list(hold(BIG.profiles, [one_long, two_short])) == ["b"]
    endless = [gpu("a", placed("1g.5gb", 0), placed("1g.5gb", 1)), gpu("b", HALF)]
    assert list(hold(BIG.profiles, endless)) == ["b"]


def test_nothing_is_held_for_the_impossible() -> None:
    """For what no GPU can hold there is no room, and who comes behind it is served."""
    assert hold(("9g.1gb",), [gpu("a")]) == {}


@pytest.mark.parametrize("seed", range(6))
def test_nobody_starves(seed: int) -> None:
    """Under more demand than the GPUs can ever serve everybody is served by the leases' length."""
    dice, names, length_s, every_s = random.Random(seed), ("a", "b"), 2 * HOUR_S, 200.0
    queued: list[Waiting] = []
    live: list[tuple[str, Placed, float]] = []
    waited_s: list[float] = []
    for number in range(2000):
        now = number * every_s
        live = [one for one in live if one[2] > now]
        shape = dice.choice(("1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"))
        queued += [Waiting(number, (shape,), now)] * (number < 100)
        while True:
            gpus = [occupancy(g, *((p, e) for on, p, e in live if on == g)) for g in names]
            grant = first_that_fits(in_order(queued), gpus)
            if grant is None:
                break
            one = next(each for each in queued if each.ticket == grant.ticket)
            queued.remove(one)
            (choice,) = grant.choices
            placed_there = Placed(choice.profile, choice.placement)
            live.append((choice.gpu, placed_there, now + length_s * dice.uniform(0.2, 1.0)))
            waited_s.append(now - one.since)
    assert (queued, len(waited_s)) == ([], 100)


def test_a_whole_gpu_is_waited_for(make_world: MakeWorld) -> None:
    """In the pool: a small one behind a big shape waits, and both are served in turn."""
    world = make_world(changed(SETTINGS, ageing_s=0.0))
    lease = world.run("ada", "3g.20gb")
    big, small = world.ask("bob", "7g.40gb"), world.ask("cy", "1g.5gb")
    world.work()
    states = [world.pool.tickets.find(one.id).state for one in (big, small)]
    assert states == [TicketState.WAITING, TicketState.WAITING]
    world.end(lease)
    world.work()
    states = [world.pool.tickets.find(one.id).state for one in (big, small)]
    assert states == [TicketState.OFFERED, TicketState.WAITING]
