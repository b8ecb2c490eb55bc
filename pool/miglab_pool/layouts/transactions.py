"""Compares GPUs with layouts, and applies a layout.

Applying is a decision in the ledger and ends no lease: from then on a GPU takes new leases only on
the slices of its layout, free slices outside the layout are destroyed, and missing ones are created
when there is room.  A layout holds until another is applied.  Answers contain the holders' names:
the HTTP service leaves out those that the principal may not see.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from miglab_api.gpus import GpuLayout, LayoutDrain, Layouts, PlacedSlice, SliceState
from miglab_api.leases import LeaseState
from miglab_api.wording import partition_in_words
from miglab_pool.gpu.geometry import ProfilePlacement
from miglab_pool.layouts.file import LayoutDraft, PartitionableGpu, resolve
from miglab_pool.ledger.rows import GPU_OK, LeaseRow, SliceRow
from miglab_pool.refused import Refused
from miglab_pool.reservations import feasible
from miglab_pool.state.partition import Change, PresentSlice
from miglab_pool.state.store import Subject, locked
from miglab_pool.state.view import GpuSnapshot, PoolView


class PoolLayouts(Subject):
    """The layouts of the pool's GPUs."""

    def partitionable(self) -> list[PartitionableGpu]:
        """The GPUs that a layout may name, by index, and how each can be cut."""
        return _partitionable(self.store.current)

    def all(self) -> Layouts:
        """How each GPU stands to its layout."""
        view = self.store.current
        layouts = (_gpu_layout(view, gpu, gpu.layout, gpu.partition) for gpu in _gpus(view))
        return Layouts(at=view.at, gpus=tuple(layouts))

    def diff(self, draft: LayoutDraft) -> Layouts:
        """What applying this would do now; changes nothing.

        Raises:
            LayoutError: it names what is not there or not possible.
        """
        view = self.store.current
        return _diff(view, draft.name, resolve(draft, _partitionable(view)))

    @locked
    def apply(self, draft: LayoutDraft, cause: str, reason: str = "", anyway: str = "") -> Layouts:
        """Apply a layout by draining; GPUs that it names without slices are cut on demand again.

        Args:
            draft: the configuration of a file.
            cause: who applies it.
            reason: why, for the ledger.
            anyway: why, though it takes slices from a reservation; empty: then it is refused.

        Returns:
            The GPUs that it names.

        Raises:
            LayoutError: it names what is not there or not possible; nothing was applied.
            Refused: ``breaks-reservation``, with which.
        """
        partitions = resolve(draft, self.partitionable())
        breaks = _diff(self.store.current, draft.name, partitions).breaks
        if breaks and not anyway:
            raise Refused(
                "breaks-reservation",
                f"{' '.join(breaks)} Leave a GPU out, partition it otherwise, change the "
                "reservation, or say why it is to be applied anyway.",
            )
        notes = " ".join([f"({reason})"] * bool(reason) + [f"(anyway: {anyway})"] * bool(anyway))
        with self.store.write(durable=True) as tx:
            for uuid, partition in partitions.items():
                name = draft.name if partition else ""
                row = self.store.state.gpus[uuid]
                row = replace(row, layout=name, partition=",".join(partition))
                cut = partition_in_words(reversed(partition)) if partition else "on demand"
                tx.put(row)
                course = self.store.settings.assigned_course(uuid, row.idx)
                tx.record(row, cause, f"{draft.name}: {cut} {notes}".strip(), "apply", course)
        return _diff(self.store.current, draft.name, partitions)


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
    """Compare the GPUs that a layout names with it."""
    gpus = (gpu for gpu in _gpus(view) if gpu.uuid in partitions)
    cut = {
        uuid: view.unpaused_gpus[uuid].with_layout(name, partition, view.at)
        for uuid, partition in partitions.items()
    }
    return Layouts(
        at=view.at,
        gpus=tuple(_gpu_layout(view, gpu, name, partitions[gpu.uuid]) for gpu in gpus),
        breaks=tuple(
            broken.message for broken in feasible.broken_promises(view, {**view.gpus, **cut})
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
    drains = tuple(_layout_drain(view, present_slice) for present_slice in todo.drains)
    ends = [drain.ends_at for drain in drains]
    blocked = tuple(_blocked(gpu, todo))
    return GpuLayout(
        gpu=row.uuid,
        index=row.idx,
        layout=name,
        partition=partition,
        conforms=todo.is_done and not blocked,
        keeps=_placed_slices(present_slice.placed_slice for present_slice in todo.keeps),
        makes=_placed_slices(
            [*todo.makes, *(present_slice.placed_slice for present_slice in todo.comes)]
        ),
        removes=_placed_slices(
            present_slice.placed_slice for present_slice in (*todo.removes, *todo.goes)
        ),
        drains=drains,
        blocked=blocked,
        ready_at=None if row.draining and not todo.is_done else _latest_end(view, ends),
    )


def _latest_end(view: PoolView, ends: Sequence[float | None]) -> float | None:
    """The latest end; now if there are no ends, None if one is unknown."""
    set_ends = [end for end in ends if end is not None]
    return max(set_ends, default=view.at) if len(set_ends) == len(ends) else None


def _blocked(gpu: GpuSnapshot, todo: Change) -> Iterable[str]:
    row = gpu.row
    if row.state != GPU_OK:
        yield f"the GPU is {row.state}: {row.reason}"
    elif row.draining and not todo.is_done:
        yield f"the GPU is drained: {row.draining}"
    elif gpu.has_lost:
        yield "servers whose slices are gone have not ended yet"
    rows = {row.id: row for row in gpu.slices}
    for present_slice in todo.immovable:
        yield _block_in_words(rows[present_slice.number], present_slice)


def _block_in_words(row: SliceRow, present_slice: PresentSlice) -> str:
    state = row.state if row.state in _WAY_OUT else "drained"
    subject = f"slice {row.id} ({row.profile} at {present_slice.placed_slice.placement}) is {state}"
    return f"{subject}: {_WAY_OUT.get(state, 'end that')}"


_WAY_OUT: dict[str, str] = {
    SliceState.FOREIGN: "adopt it, or destroy it by hand",
    SliceState.QUARANTINED: "clear it",
}


def _layout_drain(view: PoolView, present_slice: PresentSlice) -> LayoutDrain:
    row = view.slices[present_slice.number]
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


def _placed_slices(placed_slices: Iterable[ProfilePlacement]) -> tuple[PlacedSlice, ...]:
    views = [
        PlacedSlice(
            profile=placed_slice.profile.name,
            start=placed_slice.placement.start,
            size=placed_slice.placement.size,
        )
        for placed_slice in placed_slices
    ]
    return tuple(sorted(views, key=lambda view: (view.start, view.size)))
