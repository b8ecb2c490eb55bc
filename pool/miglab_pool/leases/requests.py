"""Asking for a shape: a position in the queue, or the slices in this very step.  Transactions.

Whether it may be asked for, and who is next, is decided in `tickets`.
"""

from miglab_api.tickets import TicketRequest, TicketState
from miglab_pool.leases import grant as grants
from miglab_pool.ledger.rows import TicketRow
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.queue import admission, tickets
from miglab_pool.refused import Refused
from miglab_pool.state.store import Store

NO_NEW_ONES = frozenset({"paused", "gpus-unknown"})
"""Refusals of what is new; who has a ticket keeps it."""

Answer = tuple[TicketRow, Refused | None]


class _NotFreeError(Exception):
    """Undoes a request that would have to wait, and what leaving the queue let others have."""


def request(store: Store, asked: TicketRequest) -> TicketRow:
    """The ticket for this request: the one there is, or a new one.

    A new one is at the end of the line, in the place of what the server had asked for before; or,
    ``only_if_free``, granted already.

    Raises:
        Refused: with the reason, which is in the ledger too; the server's ticket is as it was.
    """
    with store.lock:
        ticket, refusal = _at_once(store, asked) if asked.only_if_free else _enqueue(store, asked)
    if refusal is not None:
        raise refusal
    return ticket


def _enqueue(store: Store, asked: TicketRequest) -> Answer:
    with store.write() as tx:
        return _asked(store, tx, asked)


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
    shape, refusal = admission.judge(view, asked)
    ticket = tickets.of_server(store, asked.user, asked.server)
    may_stay = refusal is None or refusal.reason in NO_NEW_ONES
    if may_stay and ticket is not None and _is_same(ticket, asked, shape):
        return tickets.still_waiting(store, tx, ticket), None
    refusal = refusal or admission.why_not_now(view, asked, shape, ticket)
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
