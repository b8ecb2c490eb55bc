"""What each asker may see of the pool.  Pure: views in, views out."""

from miglab_spawner.messages import GpuView, PoolSnapshot, ReservationView, SliceView, TicketView

from .asker import Asker


def visible_snapshot(snapshot: PoolSnapshot, asker: Asker) -> PoolSnapshot:
    """The snapshot with everything removed that names somebody else.

    Staff and the spawner see all.  Everybody else sees every slice's place, profile and state, but
    the name, server, course and UUID only of their own.
    """
    if asker.sees_names:
        return snapshot
    return snapshot.model_copy(
        update={
            "gpus": tuple(_visible_gpu(gpu, asker) for gpu in snapshot.gpus),
            "waiting": tuple(visible_ticket(ticket, asker) for ticket in snapshot.waiting),
        }
    )


def visible_ticket(ticket: TicketView, asker: Asker) -> TicketView:
    """The ticket, without its owner and what was said to the owner if that is somebody else."""
    if asker.sees_names or asker.is_user(ticket.user):
        return ticket
    return ticket.model_copy(update={"user": None, "server": None, "course": "", "message": ""})


def _visible_gpu(gpu: GpuView, asker: Asker) -> GpuView:
    return gpu.model_copy(
        update={"slices": tuple(_visible_slice(item, asker) for item in gpu.slices)}
    )


def _visible_slice(item: SliceView, asker: Asker) -> SliceView:
    if asker.is_user(item.user):
        return item
    return item.model_copy(
        update={"user": None, "server": None, "course": None, "uuid": None, "why": ""}
    )


def visible_reservation(one: ReservationView, asker: Asker) -> ReservationView:
    """The reservation; who made it and what for, staff and the spawner alone see."""
    if asker.sees_names:
        return one
    return one.model_copy(update={"made_by": None, "message": ""})
