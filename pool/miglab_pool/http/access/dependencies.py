"""Who may ask for what on the management listener: what a route says of the right it needs.

Every route has one parameter or dependency made by `needs`, is marked `OPEN`, or is a
`pages.frame.DrawnPage`, which has its right; a test refuses any other.  It refuses who has the
right over nothing at all; whether the right reaches what is asked for, the route finds out with
`Principal.require`.  Of a lease or a ticket, whoever may not see whose it is learns not even that
it is there (404); whoever sees it and may not do this is told who may (403).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from miglab_api.leases import LeaseView
from miglab_api.tickets import TicketView
from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.access.principal import Principal, Right, forbidden
from miglab_pool.http.errors import DeniedError
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.pool import Pool

Found = TypeVar("Found", LeaseView, TicketView)


async def who(request: Request) -> Principal:
    """Whoever asks, by the name that the pool knows them by; refuses nobody in particular."""
    sign_in: SignIn = request.app.state.sign_in
    principal = await sign_in.principal(request)
    if not principal.user_id:
        return principal
    runner: PoolRunner = request.app.state.runner
    name = await runner.name_of(principal.user_id, principal.name)
    return replace(principal, name=name)


async def who_again(request: Request, before: Principal) -> Principal | None:
    """Whoever reads a stream, asked anew; None if they are signed out.

    While the hub is silent they have no role, as it may be lost.
    """
    try:
        return await who(request)
    except DeniedError as error:
        return before.without_roles() if error.reason == "hub-silent" else None


@dataclass(frozen=True, slots=True)
class Needs:
    """A route's dependency: who asks, if they have the right over anything at all."""

    right: Right

    async def __call__(self, request: Request) -> Principal:
        """Who asks.

        Raises:
            DeniedError: 403, saying who may.
        """
        principal = await who(request)
        if not principal.has(self.right):
            raise forbidden(self.right)
        return principal


class Open:
    """A route's dependency that lets in anybody, signed in or not; it says so, and does nothing."""

    async def __call__(self) -> None:
        """Refuse nobody."""


def needs(right: Right) -> Any:
    """The right that a route needs: it stands in the annotation of its parameter ``principal``."""
    return Depends(Needs(right))


async def _runner(request: Request) -> PoolRunner:  # async: FastAPI gives a plain one a thread
    runner: PoolRunner = request.app.state.runner
    return runner


OPEN = Depends(Open())
Who = Annotated[Principal, needs(Right.SEE_POOL)]
Spawner = Annotated[Principal, needs(Right.SPAWN)]
MaySeeNames = Annotated[Principal, needs(Right.SEE_NAMES)]
MayRelease = Annotated[Principal, needs(Right.RELEASE)]
MayExtend = Annotated[Principal, needs(Right.EXTEND)]
MayReserve = Annotated[Principal, needs(Right.RESERVE)]
MayMessage = Annotated[Principal, needs(Right.MESSAGE)]
Runner = Annotated[PoolRunner, Depends(_runner)]


def ticket_for(pool: Pool, principal: Principal, number: int, right: Right) -> TicketView:
    """The ticket, if the principal has the right over it.

    Raises:
        Refused: there is no such ticket.
        DeniedError: 404 or 403.
    """
    return allowed(pool.tickets.find(number), "ticket", principal, right)


def lease_for(pool: Pool, principal: Principal, number: int, right: Right) -> LeaseView:
    """The lease, if the principal has the right over it.

    Raises:
        Refused: there is no such lease.
        DeniedError: 404 or 403.
    """
    return allowed(pool.leases.find(number), "lease", principal, right)


def allowed(found: Found, kind: str, principal: Principal, right: Right) -> Found:
    """What was found, if the principal has the right over it.

    Raises:
        DeniedError: 404 or 403.
    """
    if not principal.may(Right.SEE_NAMES, found.course, found.user):
        raise DeniedError(404, f"unknown-{kind}", f"There is no {kind} {found.id}.")
    principal.require(right, found.course, found.user)
    return found


async def on_ticket(
    runner: PoolRunner,
    principal: Principal,
    number: int,
    right: Right,
    act: Callable[[Pool], TicketView],
) -> TicketView:
    """Decide about a ticket, if the principal has the right over it; raises as `ticket_for`."""

    def decision(pool: Pool) -> TicketView:
        ticket_for(pool, principal, number, right)
        return act(pool)

    return await runner.decide(decision)
