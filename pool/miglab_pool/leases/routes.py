"""The HTTP routes of tickets and leases, from the request to the release.

The spawner also reads here what a server holds and waits for, and the alternatives to waiting.
"""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Response

from miglab_api.base import SERVER_MAX, USER_ID_MAX, USER_MAX
from miglab_api.leases import (
    AttachRequest,
    Fence,
    LeaseView,
    ReleaseRequest,
    RequestedLease,
    ServerStatus,
)
from miglab_api.line import LAST_END_S, Line
from miglab_api.offers import ShapeOffer
from miglab_api.tickets import Purpose, TicketRequest, TicketState, TicketView
from miglab_pool.http.access.dependencies import (
    RUNNER,
    MayExtend,
    MayRelease,
    MaySeeNames,
    Spawner,
    Viewer,
)
from miglab_pool.http.access.principal import NOWHERE, Principal, Right
from miglab_pool.http.errors import REFUSED, DeniedError
from miglab_pool.http.runner_protocol import LONGEST_POLL_S, RunnerOf
from miglab_pool.leases.rights import LeasesPool, decide_on_ticket, lease_for, ticket_for

POSITION_REST_S = 0.2

Runner = Annotated[RunnerOf[LeasesPool], RUNNER]
UserIdParameter = Annotated[str, Query(max_length=USER_ID_MAX)]

router = APIRouter(prefix="/api", responses=REFUSED)


@router.post("/tickets", status_code=201)
async def ask(request: TicketRequest, _: Spawner, runner: Runner, response: Response) -> TicketView:
    """Ask for a shape: 201 for a new ticket, 200 for the one that is there already."""

    def decision(pool: LeasesPool) -> TicketView:
        pool.people.rename_user(request.user_id, request.user)
        before = pool.tickets.ticket_of_server(request.user, request.server)
        ticket = pool.tickets.request(request)
        is_new = before != ticket.id
        response.status_code = 201 if is_new else 200
        return ticket

    return await runner.decide(decision)


@router.post("/leases", status_code=201)
async def request_lease(
    request: TicketRequest, _: Spawner, runner: Runner, response: Response
) -> RequestedLease:
    """Ask for a shape, and take it if it is granted at once; else the ticket waits.

    The answer is 201 for a new ticket, 200 for the one that is there already.
    """

    def decision(pool: LeasesPool) -> tuple[RequestedLease, bool]:
        pool.people.rename_user(request.user_id, request.user)
        number = pool.tickets.ticket_of_server(request.user, request.server)
        earlier = None if number is None else pool.tickets.find(number)
        requested = pool.tickets.request_and_take(request)
        is_new = number != requested.ticket.id
        response.status_code = 201 if is_new else 200
        return requested, is_new or (earlier is not None and earlier.state is not TicketState.TAKEN)

    requested, is_first_take = await runner.decide(decision)
    lease = requested.taken_lease
    if lease is not None and is_first_take:
        runner.metrics.count_wait(lease.shape, lease.granted_at - requested.ticket.created_at)
    return requested


@router.get("/tickets/{ticket_id}")
async def wait_for(
    ticket_id: int,
    principal: MaySeeNames,
    runner: Runner,
    wait_s: Annotated[float, Query(ge=0, le=LONGEST_POLL_S)] = 0.0,
) -> TicketView:
    """Return a ticket, attended, when its state or position changes, or after ``wait_s``."""
    first = await runner.decide(lambda pool: _attend_if_own(pool, principal, ticket_id))
    if not _attends(principal, first):
        return first
    if wait_s > 0 and first.state is TicketState.WAITING:
        return await _wait_for_change(runner, first, wait_s)
    return first


@router.delete("/tickets/{ticket_id}")
async def cancel(ticket_id: int, principal: MayRelease, runner: Runner) -> TicketView:
    """Leave the queue."""
    return await decide_on_ticket(
        runner,
        principal,
        ticket_id,
        Right.RELEASE,
        lambda pool: pool.tickets.cancel(ticket_id, principal.actor),
    )


@router.post("/tickets/{ticket_id}/take")
async def take(ticket_id: int, _: Spawner, runner: Runner) -> LeaseView:
    """Take what is offered."""
    ticket, lease = await runner.decide(
        lambda pool: (pool.tickets.find(ticket_id), pool.tickets.take(ticket_id))
    )
    if ticket.state is TicketState.OFFERED:
        runner.metrics.count_wait(lease.shape, lease.granted_at - ticket.created_at)
    return lease


def _attends(principal: Principal, ticket: TicketView) -> bool:
    """Whether the principal's request keeps the position: the owner's and the spawner's do."""
    return principal.is_spawner or principal.is_user(ticket.user)


def _attend_if_own(pool: LeasesPool, principal: Principal, ticket_id: int) -> TicketView:
    ticket = (
        None if principal.is_spawner else ticket_for(pool, principal, ticket_id, Right.SEE_NAMES)
    )
    if ticket is None or _attends(principal, ticket):
        ticket = pool.tickets.attend(ticket_id)
    return ticket


async def _wait_for_change(
    runner: RunnerOf[LeasesPool], first: TicketView, wait_s: float
) -> TicketView:
    """Wait until a ticket differs from ``first``, by the snapshot alone while it is in the queue.

    A new state is returned at once.  A first estimate and a new position are returned after
    `POSITION_REST_S` for each ticket still in front, so that a long queue does not answer all its
    clients at the same moment; later estimates come with the next answer.
    """
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    while True:
        seen_version = runner.notifier.version
        current = (await runner.waiting()).get(first.id)
        if current is None:  # being served, or over
            current = await runner.decide(lambda pool: pool.tickets.find(first.id))
        if current.state != first.state:
            return current
        is_new = first.estimate is None and current.estimate is not None
        is_moved = current.position != first.position or is_new
        rest_s = POSITION_REST_S * (current.position or 0) if is_moved else wait_s
        left_s = started_at + min(wait_s, rest_s) - loop.time()
        if left_s <= 0 or runner.notifier.closed:
            return current
        await runner.notifier.beyond(seen_version, left_s)


@router.get("/server")
async def server_status(
    _: Spawner,
    runner: Runner,
    user: Annotated[str, Query(min_length=1, max_length=USER_MAX)],
    server: Annotated[str, Query(max_length=SERVER_MAX)] = "",
    user_id: UserIdParameter = "",
) -> ServerStatus:
    """What a server has and waits for; asking keeps its position in the queue."""

    def decision(pool: LeasesPool) -> ServerStatus:
        pool.people.rename_user(user_id, user)
        return pool.tickets.server_status(user, server)

    return await runner.decide(decision)


@router.get("/line")
async def line(
    principal: Viewer,
    runner: Runner,
    user: Annotated[str | None, Query(max_length=USER_MAX)] = None,
    user_id: UserIdParameter = "",
) -> Line:
    """Return where the principal stands; the spawner asks for a user.  Attends no ticket."""
    if not principal.is_spawner:  # whatever name or id is asked for
        if not principal.is_user(principal.name):
            raise DeniedError(403, "forbidden", "Only people stand in line.")
        return await _line_of(runner, principal.name)
    if user is None:
        raise DeniedError(422, "no-user", "Say whose line this is.")
    return await _line_of(runner, await runner.name_of(user_id, user) if user_id else user)


async def _line_of(runner: RunnerOf[LeasesPool], user: str) -> Line:
    """Where a user stands; for one who stands nowhere, what they held last."""
    line = await runner.query_view(lambda pool: pool.tickets.line(user))
    if line.standings:
        return line
    since = line.now - LAST_END_S
    ends = await runner.decide(lambda pool: pool.leases.ends_since(user, since, Purpose.SERVER))
    return Line(now=line.now, last_end=ends[-1] if ends else None)


@router.get("/tickets/{ticket_id}/alternatives")
async def alternatives(ticket_id: int, _: Spawner, runner: Runner) -> list[ShapeOffer]:
    """The shapes that this student could have at once by leaving the queue."""
    return await runner.query_view(lambda pool: pool.tickets.alternatives(ticket_id))


@router.get("/leases")
async def leases(
    principal: MaySeeNames,
    runner: Runner,
    user: Annotated[str | None, Query(max_length=USER_MAX)] = None,
    user_id: UserIdParameter = "",
) -> list[LeaseView]:
    """Return the live leases, or one user's, as far as the principal may see their users."""
    if (
        user is not None
        and not principal.is_user(user)
        and principal.courses(Right.SEE_NAMES) == NOWHERE
    ):
        raise DeniedError(403, "forbidden", "You can see your own leases only.")
    if principal.is_spawner and user is not None:
        await runner.decide(lambda pool: pool.people.rename_user(user_id, user))
    live_leases = await runner.query_view(lambda pool: pool.leases.live(user))
    return [
        lease for lease in live_leases if principal.may(Right.SEE_NAMES, lease.course, lease.user)
    ]


@router.get("/leases/{lease_id}")
async def lease(lease_id: int, principal: MaySeeNames, runner: Runner) -> LeaseView:
    """One lease."""
    return await runner.decide(lambda pool: lease_for(pool, principal, lease_id, Right.SEE_NAMES))


@router.post("/leases/{lease_id}/attach")
async def attach(lease_id: int, request: AttachRequest, _: Spawner, runner: Runner) -> LeaseView:
    """The fence: the holder exists and is not started; it may start only if this is accepted."""
    return await runner.decide(
        lambda pool: pool.leases.attach(
            lease_id, request.generation, request.holder, request.ledger, request.server_started
        )
    )


@router.post("/leases/{lease_id}/running")
async def running(lease_id: int, request: Fence, _: Spawner, runner: Runner) -> LeaseView:
    """The holder was started."""
    return await runner.decide(lambda pool: pool.leases.running(lease_id, request))


@router.post("/leases/{lease_id}/release")
async def release(
    lease_id: int, request: ReleaseRequest, principal: MayRelease, runner: Runner
) -> LeaseView:
    """Ask for a lease back; it is freed once its holder is confirmed gone."""
    fence = None
    if request.generation is not None:
        fence = Fence(generation=request.generation, ledger=request.ledger)

    def decision(pool: LeasesPool) -> LeaseView:
        lease_for(pool, principal, lease_id, Right.RELEASE)
        return pool.leases.release(lease_id, principal.actor, request.reason, fence)

    return await runner.decide(decision)


@router.post("/leases/{lease_id}/keepalive")
async def keepalive(lease_id: int, principal: MayExtend, runner: Runner) -> LeaseView:
    """Say "I am still here", which ends an idle warning; it may be repeated a few times."""

    def decision(pool: LeasesPool) -> LeaseView:
        lease_for(pool, principal, lease_id, Right.EXTEND)
        return pool.leases.keepalive(lease_id, principal.actor)

    return await runner.decide(decision)
