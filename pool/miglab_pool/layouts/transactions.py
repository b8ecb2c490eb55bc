"""How each GPU stands to its layout, or to one that might be applied; and applying one.

Applying is a decision in the ledger and ends no lease: from then on a GPU takes new leases only on
the slices of its layout, free slices that it does not want are destroyed, and what it lacks is made
when there is room.  A layout holds until another is applied.  Names are all in what is told: who
may see them is the service's to decide.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from miglab_api.gpus import GpuLayout, LayoutDrain, Layouts, PlacedSlice, SliceState
from miglab_api.leases import LeaseState
from miglab_api.wording import in_words
from miglab_pool.gpu.geometry import Placed
from miglab_pool.layouts.file import LayoutDraft, PartitionableGpu, resolve
from miglab_pool.layouts.rules import Change, PresentSlice
from miglab_pool.ledger.rows import GPU_OK, LeaseRow, SliceRow
from miglab_pool.refused import Refused
from miglab_pool.reservations import feasible
from miglab_pool.state.store import Subject, locked
from miglab_pool.state.view import GpuSnapshot, PoolView


class PoolLayouts(Subject):
    """See the module."""

    def partitionable(self) -> list[PartitionableGpu]:
        """The GPUs that a layout may name, by index, and how each can be cut."""
        return _partitionable(self.store.current)

    def all(self) -> Layouts:
        """How each GPU stands to its layout."""
        view = self.store.current
        found = (_gpu_layout(view, gpu, gpu.layout, gpu.partition) for gpu in _gpus(view))
        return Layouts(at=view.at, gpus=tuple(found))

    def diff(self, asked: LayoutDraft) -> Layouts:
        """What applying this would do now; changes nothing.

        Raises:
            LayoutError: it names what is not there or not possible.
        """
        view = self.store.current
        return _diff(view, asked.name, resolve(asked, _partitionable(view)))

    @locked
    def apply(self, asked: LayoutDraft, by: str, reason: str = "", anyway: str = "") -> Layouts:
        """Apply a layout by draining; GPUs that it names without slices are cut on demand again.

        Args:
            asked: what a file says.
            by: who.
            reason: why, for the ledger.
            anyway: why, though it takes slices from a reservation; empty: then it is refused.

        Returns:
            The GPUs that it names.

        Raises:
            LayoutError: it names what is not there or not possible; nothing was applied.
            Refused: ``breaks-reservation``, with which.
        """
        partitions = resolve(asked, self.partitionable())
        breaks = _diff(self.store.current, asked.name, partitions).breaks
        if breaks and not anyway:
            raise Refused(
                "breaks-reservation",
                f"{' '.join(breaks)} Leave a GPU out, partition it otherwise, change the "
                "reservation, or say why it is to be applied anyway.",
            )
        said = " ".join([f"({reason})"] * bool(reason) + [f"(anyway: {anyway})"] * bool(anyway))
        with self.store.write(durable=True) as tx:
            for uuid, partition in partitions.items():
                name = asked.name if partition else ""
                row = self.store.state.gpus[uuid]
                row = replace(row, layout=name, partition=",".join(partition))
                cut = in_words(reversed(partition)) if partition else "on demand"
                tx.put(row)
                course = self.store.settings.assigned_course(uuid, row.idx)
                tx.record(row, by, f"{asked.name}: {cut} {said}".strip(), "apply", course)
        return _diff(self.store.current, asked.name, partitions)


def _partitionable(view: PoolView) -> list[PartitionableGpu]:
    return [
        PartitionableGpu(
            gpu.uuid,
            gpu.row.idx,
            gpu.row.name,
            gpu.info.geometry,
            gpu.info.pci_device_id,
            gpu.info.pci_subsystem_id,
        )
        for gpu in _gpus(view)
        if gpu.info is not None
    ]


def _diff(view: PoolView, name: str, partitions: Mapping[str, tuple[str, ...]]) -> Layouts:
    """The GPUs that a layout names, against it."""
    gpus = (gpu for gpu in _gpus(view) if gpu.uuid in partitions)
    cut = {
        uuid: view.facts[uuid].cut(name, partition, view.at)
        for uuid, partition in partitions.items()
    }
    return Layouts(
        at=view.at,
        gpus=tuple(_gpu_layout(view, gpu, name, partitions[gpu.uuid]) for gpu in gpus),
        breaks=tuple(
            promise.message for promise in feasible.broken_promises(view, {**view.gpus, **cut})
        ),
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
