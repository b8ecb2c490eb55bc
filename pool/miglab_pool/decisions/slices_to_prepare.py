"""Which slices are to be made before anybody asks: on places that are kept, and for layouts.

Where one could not be made it is not tried again at once, as nobody waits for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from miglab_api.gpus import SliceState
from miglab_pool.model.gpu import Choice, Seat, clash
from miglab_pool.model.once import once
from miglab_pool.model.rows import GPU_OK, SliceRow
from miglab_pool.rules.reservation_seats import is_empty, is_same
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


def on_seat(view: PoolView, seat: Seat, what: str) -> Preparation | None:
    """The slice on a kept place that has emptied, so that nobody waits for it."""
    gpu = view.gpus[seat.gpu]
    if view.at < gpu.facts.uncut_until or not _may_be_made(gpu, seat):
        return None
    choice = Choice(seat.gpu, seat.placed.profile, seat.placed.placement)
    return Preparation(tuple(_in_the_way(gpu, seat)), (choice,), what)


def _may_be_made(gpu: GpuSnapshot, seat: Seat) -> bool:
    """Whether the place is empty, and its slice not there."""
    if gpu.row.state != GPU_OK or gpu.occupancy is None:
        return False
    state = gpu.occupancy
    is_there = any(is_same(seat.placed, warm) for warm in state.warm)
    return state.usable and is_empty(state, seat.placed) and not is_there


def _in_the_way(gpu: GpuSnapshot, seat: Seat) -> Iterator[SliceRow]:
    for row in gpu.slices:
        if row.state == SliceState.FREE and clash(gpu.facts.placed(row), seat.placed):
            yield row


def for_layouts(view: PoolView) -> Iterator[Preparation]:
    """What is free and has no seat goes, and what is missing on seats that are empty is made."""
    for gpu in view.gpus.values():
        if gpu.layout is None or gpu.occupancy is None or not gpu.occupancy.usable:
            continue
        preparation = _for_layout(gpu) if view.at >= gpu.facts.uncut_until else None
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
    makes = tuple(Choice(gpu.uuid, seat.profile, seat.placement) for seat in todo.ready)
    return Preparation(removes, makes, f"for layout {gpu.layout.name}")
