"""What staff may do, over HTTP: their actions on GPUs, slices, leases and tickets by hand.

Who may is decided here, of the very thing that is there at that moment; what then happens, and
whether somebody else was first, is the pool's decision.

Messages of staff are sent, listed and ended here; students read them in JupyterLab.
"""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from miglab_api.base import REASON_MAX, WireModel
from miglab_api.gpus import GpuView, PoolSnapshot, SliceView
from miglab_api.leases import LeaseState, LeaseView, WarningKind
from miglab_api.staff import ActionRequest, MessageRequest, ReclaimRequest, SentMessage, UndoRequest
from miglab_api.tickets import TicketView
from miglab_pool.http.access.dependencies import Runner, lease_for, needs, ticket_for
from miglab_pool.http.access.principal import Principal, forbidden, visible_gpu, visible_slice
from miglab_pool.http.access.rights import Right
from miglab_pool.http.errors import REFUSED, DeniedError
from miglab_pool.pool import Pool

router = APIRouter(prefix="/api", responses=REFUSED)
NOTHING_SAID = UndoRequest()

Drainer = Annotated[Principal, needs(Right.DRAIN)]
Guard = Annotated[Principal, needs(Right.QUARANTINE)]


class PauseRequest(WireModel):
    """Stop granting leases.

    Attributes:
        reason: what students read while it lasts.
    """

    reason: Annotated[str, Field(min_length=1, max_length=REASON_MAX)]


# All of it.


@router.post("/pool/pause")
async def pause(
    request: PauseRequest, principal: Annotated[Principal, needs(Right.PAUSE)], runner: Runner
) -> PoolSnapshot:
    """No new leases until `resume`; what runs, runs on."""
    await runner.decide(lambda pool: pool.staff.pause(request.reason, principal.by))
    return await runner.snapshot()


@router.post("/pool/resume")
async def resume(
    principal: Annotated[Principal, needs(Right.PAUSE)], runner: Runner
) -> PoolSnapshot:
    """Grant leases again."""
    await runner.decide(lambda pool: pool.staff.resume(principal.by))
    return await runner.snapshot()


# GPUs.


@router.post("/gpus/{uuid}/drain")
async def drain_gpu(
    uuid: str, request: ActionRequest, principal: Drainer, runner: Runner
) -> GpuView:
    """No new lease on this GPU; who runs there runs on."""

    def decision(pool: Pool) -> GpuView:
        principal.require(Right.DRAIN, pool.staff.gpu(uuid).course)
        gpu = pool.staff.drain_gpu(uuid, request.reason, principal.by, request.expected)
        return visible_gpu(gpu, principal)

    return await runner.decide(decision)


@router.post("/gpus/{uuid}/undrain")
async def undrain_gpu(
    uuid: str, principal: Drainer, runner: Runner, request: UndoRequest = NOTHING_SAID
) -> GpuView:
    """The GPU takes leases again."""

    def decision(pool: Pool) -> GpuView:
        principal.require(Right.DRAIN, pool.staff.gpu(uuid).course)
        gpu = pool.staff.undrain_gpu(uuid, request.reason, principal.by, request.expected)
        return visible_gpu(gpu, principal)

    return await runner.decide(decision)


# Slices.


@router.post("/slices/{slice_id}/drain")
async def drain_slice(
    slice_id: int, request: ActionRequest, principal: Drainer, runner: Runner
) -> SliceView:
    """No new lease at this slice's placement; a running lease goes on."""

    def decision(pool: Pool) -> SliceView:
        principal.require(Right.DRAIN, pool.staff.gpu_under(slice_id).course)
        item = pool.staff.drain_slice(slice_id, request.reason, principal.by, request.expected)
        return visible_slice(item, principal)

    return await runner.decide(decision)


@router.post("/slices/{slice_id}/undrain")
async def undrain_slice(
    slice_id: int, principal: Drainer, runner: Runner, request: UndoRequest = NOTHING_SAID
) -> SliceView:
    """The slice's placement takes leases again."""

    def decision(pool: Pool) -> SliceView:
        principal.require(Right.DRAIN, pool.staff.gpu_under(slice_id).course)
        item = pool.staff.undrain_slice(slice_id, request.reason, principal.by, request.expected)
        return visible_slice(item, principal)

    return await runner.decide(decision)


@router.post("/slices/{slice_id}/quarantine")
async def quarantine(
    slice_id: int, request: ActionRequest, principal: Guard, runner: Runner
) -> SliceView:
    """Set a slice aside that nobody holds: it stays as it is until `clear`."""
    return await runner.decide(
        lambda pool: pool.staff.quarantine(slice_id, request.reason, principal.by, request.expected)
    )


@router.post("/slices/{slice_id}/clear")
async def clear(
    slice_id: int, principal: Guard, runner: Runner, request: UndoRequest = NOTHING_SAID
) -> SliceView:
    """Try again to destroy a slice that is quarantined."""
    return await runner.decide(
        lambda pool: pool.staff.clear(slice_id, principal.by, request.reason, request.expected)
    )


@router.post("/slices/{slice_id}/adopt")
async def adopt(
    slice_id: int,
    principal: Annotated[Principal, needs(Right.ADOPT)],
    runner: Runner,
    request: UndoRequest = NOTHING_SAID,
) -> SliceView:
    """Take over a foreign slice: it is destroyed, and its placement is the pool's."""
    return await runner.decide(
        lambda pool: pool.staff.adopt(slice_id, principal.by, request.reason, request.expected)
    )


# Leases and tickets.


@router.post("/leases/{lease_id}/reclaim")
async def reclaim(
    lease_id: int,
    request: ReclaimRequest,
    principal: Annotated[Principal, needs(Right.RELEASE)],
    runner: Runner,
) -> LeaseView:
    """Take a lease back, its holder warned first, or with ``warning_s`` 0 at once."""

    def decision(pool: Pool) -> LeaseView:
        found = lease_for(pool, principal, lease_id, Right.RELEASE)
        principal.require(Right.RELEASE, found.course)
        return pool.staff.reclaim(
            lease_id, request.reason, principal.by, request.warning_s, request.expected
        )

    lease = await runner.decide(decision)
    if lease.state is not LeaseState.WARNED:
        runner.metrics.reclaimed(WarningKind.STAFF.value)
    return lease


@router.post("/tickets/{ticket_id}/next")
async def put_in_front(
    ticket_id: int,
    request: ActionRequest,
    principal: Annotated[Principal, needs(Right.NEXT)],
    runner: Runner,
) -> TicketView:
    """Give somebody in the queue the next slices that fit; reservations in force go before."""

    def decision(pool: Pool) -> TicketView:
        ticket_for(pool, principal, ticket_id, Right.NEXT)
        return pool.staff.put_in_front(ticket_id, request.reason, principal.by, request.expected)

    return await runner.decide(decision)


@router.delete("/tickets/{ticket_id}/next")
async def put_back(
    ticket_id: int, principal: Annotated[Principal, needs(Right.NEXT)], runner: Runner
) -> TicketView:
    """Return a ticket to its own position in the queue."""

    def decision(pool: Pool) -> TicketView:
        ticket_for(pool, principal, ticket_id, Right.NEXT)
        return pool.staff.put_back(ticket_id, principal.by)

    return await runner.decide(decision)


messages_router = APIRouter(prefix="/api/messages", responses=REFUSED)
Sender = Annotated[Principal, needs(Right.MESSAGE)]


@messages_router.post("", status_code=201)
async def send(request: MessageRequest, principal: Sender, runner: Runner) -> SentMessage:
    """Tell a user, one of their servers, a course, or everybody."""

    def decision(pool: Pool) -> SentMessage:
        _check_addressee(pool, principal, request)
        return pool.staff.send(request, principal.by)

    return await runner.decide(decision)


@messages_router.get("")
async def messages(principal: Sender, runner: Runner) -> list[SentMessage]:
    """The messages that are shown, the newest first: one's own, one's courses', and those for all.

    What others told a student, only site admins see.
    """
    found = await runner.decide(lambda pool: pool.staff.messages())
    return [one for one in found if _may_see(principal, one)]


@messages_router.delete("/{message_id}")
async def end(
    message_id: int,
    principal: Sender,
    runner: Runner,
    reason: Annotated[str, Query(max_length=REASON_MAX)] = "",
) -> SentMessage:
    """Show a message no longer: one's own, or one to one's course."""

    def decision(pool: Pool) -> SentMessage:
        message = pool.staff.message(message_id)
        if not _may_see(principal, message):
            raise DeniedError(404, "unknown-message", f"No message {message_id} is on display.")
        if not may_end(principal, message):
            raise forbidden(Right.MESSAGE, message.to_course or "")
        return pool.staff.end_message(message_id, principal.by, reason)

    return await runner.decide(decision)


def may_end(principal: Principal, message: SentMessage) -> bool:
    """Whether the principal may end it: it is their own, or to a course of theirs."""
    return message.by == principal.by or principal.may(Right.MESSAGE, message.to_course)


def _check_addressee(pool: Pool, principal: Principal, request: MessageRequest) -> None:
    """Refuse who is neither of the principal's course nor holds or waits for anything there."""
    if request.to_user is None:
        principal.require(Right.MESSAGE, request.to_course)
        return
    if principal.may(Right.MESSAGE):
        return
    courses = {lease.course for lease in pool.leases.live(request.to_user)}
    waiting = pool.snapshot().waiting
    courses |= {ticket.course for ticket in waiting if ticket.user == request.to_user}
    if not any(principal.may(Right.MESSAGE, course) for course in courses):
        raise DeniedError(
            403,
            "forbidden",
            "You may message a student while they have a slice, or wait for one, in a course of "
            "yours. Otherwise message the course.",
        )


def _may_see(principal: Principal, message: SentMessage) -> bool:
    is_for_all = message.to_user is None and message.to_course is None
    return (
        is_for_all or message.by == principal.by or principal.may(Right.MESSAGE, message.to_course)
    )
