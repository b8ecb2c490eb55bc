"""What each principal may see of the pool.  Pure: views in, views out."""

from miglab_api.gpus import GpuView, PoolSnapshot, SliceView
from miglab_api.reservations import ReservationView
from miglab_api.tickets import TicketView
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.access.rights import Right


def visible_snapshot(snapshot: PoolSnapshot, principal: Principal) -> PoolSnapshot:
    """The snapshot with everything removed that names somebody whom the principal may not see.

    Everybody sees every slice's place, profile and state.  Name, server, course and UUID one sees
    of one's own, staff of their courses' students, and site admins and the spawner of all.
    """
    if principal.may(Right.SEE_NAMES):
        return snapshot
    return snapshot.model_copy(
        update={
            "gpus": tuple(visible_gpu(gpu, principal) for gpu in snapshot.gpus),
            "waiting": tuple(visible_ticket(ticket, principal) for ticket in snapshot.waiting),
        }
    )


def visible_ticket(ticket: TicketView, principal: Principal) -> TicketView:
    """The ticket; its owner and message are left out where the principal may not see them."""
    if principal.may(Right.SEE_NAMES, ticket.course, ticket.user):
        return ticket
    return ticket.model_copy(update={"user": None, "server": None, "course": "", "message": ""})


def visible_gpu(gpu: GpuView, principal: Principal) -> GpuView:
    """The GPU, with what the principal may see of each of its slices."""
    return gpu.model_copy(
        update={"slices": tuple(visible_slice(item, principal) for item in gpu.slices)}
    )


def visible_slice(item: SliceView, principal: Principal) -> SliceView:
    """The slice, without its holder if the principal may not see whom."""
    is_nobodys = item.lease is None and item.user is None
    if principal.may(Right.SEE_NAMES, item.course, item.user) or (
        is_nobodys and principal.is_staff
    ):
        return item
    return item.model_copy(
        update={"user": None, "server": None, "course": None, "uuid": None, "reason": ""}
    )


def visible_reservation(one: ReservationView, principal: Principal) -> ReservationView:
    """The reservation; who made it and what for, those alone see who could have made it."""
    if principal.may(Right.SEE_NAMES, one.course):
        return one
    return one.model_copy(update={"made_by": None, "message": ""})
