"""What somebody who waits could have at once by giving up the place: the pool's own decision.

Who gives up a place gives back what was set aside for it, and those behind are served first.
"""

from collections.abc import Sequence
from dataclasses import replace

from miglab_api.offers import CPU, CourseOffers, ShapeOffer
from miglab_pool.decisions import queue, reserved_places
from miglab_pool.gpu.geometry import Placed
from miglab_pool.model import reservations
from miglab_pool.model.gpu import Choice, Ground
from miglab_pool.model.queue import Waiting
from miglab_pool.model.rows import FULL, TicketRow
from miglab_pool.rules.backfill import first_that_fits
from miglab_pool.state.view import PoolView

MOST_SERVED = 8  # of those behind; with more of them there is hardly anything left


def free_instead(view: PoolView, ticket: TicketRow, course: CourseOffers) -> tuple[ShapeOffer, ...]:
    """The other shapes of its course that the ticket could be for, and be served now."""
    others = [one for one in queue.unseated(view) if one.ticket != ticket.id]
    left = _after(others, reserved_places.grounds(view), view.at)
    found = (offer for offer in course.shapes if offer.shape not in (CPU, ticket.shape))
    return tuple(offer for offer in found if _is_free(view, ticket, offer, left))


def _is_free(
    view: PoolView, ticket: TicketRow, offer: ShapeOffer, left: tuple[list[Waiting], list[Ground]]
) -> bool:
    if offer.shape == FULL:
        return bool(offer.free_now)
    if reserved_places.ready(view, ticket.course, offer.shape):
        return True
    line, grounds = left
    one = replace(queue.as_waiting(view, ticket), profiles=reservations.profiles(offer.shape))
    grant = first_that_fits([*line, one], grounds, view.at)
    return grant is not None and grant.ticket == ticket.id


def _after(
    line: Sequence[Waiting], grounds: Sequence[Ground], now: float
) -> tuple[list[Waiting], list[Ground]]:
    """Who still waits, and what is left, once those who then fit have been served."""
    line, grounds = list(line), list(grounds)
    for _ in range(MOST_SERVED):
        grant = first_that_fits(line, grounds, now)
        if grant is None:
            return line, grounds
        line = [one for one in line if one.ticket != grant.ticket]
        grounds = [_taken(ground, grant.choices) for ground in grounds]
    return line, []


def _taken(ground: Ground, choices: Sequence[Choice]) -> Ground:
    live = tuple(
        Placed(choice.profile, choice.placement)
        for choice in choices
        if choice.gpu == ground.state.gpu
    )
    return replace(ground, state=replace(ground.state, live=(*ground.state.live, *live), warm=()))
