"""Tickets: asked for, waited for, given up, taken."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Response

from miglab_api.leases import LeaseView
from miglab_api.tickets import TicketRequest, TicketState, TicketView
from miglab_pool.http.access.dependencies import Host, Spawner, needs
from miglab_pool.http.access.lookup import ticket_for
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.access.rights import Right
from miglab_pool.http.errors import REFUSED
from miglab_pool.http.notifier import LONGEST_POLL_S
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.pool import Pool

PLACE_REST_S = 0.2

router = APIRouter(prefix="/api", responses=REFUSED)


@router.post("/tickets", status_code=201)
async def ask(request: TicketRequest, _: Spawner, host: Host, response: Response) -> TicketView:
    """Ask for a shape: 201 for a new ticket, 200 for the one that is there already."""

    def decision(pool: Pool) -> TicketView:
        before = pool.tickets.of_server(request.user, request.server)
        ticket = pool.tickets.request(request)
        is_new = before != ticket.id
        response.status_code = 201 if is_new else 200
        return ticket

    return await host.decide(decision)


@router.get("/tickets/{ticket_id}")
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


@router.delete("/tickets/{ticket_id}")
async def cancel(
    ticket_id: int, asker: Annotated[Principal, needs(Right.RELEASE)], host: Host
) -> TicketView:
    """Give up a place in the queue."""

    def decision(pool: Pool) -> TicketView:
        ticket_for(pool, asker, ticket_id, Right.RELEASE)
        return pool.tickets.cancel(ticket_id, asker.by)

    return await host.decide(decision)


@router.post("/tickets/{ticket_id}/take")
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
