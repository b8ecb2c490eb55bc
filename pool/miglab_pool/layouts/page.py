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
from typing import Annotated, Literal

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
    SliceState,
)
from miglab_api.leases import LeaseState, WarningKind
from miglab_api.wording import duration, gpu_picture
from miglab_pool.gpu.geometry import Geometry, Profile
from miglab_pool.http.access.dependencies import Runner, needs
from miglab_pool.http.access.principal import Principal, Right, visible_snapshot
from miglab_pool.http.errors import REFUSED
from miglab_pool.http.pages.frame import render, render_part
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.layouts.file import LayoutDraft, LayoutError, PartitionableGpu, dump, read
from miglab_pool.pool import Pool

Fate = Literal["stays", "goes", "held", "new", "gap", "other"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of memory slices, with what becomes of it."""

    start: int
    size: int
    what: str
    word: str
    fate: Fate


@dataclass(frozen=True, slots=True)
class GpuChange:
    """One GPU, before and after.

    Attributes:
        layout: the layout's name; empty: it is cut on demand.
        then: as it is to be; empty where no layout says so.
        says: how far it is, in words.
        who: what is waited for, in words.
        drained: whose slices those are.
        blocked: what only a person can remove.
    """

    index: int
    memory_slices: int
    layout: str
    conforms: bool
    now: tuple[Piece, ...]
    then: tuple[Piece, ...]
    says: str
    who: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()


def changes(
    layouts: Iterable[GpuLayout], gpus: Sequence[GpuView], at: float, titles: Mapping[str, str]
) -> list[GpuChange]:
    """Each GPU against what is asked of it; one that is not there any more is left out."""
    there = {gpu.uuid: gpu for gpu in gpus}
    return [_change(one, there[one.gpu], at, titles) for one in layouts if one.gpu in there]


def _change(one: GpuLayout, gpu: GpuView, at: float, titles: Mapping[str, str]) -> GpuChange:
    return GpuChange(
        gpu.index,
        gpu.memory_slices,
        one.layout,
        one.conforms,
        _filled(_now(one, gpu), gpu.memory_slices),
        _filled(_then(one), gpu.memory_slices) if one.layout else (),
        _says(one, at),
        tuple(_waits(drain, at, titles) for drain in one.drains),
        tuple(f"{_holder(drain)}, {drain.profile} on GPU {one.index}" for drain in one.drains),
        one.blocked,
    )


def _now(one: GpuLayout, gpu: GpuView) -> list[Piece]:
    held = {drain.slice_id: drain for drain in one.drains}
    goes = {(place.start, place.profile) for place in one.removes}
    found = []
    for item in gpu.slices:
        fate: Fate = "other" if item.state is SliceState.FOREIGN else "stays"
        word = item.user or item.state.value
        if item.slice_id in held:
            fate, word = "held", f"{_holder(held[item.slice_id])}, then removed"
        elif (item.start, item.profile) in goes:
            fate, word = "goes", "removed"
        found.append(Piece(item.start, item.size, item.profile, word, fate))
    return found


def _then(one: GpuLayout) -> list[Piece]:
    keeps = [Piece(p.start, p.size, p.profile, "stays", "stays") for p in one.keeps]
    return [*keeps, *(Piece(p.start, p.size, p.profile, "new", "new") for p in one.makes)]


def _filled(pieces: Iterable[Piece], memory_slices: int) -> tuple[Piece, ...]:
    """The pieces from the first memory slice to the last, with the gaps between them."""
    drawn: list[Piece] = []
    position = 0
    for piece in sorted(pieces, key=lambda piece: piece.start):
        if piece.start > position:
            drawn.append(Piece(position, piece.start - position, "–", "no slice", "gap"))
        drawn.append(piece)
        position = max(position, piece.start + piece.size)
    if position < memory_slices:
        drawn.append(Piece(position, memory_slices - position, "–", "no slice", "gap"))
    return tuple(drawn)


def _says(one: GpuLayout, at: float) -> str:
    if not one.layout:
        return "No layout: partitioned on demand"
    if one.conforms:
        return "Conforms"
    parts = [
        f"{len(found)} to {what}"
        for found, what in ((one.makes, "create"), (one.removes, "remove"))
        if found
    ]
    if one.drains:
        number = len(one.drains)
        parts.append(f"waiting for {number} in use")
        parts.append(_ready(one, at))
    return ", ".join(parts) or "Does not conform"


def _ready(one: GpuLayout, at: float) -> str:
    if one.ready_at is None:
        return "a blocking lease has no set end"
    return f"done in {duration(one.ready_at - at)} at the latest"


def _holder(drain: LayoutDrain) -> str:
    return drain.user or "somebody"


def _waits(drain: LayoutDrain, at: float, titles: Mapping[str, str]) -> str:
    course = f" ({titles.get(drain.course, drain.course)})" if drain.course else ""
    return f"{_holder(drain)}{course} holds {drain.profile}: the lease {_lasts(drain, at)}"


def _lasts(drain: LayoutDrain, at: float) -> str:
    if drain.ends_at is not None:
        return f"ends in {duration(drain.ends_at - at)}"
    if drain.guaranteed_until > at:
        return f"is guaranteed for {duration(drain.guaranteed_until - at)}"
    return "has no set end"


@dataclass(frozen=True, slots=True)
class GroupFields:
    """Some GPUs of the layout that is made, as fields.

    Attributes:
        devices: which, as the file names them.
        counts: each profile with how many of it, and its picture.
        changes: its GPUs, drawn; none if it is refused.
        refused: why it cannot be.
    """

    devices: str
    counts: tuple[tuple[str, int, str], ...]
    changes: tuple[GpuChange, ...] = ()
    refused: str = ""


def group_fields(
    asked: LayoutDraft,
    gpus: Sequence[PartitionableGpu],
    drawn: Sequence[GpuChange],
    refused: LayoutError | None,
) -> Iterator[GroupFields]:
    """The groups of a layout; a profile that none of its GPUs has stays in sight."""
    for group in asked.groups:
        mine = [gpu for gpu in gpus if group.indexes is None or gpu.index in group.indexes]
        offered = [profile for gpu in mine or gpus for profile in gpu.geometry.profiles]
        whole = max((profile.compute_slices for profile in offered), default=0)
        wanted = Counter(group.profiles)
        names = dict.fromkeys([*(profile.name for profile in offered), *wanted])
        yield GroupFields(
            "all" if group.indexes is None else ", ".join(map(str, group.indexes)),
            tuple((name, wanted[name], gpu_picture(name, whole)) for name in names),
            tuple(one for one in drawn if one.index in {gpu.index for gpu in mine}),
            refused.why if refused and refused.position == group.position else "",
        )


def _replaced(found: Layouts, now: Mapping[str, str]) -> str:
    """The layouts in force on the GPUs that a layout names."""
    gpus: defaultdict[str, list[str]] = defaultdict(list)
    for one in found.gpus:
        gpus[now.get(one.gpu) or "no named layout"].append(str(one.index))
    return "; ".join(f"{name} on GPU {', '.join(where)}" for name, where in gpus.items())


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
        ("All small", _example(small, by_model, _all_small)),
        ("Mixed sizes", _example("mixed", by_model, _mixed)),
        ("On demand", _example("all-enabled", by_model, lambda _: {})),
    ]


def _example(
    name: str, by_model: Mapping[Geometry, list[int]], make: Callable[[Geometry], Counts]
) -> str:
    """A file with a group for each model; of one model, for all GPUs."""
    text = f"version: v1\nmig-configs:\n  {name}:\n"
    for geometry, indexes in by_model.items():
        devices = "all" if len(by_model) == 1 else str(indexes)
        slices = ", ".join(f"{profile}: {count}" for profile, count in make(geometry).items())
        text += f"    - devices: {devices}\n      mig-enabled: true\n"
        text += f"      mig-devices: {{{slices}}}\n"
    return text


def _by_compute(geometry: Geometry) -> dict[int, Profile]:
    """For each number of compute slices the profile with the least memory, the largest first."""
    found: dict[int, Profile] = {}
    for one in sorted(geometry.profiles, key=lambda one: (-one.compute_slices, one.size)):
        if one.is_plain:
            found.setdefault(one.compute_slices, one)
    return found


def _all_small(geometry: Geometry) -> Counts:
    *_, smallest = _by_compute(geometry).values()
    return {smallest.name: smallest.max_count}


def _mixed(geometry: Geometry) -> Counts:
    """Each slice takes at most half of what is left; the last ones are the smallest."""
    by_compute = _by_compute(geometry)
    left, counts = max(by_compute), Counter[str]()
    while left > 0:
        size = next((size for size in by_compute if size <= left / 2), min(by_compute))
        counts[by_compute[size].name] += 1
        left -= size
    return dict(counts)


async def page(request: Request, principal: Principal) -> str:
    """The whole page."""
    runner: PoolRunner = request.app.state.runner
    found = visible(await runner.look(lambda pool: pool.layouts.all()), principal)
    snapshot = visible_snapshot(await runner.snapshot(), principal)
    has_layouts = any(gpu.layout for gpu in found.gpus)
    offered = examples(await runner.look(lambda pool: pool.layouts.partitionable()))
    return render(
        "layouts.html",
        request,
        principal,
        "layouts",
        changes=changes(found.gpus, snapshot.gpus, time.time(), request.app.state.course_titles),
        text=dump(found.gpus) if has_layouts else offered[0][1],
        has_layouts=has_layouts,
        examples=offered,
        may_partition=principal.has(Right.PARTITION),
    )


async def preview(
    request: LayoutText, principal: Viewer, runner: Runner, about: Request
) -> Response:
    """A layout as fields, what it would change or why it cannot be, and the form to apply it."""
    asked = await _asked(request)
    gpus = await runner.look(lambda pool: pool.layouts.partitionable())
    snapshot = visible_snapshot(await runner.snapshot(), principal)
    found, refused = None, None
    try:
        found = visible(await runner.look(lambda pool: pool.layouts.diff(asked)), principal)
    except LayoutError as error:
        refused = error
    titles = about.app.state.course_titles
    drawn = changes(found.gpus, snapshot.gpus, time.time(), titles) if found else []
    named = {one.index for one in drawn}
    now = {gpu.uuid: gpu.layout for gpu in snapshot.gpus}
    html = render_part(
        "part_layout_diff.html",
        name=asked.name,
        groups=group_fields(asked, gpus, drawn, refused),
        others=[(gpu.index, now.get(gpu.uuid)) for gpu in gpus if found and gpu.index not in named],
        found=found,
        replaces=_replaced(found, now) if found else "",
        drains="; ".join(who for one in drawn for who in one.drained),
        may_partition=principal.has(Right.PARTITION),
    )
    return HTMLResponse(html)


Partitioner = Annotated[Principal, needs(Right.PARTITION)]

router = APIRouter(prefix="/api/layout", responses=REFUSED)


@router.get("")
async def layouts(principal: Viewer, runner: Runner) -> Layouts:
    """How each GPU stands to its layout."""
    return visible(await runner.look(lambda pool: pool.layouts.all()), principal)


@router.get("/file")
async def as_file(_: Viewer, runner: Runner) -> dict[str, str]:
    """The layouts of all GPUs, as the text of a layout file."""
    found = await runner.look(lambda pool: pool.layouts.all())
    return {"text": dump(found.gpus)}


@router.post("/diff")
async def diff(request: LayoutText, principal: Viewer, runner: Runner) -> Layouts:
    """What a file would change now, and which leases block it; changes nothing."""
    asked = await _asked(request)
    return visible(await runner.look(lambda pool: pool.layouts.diff(asked)), principal)


@router.put("")
async def apply(request: ApplyRequest, principal: Partitioner, runner: Runner) -> Applied:
    """Apply a file by draining: nobody is cut off without ``now``."""
    asked = await _asked(request)

    def decision(pool: Pool) -> Applied:
        _check_rights(pool, principal, pool.layouts.diff(asked).gpus)
        found = pool.layouts.apply(asked, principal.actor, request.reason, request.anyway)
        warned = tuple(_ask_back(pool, principal, found.gpus, request)) if request.now else ()
        now = pool.layouts.diff(asked) if warned else found
        return Applied(
            at=now.at, gpus=_visible(now.gpus, principal), breaks=found.breaks, warned=warned
        )

    return await runner.decide(decision)


async def _asked(request: LayoutText) -> LayoutDraft:
    """The configuration, read beside everything else, as a long file takes its time."""
    return await asyncio.to_thread(read, request.text, request.file, request.name)


# -- rights -------------------------------------------------------------------------------------


def _check_rights(pool: Pool, principal: Principal, gpus: Iterable[GpuLayout]) -> None:
    """Refuse who may not cut one of the GPUs."""
    for gpu in gpus:
        principal.require(Right.PARTITION, pool.settings.assigned_course(gpu.gpu, gpu.index))


def _ask_back(
    pool: Pool, principal: Principal, gpus: Iterable[GpuLayout], request: ApplyRequest
) -> Iterator[int]:
    """Warn the blocking leases that the principal may end; the others run on."""
    for gpu in gpus:
        reason = request.reason or f"GPU {gpu.index} is cut anew, as {gpu.layout}"
        for drain in gpu.drains:
            if _may_end(pool, principal, drain):
                pool.staff.reclaim(drain.lease, reason, principal.actor, request.warning_s)
                yield drain.lease


def _may_end(pool: Pool, principal: Principal, drain: LayoutDrain) -> bool:
    """Whether it is held by somebody who can be asked, and was not asked yet."""
    lease = pool.leases.find(drain.lease)
    is_held = lease.state in (LeaseState.ATTACHED, LeaseState.RUNNING, LeaseState.WARNED)
    is_asked = lease.warning is not None and lease.warning.kind is WarningKind.STAFF
    return is_held and not is_asked and principal.may(Right.RELEASE, lease.course)


def visible(found: Layouts, principal: Principal) -> Layouts:
    """The layouts without the names of those whom the principal may not see."""
    return found.model_copy(update={"gpus": _visible(found.gpus, principal)})


def _visible(gpus: Iterable[GpuLayout], principal: Principal) -> tuple[GpuLayout, ...]:
    return tuple(
        gpu.model_copy(
            update={"drains": tuple(_visible_drain(one, principal) for one in gpu.drains)}
        )
        for gpu in gpus
    )


def _visible_drain(drain: LayoutDrain, principal: Principal) -> LayoutDrain:
    if principal.may(Right.SEE_NAMES, drain.course, drain.user):
        return drain
    return drain.model_copy(update={"user": None, "course": ""})
