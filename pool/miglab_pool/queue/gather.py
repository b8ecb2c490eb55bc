"""What the pool's rows say of the future: gathers a `Scene`, keeps what came of it.

The working out takes long and needs no lock; looking and keeping are short and hold it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState, WarningKind
from miglab_api.tickets import WaitEstimate
from miglab_pool.gpu.geometry import Geometry, Placed, Placement, Profile
from miglab_pool.gpu.shapes import profiles_of
from miglab_pool.ledger.rows import FULL, GPU_OK, LeaseRow, SliceRow
from miglab_pool.queue import offers
from miglab_pool.queue import order as queue
from miglab_pool.queue.estimate import Holding, Lately, Scene
from miglab_pool.queue.rules import DAY_S, HOUR_S, Asker, Use, WaitEstimates, Waiting
from miglab_pool.reservations import slots
from miglab_pool.state.placement import GpuOccupancy
from miglab_pool.state.view import PoolView

MOST_QUEUED = 60  # further back, a student is told only the position
LATELY = 200  # leases that history is made of
SOON_S = 0.0  # what is being scrubbed or made anew is free in seconds

WHOLE = Profile(FULL, -1, -1, 0, 1, 0, 0, 1, (0,))
WHOLE_GPU = Geometry(1, (WHOLE,))
WHOLE_PLACE = Placed(WHOLE, Placement(0, 1))


def look(view: PoolView) -> Scene:
    """What the next estimates are made from."""
    claimants_with_slot = slots.claimants_with_slot(view)
    queued = tuple(one for one in queue.served(view) if one.ticket not in claimants_with_slot)
    shapes = () if len(queued) > MOST_QUEUED else offers.offered_shapes(view)
    return Scene(
        queued=queued[:MOST_QUEUED],
        gpus=(*slots.open_gpus(view), *_whole(view)),
        holdings=tuple(_holdings(view, view.at)),
        lately=_lately(view, view.at),
        usage=queue.fair_share_usage(view),
        lease_s=view.settings.pool.lease_s + view.settings.reclaim.warning_s,
        borrow_s=view.settings.pool.borrow_s,
        longest_wait_s=view.settings.pool.longest_wait_s,
        asking=frozenset(profiles_of(str(shape)) for shape in shapes),
    )


def shown(now: float, found: Mapping[Asker, WaitEstimate], before: WaitEstimates) -> WaitEstimates:
    """What came of a scene, to be remembered beside what each ticket was told first."""
    due: dict[Asker, float] = {
        one: before.due.get(one, now + said.high_s)
        for one, said in found.items()
        if isinstance(one, int)
    }
    return WaitEstimates(now, found, due)


def is_news(before: WaitEstimates, now: WaitEstimates) -> bool:
    """Whether a reader would see another figure."""
    return _in_minutes(before) != _in_minutes(now)


def _in_minutes(estimates: WaitEstimates) -> dict[Asker, tuple[int, int]]:
    said = estimates.of.items()
    return {one: (round(it.low_s / 60), round(it.high_s / 60)) for one, it in said}


# -- the scene ------------------------------------------------------------------------------------


def _whole(view: PoolView) -> Iterator[GpuOccupancy]:
    """The GPUs with MIG off, as if each could be cut into one slice."""
    for gpu in view.gpus.values():
        if gpu.is_whole:
            live = () if gpu.is_free_whole else (WHOLE_PLACE,)
            fixed = () if gpu.slices else live
            usable, course = gpu.row.state == GPU_OK, gpu.course
            yield GpuOccupancy(gpu.uuid, WHOLE_GPU, live, (), usable, fixed, course=course)


def _holdings(view: PoolView, at: float) -> Iterator[Holding]:
    """All that will become free: leases, what is reserved, and what is cleared or made."""
    for lease in view.leases.values():
        yield _holding(view, lease, at)
    for row in view.slices.values():
        if row.lease is None and row.state in (SliceState.SCRUBBING, SliceState.MAKING):
            yield Holding(tuple(_slices(view, [row])), 0.0, SOON_S)
    ends_s = {one.row.id: one.time.ends_at - at for one in slots.reserving(view)}
    for reserved, slot in slots.slots_with_reservation(view):
        yield Holding(((slot.gpu, slot.placed_slice),), 0.0, ends_s[reserved.id])


def _holding(view: PoolView, lease: LeaseRow, at: float) -> Holding:
    slices = tuple(_slices(view, view.slices_of(lease)))
    if lease.state == LeaseState.RELEASING:
        return Holding(slices, 0.0, SOON_S)
    age_s = 0.0 if lease.attached_at is None else at - lease.attached_at
    if lease.reclaim_at is not None and lease.warn_kind != WarningKind.IDLE:
        left_s = max(0.0, lease.reclaim_at - at)
        return Holding(slices, age_s, left_s, is_borrow=lease.is_borrow)
    end_s = _left_s(replace(lease, reclaim_at=None).frees_at(view.settings), at)
    more_s = lease.extensions_left(view.settings) * view.settings.pool.extension_s
    last_end_s = None if end_s is None else end_s + more_s
    idle_end_s = _left_s(lease.reclaim_at, at)
    return Holding(slices, age_s, last_end_s, idle_end_s, lease.is_borrow)


def _left_s(ends_at: float | None, at: float) -> float | None:
    return None if ends_at in (None, inf) else max(0.0, ends_at - at)


def _slices(view: PoolView, rows: list[SliceRow]) -> Iterator[tuple[str, Placed]]:
    for row in rows:
        if row.profile == FULL:
            yield row.gpu, WHOLE_PLACE
        elif view.facts[row.gpu].is_partitionable:
            yield row.gpu, view.placed(row)


def _lately(view: PoolView, at: float) -> Lately:
    uses = [use for use in view.usage.all if use.began is not None]
    over = sorted((use for use in uses if use.ended is not None), key=lambda use: use.ended or 0.0)
    recent = sorted(uses, key=lambda use: use.began or 0.0)[-LATELY:]
    return Lately(
        lasted_s=_lengths(use for use in over if not use.is_borrow),
        borrowed_s=_lengths(use for use in over if use.is_borrow),
        comers=tuple(_comer(use) for use in recent),
        every_s=_every_s(recent, at),
    )


def _lengths(over: Iterable[Use]) -> tuple[float, ...]:
    """Of the last ones; shortest first."""
    lately = list(over)[-LATELY:]
    return tuple(sorted((use.ended or 0) - (use.began or 0) for use in lately))


def _comer(use: Use) -> Waiting:
    asked, is_borrow = profiles_of(use.shape), use.is_borrow
    return Waiting(0, asked, 0.0, use.course, use.user, size=use.size, is_borrow=is_borrow)


def _every_s(uses: list[Use], at: float) -> float | None:
    """The mean time between two starts: of this hour if there were some, else of this day."""
    for window_s in (HOUR_S, DAY_S):
        starts = sum((use.began or 0.0) > at - window_s for use in uses)
        if starts > 2:
            return window_s / starts
    return None
