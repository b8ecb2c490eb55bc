"""The HTTP routes of staff: actions on the pool, GPUs, slices, leases and tickets, and messages.

The routes check the right to act on what exists at that moment.  What then happens, and whether
somebody else was first, the pool decides.  The route that extends a lease is here because holders
and staff share it, and staff may give more.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Path, Query
from pydantic import Field

from miglab_api.base import REASON_MAX, WireModel
from miglab_api.gpus import GpuView, PoolSnapshot, SliceView
from miglab_api.leases import ExtendRequest, LeaseState, LeaseView, WarningKind
from miglab_api.staff import (
    STAFF_ACTIONS,
    ActionRequest,
    MessageRequest,
    ReclaimRequest,
    SentMessage,
    StaffAction,
)
from miglab_api.tickets import TicketView
from miglab_pool.http.access.dependencies import (
    RUNNER,
    MayExtend,
    MayMessage,
    MayRelease,
    needs,
)
from miglab_pool.http.access.principal import (
    Principal,
    Right,
    forbidden,
    visible_gpu,
    visible_slice,
)
from miglab_pool.http.errors import REFUSED, DeniedError
from miglab_pool.http.runner_protocol import RunnerOf
from miglab_pool.leases.rights import LeasesPool, decide_on_ticket, lease_for
from miglab_pool.staff.actions import Staff


class StaffPool(LeasesPool, Protocol):
    """What the routes of staff use of the pool."""

    staff: Staff

    def snapshot(self) -> PoolSnapshot:
        """Return the pool as it is."""


router = APIRouter(prefix="/api", responses=REFUSED)
Runner = Annotated[RunnerOf[StaffPool], RUNNER]
MayNext = Annotated[Principal, needs(Right.NEXT)]
MayPause = Annotated[Principal, needs(Right.PAUSE)]


class PauseRequest(WireModel):
    """Stop granting leases.

    Attributes:
        reason: what students read while it lasts.
    """

    reason: Annotated[str, Field(min_length=1, max_length=REASON_MAX)]


# The pool.


@router.post("/pool/pause")
async def pause(request: PauseRequest, principal: MayPause, runner: Runner) -> PoolSnapshot:
    """Grant no new leases until `resume`; running leases go on."""
    await runner.decide(lambda pool: pool.staff.pause(request.reason, principal.actor))
    return await runner.snapshot()


@router.post("/pool/resume")
async def resume(principal: MayPause, runner: Runner) -> PoolSnapshot:
    """Grant leases again."""
    await runner.decide(lambda pool: pool.staff.resume(principal.actor))
    return await runner.snapshot()


# GPUs and slices, by the table of actions.


def _endpoint(action: StaffAction, kind: str) -> Callable[..., Awaitable[GpuView | SliceView]]:
    """Return the function of an action's route, with the parameters that OpenAPI needs."""

    async def act(
        target: Any, principal: Principal, runner: Runner, *, request: Any
    ) -> GpuView | SliceView:
        def decision(pool: StaffPool) -> GpuView | SliceView:
            if "gpu" in action.kinds:
                principal.require(Right(action.right), pool.staff.gpu_of(target).course)
            method = getattr(pool.staff, action.key)
            changed: GpuView | SliceView = method(
                target, actor=principal.actor, **request.model_dump()
            )
            if isinstance(changed, GpuView):
                return visible_gpu(changed, principal)
            return visible_slice(changed, principal) if "gpu" in action.kinds else changed

        return await runner.decide(decision)

    is_gpu = kind == "gpu"
    act.__annotations__ |= {
        "target": Annotated[str, Path(alias="uuid")]
        if is_gpu
        else Annotated[int, Path(alias="slice_id")],
        "principal": Annotated[Principal, needs(Right(action.right))],
        "request": action.request_model,
        "return": GpuView if is_gpu else SliceView,
    }
    if action.needs_no_reason:
        act.__kwdefaults__ = {"request": action.request_model.model_validate({})}
    return act


for _action in STAFF_ACTIONS:
    for _kind in _action.kinds:
        router.add_api_route(
            f"/{_kind}s/{{{'uuid' if _kind == 'gpu' else 'slice_id'}}}/{_action.key}",
            _endpoint(_action, _kind),
            methods=["POST"],
            name=_action.route_name(_kind),
            description=_action.summary,
        )


# Leases and tickets.


@router.post("/leases/{lease_id}/reclaim")
async def reclaim(
    lease_id: int, request: ReclaimRequest, principal: MayRelease, runner: Runner
) -> LeaseView:
    """Reclaim a lease after a warning of its holder, or with ``warning_s`` 0 at once."""

    def decision(pool: StaffPool) -> LeaseView:
        lease = lease_for(pool, principal, lease_id, Right.RELEASE)
        principal.require(Right.RELEASE, lease.course)
        return pool.staff.reclaim(
            lease_id, request.reason, principal.actor, request.warning_s, request.expected
        )

    lease = await runner.decide(decision)
    if lease.state is not LeaseState.WARNED:
        runner.metrics.reclaimed(WarningKind.STAFF.value)
    return lease


@router.post("/leases/{lease_id}/extend")
async def extend(
    lease_id: int, request: ExtendRequest, principal: MayExtend, runner: Runner
) -> LeaseView:
    """Ask for more time; staff give more than a holder may take, into nothing that is reserved."""

    def decision(pool: StaffPool) -> LeaseView:
        lease = lease_for(pool, principal, lease_id, Right.EXTEND)
        if principal.is_user(lease.user):
            return pool.leases.extend(lease_id, request.by_s, principal.actor)
        return pool.staff.extend(
            lease_id, request.by_s, principal.actor, request.reason, request.expected
        )

    return await runner.decide(decision)


@router.post("/tickets/{ticket_id}/next")
async def put_in_front(
    ticket_id: int, request: ActionRequest, principal: MayNext, runner: Runner
) -> TicketView:
    """Give a ticket the next slices that fit; reservations in force go before."""
    arguments = (ticket_id, request.reason, principal.actor, request.expected)
    return await _steer(runner, principal, ticket_id, lambda staff: staff.put_in_front(*arguments))


@router.delete("/tickets/{ticket_id}/next")
async def put_back(ticket_id: int, principal: MayNext, runner: Runner) -> TicketView:
    """Return a ticket to its own position in the queue."""
    return await _steer(
        runner, principal, ticket_id, lambda staff: staff.put_back(ticket_id, principal.actor)
    )


@router.post("/tickets/{ticket_id}/call")
async def call_again(
    ticket_id: int, request: ActionRequest, principal: MayNext, runner: Runner
) -> TicketView:
    """Hold what is offered to a ticket in full again, and call its student."""
    arguments = (ticket_id, request.reason, principal.actor, request.expected)
    return await _steer(runner, principal, ticket_id, lambda staff: staff.call_again(*arguments))


@router.post("/tickets/{ticket_id}/pass")
async def pass_on(
    ticket_id: int, request: ActionRequest, principal: MayNext, runner: Runner
) -> TicketView:
    """Give what is offered to a ticket to the next; the ticket steps aside and keeps its age."""
    arguments = (ticket_id, request.reason, principal.actor, request.expected)
    return await _steer(runner, principal, ticket_id, lambda staff: staff.pass_on(*arguments))


async def _steer(
    runner: Runner, principal: Principal, ticket_id: int, act: Callable[[Staff], TicketView]
) -> TicketView:
    """Run what staff do to a ticket, for whoever may say who is served next."""
    return await decide_on_ticket(
        runner, principal, ticket_id, Right.NEXT, lambda pool: act(pool.staff)
    )


@router.post("/messages", status_code=201)
async def send(request: MessageRequest, principal: MayMessage, runner: Runner) -> SentMessage:
    """Send a message to a user, one of their servers, a course, or everybody."""

    def decision(pool: StaffPool) -> SentMessage:
        _check_addressee(pool, principal, request)
        return pool.staff.send(request, principal.actor)

    return await runner.decide(decision)


@router.get("/messages")
async def messages(principal: MayMessage, runner: Runner) -> list[SentMessage]:
    """Return the messages on display that the principal may see, the newest first.

    These are their own, those to their courses, and those to everybody.  Only site admins see the
    messages of others to a student.
    """
    displayed = await runner.decide(lambda pool: pool.staff.messages())
    return [message for message in displayed if _may_see(principal, message)]


@router.delete("/messages/{message_id}")
async def end(
    message_id: int,
    principal: MayMessage,
    runner: Runner,
    reason: Annotated[str, Query(max_length=REASON_MAX)] = "",
) -> SentMessage:
    """End a message: one's own, or one to a course of one's own."""

    def decision(pool: StaffPool) -> SentMessage:
        message = pool.staff.message(message_id)
        if not _may_see(principal, message):
            raise DeniedError(404, "unknown-message", f"No message {message_id} is on display.")
        if not may_end(principal, message):
            raise forbidden(Right.MESSAGE, message.to_course or "")
        return pool.staff.end_message(message_id, principal.actor, reason)

    return await runner.decide(decision)


def may_end(principal: Principal, message: SentMessage) -> bool:
    """Whether the principal may end a message: their own, or one to a course of theirs."""
    return message.by == principal.actor or principal.may(Right.MESSAGE, message.to_course)


def _check_addressee(pool: StaffPool, principal: Principal, request: MessageRequest) -> None:
    """Refuse a message to a user with no lease or ticket in the principal's courses."""
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
        is_for_all
        or message.by == principal.actor
        or principal.may(Right.MESSAGE, message.to_course)
    )
