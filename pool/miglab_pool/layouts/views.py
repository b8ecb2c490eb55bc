"""Layouts as messages: what was applied, and how each GPU stands to it.

Names are all in: who may see them is the service's to decide.
"""

from collections.abc import Iterable, Sequence

from miglab_api.gpus import SliceState
from miglab_api.layouts import (
    GpuLayout,
    LayoutDiff,
    LayoutDrain,
    Layouts,
    LayoutSpec,
    LayoutView,
    PlacedSlice,
)
from miglab_api.leases import LeaseState
from miglab_pool.gpu.geometry import Placed
from miglab_pool.layouts.rules import (
    Change,
    Planned,
    PresentSlice,
    in_force,
    phase,
    planned,
    replaced,
    schedule_of,
    times_of,
)
from miglab_pool.ledger.rows import GPU_OK, LayoutRow, LeaseRow, SliceRow
from miglab_pool.state.view import GpuSnapshot, PoolView


def layouts(view: PoolView) -> Layouts:
    """All that is planned or in force, and every GPU that can be cut."""
    rows = sorted(view.layouts.values(), key=lambda row: row.id)
    return Layouts(
        at=view.at,
        layouts=tuple(layout_view(view, row) for row in rows),
        gpus=tuple(_gpu_now(view, gpu) for gpu in _gpus(view)),
    )


def layout_view(view: PoolView, row: LayoutRow) -> LayoutView:
    """One layout, with its time in force or next."""
    plan = planned(row)
    time = phase(plan, view.at, view.settings.pool.reserve_lead_s).time if row.is_live else None
    return LayoutView.of(
        row,
        gpus=dict(plan.partitions),
        when=times_of(row.times),
        starts_at=time.starts_at if time else None,
        ends_at=time.ends_at if time else None,
    )


def diffs(view: PoolView, asked: Sequence[LayoutSpec]) -> list[LayoutDiff]:
    """Layouts, each with its cuts in full names, against the GPUs as they are."""
    first = 1 + max((plan.number for plan in view.plans), default=0)
    plans = [_planned(first + place, one) for place, one in enumerate(asked)]
    gone = replaced(view.plans, plans)
    return [_diff(view, one, gone) for one in asked]


def diffs_now(view: PoolView, asked: Sequence[LayoutSpec]) -> list[LayoutDiff]:
    """As `diffs`, each only with the GPUs on which it would be in force now, were it applied."""
    plans = [_planned(number, one) for number, one in enumerate(asked)]
    found = in_force(plans, view.at, view.settings.pool.reserve_lead_s)
    mine = [
        {
            gpu: partition
            for gpu, partition in one.gpus.items()
            if gpu in found and found[gpu].number == number
        }
        for number, one in enumerate(asked)
    ]
    return [
        _diff(view, one.model_copy(update={"gpus": gpus}))
        for one, gpus in zip(asked, mine, strict=True)
    ]


def _planned(number: int, asked: LayoutSpec) -> Planned:
    rules = tuple(map(schedule_of, asked.when))
    return Planned(number, asked.name, asked.course, asked.gpus, rules)


def _diff(view: PoolView, asked: LayoutSpec, replaces: Iterable[Planned] = ()) -> LayoutDiff:
    plan = _planned(0, asked)
    time = phase(plan, view.at, view.settings.pool.reserve_lead_s).time
    gpus = [gpu for gpu in _gpus(view) if gpu.uuid in asked.gpus]
    return LayoutDiff(
        layout=asked.name,
        course=asked.course,
        starts_at=time.starts_at if time else None,
        ends_at=time.ends_at if time else None,
        replaces=tuple(
            plan.name
            for plan in replaces
            if plan.name == asked.name or plan.partitions.keys() & asked.gpus.keys()
        ),
        gpus=tuple(_against(view, gpu, asked) for gpu in gpus),
    )


def _gpus(view: PoolView) -> list[GpuSnapshot]:
    gpus = [gpu for gpu in view.gpus.values() if gpu.is_partitionable]
    return sorted(gpus, key=lambda gpu: (gpu.row.idx, gpu.uuid))


def _against(view: PoolView, gpu: GpuSnapshot, asked: LayoutSpec) -> GpuLayout:
    partition = tuple(asked.gpus[gpu.uuid])
    layout = _gpu_layout(view, gpu, partition, gpu.change(partition))
    return layout.model_copy(update={"layout": asked.name, "course": asked.course})


def _gpu_now(view: PoolView, gpu: GpuSnapshot) -> GpuLayout:
    laid = gpu.layout
    if laid is None:
        return GpuLayout(gpu=gpu.uuid, index=gpu.row.idx, conforms=True)
    layout = _gpu_layout(view, gpu, laid.partition, gpu.change())
    update = {"layout": laid.name, "course": laid.course, "until": laid.until}
    return layout.model_copy(update=update)


def _gpu_layout(
    view: PoolView, gpu: GpuSnapshot, partition: Sequence[str], todo: Change
) -> GpuLayout:
    row = gpu.row
    drains = tuple(_drain(view, item) for item in todo.drains)
    ends = [drain.ends_at for drain in drains]
    blocked = tuple(_blocked(gpu, todo))
    return GpuLayout(
        gpu=row.uuid,
        index=row.idx,
        partition=tuple(partition),
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
    elif gpu.facts.has_lost:
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
    return LayoutDrain(
        profile=row.profile,
        start=row.start,
        size=row.size,
        slice_id=row.id,
        lease=lease.id,
        user=lease.user,
        course=lease.course,
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
