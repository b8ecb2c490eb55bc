"""What one server has and waits for: its lease, its position in the queue, what was offered to it.

A server that runs without a GPU while its ticket waits attends the ticket by asking: the position
is kept for as long as it asks, however many browsers are closed and services restarted meanwhile.
"""

from collections.abc import Collection
from dataclasses import replace

from miglab_api.tickets import TicketState
from miglab_pool.model.refused import Refused
from miglab_pool.model.rows import LeaseRow, TicketRow
from miglab_pool.state.store import Store
from miglab_pool.transactions import tickets

OPEN = (TicketState.WAITING, TicketState.OFFERED, TicketState.ASIDE)


def held(store: Store, user: str, server: str) -> LeaseRow | None:
    """The live lease that this server was attached to; one only granted is still an offer."""
    for lease in store.state.leases.values():
        if (lease.user, lease.server) == (user, server) and lease.holder:
            return lease
    return None


def attended(store: Store, user: str, server: str, known: int | None = None) -> TicketRow | None:
    """The ticket of this server, which keeps its position by this; also one that is being moved to.

    Where there is none, the one that the server names as ``known`` is told once more, so that it
    learns how that one ended.
    """
    ticket = tickets.of_server(store, user, server)
    if ticket is not None:
        return tickets.attend(store, ticket.id)
    before = None if known is None else store.ledger.find_ticket(known)
    if before is None or (before.user, before.server) != (user, server):
        return None
    return _never_used(before) if before.state == TicketState.TAKEN else before


def _never_used(ticket: TicketRow) -> TicketRow:
    """A ticket that was taken for a server that then did not come, as its student sees it."""
    message = (
        "The slice was kept for you, and the server did not restart with it in time. Ask again."
    )
    return replace(ticket, state=TicketState.EXPIRED, reason="never-attached", message=message)


def own_open(store: Store, user: str, server: str) -> TicketRow:
    """The ticket of this server that waits or is offered.

    Raises:
        Refused: it has none.
    """
    ticket = tickets.of_server(store, user, server)
    if ticket is None or ticket.state not in OPEN:
        raise Refused("unknown-ticket", "This server is not waiting for a slice.", 404)
    return ticket


def own_over(
    store: Store, user: str, server: str, number: int, courses: Collection[str]
) -> TicketRow:
    """A ticket that this server once had, to be asked for again.

    Args:
        store: the pool.
        user: the student.
        server: the server's name.
        number: the ticket's.
        courses: those that the student is in now.

    Raises:
        Refused: it never had it, or holds a slice, or its student has left the course.
    """
    ticket = tickets.find(store, number)
    if (ticket.user, ticket.server) != (user, server):
        raise Refused("unknown-ticket", f"This server never had ticket {number}.", 404)
    if held(store, user, server) is not None:
        raise Refused("already-done", "This server holds a slice; release it first.")
    if ticket.course not in courses:
        message = f"You are not in the course {ticket.course}."
        raise Refused("not-in-course", message, 403)
    return ticket
