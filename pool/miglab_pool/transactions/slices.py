"""Slices that are made and scrubbed, each with a generation of its own."""

from dataclasses import replace

from miglab_api.gpus import SliceState
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.model.gpu import Choice, clash
from miglab_pool.model.rows import FULL, SliceRow
from miglab_pool.state.store import Store


def new_slice(
    store: Store, tx: Transaction, gpu: str, choice: Choice, lease: int | None, course: str
) -> SliceRow:
    """The row of a slice that is to be made."""
    profile, placement = choice.profile, choice.placement
    return SliceRow(
        id=store.ledger.new_id("slice"),
        gpu=gpu,
        generation=next_generation(store, tx, gpu),
        profile=profile.name,
        start=placement.start,
        size=placement.size,
        sm_count=profile.sm_count,
        memory_mib=profile.memory_mib,
        state=SliceState.MAKING,
        lease=lease,
        course=course,
    )


def next_generation(store: Store, tx: Transaction, gpu: str) -> int:
    """The generation of the next slice on a GPU; never given twice."""
    row = store.state.gpus[gpu]
    row = replace(row, generation=row.generation + 1)
    tx.put(row)
    return row.generation


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


def is_in_the_way(store: Store, row: SliceRow) -> bool:
    """Whether something still lies where this slice is to be made."""
    placed = store.placed(row)
    return any(
        other.id != row.id and clash(placed, store.placed(other))
        for other in store.state.on_gpu[row.gpu].values()
    )
