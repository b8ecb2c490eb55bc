"""How long a wait can last at most, by the guarantees that run.  Reads only.

An estimate needs a history; on a first day there is none, but each lease in use is guaranteed until
a known moment, and then it ends for whoever waits.  What follows is no estimate: nobody waits
longer by the pool's rules.  Not foreseen is what staff do, a GPU or a server that fails, and the
student's own second server.

A ticket counts here if it asks for one slice, and none that comes later can pass it: it has aged,
staff put it in front, or the lab has one course and its student has used nothing lately.  Ahead of
it are the tickets before it in the queue and all older ones, also those aside, for they may return.
Each of these takes at most one of the leases that have room for every profile in question; the
next of them ends for the ticket itself.

While tickets wait, an open lease is warned at once and cannot be extended any more.  So until the
n-th ticket is served, a lease that none of them got was either guaranteed, which lasts no longer
than its guarantee and all its extensions, or some open lease was on its way to one of the n, which
takes no longer than `_handover_s` each.
"""

from collections.abc import Iterator
from math import inf

from miglab_api.leases import LeaseState
from miglab_api.tickets import TicketState, WaitEstimate
from miglab_pool.gpu.shapes import profiles_of
from miglab_pool.ledger.rows import FULL, LeaseRow, TicketRow
from miglab_pool.queue import offers
from miglab_pool.queue import order as queue
from miglab_pool.queue.wasteful_students import has_wasted_much
from miglab_pool.schedule import next_occurrence
from miglab_pool.settings import PoolSettings
from miglab_pool.state.placement import GpuOccupancy
from miglab_pool.state.view import PoolView, cached_on_instance
from miglab_pool.state.wait_estimates import EstimateKey

BASIS = "by the guarantees of the slices in use"
SETTLE_S = 60.0  # until a server that was told to end is gone, and its slice made anew
_MAY_BE_SERVED = (TicketState.WAITING, TicketState.OFFERED, TicketState.ASIDE)


def longest_waits(view: PoolView) -> dict[EstimateKey, WaitEstimate]:
    """Return the longest wait of each ticket, and of newcomers by profiles, where it is certain."""
    if view.paused or not view.settings.reclaim.acts or _has_shared_limit(view.settings):
        return {}
    waits_s = {**dict(_ticket_waits_s(view)), **dict(_newcomer_waits_s(view))}
    return {
        key: WaitEstimate(
            low_s=0.0, likely_s=longest_s, high_s=longest_s, basis=BASIS, is_longest=True
        )
        for key, longest_s in waits_s.items()
        if not _is_anything_planned(view, longest_s)
    }


# -- who is ahead ---------------------------------------------------------------------------------


def _ticket_waits_s(view: PoolView) -> Iterator[tuple[EstimateKey, float]]:
    """Yield the longest wait of each waiting ticket that has one, by its number."""
    positions, usage = queue.positions(view), queue.fair_share_usage(view)
    in_line = _tickets_that_may_be_served(view)
    for waiting in queue.servable_tickets(view):
        ticket = view.tickets[waiting.id]
        others = [other for other in in_line if other.id != ticket.id]
        is_settled = waiting.front is not None or usage.has_aged(waiting.since)
        is_passable = not is_settled and not queue.cannot_be_passed(view, ticket.user, ticket.id)
        if is_passable or ticket.is_borrow or has_wasted_much(view, ticket.user):
            continue
        position = positions[ticket.id]
        ahead = [
            other
            for other in others
            if (other.created_at, other.id) < (ticket.created_at, ticket.id)
            or positions.get(other.id, inf) < position
        ]
        longest_s = _longest_s(view, [ticket.shape, *(other.shape for other in ahead)])
        if longest_s is not None:
            yield ticket.id, longest_s


def _newcomer_waits_s(view: PoolView) -> Iterator[tuple[EstimateKey, float]]:
    """Yield the longest wait behind everybody, for each shape that is offered, by its profiles."""
    ahead = [ticket.shape for ticket in _tickets_that_may_be_served(view)]
    for shape in map(str, offers.offered_shapes(view)):
        longest_s = _longest_s(view, [shape, *ahead])
        if longest_s is not None:
            yield profiles_of(shape), longest_s


def _tickets_that_may_be_served(view: PoolView) -> list[TicketRow]:
    return [ticket for ticket in view.tickets.values() if ticket.state in _MAY_BE_SERVED]


# -- the leases that end for them -----------------------------------------------------------------


def _longest_s(view: PoolView, shapes: list[str]) -> float | None:
    """Return after how many seconds, at most, as many leases have ended as shapes are asked for.

    None where that is not certain: for several slices at a time, whole GPUs, and where fewer leases
    have room for each of the profiles.
    """
    profiles = {profiles_of(shape) for shape in shapes}
    if any(len(names) > 1 or names == (FULL,) for names in profiles):
        return None
    names = frozenset(name for (name,) in profiles)
    guaranteed_s = sorted(_guaranteed_s(view, lease) for lease in _leases_with_room(view, names))
    if len(guaranteed_s) < len(shapes):
        return None
    return guaranteed_s[len(shapes) - 1] + len(shapes) * _handover_s(view.settings)


@cached_on_instance
def _leases_with_room(view: PoolView, names: frozenset[str]) -> list[LeaseRow]:
    """Return the leases one of whose slices has room for each profile, on GPUs open to all."""
    with_room: dict[int, LeaseRow] = {}
    for gpu in view.gpus.values():
        occupancy = gpu.occupancy
        if occupancy is None or not occupancy.usable or occupancy.course:
            continue
        for row in gpu.slices:
            lease = view.leases.get(row.lease or 0)
            if (
                lease
                and not row.draining
                and _has_room(occupancy, view.placement_of(row).bits, names)
            ):
                with_room[lease.id] = lease
    return list(with_room.values())


def _has_room(occupancy: GpuOccupancy, room: int, names: frozenset[str]) -> bool:
    placements = occupancy.geometry.placements
    return all(any(not bits & ~room for bits, _ in placements.get(name, ())) for name in names)


def _guaranteed_s(view: PoolView, lease: LeaseRow) -> float:
    """Return for how long a lease is guaranteed if every extension is used, in seconds."""
    if lease.state == LeaseState.RELEASING:
        return 0.0
    more_s = lease.extensions_left(view.settings) * view.settings.pool.extension_s
    return max(0.0, lease.guaranteed_until - view.at) + more_s


def _handover_s(settings: PoolSettings) -> float:
    """Return how long it takes, at most, until an open lease is the slice of who waits.

    It is warned at the next look.  A lease whose time is up sooner is waited for first, and may be
    extended by its student; then another is warned.
    """
    reclaim = settings.reclaim
    return 2 * (reclaim.warning_s + reclaim.every_s) + SETTLE_S


def _has_shared_limit(settings: PoolSettings) -> bool:
    """Whether a course as a whole may have to wait although there is room."""
    return any(quota.shared and quota.memory_slices for quota in settings.quotas.values())


def _is_anything_planned(view: PoolView, longest_s: float) -> bool:
    """Whether a reservation or maintenance may hold up a grant within so many seconds."""
    pool, until = view.settings.pool, view.at + longest_s
    lasts_s = pool.offer_s + pool.attach_s + pool.lease_s + pool.clear_s
    windows = (next_occurrence(rule, view.at) for rule in view.settings.maintenance_windows)
    is_closed = any(window is not None and window.starts_at <= until for window in windows)
    return is_closed or bool(view.reservations.between(view.at, until + lasts_s))
