"""Counts what a ticket wastes when it ends: slices that others could have used meanwhile."""

from dataclasses import replace

from miglab_pool.ledger.ledger import Transaction
from miglab_pool.ledger.rows import TicketRow
from miglab_pool.queue.needs import is_made_room_for
from miglab_pool.state.store import Store

NO_FAULT = frozenset({"never-made", "not-in-course", "passed-on"})
"""Reasons for which a ticket ends that are not its student's doing."""


def with_waste(
    store: Store, tx: Transaction, ticket: TicketRow, reason: str, actor: str
) -> TicketRow:
    """The ticket, with what it wastes by ending now.

    Args:
        store: the pool.
        tx: the transaction.
        ticket: as it is before it ends.
        reason: why it ends, a word of `REASONS`.
        actor: who ends it; what staff end is not counted.
    """
    is_by_staff = actor.startswith("person:") and actor != f"person:{ticket.user}"
    if reason in NO_FAULT or is_by_staff or not is_made_room_for(store.view(tx.at), ticket):
        return ticket
    return replace(ticket, wasted=ticket.wasted + 1, wasted_at=tx.at)


def count_waste(
    store: Store, tx: Transaction, ticket_id: int | None, reason: str, actor: str
) -> None:
    """Write down what a ticket wastes whose grant ends unused."""
    ticket = store.state.tickets.get(ticket_id or 0)
    if ticket is not None:
        tx.put(with_waste(store, tx, ticket, reason, actor))
