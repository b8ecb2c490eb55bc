"""A job as the pages know tickets and leases, and how long it is likely to wait.

Pure: a picture in, a view out.  The wait is estimated from the ends of those who hold slices, and
observed stays.  `squeue --start` is right for the first of a node only: backfill plans whole nodes,
and takes every job for as long as its time limit.  Here slices of a type become free one by one, in
many futures that are drawn from observed stays as the pool draws them; nine in ten end within the
range.
"""

import heapq
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

from miglab_api.leases import LeaseState, LeaseView
from miglab_api.tickets import TicketState, TicketView, WaitEstimate
from miglab_api.wording import duration
from miglab_slurm.picture import ClusterPicture
from miglab_slurm.records import SlurmJob, Tag
from miglab_slurm.site import SlurmShape
from miglab_slurm.words import why_it_ended, why_it_waits

GONE = "Your job is no longer in Slurm's queue. Start again."


def ticket_of(picture: ClusterPicture, job: SlurmJob) -> TicketView:
    """A job of ours as a ticket: its position by Slurm's order, and our own estimate."""
    tag, site = tag_of_ours(job), picture.site
    shape = site.shapes.get(tag.shape)
    words = why_it_waits(job.reason)
    state, reason, message = _state(job, shape)
    position, waiting, wait = None, 0, None
    if shape is not None and job.is_pending and state is TicketState.WAITING:
        message = words.message
        if message and job.started_at is not None:
            message += f" Slurm plans its start in {duration(job.started_at - picture.at)}."
        if not words.is_limit:  # else it is in no queue
            ids = [each.id for each in picture.queue(shape)]
            position = ids.index(job.id) + 1 if job.id in ids else len(ids) + 1
            waiting = max(len(ids), position)
        if not message:
            wait = estimate(picture, shape, job.id)
    is_offered = state is TicketState.OFFERED
    return TicketView(
        id=job.id,
        user=tag.user,
        server=tag.server,
        course=tag.course,
        shape=tag.shape,
        state=state,
        position=position,
        waiting=waiting,
        estimate=wait,
        created_at=job.submitted_at,
        expires_at=(job.started_at or picture.at) + site.offer_s if is_offered else None,
        reason=reason,
        message=message,
        lease=job.id if is_offered else None,
    )


def lease_of(job: SlurmJob) -> LeaseView:
    """A job that runs, as what a server holds; Slurm's cgroup is the fence, so it has no UUIDs."""
    tag = tag_of_ours(job)
    return LeaseView(
        id=job.id,
        ticket=job.id,
        generation=0,
        user=tag.user,
        server=tag.server,
        course=tag.course,
        shape=tag.shape,
        state=LeaseState.GRANTED,
        granted_at=job.started_at or job.submitted_at,
        ends_at=job.ends_at,
    )


def ticket_gone(job: int) -> TicketView:
    """A ticket of which Slurm knows nothing any more."""
    return TicketView(
        id=job, user=None, server=None, course="", shape="", state=TicketState.EXPIRED,
        created_at=0, reason="job-gone", message=GONE,
    )  # fmt: skip


def tag_of_ours(job: SlurmJob) -> Tag:
    """The tag of a job that is known to have one."""
    assert job.tag is not None
    return job.tag


def _state(job: SlurmJob, shape: SlurmShape | None) -> tuple[TicketState, str, str]:
    """A job's state as a ticket's, with the reason and the words for one that is over."""
    if job.is_running:
        return TicketState.OFFERED, "", ""
    if job.state == "CANCELLED":
        return TicketState.CANCELLED, "cancelled", "Your job was cancelled. Start again."
    if job.has_ended or job.state == "COMPLETING":
        said = why_it_ended(job.state, shape.time_limit_min if shape else 0)
        return TicketState.EXPIRED, "job-ended", said or "Your job ended before your server began."
    if why_it_waits(job.reason).never:
        return TicketState.REFUSED, "never-runs", why_it_waits(job.reason).message
    return TicketState.WAITING, "", ""


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
    found = waits.get(job, waits[None])
    if found is None:
        return None
    low, likely, high = found
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
    held_s = [_held_s(picture, job) for job in picture.holders(shape)]
    futures = [_starts(picture, shape, stays) for stays in _futures(stays_s, held_s)]
    names: list[int | None] = [*(job.id for job in picture.queue(shape)), None]
    found: dict[int | None, Range | None] = dict.fromkeys(names)
    for name, *starts in zip(names, *futures, strict=True):
        known = sorted(start for start in starts if start is not None)
        if len(known) == len(futures):
            low, likely, high = (known[round(each * (len(known) - 1))] for each in QUANTILES)
            found[name] = low, likely, high
    return found


def _futures(stays_s: Sequence[float], held_s: Sequence[float]) -> Iterator[Stays]:
    """Draws of observed stays; without any: all leave now, half-way to their limit, or at it."""
    if not stays_s:
        yield from (_fraction(part) for part in (0.0, 0.5, 1.0))
        return
    # Only here: every hub loads this package's spawner, and the pool's code only where it is used.
    from miglab_pool.queue.estimate import Lengths

    seen = [*((stay, True) for stay in stays_s), *((stay, False) for stay in held_s)]
    lengths = Lengths(seen, random.Random(len(stays_s)))  # noqa: S311 -- no secret
    for _ in range(FUTURES):
        yield lambda held_s, limit_s: min(limit_s, lengths.draw(beyond_s=held_s) - held_s)


def _starts(picture: ClusterPicture, shape: SlurmShape, stays: Stays) -> Sequence[float | None]:
    """When each of the queue has its slices in one future, and last one who would ask now."""
    nodes, gres_type = picture.serving_nodes(shape), shape.gres_type
    free_at = [0.0 for node in nodes for _ in range(node.free(gres_type))]
    for holder in picture.holders(shape):
        left_s = max(0.0, (holder.ends_at or picture.at) - picture.at)
        free_at += [stays(_held_s(picture, holder), left_s)] * holder.gres[gres_type]
    heapq.heapify(free_at)
    found: list[float | None] = []
    for job in picture.queue(shape):
        count = job.gres[gres_type]
        begins = _take(free_at, count)
        found.append(begins)
        if begins is not None:
            ends = begins + stays(0.0, shape.time_limit_min * 60.0)
            for _ in range(count):
                heapq.heappush(free_at, ends)
    return [*found, _take(free_at, shape.count)]


def _held_s(picture: ClusterPicture, job: SlurmJob) -> float:
    return max(0.0, picture.at - (job.started_at or picture.at))


def _take(free_at: list[float], count: int) -> float | None:
    """When so many slices are free; they are taken."""
    if len(free_at) < count:
        return None
    return max(heapq.heappop(free_at) for _ in range(count))


def _fraction(part: float) -> Stays:
    return lambda _held_s, limit_s: part * limit_s


def stays_of(
    before: Mapping[int, SlurmJob], after: Mapping[int, SlurmJob], at: float
) -> dict[int, SlurmJob]:
    """The jobs that ran in the one picture and run no more in the other."""
    return {
        job.id: after.get(job.id, job)
        for job in before.values()
        if job.is_running and (job.id not in after or after[job.id].has_left)
    }
