"""What somebody who waits could have at once by leaving the queue: the pool's own decision.

Whoever leaves gives back what was held for them, and those behind are served first.
"""

from collections.abc import Sequence
from dataclasses import replace

from miglab_api.offers import CPU, CourseOffers, ShapeOffer
from miglab_pool.decisions import queue, reserved_slots
from miglab_pool.gpu.geometry import Placed
from miglab_pool.model import reservations
from miglab_pool.model.gpu import Choice, GpuOccupancy
from miglab_pool.model.queue import Waiting
from miglab_pool.model.rows import FULL, TicketRow
from miglab_pool.rules.backfill import first_that_fits
from miglab_pool.state.view import PoolView

MOST_SERVED = 8  # of those behind; with more of them there is hardly anything left


def of_ticket(view: PoolView, ticket: TicketRow, course: CourseOffers) -> tuple[ShapeOffer, ...]:
    """The other shapes of its course that the ticket could be for, and be served now."""
    others = [one for one in queue.without_slot(view) if one.ticket != ticket.id]
    left = _after(others, reserved_slots.open_gpus(view), view.at)
    found = (offer for offer in course.shapes if offer.shape not in (CPU, ticket.shape))
    return tuple(offer for offer in found if _is_free(view, ticket, offer, left))


def _is_free(
    view: PoolView,
    ticket: TicketRow,
    offer: ShapeOffer,
    left: tuple[list[Waiting], list[GpuOccupancy]],
) -> bool:
    if offer.shape == FULL:
        return bool(offer.free_now)
    if reserved_slots.ready(view, ticket.course, offer.shape):
        return True
    queued, gpus = left
    one = queue.as_waiting(view, ticket)._replace(profiles=reservations.profiles(offer.shape))
    grant = first_that_fits([*queued, one], gpus, view.at)
    return grant is not None and grant.ticket == ticket.id


def _after(
    queued: Sequence[Waiting], gpus: Sequence[GpuOccupancy], now: float
) -> tuple[list[Waiting], list[GpuOccupancy]]:
    """Who still waits, and what is left, once those who then fit have been served."""
    queued, gpus = list(queued), list(gpus)
    for _ in range(MOST_SERVED):
        grant = first_that_fits(queued, gpus, now)
        if grant is None:
            return queued, gpus
        queued = [one for one in queued if one.ticket != grant.ticket]
        gpus = [_taken(occupancy, grant.choices) for occupancy in gpus]
    return queued, []


def _taken(occupancy: GpuOccupancy, choices: Sequence[Choice]) -> GpuOccupancy:
    live = tuple(
        Placed(choice.profile, choice.placement)
        for choice in choices
        if choice.gpu == occupancy.gpu
    )
    return replace(occupancy, live=(*occupancy.live, *live), warm=())
