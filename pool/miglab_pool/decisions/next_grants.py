"""Who gets slices next.  Pure: the view in, one grant out.

First those who draw on a reservation, then the queue, then those who want a whole GPU.
"""

from collections.abc import Sequence

from miglab_pool.decisions import reserved_slots
from miglab_pool.model.queue import Grant, Waiting
from miglab_pool.model.reservations import profiles
from miglab_pool.model.rows import FULL, TicketRow
from miglab_pool.rules.backfill import any_fits, first_that_fits
from miglab_pool.rules.reservations_in_force import InForce
from miglab_pool.state.gpu_snapshot import GpuSnapshot
from miglab_pool.state.view import PoolView


def of_reservation(view: PoolView, one: InForce, ticket: TicketRow) -> Grant | GpuSnapshot | None:
    """What a ticket that draws on a reservation gets now; None: its slot is not empty yet."""
    if one.row.shape == FULL:
        return next(iter(reserved_slots.free_whole(view, one.row.course, but=one)), None)
    choices = reserved_slots.choose(view, one)
    return None if choices is None else Grant(ticket.id, choices)


def may_serve_queue(view: PoolView) -> bool:
    """Whether anything that is waited for has room: without, nobody's turn need be worked out."""
    wanted = {
        (profiles(ticket.shape), ticket.course)
        for ticket in view.tickets.values()
        if ticket.is_queued and ticket.shape != FULL
    }
    return bool(wanted) and any_fits(wanted, reserved_slots.open_gpus(view))


def of_queue(view: PoolView, waiting: Sequence[Waiting]) -> Grant | None:
    """Who of the queue goes now; reserved slots are closed to all of it."""
    gpus = reserved_slots.open_gpus(view)
    return first_that_fits(waiting, gpus, view.at)


def may_serve_whole(view: PoolView) -> bool:
    """Whether somebody waits for a whole GPU, and one is free."""
    is_wanted = any(one.is_queued and one.shape == FULL for one in view.tickets.values())
    return is_wanted and any(gpu.is_free_whole for gpu in view.gpus.values())


def whole_gpu(view: PoolView, one: Waiting) -> GpuSnapshot | None:
    """The whole GPU that somebody in the queue gets now."""
    return next(iter(reserved_slots.free_whole(view, one.course)), None)
