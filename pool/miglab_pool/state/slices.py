"""Slices made and scrubbed, each with a generation of its own; grants that came to nothing."""

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
    """The row of a slice that is to be made."""
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
    tx: Transaction, row: SliceRow, reason: str, *, remake: bool, by: str = "pool", action: str = ""
) -> None:
    """Announce the destruction of a slice: from here on it is nobody's.

    What is made anew in a drained one's place is drained too, so that nobody gets it.
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
    tx.put(row, by, reason, action)


def withdraw(
    store: Store,
    tx: Transaction,
    lease: LeaseRow,
    state: LeaseState,
    by: str,
    reason: str,
    action: str = "",
) -> LeaseRow:
    """End a lease that nothing was ever attached to: its slices were never used."""
    assert lease.state == LeaseState.GRANTED and not lease.holder
    for row in store.state.slices_of(lease):
        if row.lease != lease.id:
            continue
        is_made = row.state == SliceState.LEASED
        to = SliceState.FREE if is_made and row.profile != FULL else row.state
        tx.put(replace(row, state=to, lease=None, course=""), by, reason)
        if row.profile == FULL:
            scrub(tx, replace(row, lease=None, course=""), reason, remake=False)
    lease = replace(lease, state=state, ended_at=tx.at, reason=reason)
    tx.put(lease, by, reason, action)
    return lease
