"""The hold for the first in the queue: where it lies, and who may start beside it."""

from dataclasses import replace
from math import inf

import pytest

from miglab_pool.gpu.geometry import Placed
from miglab_pool.queue.backfill import first_that_fits, hold
from miglab_pool.queue.rules import Waiting
from miglab_pool.state.placement import GpuOccupancy

from .test_queue import gpu, placed

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
