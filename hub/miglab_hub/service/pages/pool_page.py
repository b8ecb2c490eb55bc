"""The pool's page: what it says is made from the same snapshot as the API's answer."""

import time
from dataclasses import dataclass

from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from miglab_hub.service.asker import Asker
from miglab_hub.service.host import PoolHost
from miglab_hub.service.rights import Right
from miglab_hub.service.views import visible_snapshot
from miglab_spawner.messages import (
    GpuView,
    LeaseView,
    PoolSnapshot,
    SliceState,
    SliceView,
    TicketState,
)
from miglab_spawner.progress import likely_wait

from .frame import render, shown


@dataclass(frozen=True, slots=True)
class Cell:
    """A run of memory slices as the page draws it: a slice, or memory that is not cut.

    Attributes:
        start: first memory slice.
        size: memory slices.
        item: the slice; None for uncut memory.
    """

    start: int
    size: int
    item: SliceView | None


def cells(gpu: GpuView) -> list[Cell]:
    """The GPU from its first memory slice to its last, without a gap.  Pure."""
    drawn: list[Cell] = []
    position = 0
    for item in sorted(gpu.slices, key=lambda item: item.start):
        if item.start > position:
            drawn.append(Cell(position, item.start - position, None))
        drawn.append(Cell(item.start, item.size, item))
        position = item.start + item.size
    if position < gpu.memory_slices:
        drawn.append(Cell(position, gpu.memory_slices - position, None))
    return drawn


def free_slices(snapshot: PoolSnapshot) -> int:
    """Memory slices that nobody holds, on GPUs that take leases.  Pure."""
    return sum(
        cell.size
        for gpu in snapshot.gpus
        if gpu.state == "ok"
        for cell in cells(gpu)
        if cell.item is None or cell.item.state is SliceState.FREE
    )


def own_line(snapshot: PoolSnapshot, leases: list[LeaseView], asker: Asker) -> str:
    """One sentence about the asker, which a screen reader is told when it changes.  Pure."""
    own = [lease for lease in leases if asker.is_user(lease.user)]
    if own:
        return "You hold " + " and ".join(lease.shape for lease in own) + "."
    for ticket in snapshot.waiting:
        if asker.is_user(ticket.user):
            if ticket.state is TicketState.OFFERED:
                return f"Your {ticket.shape} is ready: start your server."
            if ticket.position is None:
                return f"Your {ticket.shape} is being made."
            wait = f", {likely_wait(ticket.estimate)}" if ticket.estimate else ""
            return f"You are number {ticket.position} in line for {ticket.shape}{wait}."
    return "You hold no GPU slice and are not waiting for one."


async def page(request: Request) -> Response:
    """The whole page."""
    return await shown(request, lambda asker: _render("pool.html", request, asker))


async def fragment(request: Request) -> Response:
    """The part of the page that changes."""
    asker = await request.app.state.sign_in.asker(request)
    return HTMLResponse(await _render("fragment.html", request, asker))


async def _render(template: str, request: Request, asker: Asker) -> str:
    host: PoolHost = request.app.state.host
    held = await host.decide(lambda pool: pool.leases())
    leases = [one for one in held if asker.may(Right.SEE_NAMES, one.course, one.user)]
    snapshot = visible_snapshot(await host.snapshot(), asker)
    return render(
        template,
        request,
        asker,
        "pool",
        cells=cells,
        snapshot=snapshot,
        leases={lease.id: lease for lease in leases},
        own=[lease for lease in leases if asker.is_user(lease.user)],
        own_line=own_line(snapshot, leases, asker),
        free=free_slices(snapshot),
        now=time.time(),
    )
