"""Tickets: asked for, attended, taken, given up.

A request gets a position in the queue, or the slices in this very step.  Whether it may be asked
for is decided in `queue.offers`, and who is next in `grant`; `queue.tickets` ends what is overdue.

A server that runs without a GPU while its ticket waits attends the ticket by asking: the position
is kept for as long as it asks, however many browsers are closed and services restarted meanwhile.
"""

from collections.abc import Collection
from dataclasses import replace

from miglab_api.leases import LeaseView, ServerStatus
from miglab_api.offers import ShapeOffer
from miglab_api.tickets import TicketRequest, TicketState, TicketView, borrower_of
from miglab_api.wording import lab_in_words
from miglab_pool.leases import grant as grants
from miglab_pool.leases import views as pool_views
from miglab_pool.leases.transactions import lease_answer
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.ledger.rows import LeaseRow, TicketRow
from miglab_pool.queue import offers, tickets
from miglab_pool.refused import Refused
from miglab_pool.state.store import Store, Subject, locked

OPEN = (TicketState.WAITING, TicketState.OFFERED, TicketState.ASIDE)
NO_NEW_ONES = frozenset({"paused", "gpus-unknown"})
"""Refusals of what is new; who has a ticket keeps it."""

Answer = tuple[TicketRow, Refused | None]


class _NotFreeError(Exception):
    """Undoes a request that would have to wait, and what leaving the queue let others have."""


class Tickets(Subject):
    """See the module."""

    def _answer(self, row: TicketRow) -> TicketView:
        return pool_views.ticket_view(self.store.current, row)

    @locked
    def find(self, number: int) -> TicketView:
        """One ticket, waiting or over, without keeping its position.

        Raises:
            Refused: there is none.
        """
        return self._answer(self.store.find(TicketRow, number))

    @locked
    def of_server(self, user: str, server: str) -> int | None:
        """The number of the ticket that a server has; None if it has none."""
        ticket = tickets.of_server(self.store, user, server)
        return ticket.id if ticket is not None else None

    @locked
    def request(self, request: TicketRequest) -> TicketView:
        """A position in the queue: the one this server has for this shape and course, or a new one.

        Asking for another shape gives up the old position (or offer); ``only_if_free`` only
        if the other is granted in the same step.

        Raises:
            Refused: with the reason, which is in the ledger too.
        """
        if request.only_if_free:
            ticket, refusal = _at_once(self.store, request)
        else:
            with self.store.write() as tx:
                ticket, refusal = _asked(self.store, tx, request)
        if refusal is not None:
            raise refusal
        self._ask_after_old_holder(request)
        return self._answer(ticket)

    def _ask_after_old_holder(self, request: TicketRequest) -> None:
        """A server that asks again has ended: look whether its last holder is gone, now."""
        for lease in self.store.state.leases.values():
            if (lease.user, lease.server) == (request.user, request.server) and lease.is_held:
                self.store.suspects.add(lease.id)

    @locked
    def attend(self, number: int) -> TicketView:
        """Keep the position, and see how the ticket stands."""
        return self._answer(_attended(self.store, self.store.find(TicketRow, number)))

    @locked
    def take(self, number: int) -> LeaseView:
        """Accept the offer.  The slices exist; asking again gives the same lease.

        Raises:
            Refused: there is no offer (any more).
        """
        # Waits for no disk: what a power cut undoes is offered again.
        with self.store.write() as tx:
            ticket = self.store.find(TicketRow, number)
            lease = self.store.state.leases.get(ticket.lease or 0)
            if ticket.state == TicketState.OFFERED and lease is not None:
                tx.put(replace(ticket, state=TicketState.TAKEN), ticket.user, "taken")
                lease = replace(lease, taken_at=tx.at)
                tx.put(lease)
            elif ticket.state != TicketState.TAKEN or lease is None:
                raise Refused("not-offered", _why_not_taken(ticket))
        return pool_views.lease_view(self.store.current, lease)

    @locked
    def cancel(self, number: int, by: str, reason: str = "") -> TicketView:
        """Leave the queue, or give up the offer; a ticket that is over stays as it is."""
        with self.store.write() as tx:
            ticket = self.store.find(TicketRow, number)
            if ticket.state in OPEN:
                message = reason or "The ticket was cancelled."
                state = TicketState.CANCELLED
                ticket = tickets.end(self.store, tx, ticket, state, "cancelled", message, by)
        return self._answer(ticket)

    @locked
    def server_status(self, user: str, server: str, known: int | None = None) -> ServerStatus:
        """What a server holds and waits for; asking keeps its position.

        ``known`` is a ticket it had before, told once more if there is no other.
        """
        lease = _held(self.store, user, server)
        ticket = _attended_of(self.store, user, server, known)
        borrower = borrower_of(server)
        borrowed = _held(self.store, user, borrower)
        borrowing = tickets.of_server(self.store, user, borrower)
        return ServerStatus(
            lease=None if lease is None else lease_answer(self.store, lease),
            ticket=None if ticket is None else self._answer(ticket),
            borrowed=None if borrowed is None else lease_answer(self.store, borrowed),
            borrowing=None if borrowing is None else self._answer(borrowing),
            people=lab_in_words(offers.headcount(self.store.current)),
        )

    @locked
    def cancel_of_server(self, user: str, server: str, by: str) -> TicketView:
        """Remove a server's ticket or offer.

        Raises:
            Refused: it has none.
        """
        ticket = tickets.of_server(self.store, user, server)
        if ticket is None or ticket.state not in OPEN:
            raise Refused("unknown-ticket", "This server is not waiting for a slice.", 404)
        return self.cancel(ticket.id, by, "The student left the queue in JupyterLab.")

    @locked
    def requeue(self, user: str, server: str, number: int, courses: Collection[str]) -> TicketView:
        """Join the queue once more for what a ticket of this server, now over, had asked for.

        Args:
            user: the student.
            server: the server's name.
            number: the ticket's.
            courses: those that the student is in now.

        Raises:
            Refused: it never had that ticket, holds a slice, has left the course, or what
                `request` refuses.
        """
        before = _own_over(self.store, user, server, number, courses)
        asked = TicketRequest(user=user, server=server, course=before.course, shape=before.asked)
        return self.request(asked)

    @locked
    def alternatives(self, number: int) -> list[ShapeOffer]:
        """What who waits could have at once instead, by leaving the queue; empty: nothing."""
        ticket = self.store.find(TicketRow, number)
        return offers.instead(self.store.current, ticket) if ticket.is_queued else []


def _at_once(store: Store, asked: TicketRequest) -> Answer:
    """Asked for, and granted by the rule for all, in one step; else everything stays as it was."""
    try:
        with store.write(durable=True) as tx:
            ticket, refusal = _asked(store, tx, asked)
            if refusal is None:
                grants.grant_all(store, tx)
                ticket = store.state.tickets[ticket.id]
            if ticket.is_queued:
                raise _NotFreeError
            return ticket, refusal
    except _NotFreeError:
        with store.write() as tx:
            refusal = _not_free(ticket.shape, tickets.of_server(store, asked.user, asked.server))
            return _new(store, tx, asked, ticket.shape, refusal), refusal


def _not_free(shape: str, kept: TicketRow | None) -> Refused:
    if kept is None:
        return Refused("not-free", f"{shape} is not free now. Ask for it to join the queue.")
    what = "position in the queue" if kept.lease is None else kept.shape
    return Refused("not-free", f"{shape} is no longer free. You keep your {what}.")


def _asked(store: Store, tx: Transaction, asked: TicketRequest) -> Answer:
    view = store.view(tx.at)
    shape, refusal = offers.judge(view, asked)
    ticket = tickets.of_server(store, asked.user, asked.server)
    may_stay = refusal is None or refusal.reason in NO_NEW_ONES
    if may_stay and ticket is not None and _is_same(ticket, asked, shape):
        return tickets.still_waiting(store, tx, ticket), None
    refusal = refusal or offers.why_not_now(view, asked, shape, ticket)
    if refusal is None and ticket is not None:
        _replace(store, tx, ticket)
    return _new(store, tx, asked, shape, refusal), refusal


def _is_same(ticket: TicketRow, asked: TicketRequest, shape: str) -> bool:
    mine = (ticket.course, ticket.shape, ticket.purpose)
    return mine == (asked.course, shape, asked.purpose)


def _replace(store: Store, tx: Transaction, ticket: TicketRow) -> None:
    message = "You asked for another shape, so this request left the queue."
    tickets.end(store, tx, ticket, TicketState.CANCELLED, "replaced", message, ticket.user)


def _new(
    store: Store, tx: Transaction, asked: TicketRequest, shape: str, refusal: Refused | None
) -> TicketRow:
    ticket = TicketRow(
        id=store.ledger.new_id("ticket"),
        user=asked.user,
        server=asked.server,
        course=asked.course,
        shape=shape,
        asked=asked.shape,
        state=TicketState.WAITING if refusal is None else TicketState.REFUSED,
        created_at=tx.at,
        attended_at=tx.at,
        reason="" if refusal is None else refusal.reason,
        message="" if refusal is None else refusal.message,
        purpose=asked.purpose.value,
    )
    tx.put(ticket, asked.user, ticket.message)
    return ticket


def _why_not_taken(ticket: TicketRow) -> str:
    if ticket.state in (TicketState.WAITING, TicketState.ASIDE):
        return f"Ticket {ticket.id} still waits; there is nothing to take yet."
    if ticket.state == TicketState.TAKEN:
        return f"Ticket {ticket.id} was taken and its lease is over. Start the server again."
    return f"Ticket {ticket.id} is {ticket.state}: {ticket.message}"


def _attended(store: Store, ticket: TicketRow) -> TicketRow:
    """Somebody still wants it.  In memory only: after a restart every grace begins anew."""
    is_open = ticket.state in (TicketState.WAITING, TicketState.OFFERED)
    return store.state.attend(ticket, store.now()) if is_open else ticket


def _held(store: Store, user: str, server: str) -> LeaseRow | None:
    """The live lease that this server was attached to; one only granted is still an offer."""
    for lease in store.state.leases.values():
        if (lease.user, lease.server) == (user, server) and lease.holder:
            return lease
    return None


def _attended_of(
    store: Store, user: str, server: str, known: int | None = None
) -> TicketRow | None:
    """The ticket of this server, which keeps its position by this; also one that is being moved to.

    Where there is none, the one that the server names as ``known`` is told once more, so that it
    learns how that one ended.
    """
    ticket = tickets.of_server(store, user, server)
    if ticket is not None:
        return _attended(store, ticket)
    before = None if known is None else store.ledger.find(TicketRow, known)
    if before is None or (before.user, before.server) != (user, server):
        return None
    return _never_used(before) if before.state == TicketState.TAKEN else before


def _never_used(ticket: TicketRow) -> TicketRow:
    """A ticket that was taken for a server that then did not come, as its student sees it."""
    message = (
        "Your server did not restart in time, so the slice went to the next student. "
        "Ask again to rejoin the queue."
    )
    return replace(ticket, state=TicketState.EXPIRED, reason="never-attached", message=message)


def _own_over(
    store: Store, user: str, server: str, number: int, courses: Collection[str]
) -> TicketRow:
    """A ticket that this server once had, to be asked for again; courses: the student's now."""
    ticket = store.find(TicketRow, number)
    if (ticket.user, ticket.server) != (user, server):
        raise Refused("unknown-ticket", f"This server never had ticket {number}.", 404)
    if _held(store, user, server) is not None:
        raise Refused("already-done", "This server holds a slice; release it first.")
    if ticket.course not in courses:
        message = f"You are not in the course {ticket.course}."
        raise Refused("not-in-course", message, 403)
    return ticket
