"""Estimates a job's wait from the ends of those who hold slices, and from observed stays.  Pure.

`squeue --start` is right for the first of a node only: backfill plans whole nodes, and takes every
job for as long as its time limit.  Here slices of a type become free one by one, in many futures
that are drawn from observed stays as the pool draws them; nine in ten end within the range.
"""

import heapq
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

from miglab_api.tickets import WaitEstimate
from miglab_slurm.lab import SlurmShape
from miglab_slurm.picture import ClusterPicture
from miglab_slurm.records import SlurmJob

LEAST_STAYS = 5
"""Fewer observed stays say nothing."""
LATE_S = 60.0
"""Time limits are looked at every 30 s, then the job gets KillWait; then backfill must come by."""
FUTURES = 60
QUANTILES = (0.05, 0.5, 0.95)

Range = tuple[float, float, float]
"""Low, likely, high: seconds from the picture on."""
Stays = Callable[[float, float], float]
"""How much longer a job stays that has run so long and may run so much longer, in one future."""


def estimate(picture: ClusterPicture, shape: SlurmShape, job: int | None) -> WaitEstimate | None:
    """How long a job waits from the picture on; None for one that asks now: behind all others.

    Returns:
        None for no GPU, and where no slice of the type is on a node that takes jobs.
    """
    if not shape.gres:
        return None
    stays_s = picture.stays_s.get(shape.gres_type, ())
    enough = len(stays_s) >= LEAST_STAYS
    waits = _waits(picture, shape, tuple(stays_s) if enough else ())
    wait_range = waits.get(job, waits[None])
    if wait_range is None:
        return None
    low, likely, high = wait_range
    basis = (
        f"from {len(stays_s)} earlier stays" if enough else "from the time limits of those ahead"
    )
    return WaitEstimate(low_s=low, likely_s=likely, high_s=high + LATE_S, basis=basis)


@lru_cache(maxsize=16)
def _waits(
    picture: ClusterPicture, shape: SlurmShape, stays_s: tuple[float, ...]
) -> Mapping[int | None, Range | None]:
    """The range of everybody who waits for a shape, and of one who would ask now, once a picture.

    It is None for who can never be served on the nodes that serve now.
    """
    held_s = [_held_s(picture, job) for job, _ in picture.holders(shape)]
    futures = [_starts(picture, shape, stays) for stays in _futures(stays_s, held_s)]
    names: list[int | None] = [*(job.id for job in picture.queue(shape)), None]
    ranges: dict[int | None, Range | None] = dict.fromkeys(names)
    for name, *starts in zip(names, *futures, strict=True):
        ordered_starts = sorted(start for start in starts if start is not None)
        if len(ordered_starts) == len(futures):
            low, likely, high = (
                ordered_starts[round(quantile * (len(ordered_starts) - 1))]
                for quantile in QUANTILES
            )
            ranges[name] = low, likely, high
    return ranges


def _futures(stays_s: Sequence[float], held_s: Sequence[float]) -> Iterator[Stays]:
    """Draws of observed stays; without any: all leave now, half-way to their limit, or at it."""
    if not stays_s:
        yield from (_fraction(part) for part in (0.0, 0.5, 1.0))
        return
    # Only here: every hub loads this package's spawner, and the pool's code only where it is used.
    from miglab_pool.queue.estimate import LeaseLengths

    observed = [*((stay, True) for stay in stays_s), *((stay, False) for stay in held_s)]
    lengths = LeaseLengths(observed, random.Random(len(stays_s)))  # noqa: S311 -- no secret
    for _ in range(FUTURES):
        yield lambda held_s, limit_s: min(limit_s, lengths.draw(beyond_s=held_s) - held_s)


def _starts(picture: ClusterPicture, shape: SlurmShape, stays: Stays) -> Sequence[float | None]:
    """When each of the queue has its slices in one future, and last one who would ask now."""
    nodes, gres_type = picture.serving_nodes(shape), shape.gres_type
    free_slices = picture.room(shape).free_slices
    free_at = [0.0 for node in nodes for _ in range(free_slices(node))]
    for holder, count in picture.holders(shape):
        left_s = max(0.0, (holder.ends_at or picture.at) - picture.at)
        free_at += [stays(_held_s(picture, holder), left_s)] * count
    heapq.heapify(free_at)
    starts: list[float | None] = []
    for job in picture.queue(shape):
        count = job.asks_for(gres_type)
        begins = [_serve(free_at, count, stays, shape) for _ in range(job.tasks)]
        starts.append(begins[0])
    return [*starts, _take(free_at, shape.count)]


def _serve(free_at: list[float], count: int, stays: Stays, shape: SlurmShape) -> float | None:
    """When a job gets so many slices, which are taken until it leaves."""
    begins = _take(free_at, count)
    if begins is not None:
        ends = begins + stays(0.0, shape.time_limit_min * 60.0)
        for _ in range(count):
            heapq.heappush(free_at, ends)
    return begins


def _held_s(picture: ClusterPicture, job: SlurmJob) -> float:
    return max(0.0, picture.at - (job.started_at or picture.at))


def _take(free_at: list[float], count: int) -> float | None:
    """When so many slices are free; they are taken."""
    if len(free_at) < count:
        return None
    return max(heapq.heappop(free_at) for _ in range(count))


def _fraction(part: float) -> Stays:
    return lambda _held_s, limit_s: part * limit_s


def stays_of(before: Mapping[int, SlurmJob], after: Mapping[int, SlurmJob]) -> list[SlurmJob]:
    """The jobs that ran in the one picture and run no more in the other."""
    ran = [after.get(job.id, job) for job in before.values() if job.is_running]
    return [job for job in ran if job.id not in after or job.has_left]
