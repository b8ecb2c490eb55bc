"""Tickets: found, still waiting, and the ways they end.  Each is part of a transaction."""

from dataclasses import replace

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState
from miglab_api.tickets import TicketState
from miglab_api.wording import duration
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.ledger.rows import LeaseRow, TicketRow
from miglab_pool.queue.order import ANSWER_S, ASIDE_S, answer_by, expires_at, waits_until
from miglab_pool.state import slices
from miglab_pool.state.placement import clash
from miglab_pool.state.store import Store

_ANSWER, _ASIDE = duration(ANSWER_S), duration(ASIDE_S)
_KEPT = f"Your place is kept for {_ASIDE}: return to the queue when you are back."
_UNATTENDED = (
    "You lost your position because your waiting page and server were gone. "
    "Start again to rejoin the queue."
)


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


# -- attend, still waiting, cancel, take ----------------------------------------------------------


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
    ticket = replace(ticket, state=state, reason=reason, message=message)
    if state is TicketState.ASIDE:
        ticket = replace(ticket, lease=None, offered_at=None, next_at=None, since=tx.at)
    tx.put(ticket, by, message)
    if lease is not None and lease.state == LeaseState.GRANTED:
        slices.withdraw(store, tx, lease, LeaseState.EXPIRED, by, reason)
    return ticket


def requeue(store: Store, tx: Transaction, lease: LeaseRow, reason: str) -> None:
    """The granted slices came to nothing: the ticket waits on, at its old position.

    One that was taken cannot: its spawner holds the lease's number and will be told by attach.
    """
    ticket = store.state.tickets.get(lease.ticket or 0)
    if ticket is not None and ticket.state in (TicketState.WAITING, TicketState.OFFERED):
        again = replace(ticket, state=TicketState.WAITING, lease=None, offered_at=None, since=tx.at)
        tx.put(again, reason=reason)
    slices.withdraw(store, tx, lease, LeaseState.EXPIRED, "pool", reason)


def drop_grants(store: Store, tx: Transaction, gpu: str, reason: str) -> None:
    """A GPU does not answer: whoever was to get a slice that is not made yet waits on."""
    for row in list(store.state.on_gpu[gpu].values()):
        lease = store.state.leases.get(row.lease or 0)
        if row.state == SliceState.MAKING and lease is not None:
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
        slices.scrub(tx, store.state.slices[row.id], reason, remake=False)


# -- turn ---------------------------------------------------------------------------------------


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
            slices.withdraw(store, tx, lease, LeaseState.EXPIRED, "pool", "never-attached")


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
