"""Tickets: asked for, attended, taken, given up, and the ways they end.

A request gets a position in the queue, or the slices in this very step.  Whether it may be asked
for is decided in `queue.offers`, and who is next in `grant`.

A server that runs without a GPU while its ticket waits attends the ticket by asking: the position
is kept for as long as it asks, however many browsers are closed and services restarted meanwhile.
"""

from collections.abc import Collection
from dataclasses import replace

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState, LeaseView, ServerStatus
from miglab_api.offers import ShapeOffer
from miglab_api.tickets import TicketRequest, TicketState, TicketView, borrower_of
from miglab_api.wording import duration, lab_in_words
from miglab_pool.leases import grant as grants
from miglab_pool.leases import views as pool_views
from miglab_pool.leases.transactions import lease_answer
from miglab_pool.leases.waste import count_waste, with_waste
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.ledger.rows import LeaseRow, TicketRow
from miglab_pool.queue import offers
from miglab_pool.queue.order import ANSWER_S, ASIDE_S, answer_by, expires_at, waits_until
from miglab_pool.refused import Refused
from miglab_pool.state.placement import clash
from miglab_pool.state.slices import scrub, withdraw
from miglab_pool.state.store import Store, Subject, locked

OPEN = (TicketState.WAITING, TicketState.OFFERED, TicketState.ASIDE)
NO_NEW_ONES = frozenset({"paused", "gpus-unknown"})
"""Refusals of what is new; who has a ticket keeps it."""

Answer = tuple[TicketRow, Refused | None]
_ANSWER, _ASIDE = duration(ANSWER_S), duration(ASIDE_S)
_KEPT = f"Your place is kept for {_ASIDE}: return to the queue when you are back."
_UNATTENDED = (
    "You lost your position because your waiting page and server were gone. "
    "Start again to rejoin the queue."
)


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
        ticket = of_server(self.store, user, server)
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
                ticket = end(self.store, tx, ticket, state, "cancelled", message, by)
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
        borrowing = of_server(self.store, user, borrower)
        return ServerStatus(
            lease=None if lease is None else lease_answer(self.store, lease),
            ticket=None if ticket is None else self._answer(ticket),
            borrowed=None if borrowed is None else lease_answer(self.store, borrowed),
            borrowing=None if borrowing is None else self._answer(borrowing),
            people=lab_in_words(offers.headcount(self.store.current)),
        )

    @locked
    def end_outside(self, user: str, server: str, courses: Collection[str]) -> None:
        """End what a server waits for in a course that its student has left.

        Args:
            user: the student.
            server: the server's name.
            courses: those that the student is in now.
        """
        ticket = of_server(self.store, user, server)
        if ticket is None or ticket.state not in OPEN or ticket.course in courses:
            return
        message = (
            f"You are no longer in the course {ticket.course}, so your request for {ticket.shape} "
            "has left the queue. Your server goes on without a GPU. If this is a mistake, tell "
            "your instructor."
        )
        with self.store.write() as tx:
            end(self.store, tx, ticket, TicketState.CANCELLED, "not-in-course", message)

    @locked
    def cancel_of_server(self, user: str, server: str, by: str) -> TicketView:
        """Remove a server's ticket or offer.

        Raises:
            Refused: it has none.
        """
        ticket = of_server(self.store, user, server)
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
            refusal = _not_free(ticket.shape, of_server(store, asked.user, asked.server))
            return _new(store, tx, asked, ticket.shape, refusal), refusal


def _not_free(shape: str, kept: TicketRow | None) -> Refused:
    if kept is None:
        return Refused("not-free", f"{shape} is not free now. Ask for it to join the queue.")
    what = "position in the queue" if kept.lease is None else kept.shape
    return Refused("not-free", f"{shape} is no longer free. You keep your {what}.")


def _asked(store: Store, tx: Transaction, asked: TicketRequest) -> Answer:
    view = store.view(tx.at)
    shape, refusal = offers.judge(view, asked)
    ticket = of_server(store, asked.user, asked.server)
    may_stay = refusal is None or refusal.reason in NO_NEW_ONES
    if may_stay and ticket is not None and _is_same(ticket, asked, shape):
        return still_waiting(store, tx, ticket), None
    refusal = refusal or offers.why_not_now(view, asked, shape, ticket)
    if refusal is not None and store.disk_full:
        raise refusal  # unwritten: what room there is belongs to leases that end
    if refusal is None and ticket is not None:
        message = "You asked for another shape, so this request left the queue."
        end(store, tx, ticket, TicketState.CANCELLED, "replaced", message, ticket.user)
    return _new(store, tx, asked, shape, refusal), refusal


def _is_same(ticket: TicketRow, asked: TicketRequest, shape: str) -> bool:
    mine = (ticket.course, ticket.shape, ticket.purpose)
    return mine == (asked.course, shape, asked.purpose)


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
    ticket = of_server(store, user, server)
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


# -- found, still waiting, over -------------------------------------------------------------------


def of_server(store: Store, user: str, server: str) -> TicketRow | None:
    """The live ticket of a server; one that was taken counts until its holder is attached."""
    for ticket in store.state.tickets.values():
        if (ticket.user, ticket.server) != (user, server):
            continue
        if ticket.state != TicketState.TAKEN:
            return ticket
        lease = store.state.leases.get(ticket.lease or 0)
        if lease is not None and lease.state == LeaseState.GRANTED:
            return ticket
    return None


def still_waiting(store: Store, tx: Transaction, ticket: TicketRow) -> TicketRow:
    """Its student asked for the same again: that answers whether they wait, and ends being aside.

    The age stays, and with it the position among those who have used as much.
    """
    ticket = store.state.attend(ticket, tx.at)
    is_asked = answer_by(store.settings, store.started_at, ticket, tx.at) is not None
    if is_asked or ticket.state == TicketState.ASIDE:
        waits = replace(ticket, state=TicketState.WAITING, since=tx.at, reason="", message="")
        ticket = replace(waits, attended_at=tx.at)
        tx.put(ticket, ticket.user, "still waiting")
    return ticket


def end(
    store: Store,
    tx: Transaction,
    ticket: TicketRow,
    state: TicketState,
    reason: str,
    message: str,
    by: str = "pool",
) -> TicketRow:
    """End a ticket that was not taken up, or put it aside, and the lease that it was granted."""
    tx.afterwards.append(lambda: store.unserved(state.value, reason))
    lease = store.state.leases.get(ticket.lease or 0)
    ticket = with_waste(store, tx, ticket, reason, by)
    ticket = replace(ticket, state=state, reason=reason, message=message)
    if state is TicketState.ASIDE:
        ticket = replace(ticket, lease=None, offered_at=None, next_at=None, since=tx.at)
    tx.put(ticket, by, message)
    if lease is not None and lease.state == LeaseState.GRANTED:
        withdraw(store, tx, lease, LeaseState.EXPIRED, by, reason)
    return ticket


def requeue(store: Store, tx: Transaction, lease: LeaseRow, reason: str) -> None:
    """The granted slices came to nothing: the ticket waits on, at its old position.

    One that was taken cannot: its spawner holds the lease's number and will be told by attach.
    """
    ticket = store.state.tickets.get(lease.ticket or 0)
    if ticket is not None and ticket.state in (TicketState.WAITING, TicketState.OFFERED):
        again = replace(ticket, state=TicketState.WAITING, lease=None, offered_at=None, since=tx.at)
        tx.put(again, reason=reason)
    withdraw(store, tx, lease, LeaseState.EXPIRED, "pool", reason)


def drop_grants(
    store: Store, tx: Transaction, gpu: str, reason: str, *, is_made_too: bool = False
) -> None:
    """A GPU takes no lease now: whoever was to get a slice there waits on.

    Args:
        store: the pool.
        tx: the transaction.
        gpu: its UUID.
        reason: why.
        is_made_too: also who was granted a slice that is there, and has not attached to it.
    """
    for row in list(store.state.on_gpu[gpu].values()):
        lease = store.state.leases.get(row.lease or 0)
        if lease is None or lease.state != LeaseState.GRANTED:
            continue
        if is_made_too or row.state == SliceState.MAKING:
            requeue(store, tx, lease, reason)


def drop_blocked(store: Store, tx: Transaction, gpu: str) -> None:
    """Give up slices still to be made where nothing will make room: who wanted them waits on."""
    rows = list(store.state.on_gpu[gpu].values())
    fixed = [row for row in rows if row.state in (SliceState.FOREIGN, SliceState.QUARANTINED)]
    for row in rows:
        if row.state != SliceState.MAKING:
            continue
        is_blocked = any(clash(store.placed(row), store.placed(other)) for other in fixed)
        if not is_blocked and not store.has_lost(gpu):
            continue
        reason = f"slice {row.id} cannot be made: something is in its way on {gpu}"
        lease = store.state.leases.get(row.lease or 0)
        if lease is not None:
            requeue(store, tx, lease, reason)
        scrub(tx, store.state.slices[row.id], reason, remake=False)


def expire(store: Store, tx: Transaction) -> None:
    """End what has outlived its limit: unattended tickets, untaken offers, unattached grants.

    Who may still come back, because nobody answered or took an offer, steps aside instead.
    """
    for ticket in list(store.state.tickets.values()):
        ends = expires_at(store.settings, store.started_at, ticket)
        if ends is not None and tx.at >= ends:
            overdue = _overdue_borrow if ticket.is_borrow else _overdue
            state, reason, message = overdue(store, ticket, tx.at)
            end(store, tx, ticket, state, reason, message)
    for lease in list(store.state.leases.values()):
        limit_s = store.settings.pool.attach_s
        if lease.taken_at is None or lease.state != LeaseState.GRANTED:
            continue
        if tx.at >= max(lease.taken_at, store.started_at) + limit_s:
            count_waste(store, tx, lease.ticket, "never-attached", "pool")
            withdraw(store, tx, lease, LeaseState.EXPIRED, "pool", "never-attached")


def _overdue(store: Store, ticket: TicketRow, at: float) -> tuple[TicketState, str, str]:
    if ticket.state == TicketState.ASIDE:
        return TicketState.EXPIRED, "aside-too-long", f"You did not return within {_ASIDE}."
    if ticket.state == TicketState.OFFERED:
        offered = f"A {ticket.shape} was offered to you and not taken in time."
        return TicketState.ASIDE, "offer-expired", f"{offered} {_KEPT}"
    if ticket.lease is not None:
        never = f"It was your turn, and the {ticket.shape} could not be created in time."
        return TicketState.ASIDE, "never-made", f"{never} {_KEPT}"
    if at >= waits_until(store.settings, store.started_at, ticket):
        asked = f"You were asked whether you still wait, and did not answer within {_ANSWER}."
        return TicketState.ASIDE, "not-answered", f"{asked} {_KEPT}"
    return TicketState.EXPIRED, "unattended", _UNATTENDED


def _overdue_borrow(store: Store, ticket: TicketRow, at: float) -> tuple[TicketState, str, str]:
    if ticket.state == TicketState.OFFERED:
        message = "The slices were offered, and not taken in time. Measure again."
        return TicketState.EXPIRED, "offer-expired", message
    if at >= ticket.period_at + store.settings.pool.longest_wait_s:
        longest = duration(store.settings.pool.longest_wait_s)
        message = f"No {ticket.shape} became free within {longest}. Measure again later."
        return TicketState.REFUSED, "waited-too-long", message
    return TicketState.EXPIRED, "unattended", _UNATTENDED
