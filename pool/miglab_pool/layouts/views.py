"""Layouts as messages: how each GPU stands to its own, or to one that might be applied.

Names are all in: who may see them is the service's to decide.
"""

from collections.abc import Iterable, Mapping, Sequence

from miglab_api.gpus import GpuLayout, LayoutDrain, Layouts, PlacedSlice, SliceState
from miglab_api.leases import LeaseState
from miglab_pool.gpu.geometry import Placed
from miglab_pool.layouts.file import PartitionableGpu
from miglab_pool.layouts.rules import Change, PresentSlice
from miglab_pool.ledger.rows import GPU_OK, LeaseRow, SliceRow
from miglab_pool.reservations import feasible
from miglab_pool.state.view import GpuSnapshot, PoolView


def partitionable(view: PoolView) -> list[PartitionableGpu]:
    """Every GPU that can be cut now, by index."""
    return [
        PartitionableGpu(gpu.uuid, gpu.row.idx, gpu.row.name, gpu.hardware)
        for gpu in _gpus(view)
        if gpu.hardware is not None
    ]


def layouts(view: PoolView) -> Layouts:
    """Every GPU that can be cut, against its layout."""
    gpus = _gpus(view)
    return Layouts(
        at=view.at, gpus=tuple(_gpu_layout(view, gpu, gpu.layout, gpu.partition) for gpu in gpus)
    )


def diff(view: PoolView, name: str, partitions: Mapping[str, tuple[str, ...]]) -> Layouts:
    """The GPUs that a layout names, against it."""
    gpus = (gpu for gpu in _gpus(view) if gpu.uuid in partitions)
    cut = {
        uuid: view.facts[uuid].cut(name, partition, view.at)
        for uuid, partition in partitions.items()
    }
    return Layouts(
        at=view.at,
        gpus=tuple(_gpu_layout(view, gpu, name, partitions[gpu.uuid]) for gpu in gpus),
        breaks=tuple(one.words for one in feasible.broken_by(view, {**view.gpus, **cut})),
    )


def _gpus(view: PoolView) -> list[GpuSnapshot]:
    gpus = [gpu for gpu in view.gpus.values() if gpu.is_partitionable]
    return sorted(gpus, key=lambda gpu: (gpu.row.idx, gpu.uuid))


def _gpu_layout(
    view: PoolView, gpu: GpuSnapshot, name: str, partition: tuple[str, ...]
) -> GpuLayout:
    row = gpu.row
    if not partition:
        return GpuLayout(gpu=row.uuid, index=row.idx, conforms=True)
    todo = gpu.change(partition)
    drains = tuple(_drain(view, item) for item in todo.drains)
    ends = [drain.ends_at for drain in drains]
    blocked = tuple(_blocked(gpu, todo))
    return GpuLayout(
        gpu=row.uuid,
        index=row.idx,
        layout=name,
        partition=partition,
        conforms=todo.is_done and not blocked,
        keeps=_placed_slices(item.placed for item in todo.keeps),
        makes=_placed_slices([*todo.makes, *(item.placed for item in todo.comes)]),
        removes=_placed_slices(item.placed for item in (*todo.removes, *todo.goes)),
        drains=drains,
        blocked=blocked,
        ready_at=None if row.draining and not todo.is_done else _latest(view, ends),
    )


def _latest(view: PoolView, ends: Sequence[float | None]) -> float | None:
    """When the last of them is over; now if there is none, None if one has no end."""
    known = [end for end in ends if end is not None]
    return max(known, default=view.at) if len(known) == len(ends) else None


def _blocked(gpu: GpuSnapshot, todo: Change) -> Iterable[str]:
    row = gpu.row
    if row.state != GPU_OK:
        yield f"the GPU is {row.state}: {row.reason}"
    elif row.draining and not todo.is_done:
        yield f"the GPU is drained: {row.draining}"
    elif gpu.has_lost:
        yield "servers whose slices are gone have not ended yet"
    rows = {row.id: row for row in gpu.slices}
    for item in todo.fixed:
        yield _in_the_way(rows[item.number], item)


def _in_the_way(row: SliceRow, item: PresentSlice) -> str:
    state = row.state if row.state in _WAY_OUT else "drained"
    what = f"slice {row.id} ({row.profile} at {item.placed.placement}) is {state}"
    return f"{what}: {_WAY_OUT.get(state, 'end that')}"


_WAY_OUT: dict[str, str] = {
    SliceState.FOREIGN: "adopt it, or destroy it by hand",
    SliceState.QUARANTINED: "clear it",
}


def _drain(view: PoolView, item: PresentSlice) -> LayoutDrain:
    row = view.slices[item.number]
    lease = view.leases[row.lease or 0]
    return LayoutDrain.of(
        lease,
        profile=row.profile,
        start=row.start,
        size=row.size,
        slice_id=row.id,
        lease=lease.id,
        ends_at=_ends_at(lease),
    )


def _ends_at(lease: LeaseRow) -> float | None:
    """When it is over at the latest; one that is being released ends any moment."""
    if lease.state == LeaseState.RELEASING:
        return lease.releasing_at
    ends = [end for end in (lease.ends_at, lease.reclaim_at) if end is not None]
    return min(ends, default=None)


def _placed_slices(placed: Iterable[Placed]) -> tuple[PlacedSlice, ...]:
    found = [
        PlacedSlice(profile=item.profile.name, start=item.placement.start, size=item.placement.size)
        for item in placed
    ]
    return tuple(sorted(found, key=lambda place: (place.start, place.size)))
