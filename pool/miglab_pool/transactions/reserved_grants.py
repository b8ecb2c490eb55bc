"""Drawing slices for reservations, and cutting GPUs ahead of a class."""

from collections.abc import Iterator

from miglab_api.gpus import SliceState
from miglab_pool.decisions.reservations_in_force import InForce, in_force
from miglab_pool.decisions.reserved_places import _choose, _keeping, _kept, claims, free_whole
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.model.gpu import Choice, Seat, clash
from miglab_pool.model.rows import FULL, GPU_OK, SliceRow, TicketRow
from miglab_pool.rules.reservation_seats import is_empty, is_same
from miglab_pool.state.store import Store
from miglab_pool.transactions import granting, slices

# -- serving ------------------------------------------------------------------------------------


def serve(store: Store, tx: Transaction) -> None:
    """Grant to those who draw on a reservation, before anybody else is asked."""
    for one in in_force(store, tx.at):
        for ticket in claims(store, one):
            if not _draw(store, tx, one, ticket):
                break


def _draw(store: Store, tx: Transaction, one: InForce, ticket: TicketRow) -> bool:
    if one.row.shape == FULL:
        gpu = next(iter(free_whole(store, tx.at, one.row.course, but=one)), None)
        if gpu is not None:
            granting.grant_whole(store, tx, ticket, gpu)
        return gpu is not None
    choices = _choose(store, tx.at, one)
    if choices is not None:
        granting.grant(store, tx, ticket, choices)
    return choices is not None


# -- cutting ------------------------------------------------------------------------------------


def cut(store: Store, tx: Transaction) -> None:
    """Make the slices on kept places that have emptied, so that nobody waits for them.

    Where one could not be made it is not tried again at once, as nobody asks for it yet.
    """
    for number, seats in _kept(store, _keeping(store, tx.at)).items():
        for seat in seats:
            if store.cut_backoff.is_due(seat.gpu, tx.at) and _may_be_cut(store, seat):
                _cut(store, tx, seat, f"for reservation {number}")


def _may_be_cut(store: Store, seat: Seat) -> bool:
    """Whether the place is empty, and its slice not there."""
    row = store.state.gpus.get(seat.gpu)
    if row is None or row.state != GPU_OK:
        return False
    state = next(one.state for one in store.grounds() if one.state.gpu == seat.gpu)
    is_there = any(is_same(seat.placed, warm) for warm in state.warm)
    return state.usable and is_empty(state, seat.placed) and not is_there


def _cut(store: Store, tx: Transaction, seat: Seat, why: str) -> None:
    for row in _in_the_way(store, seat):
        slices.scrub(tx, row, f"recut {why}", remake=False)
    choice = Choice(seat.gpu, seat.placed.profile, seat.placed.placement)
    tx.put(slices.new_slice(store, tx, seat.gpu, choice, None, ""), reason=f"cut {why}")


def _in_the_way(store: Store, seat: Seat) -> Iterator[SliceRow]:
    for row in list(store.state.on_gpu[seat.gpu].values()):
        if row.state == SliceState.FREE and clash(store.placed(row), seat.placed):
            yield row
