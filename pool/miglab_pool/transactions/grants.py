"""Matching the queue with what is free, and making slices ahead of whoever will need them.

Everything is decided on a view, written, and decided anew on the view that follows.
"""

from collections.abc import Iterable

from miglab_pool.decisions import next_grants, queue, reserved_slots, slices_to_prepare
from miglab_pool.decisions.slices_to_prepare import Preparation
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.model.queue import Grant
from miglab_pool.model.rows import FULL
from miglab_pool.state.gpu_snapshot import GpuSnapshot
from miglab_pool.state.store import Store
from miglab_pool.transactions import lease_grants, slices


def grant_all(store: Store, tx: Transaction) -> None:
    """Grant until nobody in the queue can be served, and prepare what is reserved."""
    if store.view(tx.at).paused:
        return
    _draw_on_reservations(store, tx)
    claimants_with_slot = reserved_slots.claimants_with_slot(store.view(tx.at))
    _serve_queue(store, tx)
    _grant_whole_gpus(store, tx, claimants_with_slot)
    _prepare_reserved_slots(store, tx)


def prepare_for_layouts(store: Store, tx: Transaction) -> None:
    """Make the slices that the layouts in force ask for."""
    for one in slices_to_prepare.for_layouts(store.view(tx.at)):
        _prepare(store, tx, one)


def _draw_on_reservations(store: Store, tx: Transaction) -> None:
    """Those who draw on a reservation go before anybody else is asked."""
    for one in store.view(tx.at).reservations_in_force:
        for ticket in reserved_slots.claims(store.view(tx.at), one):
            grant = next_grants.of_reservation(store.view(tx.at), one, ticket)
            if grant is None:
                break
            _write(store, tx, ticket.id, grant)


def _serve_queue(store: Store, tx: Transaction) -> None:
    if not next_grants.may_serve_queue(store.view(tx.at)):
        return
    waiting = queue.without_slot(store.view(tx.at))  # the order of one moment, whoever is served
    while waiting and (grant := next_grants.of_queue(store.view(tx.at), waiting)):
        _write(store, tx, grant.ticket, grant)
        waiting = tuple(one for one in waiting if one.ticket != grant.ticket)


def _grant_whole_gpus(store: Store, tx: Transaction, claimants_with_slot: Iterable[int]) -> None:
    view = store.view(tx.at)
    if not next_grants.may_serve_whole(view):
        return
    for one in queue.served(view):
        if one.profiles == (FULL,) and one.ticket not in claimants_with_slot:
            gpu = next_grants.whole_gpu(store.view(tx.at), one)
            if gpu is not None:
                _write(store, tx, one.ticket, gpu)


def _write(store: Store, tx: Transaction, ticket: int, grant: Grant | GpuSnapshot) -> None:
    row = store.state.tickets[ticket]
    if isinstance(grant, Grant):
        lease_grants.grant(store, tx, row, grant.choices)
    else:
        lease_grants.grant_whole(store, tx, row, grant.row)


def _prepare_reserved_slots(store: Store, tx: Transaction) -> None:
    for row, slot in reserved_slots.slots_with_reservation(store.view(tx.at)):
        what = f"for reservation {row.id}"
        one = slices_to_prepare.for_slot(store.view(tx.at), slot, what)
        if one is not None:
            _prepare(store, tx, one)


def _prepare(store: Store, tx: Transaction, one: Preparation) -> None:
    for row in one.removes:
        slices.scrub(tx, row, f"recut {one.what}", remake=False)
    for choice in one.makes:
        row = slices.new_slice(store, tx, choice.gpu, choice, None, "")
        tx.put(row, reason=f"cut {one.what}")
