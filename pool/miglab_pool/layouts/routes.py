"""Layouts over HTTP: how GPUs are to be cut, what a file would change, applied.

The file travels as its text, so that a mistake is told with its line wherever it was written.  Who
may cut a GPU is decided here, for each that a layout names; what then happens is the pool's
decision.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Annotated

from fastapi import APIRouter

from miglab_api.layouts import (
    Applied,
    ApplyRequest,
    GpuLayout,
    LayoutDrain,
    Layouts,
    LayoutText,
)
from miglab_api.leases import LeaseState, WarningKind
from miglab_pool.http.access.dependencies import Runner, needs
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.access.rights import Right
from miglab_pool.http.errors import REFUSED
from miglab_pool.layouts.file import LayoutDraft, dump, read
from miglab_pool.pool import Pool

Viewer = Annotated[Principal, needs(Right.SEE_LAYOUTS)]
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
        found = pool.layouts.apply(asked, principal.by, request.reason, request.anyway)
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
