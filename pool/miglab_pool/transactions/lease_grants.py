"""Writing a grant: the lease, its slices and the ticket's offer."""

import secrets
from collections.abc import Sequence
from dataclasses import replace

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState
from miglab_api.tickets import TicketState
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.model.gpu import Choice
from miglab_pool.model.rows import FULL, GpuRow, LeaseRow, SliceRow, TicketRow
from miglab_pool.state.store import Store
from miglab_pool.transactions.slices import new_slice, next_generation, scrub

GENERATION_BITS = 48
"""Of a lease's generation: drawn, not counted, so that a restored ledger does not give it again."""

# -- grant --------------------------------------------------------------------------------------


def grant(store: Store, tx: Transaction, ticket: TicketRow, choices: Sequence[Choice]) -> LeaseRow:
    """Give a waiting ticket the slices chosen for it: existing ones at once, others to be made."""
    number = store.ledger.new_id("lease")
    rows = [_chosen(store, tx, choice, number, ticket.course) for choice in choices]
    return _granted(store, tx, ticket, rows, number)


def grant_whole(store: Store, tx: Transaction, ticket: TicketRow, gpu: GpuRow) -> LeaseRow:
    """Give a waiting ticket a GPU with MIG off; made means here: seen to be empty once more."""
    number = store.ledger.new_id("lease")
    row = SliceRow(
        id=store.ledger.new_id("slice"),
        gpu=gpu.uuid,
        generation=next_generation(store, tx, gpu.uuid),
        profile=FULL,
        start=0,
        size=gpu.memory_slices,
        sm_count=gpu.sm_count or 0,
        memory_mib=gpu.memory_mib,
        state=SliceState.MAKING,
        lease=number,
        course=ticket.course,
    )
    tx.put(row, reason=f"for lease {number}")
    return _granted(store, tx, ticket, [row], number)


def _granted(
    store: Store, tx: Transaction, ticket: TicketRow, rows: Sequence[SliceRow], number: int
) -> LeaseRow:
    lease = LeaseRow(
        id=number,
        ticket=ticket.id,
        generation=secrets.randbits(GENERATION_BITS),
        user=ticket.user,
        server=ticket.server,
        course=ticket.course,
        shape=ticket.shape,
        state=LeaseState.GRANTED,
        granted_at=tx.at,
        slices=tuple(row.id for row in rows),
        purpose=ticket.purpose,
    )
    tx.put(lease, reason=f"ticket {ticket.id} is next and there is room")
    offer_if_ready(store, tx, lease)
    return lease


def _chosen(store: Store, tx: Transaction, choice: Choice, lease: int, course: str) -> SliceRow:
    warm = {
        (row.start, row.profile): row
        for row in store.state.on_gpu[choice.gpu].values()
        if row.state == SliceState.FREE
    }
    if choice.reuse:
        row = warm[choice.placement.start, choice.profile.name]
        row = replace(row, state=SliceState.LEASED, lease=lease, course=course)
        tx.put(row, reason=f"for lease {lease}")
        return row
    for placed in choice.destroy:
        in_the_way = warm[placed.placement.start, placed.profile.name]
        scrub(tx, in_the_way, f"recut for lease {lease}", remake=False)
    row = new_slice(store, tx, choice.gpu, choice, lease, course)
    tx.put(row, reason=f"for lease {lease}")
    return row


def offer_if_ready(store: Store, tx: Transaction, lease: LeaseRow) -> None:
    """Give the ticket its lease, and offer it once every slice exists."""
    ticket = store.state.tickets.get(lease.ticket or 0)
    if ticket is None or ticket.state != TicketState.WAITING:
        return
    ticket = replace(ticket, lease=lease.id, since=tx.at)
    if all(row.state == SliceState.LEASED for row in store.state.slices_of(lease)):
        ticket = replace(ticket, state=TicketState.OFFERED, offered_at=tx.at)
    tx.put(ticket, reason=f"lease {lease.id} is ready")
