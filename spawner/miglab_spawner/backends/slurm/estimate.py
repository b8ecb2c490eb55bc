"""How long a job is likely to wait: from the ends of those who hold slices, and observed stays.

`squeue --start` is right for the first of a node only: backfill plans whole nodes, and takes every
job for as long as its time limit.  Here slices of a type become free one by one, in three futures:
one in which people leave early, one in which they leave as they usually do, one in which all stay.
Pure.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import Protocol

from miglab_api.slurm_site import SlurmShape
from miglab_api.tickets import WaitEstimate
from miglab_spawner.backends.slurm.picture import ClusterPicture
from miglab_spawner.backends.slurm.records import SlurmJob

LEAST_STAYS = 5
"""Fewer observed stays say nothing."""
LATE_S = 60.0
"""Time limits are looked at every 30 s, then the job gets KillWait; then backfill must come by."""


class Stays(Protocol):
    """How long a slice is held, at a quantile of what was observed."""

    def __call__(self, held_s: float, limit_s: float) -> float:
        """How much longer a job stays that has run so long and may run so much longer."""


def estimate(
    picture: ClusterPicture, shape: SlurmShape, job: int | None, stays_s: Sequence[float]
) -> WaitEstimate | None:
    """How long a job waits from the picture on; None for one that asks now: behind all others.

    Returns:
        None for no GPU, and where no slice of the type is on a node that takes jobs.
    """
    if not shape.gres:
        return None
    ahead = []
    for waiting in picture.queue(shape):
        if waiting.id == job:
            break
        ahead.append(waiting)
    enough = len(stays_s) >= LEAST_STAYS
    low, likely, high = (
        _wait(picture, shape, ahead, leaving)
        for leaving in (
            _observed(stays_s, 0.05) if enough else _fraction(0.0),
            _observed(stays_s, 0.5) if enough else _fraction(0.5),
            _observed(stays_s, 0.95) if enough else _fraction(1.0),
        )
    )
    if low is None or likely is None or high is None:
        return None
    reason = (
        f"from {len(stays_s)} earlier stays" if enough else "from the time limits of those ahead"
    )
    return WaitEstimate(
        low_s=low, likely_s=max(low, likely), high_s=max(likely, high) + LATE_S, basis=reason
    )


def _wait(
    picture: ClusterPicture, shape: SlurmShape, ahead: Sequence[SlurmJob], stays: Stays
) -> float | None:
    """Seconds until a job behind these has its slices, if everybody leaves like that."""
    free_at = [0.0 for node in picture.open_nodes(shape) for _ in range(node.free(shape.gres_type))]
    for holder in picture.holders(shape):
        held_s = picture.at - (holder.started_at or picture.at)
        left_s = max(0.0, (holder.ends_at or picture.at) - picture.at)
        free_at += [stays(held_s, left_s)] * holder.gres[shape.gres_type]
    heapq.heapify(free_at)
    limit_s = shape.time_limit_min * 60.0
    for other in ahead:
        begins = _take(free_at, other.gres[shape.gres_type])
        if begins is None:
            return None
        for _ in range(other.gres[shape.gres_type]):
            heapq.heappush(free_at, begins + stays(0.0, limit_s))
    return _take(free_at, shape.count)


def _take(free_at: list[float], count: int) -> float | None:
    """When so many slices are free; they are taken."""
    if len(free_at) < count:
        return None
    return max(heapq.heappop(free_at) for _ in range(count))


def _fraction(part: float) -> Stays:
    return lambda _held_s, limit_s: part * limit_s


def _observed(stays_s: Sequence[float], quantile: float) -> Stays:
    ordered = sorted(stays_s)

    def left(held_s: float, limit_s: float) -> float:
        longer = [stay - held_s for stay in ordered if stay > held_s]
        if not longer:
            return limit_s * quantile
        return min(limit_s, longer[min(len(longer) - 1, int(quantile * len(longer)))])

    return left


def stays_of(
    before: Mapping[int, SlurmJob], after: Mapping[int, SlurmJob], at: float
) -> dict[int, SlurmJob]:
    """The jobs that ran in the one picture and run no more in the other."""
    return {
        job.id: after.get(job.id, job)
        for job in before.values()
        if job.is_running and (job.id not in after or after[job.id].has_ended)
    }
