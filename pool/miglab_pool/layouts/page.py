"""Layouts, as a page and over HTTP: how each GPU stands to its own, what a file would change.

A GPU is drawn against its layout: what lies there now, what will, and what is in between.  A layout
is made as a file; its fields, how many slices of each profile, are another way to write that file.
It travels as its text, so that a mistake is told with its line wherever it was written.  Who may
cut a GPU is decided here, for each that a layout names; what then happens is the pool's decision.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from miglab_api.gpus import (
    Applied,
    ApplyRequest,
    GpuLayout,
    GpuView,
    LayoutDrain,
    Layouts,
    LayoutText,
    PoolSnapshot,
    SliceState,
)
from miglab_api.leases import LeaseState, WarningKind
from miglab_api.wording import duration, gpu_picture
from miglab_pool.gpu.geometry import Geometry, Profile
from miglab_pool.http.access.dependencies import RUNNER, needs
from miglab_pool.http.access.principal import Principal, Right, visible_snapshot
from miglab_pool.http.errors import REFUSED
from miglab_pool.http.pages.frame import render, render_part, time_left_short
from miglab_pool.http.runner_protocol import RunnerOf
from miglab_pool.layouts.file import LayoutDraft, LayoutError, PartitionableGpu, dump, parse_layout
from miglab_pool.layouts.transactions import PoolLayouts
from miglab_pool.leases.transactions import Leases
from miglab_pool.settings import PoolSettings
from miglab_pool.staff.actions import Staff


class LayoutsPool(Protocol):
    """What the routes of layouts use of the pool."""

    settings: PoolSettings
    layouts: PoolLayouts
    leases: Leases
    staff: Staff


Runner = Annotated[RunnerOf[LayoutsPool], RUNNER]
Fate = Literal["stays", "offered", "goes", "held", "new", "gap", "other"]
Offers = Mapping[int, float]  # by lease: until when it is held for the student who has not taken it


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of memory slices in the drawing of a GPU.

    Attributes:
        label: the profile of its slice, or a dash for a gap.
        status: who holds it or what will become of it, in words.
        fate: the same as a style of the drawing.
    """

    start: int
    size: int
    label: str
    status: str
    fate: Fate


@dataclass(frozen=True, slots=True)
class GpuChange:
    """One GPU, before and after.

    Attributes:
        layout: the layout's name; empty: it is cut on demand.
        present_segments: the GPU as it is.
        planned_segments: the GPU as the layout has it; empty without a layout.
        summary: how far it is, in words.
        waiting_for: the leases it waits for, in words.
        drained: the holders of these leases.
        blocked: what only a person can remove.
    """

    index: int
    memory_slices: int
    layout: str
    conforms: bool
    present_segments: tuple[Segment, ...]
    planned_segments: tuple[Segment, ...]
    summary: str
    waiting_for: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()


def changes(
    layouts: Iterable[GpuLayout], snapshot: PoolSnapshot, at: float, titles: Mapping[str, str]
) -> list[GpuChange]:
    """Compare each GPU with its layout; a GPU that is no longer present is left out."""
    views = {gpu.uuid: gpu for gpu in snapshot.gpus}
    offers = {ticket.lease: ticket.expires_at or at for ticket in snapshot.offered if ticket.lease}
    return [
        _gpu_change(layout, views[layout.gpu], offers, at, titles)
        for layout in layouts
        if layout.gpu in views
    ]


def _gpu_change(
    layout: GpuLayout, gpu: GpuView, offers: Offers, at: float, titles: Mapping[str, str]
) -> GpuChange:
    return GpuChange(
        gpu.index,
        gpu.memory_slices,
        layout.layout,
        layout.conforms,
        _with_gaps(_present_segments(layout, gpu, offers, at), gpu.memory_slices),
        _with_gaps(_planned_segments(layout), gpu.memory_slices) if layout.layout else (),
        _progress_in_words(layout, at),
        tuple(_wait_in_words(drain, offers, at, titles) for drain in layout.drains),
        tuple(
            f"{_holder_name(drain)}, {drain.profile} on GPU {layout.index}"
            for drain in layout.drains
        ),
        layout.blocked,
    )


def _present_segments(layout: GpuLayout, gpu: GpuView, offers: Offers, at: float) -> list[Segment]:
    drains = {drain.slice_id: drain for drain in layout.drains}
    goes = {(place.start, place.profile) for place in layout.removes}
    segments = []
    for slice_view in gpu.slices:
        fate: Fate = "other" if slice_view.state is SliceState.FOREIGN else "stays"
        status = slice_view.user or slice_view.state.value
        if slice_view.lease is not None and slice_view.lease in offers:
            held = time_left_short(offers[slice_view.lease], at, before="held for ")
            fate, status = "offered", f"offered to {slice_view.user or 'somebody'}, {held}"
            if slice_view.slice_id in drains:
                status += ", then removed"
        elif slice_view.slice_id in drains:
            fate, status = "held", f"{_holder_name(drains[slice_view.slice_id])}, then removed"
        elif (slice_view.start, slice_view.profile) in goes:
            fate, status = "goes", "removed"
        segments.append(
            Segment(slice_view.start, slice_view.size, slice_view.profile, status, fate)
        )
    return segments


def _planned_segments(layout: GpuLayout) -> list[Segment]:
    keeps = [Segment(p.start, p.size, p.profile, "stays", "stays") for p in layout.keeps]
    return [*keeps, *(Segment(p.start, p.size, p.profile, "new", "new") for p in layout.makes)]


def _with_gaps(segments: Iterable[Segment], memory_slices: int) -> tuple[Segment, ...]:
    """Return the segments from the first memory slice to the last, with the gaps between them."""
    filled: list[Segment] = []
    position = 0
    for segment in sorted(segments, key=lambda segment: segment.start):
        if segment.start > position:
            filled.append(Segment(position, segment.start - position, "–", "no slice", "gap"))
        filled.append(segment)
        position = max(position, segment.start + segment.size)
    if position < memory_slices:
        filled.append(Segment(position, memory_slices - position, "–", "no slice", "gap"))
    return tuple(filled)


def _progress_in_words(layout: GpuLayout, at: float) -> str:
    if not layout.layout:
        return "No layout: partitioned on demand"
    if layout.conforms:
        return "Conforms"
    parts = [
        f"{len(slices)} to {verb}"
        for slices, verb in ((layout.makes, "create"), (layout.removes, "remove"))
        if slices
    ]
    if layout.drains:
        number = len(layout.drains)
        parts.append(f"waiting for {number} in use")
        parts.append(_completion_in_words(layout, at))
    return ", ".join(parts) or "Does not conform"


def _completion_in_words(layout: GpuLayout, at: float) -> str:
    if layout.ready_at is None:
        return "a blocking lease has no set end"
    return f"done in {duration(layout.ready_at - at)} at the latest"


def _holder_name(drain: LayoutDrain) -> str:
    return drain.user or "somebody"


def _wait_in_words(drain: LayoutDrain, offers: Offers, at: float, titles: Mapping[str, str]) -> str:
    course = f" ({titles.get(drain.course, drain.course)})" if drain.course else ""
    if drain.lease in offers:
        held = duration(offers[drain.lease] - at)
        return f"{_holder_name(drain)}{course} is offered {drain.profile}, held for {held}"
    end = _lease_end_in_words(drain, at)
    return f"{_holder_name(drain)}{course} holds {drain.profile}: the lease {end}"


def _lease_end_in_words(drain: LayoutDrain, at: float) -> str:
    if drain.ends_at is not None:
        return f"ends in {duration(drain.ends_at - at)}"
    if drain.guaranteed_until > at:
        return f"is guaranteed for {duration(drain.guaranteed_until - at)}"
    return "has no set end"


@dataclass(frozen=True, slots=True)
class GroupFields:
    """One group of the layout in the editor, as form fields.

    Attributes:
        devices: its GPUs, as the file names them.
        counts: each profile with its count and its picture.
        changes: the changes of its GPUs; none if it is refused.
        refused: why the group is refused; empty if it is not.
    """

    devices: str
    counts: tuple[tuple[str, int, str], ...]
    changes: tuple[GpuChange, ...] = ()
    refused: str = ""


def group_fields(
    draft: LayoutDraft,
    gpus: Sequence[PartitionableGpu],
    gpu_changes: Sequence[GpuChange],
    refusal: LayoutError | None,
) -> Iterator[GroupFields]:
    """Yield the groups of a layout; a profile that none of its GPUs has is listed too."""
    for group in draft.groups:
        group_gpus = [gpu for gpu in gpus if group.indexes is None or gpu.index in group.indexes]
        offered = [profile for gpu in group_gpus or gpus for profile in gpu.geometry.profiles]
        compute_slices = max((profile.compute_slices for profile in offered), default=0)
        counts = Counter(group.profiles)
        names = dict.fromkeys([*(profile.name for profile in offered), *counts])
        yield GroupFields(
            "all" if group.indexes is None else ", ".join(map(str, group.indexes)),
            tuple((name, counts[name], gpu_picture(name, compute_slices)) for name in names),
            tuple(
                gpu_change
                for gpu_change in gpu_changes
                if gpu_change.index in {gpu.index for gpu in group_gpus}
            ),
            refusal.problem if refusal and refusal.position == group.position else "",
        )


def _replaced_in_words(layouts: Layouts, names: Mapping[str, str]) -> str:
    """The layouts that a new one replaces, with their GPUs, in words."""
    gpus: defaultdict[str, list[str]] = defaultdict(list)
    for gpu_layout in layouts.gpus:
        gpus[names.get(gpu_layout.gpu) or "no named layout"].append(str(gpu_layout.index))
    return "; ".join(f"{name} on GPU {', '.join(indexes)}" for name, indexes in gpus.items())


Viewer = Annotated[Principal, needs(Right.SEE_LAYOUTS)]
Counts = dict[str, int]


def examples(gpus: Sequence[PartitionableGpu]) -> list[tuple[str, str]]:
    """Layouts to begin with, in words and as files, for the models of GPU that the lab has."""
    by_model: defaultdict[Geometry, list[int]] = defaultdict(list)
    for gpu in gpus:
        by_model[gpu.geometry].append(gpu.index)
    smallest = {name for geometry in by_model for name in _all_small(geometry)}
    small = f"all-{smallest.pop()}" if len(smallest) == 1 else "all-small"
    return [
        ("All small", _example_file(small, by_model, _all_small)),
        ("Mixed sizes", _example_file("mixed", by_model, _mixed)),
        ("On demand", _example_file("all-enabled", by_model, lambda _: {})),
    ]


def _example_file(
    name: str, by_model: Mapping[Geometry, list[int]], count_slices: Callable[[Geometry], Counts]
) -> str:
    """A file with a group for each model; of one model, for all GPUs."""
    text = f"version: v1\nmig-configs:\n  {name}:\n"
    for geometry, indexes in by_model.items():
        devices = "all" if len(by_model) == 1 else str(indexes)
        slices = ", ".join(
            f"{profile}: {count}" for profile, count in count_slices(geometry).items()
        )
        text += f"    - devices: {devices}\n      mig-enabled: true\n"
        text += f"      mig-devices: {{{slices}}}\n"
    return text


def _by_compute(geometry: Geometry) -> dict[int, Profile]:
    """For each number of compute slices the profile with the least memory, the largest first."""
    by_compute: dict[int, Profile] = {}
    for profile in sorted(
        geometry.profiles, key=lambda profile: (-profile.compute_slices, profile.size)
    ):
        if profile.is_plain:
            by_compute.setdefault(profile.compute_slices, profile)
    return by_compute


def _all_small(geometry: Geometry) -> Counts:
    *_, smallest = _by_compute(geometry).values()
    return {smallest.name: smallest.max_count}


def _mixed(geometry: Geometry) -> Counts:
    """Each slice takes at most half of what is left; the last ones are the smallest."""
    by_compute = _by_compute(geometry)
    free_slices, counts = max(by_compute), Counter[str]()
    while free_slices > 0:
        size = next((size for size in by_compute if size <= free_slices / 2), min(by_compute))
        counts[by_compute[size].name] += 1
        free_slices -= size
    return dict(counts)


async def page(request: Request, principal: Principal) -> str:
    """Render the page of layouts."""
    runner: RunnerOf[LayoutsPool] = request.app.state.runner
    layouts = visible(await runner.query_view(lambda pool: pool.layouts.all()), principal)
    snapshot = visible_snapshot(await runner.snapshot(), principal)
    has_layouts = any(gpu.layout for gpu in layouts.gpus)
    offered = examples(await runner.query_view(lambda pool: pool.layouts.partitionable()))
    return render(
        "layouts.html",
        request,
        principal,
        "layouts",
        changes=changes(layouts.gpus, snapshot, time.time(), request.app.state.course_titles),
        text=dump(layouts.gpus) if has_layouts else offered[0][1],
        has_layouts=has_layouts,
        examples=offered,
    )


async def preview(
    request: LayoutText, principal: Viewer, runner: Runner, about: Request
) -> Response:
    """A layout as fields, what it would change or why it cannot be, and the form to apply it."""
    draft = await _read_draft(request)
    gpus = await runner.query_view(lambda pool: pool.layouts.partitionable())
    snapshot = visible_snapshot(await runner.snapshot(), principal)
    layouts, refusal = None, None
    try:
        layouts = visible(await runner.query_view(lambda pool: pool.layouts.diff(draft)), principal)
    except LayoutError as error:
        refusal = error
    titles = about.app.state.course_titles
    gpu_changes = changes(layouts.gpus, snapshot, time.time(), titles) if layouts else []
    changed_indexes = {gpu_change.index for gpu_change in gpu_changes}
    names = {gpu.uuid: gpu.layout for gpu in snapshot.gpus}
    html = render_part(
        "part_layout_diff.html",
        name=draft.name,
        groups=group_fields(draft, gpus, gpu_changes, refusal),
        other_gpus=[
            (gpu.index, names.get(gpu.uuid))
            for gpu in gpus
            if layouts and gpu.index not in changed_indexes
        ],
        layouts=layouts,
        replaces=_replaced_in_words(layouts, names) if layouts else "",
        drains="; ".join(holder for gpu_change in gpu_changes for holder in gpu_change.drained),
        may_partition=principal.has(Right.PARTITION),
    )
    return HTMLResponse(html)


Partitioner = Annotated[Principal, needs(Right.PARTITION)]

router = APIRouter(prefix="/api/layout", responses=REFUSED)


@router.get("")
async def layouts(principal: Viewer, runner: Runner) -> Layouts:
    """How each GPU stands to its layout."""
    return visible(await runner.query_view(lambda pool: pool.layouts.all()), principal)


@router.get("/file")
async def export_file(_: Viewer, runner: Runner) -> dict[str, str]:
    """The layouts of all GPUs, as the text of a layout file."""
    layouts = await runner.query_view(lambda pool: pool.layouts.all())
    return {"text": dump(layouts.gpus)}


@router.post("/diff")
async def diff(request: LayoutText, principal: Viewer, runner: Runner) -> Layouts:
    """What a file would change now, and which leases block it; changes nothing."""
    draft = await _read_draft(request)
    return visible(await runner.query_view(lambda pool: pool.layouts.diff(draft)), principal)


@router.put("")
async def apply(request: ApplyRequest, principal: Partitioner, runner: Runner) -> Applied:
    """Apply a file by draining: nobody is cut off without ``now``."""
    draft = await _read_draft(request)

    def decision(pool: LayoutsPool) -> Applied:
        _check_rights(pool, principal, pool.layouts.diff(draft).gpus)
        applied = pool.layouts.apply(draft, principal.actor, request.reason, request.anyway)
        warned = (
            tuple(_warn_blocking(pool, principal, applied.gpus, request)) if request.now else ()
        )
        current = pool.layouts.diff(draft) if warned else applied
        return Applied(
            at=current.at,
            gpus=_visible_gpus(current.gpus, principal),
            breaks=applied.breaks,
            warned=warned,
        )

    return await runner.decide(decision)


async def _read_draft(request: LayoutText) -> LayoutDraft:
    """Parse the configuration on a thread of its own, since a long file takes long."""
    return await asyncio.to_thread(parse_layout, request.text, request.file, request.name)


# -- rights -------------------------------------------------------------------------------------


def _check_rights(pool: LayoutsPool, principal: Principal, gpus: Iterable[GpuLayout]) -> None:
    """Refuse a principal who may not partition one of the GPUs."""
    for gpu in gpus:
        principal.require(Right.PARTITION, pool.settings.assigned_course(gpu.gpu, gpu.index))


def _warn_blocking(
    pool: LayoutsPool, principal: Principal, gpus: Iterable[GpuLayout], request: ApplyRequest
) -> Iterator[int]:
    """Warn the blocking leases that the principal may end; the others run on."""
    for gpu in gpus:
        reason = request.reason or f"GPU {gpu.index} is cut anew, as {gpu.layout}"
        for drain in gpu.drains:
            if _may_end(pool, principal, drain):
                pool.staff.reclaim(drain.lease, reason, principal.actor, request.warning_s)
                yield drain.lease


def _may_end(pool: LayoutsPool, principal: Principal, drain: LayoutDrain) -> bool:
    """Whether the principal may reclaim the lease, and nobody has warned its holder yet."""
    lease = pool.leases.find(drain.lease)
    is_held = lease.state in (LeaseState.ATTACHED, LeaseState.RUNNING, LeaseState.WARNED)
    is_asked = lease.warning is not None and lease.warning.kind is WarningKind.STAFF
    return is_held and not is_asked and principal.may(Right.RELEASE, lease.course)


def visible(layouts: Layouts, principal: Principal) -> Layouts:
    """The layouts without the names of those whom the principal may not see."""
    return layouts.model_copy(update={"gpus": _visible_gpus(layouts.gpus, principal)})


def _visible_gpus(gpus: Iterable[GpuLayout], principal: Principal) -> tuple[GpuLayout, ...]:
    return tuple(
        gpu.model_copy(
            update={"drains": tuple(_visible_drain(drain, principal) for drain in gpu.drains)}
        )
        for gpu in gpus
    )


def _visible_drain(drain: LayoutDrain, principal: Principal) -> LayoutDrain:
    if principal.may(Right.SEE_NAMES, drain.course, drain.user):
        return drain
    return drain.model_copy(update={"user": None, "course": ""})
