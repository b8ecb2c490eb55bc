"""The lease or ticket that a route is about, if the principal has the right over it."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from miglab_api.leases import LeaseView
from miglab_api.tickets import TicketView
from miglab_pool.http.access.dependencies import check_allowed
from miglab_pool.http.access.principal import Principal, Right
from miglab_pool.http.runner_protocol import RunnerOf
from miglab_pool.leases.requests import Tickets
from miglab_pool.leases.transactions import Leases
from miglab_pool.state.people import People


class LeasesPool(Protocol):
    """What routes about tickets and leases use of the pool."""

    tickets: Tickets
    leases: Leases
    people: People


LeasesPart = TypeVar("LeasesPart", bound=LeasesPool)


def ticket_for(pool: LeasesPool, principal: Principal, number: int, right: Right) -> TicketView:
    """Return a ticket, if the principal has the right over it.

    Raises:
        Refused: there is no such ticket.
        DeniedError: 404 or 403.
    """
    return check_allowed(pool.tickets.find(number), "ticket", principal, right)


def lease_for(pool: LeasesPool, principal: Principal, number: int, right: Right) -> LeaseView:
    """Return a lease, if the principal has the right over it.

    Raises:
        Refused: there is no such lease.
        DeniedError: 404 or 403.
    """
    return check_allowed(pool.leases.find(number), "lease", principal, right)


async def decide_on_ticket(
    runner: RunnerOf[LeasesPart],
    principal: Principal,
    number: int,
    right: Right,
    act: Callable[[LeasesPart], TicketView],
) -> TicketView:
    """Decide on a ticket, if the principal has the right over it; raises as `ticket_for`."""

    def decision(pool: LeasesPart) -> TicketView:
        ticket_for(pool, principal, number, right)
        return act(pool)

    return await runner.decide(decision)
