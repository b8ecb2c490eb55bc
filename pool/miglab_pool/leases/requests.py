"""Tickets: requested, attended, taken, cancelled, and expired.

A request gets a position in the queue, or its slices in the same step.  `queue.offers` decides
whether a shape may be asked for, and `grant` who is next.

A server that runs without a GPU while its ticket waits attends the ticket by asking for its status:
it keeps its position as long as it asks, whatever browsers close and services restart meanwhile.
"""

from collections.abc import Collection
from dataclasses import replace

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState, LeaseView, RequestedLease, ServerStatus
from miglab_api.line import Line
from miglab_api.offers import ShapeOffer
from miglab_api.standings import line_of
from miglab_api.tickets import TicketRequest, TicketState, TicketView, borrower_of
from miglab_api.wording import duration, lab_in_words
from miglab_pool.leases import grant as grants
from miglab_pool.leases import views as pool_views
from miglab_pool.leases.transactions import full_view
from miglab_pool.leases.wasted_slices import count_waste, with_waste
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.ledger.rows import LeaseRow, TicketRow
from miglab_pool.queue import offers
from miglab_pool.queue.order import ANSWER_S, ASIDE_S, answer_deadline, expiry_time, wait_deadline
from miglab_pool.refused import Refused
from miglab_pool.state.placement import clash
from miglab_pool.state.slices import end_unused_grant, scrub
from miglab_pool.state.store import Store, Subject, locked

UNTAKEN = (TicketState.WAITING, TicketState.OFFERED, TicketState.ASIDE)
"""The states of a ticket that no server has taken a slice with yet, and that can be cancelled."""
ONLY_FOR_NEW = frozenset({"paused", "gpus-unknown"})
"""Refusals that concern new tickets only; existing ones are kept."""

TicketOrRefusal = tuple[TicketRow, Refused | None]
_ANSWER_TIME, _ASIDE_TIME = duration(ANSWER_S), duration(ASIDE_S)
POSITION_KEPT = f"Your position is kept for {_ASIDE_TIME}: return to the queue when you are back."
_UNATTENDED = (
    "You lost your position because your waiting page and server were gone. "
    "Start again to rejoin the queue."
)


class _NotFreeError(Exception):
    """Rolls a request back that would have to wait, with all grants that it made possible."""


class Tickets(Subject):
    """The tickets of servers: requested, attended, taken, cancelled and put back in the queue."""

    def _view(self, row: TicketRow) -> TicketView:
        return pool_views.ticket_view(self.store.current, row)

    @locked
    def find(self, number: int) -> TicketView:
        """Return a ticket, waiting or over, without attending it.

        Raises:
            Refused: there is no such ticket.
        """
        return self._view(self.store.find(TicketRow, number))

    @locked
    def ticket_of_server(self, user: str, server: str) -> int | None:
        """Return the number of a server's live ticket; None if it has none."""
        ticket = server_ticket(self.store, user, server)
        return ticket.id if ticket is not None else None

    @locked
    def request(self, request: TicketRequest) -> TicketView:
        """Return the server's ticket for this shape and course, or put a new one in the queue.

        A request for another shape cancels the old ticket or offer; with ``only_if_free``, only if
        the new one is granted in the same step.

        Raises:
            Refused: with the reason, which is in the ledger too.
        """
        if request.only_if_free:
            ticket, refusal = _request_if_free(self.store, request)
        else:
            with self.store.write() as tx:
                ticket, refusal = _request_ticket(self.store, tx, request)
        if refusal is not None:
            raise refusal
        self._suspect_old_holder(request)
        return self._view(ticket)

    @locked
    def request_and_take(self, request: TicketRequest) -> RequestedLease:
        """As `request`, and take in the same step what the usual rules grant to the ticket now.

        Repeating it returns the same lease.  While an earlier holder of the server is attached,
        nothing is written: the server never has two leases that are in use.

        Raises:
            Refused: ``still-attached``, or as `request` refuses.
        """
        if request.only_if_free:
            self.request(request)  # granted, or refused before anything changes
        if _attached_lease(self.store, request.user, request.server) is not None:
            self._suspect_old_holder(request)
            raise Refused("still-attached", "An earlier start of this server holds its slice.")
        with self.store.write(durable=True) as tx:
            ticket, refusal = _request_and_grant(self.store, tx, request)
            lease = None
            if ticket.state in (TicketState.OFFERED, TicketState.TAKEN):
                ticket, lease = _take(self.store, tx, ticket)
        if refusal is not None:
            raise refusal
        taken_lease = None if lease is None else pool_views.lease_view(self.store.current, lease)
        return RequestedLease(ticket=self._view(ticket), taken_lease=taken_lease)

    def _suspect_old_holder(self, request: TicketRequest) -> None:
        """Have the last holder of a server that asks again checked: it has probably ended."""
        for lease in self.store.state.leases.values():
            if (lease.user, lease.server) == (request.user, request.server) and lease.is_held:
                self.store.suspects.add(lease.id)

    @locked
    def attend(self, number: int) -> TicketView:
        """Attend a ticket, so that it keeps its position, and return it."""
        return self._view(_attend(self.store, self.store.find(TicketRow, number)))

    @locked
    def take(self, number: int) -> LeaseView:
        """Accept the offer of a ticket and return its lease; repeating it returns the same lease.

        Raises:
            Refused: there is no offer, or no longer.
        """
        # Not durable: what a power cut undoes is offered again.
        with self.store.write() as tx:
            _, lease = _take(self.store, tx, self.store.find(TicketRow, number))
        return pool_views.lease_view(self.store.current, lease)

    @locked
    def cancel(self, number: int, actor: str, reason: str = "") -> TicketView:
        """Cancel a waiting or offered ticket; a ticket that is over stays as it is."""
        with self.store.write() as tx:
            ticket = self.store.find(TicketRow, number)
            if ticket.state in UNTAKEN:
                message = reason or "The ticket was cancelled."
                state = TicketState.CANCELLED
                ticket = end_ticket(self.store, tx, ticket, state, "cancelled", message, actor)
        return self._view(ticket)

    @locked
    def server_status(
        self, user: str, server: str, known_ticket: int | None = None
    ) -> ServerStatus:
        """Return what a server holds and waits for, and attend its ticket.

        ``known_ticket`` is an earlier ticket of the server, returned if it has no live one.
        """
        lease = _attached_lease(self.store, user, server)
        ticket = _attend_server_ticket(self.store, user, server, known_ticket)
        borrower = borrower_of(server)
        borrowed = _attached_lease(self.store, user, borrower)
        borrowing = server_ticket(self.store, user, borrower)
        return ServerStatus(
            lease=None if lease is None else full_view(self.store, lease),
            ticket=None if ticket is None else self._view(ticket),
            borrowed=None if borrowed is None else full_view(self.store, borrowed),
            borrowing=None if borrowing is None else self._view(borrowing),
            people=lab_in_words(offers.headcount(self.store.current)),
        )

    def line(self, user: str) -> Line:
        """Return where a person stands, without attending a ticket."""
        view = self.store.current
        tickets = [
            pool_views.ticket_view(view, row) for row in view.tickets.values() if row.user == user
        ]
        leases = [
            pool_views.full_lease_view(view, row)
            for row in view.leases.values()
            if row.user == user
        ]
        return line_of(leases, tickets, view.at)

    @locked
    def attend_for_server(self, user: str, server: str) -> TicketView | None:
        """Attend what a server waits for, and return it; None if it waits for nothing."""
        ticket = _attend_server_ticket(self.store, user, server)
        return None if ticket is None else self._view(ticket)

    @locked
    def end_outside(self, user: str, server: str, courses: Collection[str]) -> None:
        """Cancel a server's ticket of a course that its student has left.

        Args:
            user: the student.
            server: the server's name.
            courses: the courses that the student is in now.
        """
        ticket = server_ticket(self.store, user, server)
        if ticket is None or ticket.state not in UNTAKEN or ticket.course in courses:
            return
        message = (
            f"You are no longer in the course {ticket.course}, so your request for {ticket.shape} "
            "has left the queue. Your server goes on without a GPU. If this is a mistake, tell "
            "your instructor."
        )
        with self.store.write() as tx:
            end_ticket(self.store, tx, ticket, TicketState.CANCELLED, "not-in-course", message)

    @locked
    def cancel_of_server(self, user: str, server: str, actor: str) -> TicketView:
        """Cancel a server's ticket or offer.

        Raises:
            Refused: the server has none.
        """
        ticket = server_ticket(self.store, user, server)
        if ticket is None or ticket.state not in UNTAKEN:
            raise Refused("unknown-ticket", "This server is not waiting for a slice.", 404)
        return self.cancel(ticket.id, actor, "The student left the queue in JupyterLab.")

    @locked
    def requeue(self, user: str, server: str, number: int, courses: Collection[str]) -> TicketView:
        """Join the queue once more for the shape of an earlier ticket of this server.

        Args:
            user: the student.
            server: the server's name.
            number: the number of the ticket, which is over.
            courses: the courses that the student is in now.

        Raises:
            Refused: the server never had that ticket or holds a slice, its student has left the
                course, or `request` refuses.
        """
        before = _find_ended_ticket(self.store, user, server, number, courses)
        request = TicketRequest(user=user, server=server, course=before.course, shape=before.asked)
        return self.request(request)

    def alternatives(self, number: int) -> list[ShapeOffer]:
        """Return the shapes that a ticket could have at once by leaving the queue.

        A ticket that does not wait has none.
        """
        view = self.store.current
        ticket = view.tickets.get(number)
        return offers.alternatives(view, ticket) if ticket is not None and ticket.is_queued else []


def _take(store: Store, tx: Transaction, ticket: TicketRow) -> tuple[TicketRow, LeaseRow]:
    """Take what is offered to a ticket, or return what was taken; refuse if there is neither."""
    lease = store.state.leases.get(ticket.lease or 0)
    if ticket.state == TicketState.OFFERED and lease is not None:
        ticket, lease = replace(ticket, state=TicketState.TAKEN), replace(lease, taken_at=tx.at)
        tx.put(ticket, ticket.user, "taken")
        tx.put(lease)
    elif ticket.state != TicketState.TAKEN or lease is None:
        raise Refused("not-offered", _describe_missing_offer(ticket))
    return ticket, lease


def _request_and_grant(store: Store, tx: Transaction, request: TicketRequest) -> TicketOrRefusal:
    """Request a ticket and serve the queue in the same step, by the usual rules."""
    ticket, refusal = _request_ticket(store, tx, request)
    if refusal is None:
        grants.grant_all(store, tx)
        ticket = store.state.tickets[ticket.id]
    return ticket, refusal


def _request_if_free(store: Store, request: TicketRequest) -> TicketOrRefusal:
    """Request a ticket that is granted in the same step, by the usual rules, or refused.

    If it is refused, everything else stays as it was.
    """
    try:
        with store.write(durable=True) as tx:
            ticket, refusal = _request_and_grant(store, tx, request)
            if ticket.is_queued:
                raise _NotFreeError
            return ticket, refusal
    except _NotFreeError:
        with store.write() as tx:
            refusal = _not_free_refusal(
                ticket.shape, server_ticket(store, request.user, request.server)
            )
            return _new_ticket(store, tx, request, ticket.shape, refusal), refusal


def _not_free_refusal(shape: str, waiting_ticket: TicketRow | None) -> Refused:
    if waiting_ticket is None:
        return Refused("not-free", f"{shape} is not free now. Ask for it to join the queue.")
    kept_position = (
        "position in the queue" if waiting_ticket.lease is None else waiting_ticket.shape
    )
    return Refused("not-free", f"{shape} is no longer free. You keep your {kept_position}.")


def _request_ticket(store: Store, tx: Transaction, request: TicketRequest) -> TicketOrRefusal:
    view = store.view(tx.at)
    shape, refusal = offers.judge_request(view, request)
    ticket = server_ticket(store, request.user, request.server)
    may_stay = refusal is None or refusal.reason in ONLY_FOR_NEW
    if may_stay and ticket is not None and _asks_for_same(ticket, request, shape):
        return confirm_waiting(store, tx, ticket), None
    refusal = refusal or offers.refusal_for_user(view, request, shape, ticket)
    if refusal is not None and store.disk_full:
        raise refusal  # unwritten: what room there is belongs to leases that end
    if refusal is None and ticket is not None:
        message = "You asked for another shape, so this request left the queue."
        end_ticket(store, tx, ticket, TicketState.CANCELLED, "replaced", message, ticket.user)
    return _new_ticket(store, tx, request, shape, refusal), refusal


def _asks_for_same(ticket: TicketRow, request: TicketRequest, shape: str) -> bool:
    current = (ticket.course, ticket.shape, ticket.purpose)
    return current == (request.course, shape, request.purpose)


def _new_ticket(
    store: Store, tx: Transaction, request: TicketRequest, shape: str, refusal: Refused | None
) -> TicketRow:
    ticket = TicketRow(
        id=store.ledger.new_id("ticket"),
        user=request.user,
        server=request.server,
        course=request.course,
        shape=shape,
        asked=request.shape,
        state=TicketState.WAITING if refusal is None else TicketState.REFUSED,
        created_at=tx.at,
        attended_at=tx.at,
        reason="" if refusal is None else refusal.reason,
        message="" if refusal is None else refusal.message,
        purpose=request.purpose.value,
    )
    tx.put(ticket, request.user, ticket.message)
    return ticket


def _describe_missing_offer(ticket: TicketRow) -> str:
    if ticket.state in (TicketState.WAITING, TicketState.ASIDE):
        return f"Ticket {ticket.id} still waits; there is nothing to take yet."
    if ticket.state == TicketState.TAKEN:
        return f"Ticket {ticket.id} was taken and its lease is over. Start the server again."
    return f"Ticket {ticket.id} is {ticket.state}: {ticket.message}"


def _attend(store: Store, ticket: TicketRow) -> TicketRow:
    """Record that a ticket is attended; in memory only, as a restart begins every grace anew."""
    is_open = ticket.state in (TicketState.WAITING, TicketState.OFFERED)
    return store.state.note_attended(ticket, store.now()) if is_open else ticket


def _attached_lease(store: Store, user: str, server: str) -> LeaseRow | None:
    """Return the live lease that a server is attached to, if any; a granted one is only offered."""
    for lease in store.state.leases.values():
        if (lease.user, lease.server) == (user, server) and lease.holder:
            return lease
    return None


def _attend_server_ticket(
    store: Store, user: str, server: str, known_ticket: int | None = None
) -> TicketRow | None:
    """Attend the live ticket of a server and return it.

    If there is none, return its earlier ticket ``known_ticket``, so that the server learns how that
    one ended.
    """
    ticket = server_ticket(store, user, server)
    if ticket is not None:
        return _attend(store, ticket)
    earlier = None if known_ticket is None else store.ledger.find(TicketRow, known_ticket)
    if earlier is None or (earlier.user, earlier.server) != (user, server):
        return None
    return _as_never_attached(earlier) if earlier.state == TicketState.TAKEN else earlier


def _as_never_attached(ticket: TicketRow) -> TicketRow:
    """Return a taken ticket as expired, since its server did not attach in time."""
    message = (
        "Your server did not restart in time, so the slice went to the next student. "
        "Ask again to rejoin the queue."
    )
    return replace(ticket, state=TicketState.EXPIRED, reason="never-attached", message=message)


def _find_ended_ticket(
    store: Store, user: str, server: str, number: int, courses: Collection[str]
) -> TicketRow:
    """Return an earlier ticket of a server that may be requested again; else refuse."""
    ticket = store.find(TicketRow, number)
    if (ticket.user, ticket.server) != (user, server):
        raise Refused("unknown-ticket", f"This server never had ticket {number}.", 404)
    if _attached_lease(store, user, server) is not None:
        raise Refused("already-done", "This server holds a slice; release it first.")
    if ticket.course not in courses:
        message = f"You are not in the course {ticket.course}."
        raise Refused("not-in-course", message, 403)
    return ticket


# -- the life of a ticket -----------------------------------------------------------------------


def server_ticket(store: Store, user: str, server: str) -> TicketRow | None:
    """Return the live ticket of a server; a taken one counts until its holder is attached."""
    for ticket in store.state.tickets.values():
        if (ticket.user, ticket.server) != (user, server):
            continue
        if ticket.state != TicketState.TAKEN:
            return ticket
        lease = store.state.leases.get(ticket.lease or 0)
        if lease is not None and lease.state == LeaseState.GRANTED:
            return ticket
    return None


def confirm_waiting(store: Store, tx: Transaction, ticket: TicketRow) -> TicketRow:
    """Record that the student still waits, since they asked for the same again.

    A ticket that had left the queue for a while returns.  The ticket keeps its age.
    """
    ticket = store.state.note_attended(ticket, tx.at)
    is_asked = answer_deadline(store.settings, store.started_at, ticket, tx.at) is not None
    if is_asked or ticket.state == TicketState.ASIDE:
        waiting_ticket = replace(
            ticket, state=TicketState.WAITING, since=tx.at, reason="", message=""
        )
        ticket = replace(waiting_ticket, attended_at=tx.at)
        tx.put(ticket, ticket.user, "still waiting")
    return ticket


def end_ticket(
    store: Store,
    tx: Transaction,
    ticket: TicketRow,
    state: TicketState,
    reason: str,
    message: str,
    actor: str = "pool",
    action: str = "",
) -> TicketRow:
    """End a ticket that was not taken, or put it aside, and the lease granted to it.

    ``action``: what a person did, see `Transaction.put`.
    """
    tx.on_commit.append(lambda: store.unserved(state.value, reason))
    lease = store.state.leases.get(ticket.lease or 0)
    ticket = with_waste(store, tx, ticket, reason, actor)
    ticket = replace(ticket, state=state, reason=reason, message=message)
    if state is TicketState.ASIDE:
        ticket = replace(ticket, lease=None, offered_at=None, next_at=None, since=tx.at)
    tx.put(ticket, actor, message, action)
    if lease is not None and lease.state == LeaseState.GRANTED:
        end_unused_grant(store, tx, lease, LeaseState.EXPIRED, actor, reason)
    return ticket


def requeue_granted(store: Store, tx: Transaction, lease: LeaseRow, reason: str) -> None:
    """Withdraw a granted lease; its ticket waits on at its old position.

    A taken ticket cannot wait on: its spawner has the lease's number, and attach will refuse it.
    """
    ticket = store.state.tickets.get(lease.ticket or 0)
    if ticket is not None and ticket.state in (TicketState.WAITING, TicketState.OFFERED):
        waiting_ticket = replace(
            ticket, state=TicketState.WAITING, lease=None, offered_at=None, since=tx.at, message=""
        )
        tx.put(waiting_ticket, reason=reason)
    end_unused_grant(store, tx, lease, LeaseState.EXPIRED, "pool", reason)


def drop_grants(
    store: Store, tx: Transaction, gpu: str, reason: str, *, with_existing: bool = False
) -> None:
    """Withdraw the leases granted on a GPU that takes no lease now; their tickets wait on.

    Args:
        store: the pool.
        tx: the transaction.
        gpu: the UUID of the GPU.
        reason: why it takes no lease, for the ledger.
        with_existing: whether leases whose slice exists are withdrawn too.
    """
    for row in list(store.state.on_gpu[gpu].values()):
        lease = store.state.leases.get(row.lease or 0)
        if lease is None or lease.state != LeaseState.GRANTED:
            continue
        if with_existing or row.state == SliceState.MAKING:
            requeue_granted(store, tx, lease, reason)


def drop_blocked(store: Store, tx: Transaction, gpu: str) -> None:
    """Give up slices to be made whose placement will not become free; their tickets wait on."""
    rows = list(store.state.on_gpu[gpu].values())
    obstacles = [row for row in rows if row.state in (SliceState.FOREIGN, SliceState.QUARANTINED)]
    for row in rows:
        if row.state != SliceState.MAKING:
            continue
        is_blocked = any(
            clash(store.placement_of(row), store.placement_of(other)) for other in obstacles
        )
        if not is_blocked and not store.has_lost(gpu):
            continue
        reason = f"slice {row.id} cannot be made: something is in its way on {gpu}"
        lease = store.state.leases.get(row.lease or 0)
        if lease is not None:
            requeue_granted(store, tx, lease, reason)
        scrub(tx, store.state.slices[row.id], reason, remake=False)


def expire_overdue(store: Store, tx: Transaction) -> None:
    """End what is overdue: unattended tickets, offers that nobody took, grants never attached.

    A ticket whose student may come back, having missed a question or an offer, is put aside.
    """
    for ticket in list(store.state.tickets.values()):
        expires_at = expiry_time(store.settings, store.started_at, ticket)
        if expires_at is not None and tx.at >= expires_at:
            outcome = _overdue_borrow_outcome if ticket.is_borrow else _overdue_outcome
            state, reason, message = outcome(store, ticket, tx.at)
            end_ticket(store, tx, ticket, state, reason, message)
    for lease in list(store.state.leases.values()):
        limit_s = store.settings.pool.attach_s
        if lease.taken_at is None or lease.state != LeaseState.GRANTED:
            continue
        if tx.at >= max(lease.taken_at, store.started_at) + limit_s:
            count_waste(store, tx, lease.ticket, "never-attached", "pool")
            end_unused_grant(store, tx, lease, LeaseState.EXPIRED, "pool", "never-attached")


def _overdue_outcome(store: Store, ticket: TicketRow, at: float) -> tuple[TicketState, str, str]:
    if ticket.state == TicketState.ASIDE:
        return TicketState.EXPIRED, "aside-too-long", f"You did not return within {_ASIDE_TIME}."
    if ticket.state == TicketState.OFFERED:
        explanation = f"A {ticket.shape} was offered to you and not taken in time."
        return TicketState.ASIDE, "offer-expired", f"{explanation} {POSITION_KEPT}"
    if ticket.lease is not None:
        explanation = f"It was your turn, and the {ticket.shape} could not be created in time."
        return TicketState.ASIDE, "never-made", f"{explanation} {POSITION_KEPT}"
    if at >= wait_deadline(store.settings, store.started_at, ticket):
        explanation = (
            f"You were asked whether you still wait, and did not answer within {_ANSWER_TIME}."
        )
        return TicketState.ASIDE, "not-answered", f"{explanation} {POSITION_KEPT}"
    return TicketState.EXPIRED, "unattended", _UNATTENDED


def _overdue_borrow_outcome(
    store: Store, ticket: TicketRow, at: float
) -> tuple[TicketState, str, str]:
    if ticket.state == TicketState.OFFERED:
        message = "The slices were offered, and not taken in time. Measure again."
        return TicketState.EXPIRED, "offer-expired", message
    if at >= ticket.period_at + store.settings.pool.longest_wait_s:
        longest = duration(store.settings.pool.longest_wait_s)
        message = f"No {ticket.shape} became free within {longest}. Measure again later."
        return TicketState.REFUSED, "waited-too-long", message
    return TicketState.EXPIRED, "unattended", _UNATTENDED
