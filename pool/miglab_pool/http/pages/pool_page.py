"""The pool's page: drawn from the same snapshot as the API's answer, in parts that change alone.

The browser says which parts it has, by name and version; it is sent only those that are others now.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from fastapi.sse import ServerSentEvent

from miglab_api.base import WireModel
from miglab_api.gpus import PoolSnapshot, SliceState
from miglab_api.leases import LeaseView
from miglab_pool.http.access.dependencies import Runner, Who, who
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.access.redaction import visible_snapshot
from miglab_pool.http.errors import DeniedError
from miglab_pool.http.pages.drawing.gpu_drawing import (
    WORDS,
    Doings,
    draw,
    idle_people,
    reserved_on,
    sums,
)
from miglab_pool.http.pages.drawing.queue_table import head_of, table_of
from miglab_pool.http.pages.frame import render, render_part, shown
from miglab_pool.http.pages.live_parts import Part, PartsCache, Shelves
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.pool import Pool
from miglab_pool.reclaimer.activity_states import Activity

REST_S = 0.5  # a class that starts at once changes much
NEWS_S = 30.0  # a stream without news says that it is alive
T = TypeVar("T", bound=WireModel)
IDLE = frozenset({Activity.IDLE_FREE, Activity.IDLE_HOLDING})


async def page(request: Request) -> Response:
    """The whole page."""

    async def draw_page(principal: Principal) -> str:
        parts = {part.name: part for part in await pool_parts(request, principal)}
        return render("pool.html", request, principal, "pool", parts=parts, words=WORDS)

    return await shown(request, draw_page)


async def fragment(request: Request, principal: Who, have: str = "") -> Response:
    """The parts of the page that are not those that the browser has."""
    has = set(have.split(","))
    parts = await pool_parts(request, principal)
    changed = [part for part in parts if f"{part.name}.{part.version}" not in has]
    html = "".join(render_part("part.html", part=part) for part in changed)
    return HTMLResponse(html, headers={"X-Parts": " ".join(part.name for part in parts)})


async def live(request: Request, _: Who, runner: Runner) -> AsyncIterator[ServerSentEvent]:
    """An event whenever the pool has changed; what has, the browser asks for itself.

    It ends when the hub does not know the listener any more.
    """
    while not runner.notifier.closed and await _still_there(request):
        seen = runner.notifier.version
        yield ServerSentEvent(event="pool", id=str(seen), data=seen)
        await asyncio.sleep(REST_S)
        await runner.notifier.beyond(seen, NEWS_S)


async def _still_there(request: Request) -> bool:
    """Whether who listens is signed in; a silent hub signs nobody out."""
    try:
        await who(request)
    except DeniedError as error:
        return error.reason == "hub-silent"
    return True


async def pool_parts(request: Request, principal: Principal) -> list[Part[Any]]:
    """Every part of the page, as it is now."""
    runner: PoolRunner = request.app.state.runner
    own, warned = await runner.look(lambda pool: (_own(pool, principal), pool.leases.warned()))
    snapshot = visible_snapshot(await runner.snapshot(), principal)
    snapshot = titled(snapshot, request.app.state.course_titles)
    activity = runner.reclaimer.activities() if runner.reclaimer else {}
    doings = Doings(frozenset(one for one in activity if activity[one] in IDLE), warned)
    return parts_of(_shelf(request, principal), snapshot, own, principal, doings, time.time())


def titled(snapshot: PoolSnapshot, titles: Mapping[str, str]) -> PoolSnapshot:
    """The same with courses' titles in place of their names: to be read, never to decide by."""

    def one(view: T) -> T:
        title = titles.get(getattr(view, "course", None) or "")
        return view.model_copy(update={"course": title}) if title else view

    gpus = [
        gpu.model_copy(update={"slices": tuple(one(item) for item in gpu.slices)})
        for gpu in snapshot.gpus
    ]
    return snapshot.model_copy(
        update={
            "gpus": tuple(gpus),
            "waiting": tuple(one(ticket) for ticket in snapshot.waiting),
            "reserved_slots": tuple(one(slot) for slot in snapshot.reserved_slots),
        }
    )


def _own(pool: Pool, principal: Principal) -> list[LeaseView]:
    return pool.leases.live(principal.name) if principal.is_user(principal.name) else []


def _shelf(request: Request, principal: Principal) -> PartsCache:
    state = request.app.state
    if not hasattr(state, "shelves"):
        state.shelves = Shelves()
    shelves: Shelves = state.shelves
    return shelves.of(principal)


def parts_of(
    shelf: PartsCache,
    snapshot: PoolSnapshot,
    own: Sequence[LeaseView],
    principal: Principal,
    doings: Doings,
    now: float,
) -> list[Part[Any]]:
    """The page's parts.

    Args:
        shelf: what the principal was shown last.
        snapshot: what the principal may see of the pool.
        own: the principal's leases.
        principal: who reads it.
        doings: what is known of leases beside the snapshot.
        now: seconds since the epoch.
    """
    gpus = [
        shelf.part(
            f"gpu-{gpu.index}", "part_gpu.html", made_of, partial(draw, *made_of, principal), now
        )
        for gpu in snapshot.gpus
        for made_of in ((gpu, reserved_on(gpu, snapshot.reserved_slots), doings.on(gpu)),)
    ]
    waiting = snapshot.waiting
    queue = shelf.part(
        "queue", "part_queue.html", waiting, lambda: table_of(waiting, principal), now
    )
    figures = sums(snapshot.people, idle_people(snapshot.gpus, doings.idle))
    head = head_of(snapshot, own, principal, figures)
    parts: list[Part[Any]] = [
        shelf.part("head", "part_head.html", head, lambda: head, now),
        queue,
        *gpus,
    ]
    if principal.is_staff:
        is_quiet = _is_quiet(snapshot)
        parts.append(shelf.part("begin", "part_begin.html", is_quiet, lambda: is_quiet, now))
    return parts


def _is_quiet(snapshot: PoolSnapshot) -> bool:
    """Whether nobody holds a slice or waits for one: then staff are told how to begin."""
    is_held = any(item.state is SliceState.LEASED for gpu in snapshot.gpus for item in gpu.slices)
    return not is_held and not snapshot.waiting
