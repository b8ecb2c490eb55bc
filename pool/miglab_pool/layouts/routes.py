"""Layouts over HTTP: what is in force, what a file would change, applied, removed, asserted.

The file travels as its text, so that a mistake is told with its line wherever it was written.  Who
may cut a GPU is decided here, for each that a layout names or named; what then happens is the
pool's decision.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Query

from miglab_api.base import REASON_MAX
from miglab_api.layouts import (
    LAYOUT_NAME_MAX,
    Applied,
    ApplyRequest,
    Asserted,
    AssertRequest,
    GpuLayout,
    LayoutDiff,
    LayoutDrain,
    Layouts,
    LayoutSpec,
    LayoutText,
)
from miglab_api.leases import LeaseState, WarningKind
from miglab_pool.http.access.dependencies import Runner, needs
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.access.rights import Right
from miglab_pool.http.errors import REFUSED
from miglab_pool.layouts.file import LayoutDraft, LayoutError, chosen, dump, read, resolve
from miglab_pool.pool import Pool
from miglab_pool.refused import Refused

Viewer = Annotated[Principal, needs(Right.SEE_LAYOUTS)]
Partitioner = Annotated[Principal, needs(Right.PARTITION)]

router = APIRouter(prefix="/api/layout", responses=REFUSED)


@router.get("")
async def layouts(principal: Viewer, runner: Runner) -> Layouts:
    """What was applied, and how each GPU stands to what is in force on it."""
    return visible(await runner.look(lambda pool: pool.layouts.all()), principal)


@router.get("/file")
async def as_file(_: Viewer, runner: Runner) -> dict[str, str]:
    """What was applied, as the text of a layout file."""
    found = await runner.look(lambda pool: pool.layouts.all())
    return {"text": dump(found.layouts)}


@router.post("/diff")
async def diff(request: LayoutText, principal: Viewer, runner: Runner) -> list[LayoutDiff]:
    """What the layouts of a file would change now, and which leases block it; changes nothing."""
    drafts = await _drafts(request.text, request.file, request.names)
    found = await runner.look(lambda pool: pool.layouts.diffs(_specs(pool, drafts)))
    return [one.model_copy(update={"gpus": _visible(one.gpus, principal)}) for one in found]


@router.put("")
async def apply(request: ApplyRequest, principal: Partitioner, runner: Runner) -> Applied:
    """Apply the layouts of a file, all or none, by draining: nobody is cut off without ``now``."""
    drafts = await _drafts(request.text, request.file, request.names)

    def decision(pool: Pool) -> Applied:
        specs = _specs(pool, drafts)
        _check_rights(pool, principal, specs)
        found = pool.layouts.apply(specs, principal.by, request.reason)
        mine = [gpu for gpu in found.gpus if gpu.layout in {spec.name for spec in specs}]
        warned = tuple(_ask_back(pool, principal, mine, request)) if request.now else ()
        now = pool.layouts.all() if warned else found
        return Applied(at=now.at, layouts=now.layouts, gpus=now.gpus, warned=warned)

    found = await runner.decide(decision)
    return found.model_copy(update={"gpus": _visible(found.gpus, principal)})


@router.delete("/{name}")
async def remove(
    name: Annotated[str, Path(max_length=LAYOUT_NAME_MAX)],
    principal: Partitioner,
    runner: Runner,
    reason: Annotated[str, Query(max_length=REASON_MAX)] = "",
) -> Layouts:
    """End a layout; its GPUs are cut on demand again, or by the layout beneath it."""

    def decision(pool: Pool) -> Layouts:
        _check_rights(
            pool, principal, [one for one in pool.layouts.all().layouts if one.name == name]
        )
        return pool.layouts.remove(name, principal.by, reason)

    return visible(await runner.decide(decision), principal)


@router.post("/assert")
async def conforms(request: AssertRequest, principal: Viewer, runner: Runner) -> Asserted:
    """Whether the GPUs are cut so: every slice wanted is there and usable, and no other."""
    drafts: Sequence[LayoutDraft] = ()
    if request.text is not None:
        drafts = await _drafts(request.text, request.file, request.names)

    def decision(pool: Pool) -> tuple[GpuLayout, ...]:
        if request.text is None:
            return tuple(gpu for gpu in pool.layouts.all().gpus if gpu.layout)
        specs = _specs(pool, drafts)
        diffs = pool.layouts.diffs(specs) if request.names else pool.layouts.diffs_now(specs)
        return tuple(gpu for one in diffs for gpu in one.gpus)

    gpus = await runner.decide(decision)
    return Asserted(conforms=all(gpu.conforms for gpu in gpus), gpus=_visible(gpus, principal))


# -- from the text to what the pool knows -------------------------------------------------------


async def _drafts(text: str, file: str, names: Sequence[str]) -> list[LayoutDraft]:
    """The layouts of a file, read beside everything else, as a long one takes its time."""
    try:
        return chosen(await asyncio.to_thread(read, text, file), names)
    except LayoutError as error:
        raise _bad(error) from error


def _specs(pool: Pool, drafts: Iterable[LayoutDraft]) -> list[LayoutSpec]:
    try:
        return resolve(drafts, pool.layouts.partitionable(), pool.settings.courses.keys(), pool.now)
    except LayoutError as error:
        raise _bad(error) from error


def _bad(error: LayoutError) -> Refused:
    return Refused("bad-layout", str(error), 422)


# -- rights -------------------------------------------------------------------------------------


def _check_rights(pool: Pool, principal: Principal, specs: Iterable[LayoutSpec]) -> None:
    """Refuse who may not cut one of the GPUs, or give it to that course."""
    there = {one.name: one for one in pool.layouts.all().layouts}
    indexes = {gpu.uuid: gpu.index for gpu in pool.layouts.partitionable()}
    for spec in specs:
        before = there.get(spec.name)
        for gpu in {*spec.gpus, *(before.gpus if before else ())}:
            principal.require(
                Right.PARTITION, pool.settings.assigned_course(gpu, indexes.get(gpu, -1))
            )
        if spec.course:
            principal.require(Right.PARTITION, spec.course)


def _ask_back(
    pool: Pool, principal: Principal, gpus: Iterable[GpuLayout], request: ApplyRequest
) -> Iterator[int]:
    """Warn the blocking leases that the principal may end; the others run on."""
    for gpu in gpus:
        reason = request.reason or f"GPU {gpu.index} is cut anew, as {gpu.layout}"
        for drain in gpu.drains:
            if _may_end(pool, principal, drain):
                pool.staff.reclaim(drain.lease, reason, principal.by, request.warning_s)
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
