"""Checks what must always be true of the pool's rows.  Reads only.

1. A slice generation has at most one live lease, and a lease has exactly its slices.
2. What has a holder is leased to that holder until it is known to be gone.
3. No slice that is leased or free overlaps another slice.
4. Foreign slices are never leased.
5. Whatever is refused, quarantined, ended or reclaimed says why.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import select

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState
from miglab_api.tickets import TicketState
from miglab_pool.ledger import tables
from miglab_pool.ledger.tables import open_read_only
from miglab_pool.state.placement import clash
from miglab_pool.state.store import Store


def find_contradictions(store: Store) -> list[str]:
    """Return every contradiction in words, with the number of its rule; empty if there is none."""
    return [
        *_slices_and_leases(store),
        *_holders(store),
        *_overlaps(store),
        *_reasons(store),
        *_warnings(store),
    ]


def _slices_and_leases(store: Store) -> Iterator[str]:
    """1: a slice generation has at most one live lease; a running lease exactly its slices."""
    state = store.state
    claimed = Counter(number for lease in state.leases.values() for number in lease.slices)
    generations = Counter((row.gpu, row.generation) for row in state.slices.values())
    for number, count in claimed.items():
        if count > 1:
            yield f"1: slice {number} has {count} live leases"
    for (gpu, generation), count in generations.items():
        if count > 1:
            yield f"1: generation {generation} of {gpu} is on {count} slices"
    for row in state.slices.values():
        if row.lease is not None and row.lease not in state.leases:
            yield f"1: slice {row.id} belongs to lease {row.lease}, which is over"
        if row.state == SliceState.LEASED and row.lease is None:
            yield f"1: slice {row.id} is leased to nobody"
    for lease in state.leases.values():
        actual = {row.id for row in state.slices.values() if row.lease == lease.id}
        if actual != set(lease.slices):
            expected = sorted(lease.slices)
            yield f"1: lease {lease.id} is for slices {expected}, it has {sorted(actual)}"


def _holders(store: Store) -> Iterator[str]:
    """2: what has a holder is leased to it until that very holder is gone."""
    holders = Counter(lease.holder for lease in store.state.leases.values() if lease.holder)
    for holder, count in holders.items():
        if count > 1:
            yield f"2: {holder} holds {count} leases"
    for lease in store.state.leases.values():
        if lease.holder and lease.state == LeaseState.GRANTED:
            yield f"2: lease {lease.id} has a holder, and may expire"
        if not lease.holder and lease.state != LeaseState.GRANTED:
            yield f"2: lease {lease.id} is {lease.state}, and has no holder"
        rows = store.state.slices_of(lease)
        if lease.holder and any(row.state != SliceState.LEASED for row in rows):
            yield f"2: lease {lease.id} is held, and not all its slices are leased"


def _overlaps(store: Store) -> Iterator[str]:
    """3 and 4: nothing leased or free shares memory with anything; foreign things are nobody's."""
    for on_gpu in store.state.on_gpu.values():
        usable = [r for r in on_gpu.values() if r.state in (SliceState.LEASED, SliceState.FREE)]
        for row in usable:
            for other in usable:
                if row.id < other.id and clash(store.placement_of(row), store.placement_of(other)):
                    yield f"3: slices {row.id} and {other.id} overlap"
        for row in on_gpu.values():
            if row.state == SliceState.FOREIGN and row.lease is not None:
                yield f"4: the foreign slice {row.id} is leased"


def _reasons(store: Store) -> Iterator[str]:
    """5: whatever is refused, quarantined or reclaimed says why."""
    for row in store.state.slices.values():
        if row.state in (SliceState.QUARANTINED, SliceState.FOREIGN) and not row.reason:
            yield f"5: slice {row.id} is {row.state}, and does not say why"
    for gpu in store.state.gpus.values():
        if gpu.state != "ok" and not gpu.reason:
            yield f"5: GPU {gpu.uuid} is {gpu.state}, and does not say why"
    for ticket in store.state.tickets.values():
        if ticket.state in (TicketState.OFFERED, TicketState.TAKEN) and ticket.lease is None:
            yield f"1: ticket {ticket.id} is {ticket.state}, and has no lease"


def ended_without_reason(ledger: Path) -> list[str]:
    """5: the tickets that ended badly and do not say why; read from the ledger's file alone."""
    columns = tables.tickets.c
    ended = columns.state.in_(("cancelled", "refused", "expired"))
    silent = (columns.reason == "") | (columns.message == "")
    with open_read_only(ledger) as connection:
        numbers = connection.execute(select(columns.id).where(ended & silent)).scalars()
        return [f"5: ticket {number} ended, and does not say why" for number in numbers]


def _warnings(store: Store) -> Iterator[str]:
    """5: a lease says that it is warned, when and why, exactly while it is."""
    for lease in store.state.leases.values():
        is_warned = lease.state == LeaseState.WARNED
        warning_fields = (
            lease.warned_at,
            lease.reclaim_at,
            lease.warn_kind or None,
            lease.warn_reason or None,
        )
        if is_warned and None in warning_fields:
            yield f"5: lease {lease.id} is warned, and does not say when and why"
        if lease.state in (LeaseState.ATTACHED, LeaseState.RUNNING) and any(warning_fields):
            yield f"5: lease {lease.id} is {lease.state}, and has a warning"
