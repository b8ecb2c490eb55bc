"""Making the slices that a layout in force asks for."""

from miglab_pool.gpu.geometry import Placed
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.model.gpu import Choice, Ground
from miglab_pool.state.store import Store
from miglab_pool.transactions import slices

# -- cutting ------------------------------------------------------------------------------------


def cut(store: Store, tx: Transaction) -> None:
    """Destroy what is free and has no seat, and make what is missing on seats that are empty."""
    if not store.laid:
        return
    for ground in store.grounds():
        gpu = ground.state.gpu
        if store.laid_on(gpu) is None or store.cut_done.get(gpu) is ground:
            continue
        if ground.state.usable and store.cut_backoff.is_due(gpu, tx.at):
            _cut(store, tx, ground)


def _cut(store: Store, tx: Transaction, ground: Ground) -> None:
    gpu = ground.state.gpu
    todo, name = store.change(gpu), store.laid[gpu].name
    for item in todo.removes:
        slices.scrub(tx, store.state.slices[item.number], f"recut for layout {name}", remake=False)
    for seat in todo.ready:
        _make(store, tx, gpu, seat, f"cut for layout {name}")
    if not (todo.removes or todo.ready):
        store.cut_done[gpu] = ground


def _make(store: Store, tx: Transaction, gpu: str, seat: Placed, why: str) -> None:
    choice = Choice(gpu, seat.profile, seat.placement)
    tx.put(slices.new_slice(store, tx, gpu, choice, None, ""), reason=why)
