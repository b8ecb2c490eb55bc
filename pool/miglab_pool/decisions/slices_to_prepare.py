"""Which slices are to be made before anybody asks: on reserved slots, and for layouts.

Where one could not be made it is not tried again at once, as nobody waits for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from miglab_api.gpus import SliceState
from miglab_pool.model.gpu import Choice, Slot, clash
from miglab_pool.model.once import once
from miglab_pool.model.rows import GPU_OK, SliceRow
from miglab_pool.rules.slot_choice import is_empty, is_same
from miglab_pool.state.gpu_snapshot import GpuSnapshot
from miglab_pool.state.view import PoolView


@dataclass(frozen=True)
class Preparation:
    """What is to be done to one GPU.

    Attributes:
        removes: free slices, destroyed first.
        makes: slices that are made for nobody yet.
        what: for what, in words.
    """

    removes: tuple[SliceRow, ...]
    makes: tuple[Choice, ...]
    what: str


def for_slot(view: PoolView, slot: Slot, what: str) -> Preparation | None:
    """The slice on a reserved slot that has emptied, so that nobody waits for it."""
    gpu = view.gpus[slot.gpu]
    if view.at < gpu.facts.unprepared_until or not _may_be_made(gpu, slot):
        return None
    choice = Choice(slot.gpu, slot.placed.profile, slot.placed.placement)
    return Preparation(tuple(_in_the_way(gpu, slot)), (choice,), what)


def _may_be_made(gpu: GpuSnapshot, slot: Slot) -> bool:
    """Whether the slot is empty, and its slice not there."""
    if gpu.row.state != GPU_OK or gpu.occupancy is None:
        return False
    state = gpu.occupancy
    is_there = any(is_same(slot.placed, warm) for warm in state.warm)
    return state.usable and is_empty(state, slot.placed) and not is_there


def _in_the_way(gpu: GpuSnapshot, slot: Slot) -> Iterator[SliceRow]:
    for row in gpu.slices:
        if row.state == SliceState.FREE and clash(gpu.facts.placed(row), slot.placed):
            yield row


def for_layouts(view: PoolView) -> Iterator[Preparation]:
    """Free slices that no layout wants go; those that it lacks are made where there is room."""
    for gpu in view.gpus.values():
        if gpu.layout is None or gpu.occupancy is None or not gpu.occupancy.usable:
            continue
        preparation = _for_layout(gpu) if view.at >= gpu.facts.unprepared_until else None
        if preparation is not None:
            yield preparation


@once
def _for_layout(gpu: GpuSnapshot) -> Preparation | None:
    assert gpu.layout is not None
    todo = gpu.change()
    if not (todo.removes or todo.ready):
        return None
    rows = {row.id: row for row in gpu.slices}
    removes = tuple(rows[item.number] for item in todo.removes)
    makes = tuple(Choice(gpu.uuid, slot.profile, slot.placement) for slot in todo.ready)
    return Preparation(removes, makes, f"for layout {gpu.layout.name}")
