"""Rows of slices that are to be created or destroyed, and the end of unused grants."""

from dataclasses import replace

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState
from miglab_pool.ledger.rows import FULL, LeaseRow, SliceRow
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.state.placement import Choice
from miglab_pool.state.store import Store


def new_slice(
    store: Store, tx: Transaction, choice: Choice, lease: int | None = None, course: str = ""
) -> SliceRow:
    """Return the row of a slice that is to be created, with a new generation."""
    profile, placement = choice.profile, choice.placement
    generation = store.state.gpus[choice.gpu].generation + 1  # never given twice
    tx.put(replace(store.state.gpus[choice.gpu], generation=generation))
    return SliceRow(
        id=store.ledger.new_id("slice"),
        gpu=choice.gpu,
        generation=generation,
        profile=profile.name,
        start=placement.start,
        size=placement.size,
        sm_count=profile.sm_count,
        memory_mib=profile.memory_mib,
        state=SliceState.MAKING,
        lease=lease,
        course=course,
    )


def scrub(
    tx: Transaction,
    row: SliceRow,
    reason: str,
    *,
    remake: bool,
    cause: str = "pool",
    action: str = "",
) -> None:
    """Announce the destruction of a slice, which no lease has from then on.

    A slice that replaces a drained one is drained too, so that nobody gets it.
    """
    row = replace(
        row,
        state=SliceState.SCRUBBING,
        lease=None,
        course="",
        attempts=0,
        retry_at=0.0,
        lost=False,
        remake=remake and row.profile != FULL,
        reason=reason,
    )
    tx.put(row, cause, reason, action)


def end_unused_grant(
    store: Store,
    tx: Transaction,
    lease: LeaseRow,
    state: LeaseState,
    cause: str,
    reason: str,
    action: str = "",
) -> LeaseRow:
    """End a granted lease to which no holder was ever attached, so that its slices are unused."""
    assert lease.state == LeaseState.GRANTED and not lease.holder
    for row in store.state.slices_of(lease):
        if row.lease != lease.id:
            continue
        is_made = row.state == SliceState.LEASED
        to = SliceState.FREE if is_made and row.profile != FULL else row.state
        tx.put(replace(row, state=to, lease=None, course=""), cause, reason)
        if row.profile == FULL:
            scrub(tx, replace(row, lease=None, course=""), reason, remake=False)
    lease = replace(lease, state=state, ended_at=tx.at, reason=reason)
    tx.put(lease, cause, reason, action)
    return lease
