"""Gathers the input of the wait estimates from the pool's rows, and records their result.

The simulation itself takes long and needs no lock; gathering and recording are short and hold it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState, WarningKind
from miglab_api.tickets import WaitEstimate
from miglab_pool.gpu.geometry import Geometry, Placement, Profile, ProfilePlacement
from miglab_pool.gpu.shapes import profiles_of
from miglab_pool.ledger.rows import FULL, GPU_OK, LeaseRow, SliceRow
from miglab_pool.queue import offers
from miglab_pool.queue import order as queue
from miglab_pool.queue.estimate import Holding, RecentHistory, SimulationInput
from miglab_pool.queue.rules import WaitingTicket
from miglab_pool.reservations import slots
from miglab_pool.schedule import DAY_S
from miglab_pool.state.fair_share import HOUR_S, LeaseUse
from miglab_pool.state.placement import GpuOccupancy
from miglab_pool.state.view import PoolView
from miglab_pool.state.wait_estimates import EstimateKey, WaitEstimates

MOST_QUEUED = 60  # further back, a student is told only the position
MOST_HISTORY = 200  # leases that history is made of
SOON_S = 0.0  # what is being scrubbed or made anew is free in seconds

WHOLE = Profile(FULL, -1, -1, 0, 1, 0, 0, 1, (0,))
WHOLE_GPU = Geometry(1, (WHOLE,))
WHOLE_PLACE = ProfilePlacement(WHOLE, Placement(0, 1))


def gather_input(view: PoolView) -> SimulationInput:
    """Return what the next estimates are simulated from."""
    claimants_with_slot = slots.claimants_with_slot(view)
    queued = tuple(
        ticket for ticket in queue.servable_tickets(view) if ticket.id not in claimants_with_slot
    )
    shapes = () if len(queued) > MOST_QUEUED else offers.offered_shapes(view)
    return SimulationInput(
        queued=queued[:MOST_QUEUED],
        gpus=(*slots.open_gpus(view), *_whole_gpus(view)),
        holdings=tuple(_holdings(view, view.at)),
        history=_recent_history(view, view.at),
        usage=queue.fair_share_usage(view),
        lease_s=view.settings.pool.lease_s + view.settings.reclaim.warning_s,
        borrow_s=view.settings.pool.borrow_s,
        longest_wait_s=view.settings.pool.longest_wait_s,
        prospective=frozenset(profiles_of(str(shape)) for shape in shapes),
    )


def record_estimates(
    now: float, estimates: Mapping[EstimateKey, WaitEstimate], before: WaitEstimates
) -> WaitEstimates:
    """Return new estimates, with the end of each ticket's wait as it was first estimated."""
    due: dict[EstimateKey, float] = {
        key: before.due.get(key, now + estimate.high_s)
        for key, estimate in estimates.items()
        if isinstance(key, int)
    }
    return WaitEstimates(now, estimates, due)


def differ_in_minutes(before: WaitEstimates, now: WaitEstimates) -> bool:
    """Whether the estimates differ in minutes, so that a reader would see another figure."""
    return _in_minutes(before) != _in_minutes(now)


def _in_minutes(estimates: WaitEstimates) -> dict[EstimateKey, tuple[int, int]]:
    return {
        key: (round(estimate.low_s / 60), round(estimate.high_s / 60))
        for key, estimate in estimates.of.items()
    }


# -- the scene ------------------------------------------------------------------------------------


def _whole_gpus(view: PoolView) -> Iterator[GpuOccupancy]:
    """Yield the GPUs whose MIG mode is off, each as a geometry of a single slice."""
    for gpu in view.gpus.values():
        if gpu.is_whole:
            live = () if gpu.is_free_whole else (WHOLE_PLACE,)
            immovable = () if gpu.slices else live
            usable, course = gpu.row.state == GPU_OK, gpu.course
            yield GpuOccupancy(gpu.uuid, WHOLE_GPU, live, (), usable, immovable, course=course)


def _holdings(view: PoolView, at: float) -> Iterator[Holding]:
    """Yield all that will become free: leases, reserved slots, and slices in the making."""
    for lease in view.leases.values():
        yield _holding(view, lease, at)
    for row in view.slices.values():
        if row.lease is None and row.state in (SliceState.SCRUBBING, SliceState.MAKING):
            yield Holding(tuple(_slices(view, [row])), 0.0, SOON_S)
    ends_s = {
        reservation.row.id: reservation.time.ends_at - at
        for reservation in slots.reservations_with_slots(view)
    }
    for reserved, slot in slots.slots_with_reservation(view):
        yield Holding(((slot.gpu, slot.placed_slice),), 0.0, ends_s[reserved.id])


def _holding(view: PoolView, lease: LeaseRow, at: float) -> Holding:
    slices = tuple(_slices(view, view.slices_of(lease)))
    if lease.state == LeaseState.RELEASING:
        return Holding(slices, 0.0, SOON_S)
    age_s = at - lease.granted_at
    if lease.reclaim_at is not None and lease.warn_kind != WarningKind.IDLE:
        left_s = max(0.0, lease.reclaim_at - at)
        return Holding(slices, age_s, left_s, is_borrow=lease.is_borrow)
    end_s = _remaining_s(replace(lease, reclaim_at=None).frees_at(view.settings), at)
    more_s = lease.extensions_left(view.settings) * view.settings.pool.extension_s
    last_end_s = None if end_s is None else end_s + more_s
    idle_end_s = _remaining_s(lease.reclaim_at, at)
    return Holding(slices, age_s, last_end_s, idle_end_s, lease.is_borrow)


def _remaining_s(ends_at: float | None, at: float) -> float | None:
    return None if ends_at in (None, inf) else max(0.0, ends_at - at)


def _slices(view: PoolView, rows: list[SliceRow]) -> Iterator[tuple[str, ProfilePlacement]]:
    for row in rows:
        if row.profile == FULL:
            yield row.gpu, WHOLE_PLACE
        elif view.unpaused_gpus[row.gpu].is_partitionable:
            yield row.gpu, view.placement_of(row)


def _recent_history(view: PoolView, at: float) -> RecentHistory:
    uses = [use for use in view.lease_uses.all if use.began_at is not None]
    over = sorted(
        (use for use in uses if use.ended_at is not None), key=lambda use: use.ended_at or 0.0
    )
    recent = sorted(uses, key=lambda use: use.began_at or 0.0)[-MOST_HISTORY:]
    return RecentHistory(
        lasted_s=_lengths(use for use in over if not use.is_borrow),
        borrowed_s=_lengths(use for use in over if use.is_borrow),
        arrivals=tuple(_arrival(use) for use in recent),
        interval_s=_arrival_interval_s(recent, at),
    )


def _lengths(over: Iterable[LeaseUse]) -> tuple[float, ...]:
    """Return how long the last leases that are over kept their slices, shortest first.

    A measurement takes seconds, and on a busy host creating its slice and starting its process take
    as long: whoever waits behind it waits for these too.
    """
    recent = list(over)[-MOST_HISTORY:]
    return tuple(sorted(use.occupied_s for use in recent))


def _arrival(use: LeaseUse) -> WaitingTicket:
    names, is_borrow = profiles_of(use.shape), use.is_borrow
    return WaitingTicket(0, names, 0.0, use.course, use.user, size=use.size, is_borrow=is_borrow)


def _arrival_interval_s(uses: list[LeaseUse], at: float) -> float | None:
    """Return the mean time between starts of the last hour, or of the last day if they were few."""
    for window_s in (HOUR_S, DAY_S):
        starts = sum((use.began_at or 0.0) > at - window_s for use in uses)
        if starts > 2:
            return window_s / starts
    return None
