"""Granting, top to bottom: who gets slices next, which, and how that is written.

First those who draw on a reservation, then the queue, then those who want a whole GPU; then slices
are made before anybody asks: on reserved slots, and for layouts.  Everything is decided on a view,
written (the lease, its slices and the ticket's offer), and decided anew on the view that follows.
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState
from miglab_api.tickets import TicketState
from miglab_pool.gpu.shapes import profiles_of
from miglab_pool.leases.rules import guaranteed_s
from miglab_pool.ledger.rows import FULL, GPU_OK, LeaseRow, SliceRow
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.queue import order as queue
from miglab_pool.reservations import promises, slots
from miglab_pool.reservations.rules import InForce
from miglab_pool.state.placement import Choice, Slot, clash, is_same
from miglab_pool.state.slices import new_slice, scrub
from miglab_pool.state.slot_choice import is_unleased
from miglab_pool.state.store import Store
from miglab_pool.state.view import GpuSnapshot, PoolView

GENERATION_BITS = 48
"""Of a lease's generation: drawn, not counted, so that a restored ledger does not give it again."""


# -- grant --------------------------------------------------------------------------------------


def _grant(
    store: Store,
    tx: Transaction,
    number: int,
    choices: Sequence[Choice],
    until: float | None = None,
) -> bool:
    """Give a waiting ticket the slices chosen for it, unless a reservation leaves it too short.

    Existing slices are given at once, others are to be made; a whole GPU is made by seeing once
    more that it is empty.

    Args:
        store: the pool.
        tx: the transaction.
        number: the ticket's.
        choices: the slices.
        until: until when it is guaranteed if nothing is promised to others; None: for as long as
            the settings say.
    """
    ticket, view = store.state.tickets[number], store.view(tx.at)
    until = tx.at + guaranteed_s(store.settings, ticket) if until is None else until
    if view.reservations:
        key = (ticket.course, ticket.shape)
        found = promises.grant_limit(view, ticket.user, key, choices, until)
        if not found.is_enough:
            return False
        until = found.until
    lease = store.ledger.new_id("lease")
    rows = [_chosen(store, tx, choice, lease, ticket.course) for choice in choices]
    granted = LeaseRow(
        id=lease,
        ticket=ticket.id,
        generation=secrets.randbits(GENERATION_BITS),
        user=ticket.user,
        server=ticket.server,
        course=ticket.course,
        shape=ticket.shape,
        state=LeaseState.GRANTED,
        granted_at=tx.at,
        guaranteed_until=until,
        slices=tuple(row.id for row in rows),
        purpose=ticket.purpose,
    )
    tx.put(granted, reason=f"ticket {ticket.id} is next and there is room")
    offer_if_ready(store, tx, granted)
    return True


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
    row = new_slice(store, tx, choice, lease, course)
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


def grant_all(store: Store, tx: Transaction) -> None:
    """Grant until nobody in the queue can be served, and prepare what is reserved."""
    if store.view(tx.at).paused:
        return
    _draw_on_reservations(store, tx)
    claimants_with_slot = slots.claimants_with_slot(store.view(tx.at))
    _serve_queue(store, tx)
    _grant_whole_gpus(store, tx, claimants_with_slot)
    _prepare_reserved_slots(store, tx)


def _draw_on_reservations(store: Store, tx: Transaction) -> None:
    """Those who draw on what is reserved now go before anybody else is asked."""
    for one in slots.reserving(store.view(tx.at)):
        for ticket in slots.claims(store.view(tx.at), one):
            choices = _of_reservation(store.view(tx.at), one)
            if choices is None or not _grant(store, tx, ticket.id, choices, one.time.ends_at):
                break


def _of_reservation(view: PoolView, one: InForce) -> Sequence[Choice] | None:
    """Where its next lease goes now; None: its slot is not empty yet."""
    if one.row.shape == FULL:
        return next((gpu.whole for gpu in slots.free_whole(view, one.row.course, but=one)), None)
    return slots.choose(view, one)


def _serve_queue(store: Store, tx: Transaction) -> None:
    """Those who want slices, in order; if nothing has room, nobody's turn need be worked out."""
    view = store.view(tx.at)
    queued = [ticket for ticket in view.queued if ticket.shape != FULL]
    wanted = {(profiles_of(ticket.shape), ticket.course) for ticket in queued}
    if not wanted or not queue.any_fits(wanted, slots.open_gpus(view)):
        return
    waiting = queue.without_slot(view)  # the order of one moment, whoever is served
    while waiting:
        view = store.view(tx.at)
        grant = queue.first_that_fits(waiting, slots.open_gpus(view), view)
        if grant is None:
            return
        _grant(store, tx, grant.ticket, grant.choices)
        waiting = tuple(one for one in waiting if one.ticket != grant.ticket)


def _grant_whole_gpus(store: Store, tx: Transaction, claimants_with_slot: Iterable[int]) -> None:
    view = store.view(tx.at)
    if not any(ticket.shape == FULL for ticket in view.queued):
        return
    for one in queue.served(view) if any(gpu.is_free_whole for gpu in view.gpus.values()) else ():
        if one.profiles == (FULL,) and one.ticket not in claimants_with_slot:
            free = slots.free_whole(store.view(tx.at), one.course)
            any(_grant(store, tx, one.ticket, gpu.whole) for gpu in free)  # the first it may have


# -- made before anybody asks ---------------------------------------------------------------------


def _prepare_reserved_slots(store: Store, tx: Transaction) -> None:
    """The slices on reserved slots that have emptied, so that nobody waits for them."""
    for row, slot in slots.slots_with_reservation(store.view(tx.at)):
        gpu = store.view(tx.at).gpus[slot.gpu]
        if tx.at >= gpu.unprepared_until and _may_be_made(gpu, slot):
            free = [one for one in gpu.slices if one.state == SliceState.FREE]
            in_the_way = [one for one in free if clash(gpu.placed(one), slot.placed_slice)]
            choice = Choice(slot.gpu, slot.placed_slice.profile, slot.placed_slice.placement)
            _prepare(store, tx, in_the_way, [choice], f"for reservation {row.id}")


def _may_be_made(gpu: GpuSnapshot, slot: Slot) -> bool:
    """Whether the slot is empty, and its slice not there."""
    state = gpu.occupancy
    if gpu.row.state != GPU_OK or state is None or not state.usable:
        return False
    is_there = any(is_same(slot.placed_slice, warm) for warm in state.warm)
    return is_unleased(state, slot.placed_slice) and not is_there


def prepare_for_layouts(store: Store, tx: Transaction) -> None:
    """Free slices that no layout wants go; those that it lacks are made where there is room."""
    for gpu in store.view(tx.at).gpus.values():
        is_usable = gpu.occupancy is not None and gpu.occupancy.usable
        if gpu.layout and is_usable and tx.at >= gpu.unprepared_until:
            rows, todo = {row.id: row for row in gpu.slices}, gpu.change()
            removes = [rows[item.number] for item in todo.removes]
            makes = [Choice(gpu.uuid, slot.profile, slot.placement) for slot in todo.ready]
            _prepare(store, tx, removes, makes, f"for layout {gpu.layout}")


def _prepare(
    store: Store, tx: Transaction, removes: list[SliceRow], makes: list[Choice], what: str
) -> None:
    """Free slices are destroyed, and others made for nobody yet."""
    for row in removes:
        scrub(tx, row, f"recut {what}", remake=False)
    for choice in makes:
        row = new_slice(store, tx, choice)
        tx.put(row, reason=f"cut {what}")
