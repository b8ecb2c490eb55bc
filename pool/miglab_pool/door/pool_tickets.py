"""Tickets: asked for, attended, taken, given up."""

from collections.abc import Collection

from miglab_api.leases import LeaseView, ServerStatus
from miglab_api.offers import ShapeOffer
from miglab_api.tickets import TicketRequest, TicketView, borrower_of
from miglab_api.wording import lab_in_words
from miglab_pool.door.pool_leases import lease_answer
from miglab_pool.leases import requests
from miglab_pool.leases import views as pool_views
from miglab_pool.ledger.rows import TicketRow
from miglab_pool.queue import offers, tickets
from miglab_pool.queue import offers as alternatives
from miglab_pool.queue import tickets as servers
from miglab_pool.state.store import Store
from miglab_pool.worker.worker import Worker


class PoolTickets:
    """See the module."""

    def __init__(self, store: Store, worker: Worker) -> None:
        self._store, self._worker = store, worker

    def _view(self, row: TicketRow) -> TicketView:
        return pool_views.ticket_view(self._store.current, row)

    def find(self, number: int) -> TicketView:
        """One ticket, waiting or over, without keeping its position.

        Raises:
            Refused: there is none.
        """
        with self._store.lock:
            return self._view(tickets.find(self._store, number))

    def of_server(self, user: str, server: str) -> int | None:
        """The number of the ticket that a server has; None if it has none."""
        with self._store.lock:
            ticket = tickets.of_server(self._store, user, server)
            return ticket.id if ticket is not None else None

    def request(self, request: TicketRequest) -> TicketView:
        """A position in the queue: the one this server has for this shape and course, or a new one.

        Asking for another shape gives up the old position (or offer); ``only_if_free`` only
        if the other is granted in the same step.

        Raises:
            Refused: with the reason, which is in the ledger too.
        """
        with self._store.lock:
            ticket = requests.request(self._store, request)
            self._ask_after_old_holder(request)
            return self._view(ticket)

    def _ask_after_old_holder(self, request: TicketRequest) -> None:
        """A server that asks again has ended: look whether its last holder is gone, now."""
        for lease in self._store.state.leases.values():
            if (lease.user, lease.server) == (request.user, request.server) and lease.is_held:
                self._worker.suspects.add(lease.id)

    def attend(self, number: int) -> TicketView:
        """Keep the position, and see how the ticket stands."""
        with self._store.lock:
            return self._view(tickets.attend(self._store, number))

    def take(self, number: int) -> LeaseView:
        """Accept the offer.  The slices exist; asking again gives the same lease.

        Raises:
            Refused: there is no offer (any more).
        """
        with self._store.lock:
            return pool_views.lease_view(self._store.current, tickets.take(self._store, number))

    def cancel(self, number: int, by: str, reason: str = "") -> TicketView:
        """Leave the queue, or give up the offer; a ticket that is over stays as it is."""
        with self._store.lock:
            return self._view(tickets.cancel(self._store, number, by, reason))

    # -- of one server ------------------------------------------------------------------------

    def server_status(self, user: str, server: str, known: int | None = None) -> ServerStatus:
        """What a server holds and waits for; asking keeps its position.

        ``known`` is a ticket it had before, told once more if there is no other.
        """
        with self._store.lock:
            lease = servers.held(self._store, user, server)
            ticket = servers.attended(self._store, user, server, known)
            borrower = borrower_of(server)
            borrowed = servers.held(self._store, user, borrower)
            borrowing = tickets.of_server(self._store, user, borrower)
            return ServerStatus(
                lease=None if lease is None else lease_answer(self._store, lease),
                ticket=None if ticket is None else self._view(ticket),
                borrowed=None if borrowed is None else lease_answer(self._store, borrowed),
                borrowing=None if borrowing is None else self._view(borrowing),
                people=lab_in_words(offers.headcount(self._store.current)),
            )

    def cancel_of_server(self, user: str, server: str, by: str) -> TicketView:
        """Remove a server's ticket or offer.

        Raises:
            Refused: it has none.
        """
        with self._store.lock:
            number = servers.own_open(self._store, user, server).id
            return self.cancel(number, by, "The student left the queue in JupyterLab.")

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
        with self._store.lock:
            before = servers.own_over(self._store, user, server, number, courses)
            asked = TicketRequest(
                user=user, server=server, course=before.course, shape=before.asked
            )
            return self.request(asked)

    def alternatives(self, number: int) -> list[ShapeOffer]:
        """What who waits could have at once instead, by leaving the queue; empty: nothing."""
        view = self._store.current
        ticket = view.tickets.get(number)
        if ticket is None:
            with self._store.lock:
                ticket = tickets.find(self._store, number)
        courses = offers.offers(view, [ticket.course]).courses if ticket.is_queued else ()
        return [one for course in courses for one in alternatives.of_ticket(view, ticket, course)]
