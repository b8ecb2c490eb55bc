"""The clock was set: the moments that positions, graces and pauses count from go with it.

Ends that a person reads off a clock stay what they are: of leases, reservations and maintenance.
"""

from collections.abc import Iterator
from dataclasses import replace

from miglab_api.leases import LeaseState
from miglab_api.tickets import TicketState
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.model.rows import LeaseRow, SliceRow, TicketRow
from miglab_pool.state.store import Store

Counting = TicketRow | LeaseRow | SliceRow


def carry_over(store: Store, tx: Transaction, step_s: float) -> None:
    """Move what counts by a step of the clock, ``tx.at`` being of before it.

    What is ahead of the clock even so was noted before it was set back while no pool looked: it
    counts from now, and nothing is paused for longer than the longest pause.
    """
    for before, after in list(_moved(store, step_s, tx.at + step_s)):
        if after != before:  # else there is nothing to write
            tx.put(after)


def _moved(store: Store, step_s: float, now: float) -> Iterator[tuple[Counting, Counting]]:
    def past(moment: float) -> float:
        return min(moment + step_s, now)

    def past_if(moment: float | None) -> float | None:
        return None if moment is None else past(moment)

    state = store.state
    for ticket in state.tickets.values():
        if ticket.state != TicketState.TAKEN:
            yield (
                ticket,
                replace(
                    ticket,
                    created_at=past(ticket.created_at),
                    attended_at=past(ticket.attended_at),
                    offered_at=past_if(ticket.offered_at),
                    next_at=past_if(ticket.next_at),
                    since=past_if(ticket.since),
                ),
            )
    for lease in state.leases.values():
        if lease.state == LeaseState.GRANTED:
            yield lease, replace(lease, taken_at=past_if(lease.taken_at))
        elif lease.state == LeaseState.RELEASING:
            yield lease, replace(lease, releasing_at=past_if(lease.releasing_at))
    latest = now + store.settings.tuning.retry_max_s
    for row in state.slices.values():
        if row.retry_at:
            yield row, replace(row, retry_at=min(row.retry_at + step_s, latest))
