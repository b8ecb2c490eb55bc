"""Messages of staff over HTTP: sent, listed, ended.  Students read them in JupyterLab."""

from typing import Annotated

from fastapi import APIRouter, Query

from miglab_api.base import REASON_MAX
from miglab_api.staff import MessageRequest, SentMessage
from miglab_pool.http.access.dependencies import Runner, needs
from miglab_pool.http.access.principal import Principal, forbidden
from miglab_pool.http.access.rights import Right
from miglab_pool.http.errors import REFUSED, DeniedError
from miglab_pool.pool import Pool

router = APIRouter(prefix="/api/messages", responses=REFUSED)
Sender = Annotated[Principal, needs(Right.MESSAGE)]


@router.post("", status_code=201)
async def send(request: MessageRequest, principal: Sender, runner: Runner) -> SentMessage:
    """Tell a user, one of their servers, a course, or everybody."""

    def decision(pool: Pool) -> SentMessage:
        _check_addressee(pool, principal, request)
        return pool.staff.send(request, principal.by)

    return await runner.decide(decision)


@router.get("")
async def messages(principal: Sender, runner: Runner) -> list[SentMessage]:
    """The messages that are shown, the newest first: one's own, one's courses', and those for all.

    What others told a student, only site admins see.
    """
    found = await runner.decide(lambda pool: pool.staff.messages())
    return [one for one in found if _may_see(principal, one)]


@router.delete("/{message_id}")
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
