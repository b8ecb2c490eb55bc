"""The pool's page: what it says is made from the same snapshot as the API's answer."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from miglab_spawner.messages import (
    GpuView,
    LeaseView,
    PoolSnapshot,
    SliceState,
    SliceView,
    TicketState,
)
from miglab_spawner.progress import likely_wait

from .answers import DeniedError
from .asker import Asker
from .auth import SignIn
from .host import PoolHost
from .views import visible_snapshot

HERE = Path(__file__).parent
STATE_WORDS = {
    SliceState.MAKING: "being made",
    SliceState.FREE: "free",
    SliceState.LEASED: "in use",
    SliceState.SCRUBBING: "being cleared",
    SliceState.QUARANTINED: "set aside",
    SliceState.FOREIGN: "not the lab's",
}


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


def in_words(duration_s: float) -> str:
    """A duration as people say it: the two largest units, never below a minute.  Pure."""
    minutes = max(0, round(duration_s / 60))
    if minutes < 1:
        return "less than a minute"
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "day"), (hours, "hour"), (minutes, "minute")]
    said = [f"{n} {word}{'s' if n != 1 else ''}" for n, word in parts if n]
    return " ".join(said[:2])


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


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["in_words"] = in_words
    environment.filters["iso"] = lambda at: datetime.fromtimestamp(at, UTC).isoformat(
        "T", "seconds"
    )
    environment.filters["likely"] = likely_wait
    environment.globals["cells"] = cells
    environment.globals["state_words"] = STATE_WORDS
    return environment


PAGES = _environment()


def page_router(prefix: str) -> APIRouter:
    """The page, the part of it that changes, sign-in's way back, and the static files."""
    router = APIRouter(include_in_schema=False)
    router.add_api_route("/", page, methods=["GET"], response_class=HTMLResponse)
    router.add_api_route("/fragment", fragment, methods=["GET"], response_class=HTMLResponse)
    router.add_api_route("/oauth_callback", callback, methods=["GET"])
    router.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
    return router


async def page(request: Request) -> Response:
    """The whole page; whoever is not signed in is sent to the hub first."""
    sign_in: SignIn = request.app.state.sign_in
    try:
        asker = await sign_in.asker(request)
    except DeniedError as refused:
        if refused.status == 401:
            return sign_in.begin(request)
        return _failed(request, refused)
    return HTMLResponse(await _render("pool.html", request, asker))


async def fragment(request: Request) -> Response:
    """The part of the page that changes."""
    asker = await request.app.state.sign_in.asker(request)
    return HTMLResponse(await _render("fragment.html", request, asker))


async def callback(request: Request) -> Response:
    """The way back from the hub."""
    sign_in: SignIn = request.app.state.sign_in
    try:
        return await sign_in.finish(request)
    except DeniedError as refused:
        return _failed(request, refused)


async def _render(template: str, request: Request, asker: Asker) -> str:
    host: PoolHost = request.app.state.host
    user = None if asker.sees_names else asker.name
    leases = [*await host.decide(lambda pool: pool.leases(user))]
    snapshot = visible_snapshot(await host.snapshot(), asker)
    return PAGES.get_template(template).render(
        **_frame(request),
        asker=asker,
        snapshot=snapshot,
        leases={lease.id: lease for lease in leases},
        own=[lease for lease in leases if asker.is_user(lease.user)],
        own_line=own_line(snapshot, leases, asker),
        free=free_slices(snapshot),
        now=time.time(),
    )


def _failed(request: Request, refused: DeniedError) -> Response:
    request.app.state.host.metrics.refused(refused.reason)
    html = PAGES.get_template("failed.html").render(**_frame(request), message=refused.message)
    return HTMLResponse(html, refused.status)


def _frame(request: Request) -> dict[str, object]:
    access = request.app.state.sign_in.access
    return {
        "prefix": access.prefix,
        "hub_home": f"{access.hub_prefix}home",
        "notices": request.app.state.notices,
    }
