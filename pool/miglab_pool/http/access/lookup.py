"""A lease or a ticket that somebody wants to do something to: found, or refused in fitting words.

Whoever may not see whose it is learns not even that it is there (404); whoever sees it and may not
do this is told who may (403).
"""

from miglab_api.leases import LeaseView
from miglab_api.tickets import TicketView
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.access.rights import Right
from miglab_pool.http.errors import DeniedError
from miglab_pool.pool import Pool


def ticket_for(pool: Pool, principal: Principal, number: int, right: Right) -> TicketView:
    """The ticket, if the principal has the right over it.

    Raises:
        Refused: there is no such ticket.
        DeniedError: 404 or 403.
    """
    found = pool.tickets.find(number)
    if not principal.may(Right.SEE_NAMES, found.course, found.user):
        raise DeniedError(404, "unknown-ticket", f"You have no ticket {number}.")
    principal.require(right, found.course, found.user)
    return found


def lease_for(pool: Pool, principal: Principal, number: int, right: Right) -> LeaseView:
    """The lease, if the principal has the right over it.

    Raises:
        Refused: there is no such lease.
        DeniedError: 404 or 403.
    """
    found = pool.leases.find(number)
    if not principal.may(Right.SEE_NAMES, found.course, found.user):
        raise DeniedError(404, "unknown-lease", f"You have no lease {number}.")
    principal.require(right, found.course, found.user)
    return found
