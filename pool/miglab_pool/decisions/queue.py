"""The queue as it stands: who waits, in which order, and who may be served."""

from miglab_pool.decisions import quota_checks, reserved_slots
from miglab_pool.gpu.geometry import Geometry
from miglab_pool.model.once import once
from miglab_pool.model.queue import FairShareUsage, Waiting
from miglab_pool.model.reservations import profiles
from miglab_pool.model.rows import FULL, TicketRow
from miglab_pool.rules.lease_length import lasts_s
from miglab_pool.rules.queue_order import in_order
from miglab_pool.rules.reservations_in_force import left_of
from miglab_pool.state.view import PoolView


@once
def fair_share_usage(view: PoolView) -> FairShareUsage:
    """What everybody has used lately, and what the rule needs besides."""
    weights = {name: rules.weight for name, rules in view.settings.courses.items()}
    return view.usage.fair_share(view.at, weights, view.settings.pool.ageing_s)


@once
def ordered(view: PoolView) -> tuple[Waiting, ...]:
    """Everyone who waits, first in front: the order in which it is decided who is next."""
    waiting = _everyone(view)
    if len(waiting) < 2:  # no order to work out: most of the day
        return tuple(waiting)
    return tuple(in_order(waiting, fair_share_usage(view)))


@once
def positions(view: PoolView) -> dict[int, int]:
    """The position of everyone who waits, by ticket."""
    return {one.ticket: position for position, one in enumerate(ordered(view), 1)}


@once
def served(view: PoolView) -> tuple[Waiting, ...]:
    """Those in the queue who may be served now, first in front.

    A server whose last lease is not over waits for that first: it never holds two.  A course that
    holds all it may waits until it holds less.
    """
    held, tickets = view.held_servers, view.tickets
    free = [one for one in ordered(view) if (one.user, tickets[one.ticket].server) not in held]
    return tuple(quota_checks.let_by(view, free))


@once
def without_slot(view: PoolView) -> tuple[Waiting, ...]:
    """Those of `served` who want slices of a cut GPU, and have no reserved slot."""
    claimants_with_slot = reserved_slots.claimants_with_slot(view)
    sliced = (one for one in served(view) if one.profiles != (FULL,))
    return tuple(one for one in sliced if one.ticket not in claimants_with_slot)


def _everyone(view: PoolView) -> list[Waiting]:
    """Everyone who waits, in order of arrival, those for whom something is reserved marked."""
    left = left_of(view.reservations_in_force)
    waiting = []
    for ticket in view.queued:
        key = (ticket.course, ticket.shape)
        is_reserved = left[key] > 0
        if is_reserved:
            left[key] -= 1
        one = as_waiting(view, ticket)
        waiting.append(one._replace(reserved=True) if is_reserved else one)
    return waiting


def as_waiting(view: PoolView, ticket: TicketRow) -> Waiting:
    """The ticket as the queue sees it."""
    names = profiles(ticket.shape)
    return Waiting(
        ticket.id,
        names,
        ticket.created_at,
        ticket.course,
        ticket.user,
        size=size_of(view, names),
        lasts_s=lasts_s(view.settings, ticket),
        front=ticket.next_at,
        is_borrow=ticket.is_borrow,
    )


@once
def size_of(view: PoolView, names: tuple[str, ...]) -> int:
    """The memory slices of a shape: of the largest GPU where GPUs differ."""
    return sum(_slice_size(name, view.geometries) for name in names)


def _slice_size(name: str, geometries: list[Geometry]) -> int:
    if name == FULL:
        return max((geometry.memory_slices for geometry in geometries), default=1)
    known = [g.by_name[name].size for g in geometries if name in g.by_name]
    return max(known, default=1)
