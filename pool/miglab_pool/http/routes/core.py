"""The routes that spawner and pages use most: tickets, leases, the pool's snapshot."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from miglab_api.base import USER_MAX
from miglab_api.gpus import PoolSnapshot
from miglab_api.leases import AttachRequest, ExtendRequest, Fence, LeaseView, ReleaseRequest
from miglab_api.offers import Offers
from miglab_api.tickets import TicketRequest, TicketState, TicketView
from miglab_pool.http.access.dependencies import Host, Spawner, Who, needs, who
from miglab_pool.http.access.lookup import lease_for, ticket_for
from miglab_pool.http.access.principal import NOWHERE, Principal
from miglab_pool.http.access.redaction import visible_snapshot
from miglab_pool.http.access.rights import Right
from miglab_pool.http.errors import REFUSED, DeniedError
from miglab_pool.http.event_streams import ONE_STREAM, SnapshotTexts
from miglab_pool.http.gpu_metrics import Told
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.pool import Pool
from miglab_pool.reclaimer.round import Explanation

LONGEST_POLL_S = 30.0
PLACE_REST_S = 0.2
ENDED_TICKETS = frozenset(
    {TicketState.CANCELLED, TicketState.REFUSED, TicketState.EXPIRED, TicketState.TAKEN}
)


api = APIRouter(prefix="/api", responses=REFUSED)


# Tickets.


@api.post("/tickets", status_code=201)
async def ask(request: TicketRequest, _: Spawner, host: Host, response: Response) -> TicketView:
    """Ask for a shape: 201 for a new ticket, 200 for the one that is there already."""

    def decision(pool: Pool) -> TicketView:
        before = pool.tickets.of_server(request.user, request.server)
        ticket = pool.tickets.request(request)
        is_new = before != ticket.id
        response.status_code = 201 if is_new else 200
        return ticket

    return await host.decide(decision)


@api.get("/tickets/{ticket_id}")
async def wait_for(
    ticket_id: int,
    asker: Annotated[Principal, needs(Right.SEE_NAMES)],
    host: Host,
    wait_s: Annotated[float, Query(ge=0, le=LONGEST_POLL_S)] = 0.0,
) -> TicketView:
    """The ticket, attended; answers when its state or place changes, or after ``wait_s``."""
    first = await host.decide(lambda pool: _looked_after(pool, asker, ticket_id))
    if not _attends(asker, first):
        return first
    if wait_s > 0 and first.state is TicketState.WAITING:
        return await _changed(host, first, wait_s)
    return first


@api.delete("/tickets/{ticket_id}")
async def cancel(
    ticket_id: int, asker: Annotated[Principal, needs(Right.RELEASE)], host: Host
) -> TicketView:
    """Give up a place in the queue."""

    def decision(pool: Pool) -> TicketView:
        ticket_for(pool, asker, ticket_id, Right.RELEASE)
        return pool.tickets.cancel(ticket_id, asker.by)

    return await host.decide(decision)


@api.post("/tickets/{ticket_id}/take")
async def take(ticket_id: int, _: Spawner, host: Host) -> LeaseView:
    """Take what is offered."""
    ticket, lease = await host.decide(
        lambda pool: (pool.tickets.find(ticket_id), pool.tickets.take(ticket_id))
    )
    if ticket.state is TicketState.OFFERED:
        host.metrics.waited(lease.shape, lease.granted_at - ticket.created_at)
    return lease


def _attends(asker: Principal, ticket: TicketView) -> bool:
    """Whether the asker's question keeps the place: the owner's and the spawner's do."""
    return asker.is_spawner or asker.is_user(ticket.user)


def _looked_after(pool: Pool, asker: Principal, ticket_id: int) -> TicketView:
    ticket = None if asker.is_spawner else ticket_for(pool, asker, ticket_id, Right.SEE_NAMES)
    if ticket is None or _attends(asker, ticket):
        ticket = pool.tickets.attend(ticket_id)
    return ticket


async def _changed(host: PoolRunner, first: TicketView, wait_s: float) -> TicketView:
    """Wait until the ticket is another than ``first``; for those in line by the snapshot alone.

    The first estimate is news, later ones are told with the next answer.

    A new state is told at once.  A new place is everybody's behind it too: each is told after
    `PLACE_REST_S` for each place still in front, so that a long line is no herd.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        seen = host.waker.version
        now = (await host.line()).get(first.id)
        if now is None:  # being served, or over
            now = await host.decide(lambda pool: pool.tickets.find(first.id))
        if now.state != first.state:
            return now
        is_new = first.estimate is None and now.estimate is not None
        is_moved = now.position != first.position or is_new
        rest_s = PLACE_REST_S * (now.position or 0) if is_moved else wait_s
        left_s = began + min(wait_s, rest_s) - loop.time()
        if left_s <= 0 or host.waker.closed:
            return now
        await host.waker.beyond(seen, left_s)


# Leases.


@api.get("/leases")
async def leases(
    asker: Annotated[Principal, needs(Right.SEE_NAMES)],
    host: Host,
    user: Annotated[str | None, Query(max_length=USER_MAX)] = None,
) -> list[LeaseView]:
    """The live leases, or one user's, as far as the asker may see whose they are."""
    if user is not None and not asker.is_user(user) and asker.courses(Right.SEE_NAMES) == NOWHERE:
        raise DeniedError(403, "forbidden", "You can see your own leases only.")
    found = await host.look(lambda pool: pool.leases.live(user))
    return [one for one in found if asker.may(Right.SEE_NAMES, one.course, one.user)]


@api.get("/leases/{lease_id}")
async def lease(
    lease_id: int, asker: Annotated[Principal, needs(Right.SEE_NAMES)], host: Host
) -> LeaseView:
    """One lease."""
    return await host.decide(lambda pool: lease_for(pool, asker, lease_id, Right.SEE_NAMES))


@api.post("/leases/{lease_id}/attach")
async def attach(lease_id: int, request: AttachRequest, _: Spawner, host: Host) -> LeaseView:
    """The fence: the holder exists and is not started; it may start only if this is accepted."""
    return await host.decide(
        lambda pool: pool.leases.attach(
            lease_id, request.generation, request.holder, request.ledger
        )
    )


@api.post("/leases/{lease_id}/running")
async def running(lease_id: int, request: Fence, _: Spawner, host: Host) -> LeaseView:
    """The holder was started."""
    return await host.decide(lambda pool: pool.leases.running(lease_id, request))


@api.post("/leases/{lease_id}/release")
async def release(
    lease_id: int,
    request: ReleaseRequest,
    asker: Annotated[Principal, needs(Right.RELEASE)],
    host: Host,
) -> LeaseView:
    """Ask for a lease back; it is freed once its holder is confirmed gone."""
    fence = None
    if request.generation is not None:
        fence = Fence(generation=request.generation, ledger=request.ledger)

    def decision(pool: Pool) -> LeaseView:
        lease_for(pool, asker, lease_id, Right.RELEASE)
        return pool.leases.release(lease_id, asker.by, request.reason, fence)

    return await host.decide(decision)


@api.post("/leases/{lease_id}/extend")
async def extend(
    lease_id: int,
    request: ExtendRequest,
    asker: Annotated[Principal, needs(Right.EXTEND)],
    host: Host,
) -> LeaseView:
    """Ask for more time; staff give more than a holder may take, into nothing that is reserved."""

    def decision(pool: Pool) -> LeaseView:
        found = lease_for(pool, asker, lease_id, Right.EXTEND)
        if asker.is_user(found.user):
            return pool.leases.extend(lease_id, request.by_s, asker.by)
        return pool.staff.extend(lease_id, request.by_s, asker.by, request.reason, request.seen)

    return await host.decide(decision)


# The pool as a whole.


@api.get("/offers")
async def offers(
    request: Request,
    asker: Who,
    host: Host,
    course: Annotated[list[str], Query(max_length=100)],
    user: str | None = None,
) -> Offers:
    """What the courses offer; a student may ask about themselves and their own courses only.

    Of another user one learns what that user's quotas leave, so it takes the right to see names.
    """
    if user is None and not asker.is_spawner:
        user = asker.name
    own = (*asker.course_names, request.app.state.default_course) if asker.is_user(user) else ()
    seen = [name for name in course if name in own or asker.may(Right.SEE_NAMES, name)]
    if course and not seen and not asker.is_user(user):
        raise DeniedError(403, "forbidden", "You can see your own offers only.")
    course = seen
    return await host.look(lambda pool: pool.offers(course, user))


@api.get("/pool")
async def pool_now(asker: Who, host: Host) -> PoolSnapshot:
    """The pool now, as far as the asker may see it."""
    return visible_snapshot(await host.snapshot(), asker)


# What the pool thinks of itself.


@api.get("/invariants")
async def invariants(_: Annotated[Principal, needs(Right.HEALTH)], host: Host) -> list[str]:
    """What contradicts the pool's invariants, in words; empty is well."""
    return await host.read(lambda pool: pool.check_invariants())


@api.get("/reclaim")
async def reclaim(
    asker: Annotated[Principal, needs(Right.EXPLAIN)],
    host: Host,
    user: Annotated[str | None, Query(max_length=USER_MAX)] = None,
) -> list[Explanation]:
    """What the reclaimer thinks of every lease in use, or of one user's, and why; asks only."""
    reclaimer = host.reclaimer
    if reclaimer is None:
        return []
    found = await host.decide(lambda pool: reclaimer.explain(pool, user))
    return [one for one in found if asker.may(Right.EXPLAIN, one.course)]


@api.get("/events", response_class=EventSourceResponse, dependencies=[ONE_STREAM])
async def events(asker: Who, host: Host, request: Request) -> AsyncIterator[ServerSentEvent]:
    """A server-sent event ``pool`` with the snapshot, now and after every change.

    Before each event, and at least every half minute, the hub is asked again who asks (it believes
    its last answer for as long again): a lost role hides the names, a sign-out ends the stream.
    """
    now: Principal | None = asker
    while now is not None and not host.waker.closed:
        seen = host.waker.version
        texts: SnapshotTexts = request.app.state.texts
        yield ServerSentEvent(event="pool", id=str(seen), raw_data=await texts.of(host, now))
        now = await _asker_at_next_news(request, host, seen, now)


async def _asker_at_next_news(
    request: Request, host: PoolRunner, seen: int, shown_to: Principal
) -> Principal | None:
    """Wait for a change of the pool or of the asker's rights; None if they may see nothing now."""
    while True:
        await host.waker.beyond(seen, LONGEST_POLL_S)
        now = await _again(request, shown_to)
        if now != shown_to or host.waker.version != seen or host.waker.closed:
            return now


async def _again(request: Request, before: Principal) -> Principal | None:
    """Whoever asks, asked anew; without a role while the hub is silent, as it may be lost."""
    try:
        return await who(request)
    except DeniedError as error:
        is_no = error.reason != "hub-silent"
        return None if is_no else before.without_roles()


async def metrics(request: Request) -> Response:
    """For Prometheus.  At the listener's root, which the hub's proxy does not pass on."""
    host: PoolRunner = request.app.state.host
    held = await host.look(lambda pool: pool.leases.brief())
    host.metrics.gpu_call_s.set(host.gpu_call_s)
    said = await host.decide(lambda pool: pool.wellness())
    told = Told({gpu: one.health for gpu, one in said.items()})
    text = host.metrics.render(await host.snapshot(), held, told)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
