"""Granting: which tickets get which slices next, and the rows that record it.

Tickets that draw on a reservation go first, then the queue, then tickets for whole GPUs.  After
that, slices are made before a ticket asks for them: on reserved slots, and for layouts.  Each
decision is taken on a view and written (the lease, its slices, the ticket's offer); the next is
taken on the view that follows.
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState
from miglab_api.tickets import TicketState
from miglab_pool.gpu.shapes import profiles_of
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.ledger.rows import FULL, GPU_OK, LeaseRow, SliceRow
from miglab_pool.queue import order as queue
from miglab_pool.queue.quotas import guarantee_from_grant_s
from miglab_pool.reservations import guarantees, slots
from miglab_pool.reservations.rules import ReservationInForce
from miglab_pool.state.placement import Choice, Slot, clash, is_same
from miglab_pool.state.slices import new_slice, scrub
from miglab_pool.state.slot_choice import is_unleased
from miglab_pool.state.store import Store
from miglab_pool.state.view import GpuSnapshot, PoolView

GENERATION_BITS = 48
"""Bits of a lease's generation.

It is random, not counted, so that a restored ledger does not give the same one again.
"""


# -- grant --------------------------------------------------------------------------------------


def _grant(
    store: Store,
    tx: Transaction,
    number: int,
    choices: Sequence[Choice],
    until: float | None = None,
) -> bool:
    """Grant a waiting ticket the chosen slices; False if the guarantee would be too short.

    Slices that exist are leased at once, and the others are made.  A whole GPU is made by checking
    once more that it is empty.

    Args:
        store: the pool.
        tx: the transaction.
        number: the number of the ticket.
        choices: the slices.
        until: the longest that the lease might be guaranteed; None: as the settings say.
    """
    ticket, view = store.state.tickets[number], store.view(tx.at)
    until = tx.at + guarantee_from_grant_s(store.settings, ticket) if until is None else until
    if view.reservations:
        key = (ticket.course, ticket.shape)
        limit = guarantees.grant_limit(view, ticket.user, key, choices, until)
        if not limit.is_enough:
            return False
        until = limit.until
    lease = store.ledger.new_id("lease")
    rows = [_assign_slice(store, tx, choice, lease, ticket.course) for choice in choices]
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


def _assign_slice(
    store: Store, tx: Transaction, choice: Choice, lease: int, course: str
) -> SliceRow:
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
    for placed_slice in choice.destroy:
        in_the_way = warm[placed_slice.placement.start, placed_slice.profile.name]
        scrub(tx, in_the_way, f"recut for lease {lease}", remake=False)
    row = new_slice(store, tx, choice, lease, course)
    tx.put(row, reason=f"for lease {lease}")
    return row


def offer_if_ready(store: Store, tx: Transaction, lease: LeaseRow) -> None:
    """Record a lease in its ticket, and offer it if every slice exists."""
    ticket = store.state.tickets.get(lease.ticket or 0)
    if ticket is None or ticket.state != TicketState.WAITING:
        return
    ticket = replace(ticket, lease=lease.id, since=tx.at)
    if all(row.state == SliceState.LEASED for row in store.state.slices_of(lease)):
        ticket = replace(ticket, state=TicketState.OFFERED, offered_at=tx.at)
    tx.put(ticket, reason=f"lease {lease.id} is ready")


def grant_all(store: Store, tx: Transaction) -> None:
    """Grant until no waiting ticket can be served, then prepare the reserved slots."""
    if store.view(tx.at).paused:
        return
    _draw_on_reservations(store, tx)
    claimants_with_slot = slots.claimants_with_slot(store.view(tx.at))
    _serve_queue(store, tx)
    _grant_whole_gpus(store, tx, claimants_with_slot)
    _prepare_reserved_slots(store, tx)


def _draw_on_reservations(store: Store, tx: Transaction) -> None:
    """Grant the tickets that draw on reservations, before any other."""
    for reservation in slots.reservations_with_slots(store.view(tx.at)):
        for ticket in slots.claiming_tickets(store.view(tx.at), reservation):
            choices = _choose_for_reservation(store.view(tx.at), reservation)
            if choices is None or not _grant(
                store, tx, ticket.id, choices, reservation.time.ends_at
            ):
                break


def _choose_for_reservation(
    view: PoolView, reservation: ReservationInForce
) -> Sequence[Choice] | None:
    """Return the slices for a reservation's next lease; None if its slot is not empty yet."""
    if reservation.row.shape == FULL:
        return next(
            (
                gpu.whole
                for gpu in slots.free_whole_gpus(
                    view, reservation.row.course, except_for=reservation
                )
            ),
            None,
        )
    return slots.choose_next(view, reservation)


def _serve_queue(store: Store, tx: Transaction) -> None:
    """Grant waiting tickets for slices, in the order of the queue."""
    view = store.view(tx.at)
    queued = [ticket for ticket in view.queued if ticket.shape != FULL]
    if not queued:
        return
    requests = {(profiles_of(ticket.shape), ticket.course) for ticket in queued}
    if not queue.any_fits(requests, slots.open_gpus(view)):
        return
    waiting = queue.servable_without_slot(view)  # one order for the whole pass
    while waiting:
        view = store.view(tx.at)
        grant = queue.first_that_fits(waiting, slots.open_gpus(view), view)
        if grant is None:
            return
        _grant(store, tx, grant.ticket, grant.choices)
        waiting = tuple(ticket for ticket in waiting if ticket.id != grant.ticket)


def _grant_whole_gpus(store: Store, tx: Transaction, claimants_with_slot: Iterable[int]) -> None:
    view = store.view(tx.at)
    if not any(ticket.shape == FULL for ticket in view.queued):
        return
    if not any(gpu.is_free_whole for gpu in view.gpus.values()):
        return
    for ticket in queue.servable_tickets(view):
        if ticket.profiles == (FULL,) and ticket.id not in claimants_with_slot:
            for gpu in slots.free_whole_gpus(store.view(tx.at), ticket.course):
                if _grant(store, tx, ticket.id, gpu.whole):
                    break


# -- slices made in advance -----------------------------------------------------------------------


def _prepare_reserved_slots(store: Store, tx: Transaction) -> None:
    """Make slices on empty reserved slots, so that the class does not wait for them."""
    for row, slot in slots.slots_with_reservation(store.view(tx.at)):
        gpu = store.view(tx.at).gpus[slot.gpu]
        if tx.at >= gpu.unprepared_until and _is_missing(gpu, slot):
            free = [slice_row for slice_row in gpu.slices if slice_row.state == SliceState.FREE]
            in_the_way = [
                slice_row
                for slice_row in free
                if clash(gpu.placement_of(slice_row), slot.placed_slice)
            ]
            choice = Choice(slot.gpu, slot.placed_slice.profile, slot.placed_slice.placement)
            _recut(store, tx, in_the_way, [choice], f"for reservation {row.id}")


def _is_missing(gpu: GpuSnapshot, slot: Slot) -> bool:
    """Whether a slot has neither a lease nor a slice yet, on a GPU that can be cut."""
    occupancy = gpu.occupancy
    if gpu.row.state != GPU_OK or occupancy is None or not occupancy.usable:
        return False
    is_there = any(is_same(slot.placed_slice, warm) for warm in occupancy.warm)
    return is_unleased(occupancy, slot.placed_slice) and not is_there


def prepare_for_layouts(store: Store, tx: Transaction) -> None:
    """On GPUs with a layout, destroy free slices that it does not have, and make those it lacks."""
    for gpu in store.view(tx.at).gpus.values():
        if gpu.layout and _is_usable(gpu) and tx.at >= gpu.unprepared_until:
            rows, change = {row.id: row for row in gpu.slices}, gpu.change()
            removes = [rows[present_slice.number] for present_slice in change.removes]
            makes = [Choice(gpu.uuid, slot.profile, slot.placement) for slot in change.ready]
            _recut(store, tx, removes, makes, f"for layout {gpu.layout}")


def _is_usable(gpu: GpuSnapshot) -> bool:
    """Whether slices may be granted and made on a GPU now."""
    return gpu.occupancy is not None and gpu.occupancy.usable


def _recut(
    store: Store, tx: Transaction, removes: list[SliceRow], makes: list[Choice], purpose: str
) -> None:
    """Destroy free slices, and make others that are not leased yet."""
    for row in removes:
        scrub(tx, row, f"recut {purpose}", remake=False)
    for choice in makes:
        row = new_slice(store, tx, choice)
        tx.put(row, reason=f"cut {purpose}")
