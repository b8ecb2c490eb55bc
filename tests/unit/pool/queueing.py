"""Who of a queue goes next, as the pool decides it: the order, then the first that fits."""

from collections.abc import Iterable, Sequence

from miglab_pool.queue.order import first_that_fits
from miglab_pool.queue.rules import ALL_EQUAL, FairShareUsage, Grant, Waiting, in_order
from miglab_pool.state.placement import GpuOccupancy


def next_grant(
    waiting: Iterable[Waiting], gpus: Sequence[GpuOccupancy], usage: FairShareUsage = ALL_EQUAL
) -> Grant | None:
    """The grant to one of those who wait, given in any order; None when nobody can go now."""
    return first_that_fits(in_order(waiting, usage), gpus)
