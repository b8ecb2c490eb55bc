"""The rights that routes of the management listener need, as FastAPI dependencies.

Every route has one parameter or dependency made by `needs`, is marked `OPEN`, or is a
`pages.frame.DrawnPage`, which has its right; a test rejects any other.  The dependency refuses a
principal that has the right over nothing at all; the route checks with `Principal.require` whether
the right covers the resource.  A lease or ticket whose user the principal may not see does not
exist for them (404); if they see it and may not do this, the refusal says who may (403).
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from miglab_api.leases import LeaseView
from miglab_api.tickets import TicketView
from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.access.principal import Principal, Right, forbidden
from miglab_pool.http.errors import DeniedError
from miglab_pool.http.runner_protocol import RunnerOf

LeaseOrTicket = TypeVar("LeaseOrTicket", LeaseView, TicketView)


async def find_principal(request: Request) -> Principal:
    """Return the principal of a request, by the name that the pool has for them."""
    sign_in: SignIn = request.app.state.sign_in
    principal = await sign_in.principal(request)
    if not principal.user_id:
        return principal
    runner: RunnerOf[object] = request.app.state.runner
    name = await runner.name_of(principal.user_id, principal.name)
    return replace(principal, name=name)


async def refresh_principal(request: Request, before: Principal) -> Principal | None:
    """Return the principal of a stream anew; None if they are signed out.

    While the hub is silent, the principal has no role, as it may be lost.
    """
    try:
        return await find_principal(request)
    except DeniedError as error:
        return before.without_roles() if error.reason == "hub-silent" else None


@dataclass(frozen=True, slots=True)
class Needs:
    """A dependency of a route: its principal, if they have a right over anything at all."""

    right: Right

    async def __call__(self, request: Request) -> Principal:
        """Return the principal of the request.

        Raises:
            DeniedError: 403, saying who has the right.
        """
        principal = await find_principal(request)
        if not principal.has(self.right):
            raise forbidden(self.right)
        return principal


class Open:
    """A dependency that marks a route as open to anybody, signed in or not."""

    async def __call__(self) -> None:
        """Refuse nobody."""


def needs(right: Right) -> Any:
    """Return the dependency on a right, for the annotation of a route's ``principal``."""
    return Depends(Needs(right))


async def _runner(request: Request) -> Any:  # async: FastAPI gives a plain one a thread
    return request.app.state.runner


OPEN = Depends(Open())
RUNNER = Depends(_runner)
"""What runs decisions: a route annotates it with `RunnerOf` the part of the pool that it uses."""
Viewer = Annotated[Principal, needs(Right.SEE_POOL)]
Spawner = Annotated[Principal, needs(Right.SPAWN)]
MaySeeNames = Annotated[Principal, needs(Right.SEE_NAMES)]
MayRelease = Annotated[Principal, needs(Right.RELEASE)]
MayExtend = Annotated[Principal, needs(Right.EXTEND)]
MayReserve = Annotated[Principal, needs(Right.RESERVE)]
MayMessage = Annotated[Principal, needs(Right.MESSAGE)]


def check_allowed(
    resource: LeaseOrTicket, kind: str, principal: Principal, right: Right
) -> LeaseOrTicket:
    """Return a lease or ticket, if the principal has the right over it.

    Raises:
        DeniedError: 404 or 403.
    """
    if not principal.may(Right.SEE_NAMES, resource.course, resource.user):
        raise DeniedError(404, f"unknown-{kind}", f"There is no {kind} {resource.id}.")
    principal.require(right, resource.course, resource.user)
    return resource
