"""Making the slices that a layout in force asks for."""

from miglab_pool.gpu.geometry import Placed
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.model.gpu import Choice, Ground
from miglab_pool.state.store import Core
from miglab_pool.transactions import slices

# -- cutting ------------------------------------------------------------------------------------


def cut(core: Core, tx: Transaction) -> None:
    """Destroy what is free and has no seat, and make what is missing on seats that are empty."""
    if not core.laid:
        return
    for ground in core.grounds():
        gpu = ground.state.gpu
        if core.laid_on(gpu) is None or core.cut_done.get(gpu) is ground:
            continue
        if ground.state.usable and core.cut_backoff.is_due(gpu, tx.at):
            _cut(core, tx, ground)


def _cut(core: Core, tx: Transaction, ground: Ground) -> None:
    gpu = ground.state.gpu
    todo, name = core.change(gpu), core.laid[gpu].name
    for item in todo.removes:
        slices.scrub(tx, core.state.slices[item.number], f"recut for layout {name}", remake=False)
    for seat in todo.ready:
        _make(core, tx, gpu, seat, f"cut for layout {name}")
    if not (todo.removes or todo.ready):
        core.cut_done[gpu] = ground


def _make(core: Core, tx: Transaction, gpu: str, seat: Placed, why: str) -> None:
    choice = Choice(gpu, seat.profile, seat.placement)
    tx.put(slices.new_slice(core, tx, gpu, choice, None, ""), reason=why)
