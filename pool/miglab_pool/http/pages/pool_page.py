"""The pool's page: drawn from the same snapshot as the API's answer, in parts that change alone.

A full lab changes often and in one place: of seven GPUs and 200 who wait, one GPU.  What each
viewer was shown last is kept here, with what it was made of, and compared by value.  The browser
says which parts it has, by name and version; it is sent only those that are others now.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple
from zlib import crc32

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from fastapi.sse import ServerSentEvent
from markupsafe import Markup

from miglab_api.gpus import PoolSnapshot
from miglab_api.leases import LeaseView
from miglab_api.tickets import TicketState, TicketView
from miglab_api.wording import estimated_wait, queue_position
from miglab_pool.http.access.dependencies import Runner, Who, who_again
from miglab_pool.http.access.principal import Principal, Right, visible_snapshot
from miglab_pool.http.pages.frame import render, render_part, wait_short
from miglab_pool.http.pages.gpu_drawing import (
    WORDS,
    Doings,
    draw,
    idle_people,
    reserved_on,
    strip,
    sums,
)
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.pool import Pool
from miglab_pool.reclaim.activity import IDLE

VIEWERS = 64
AGED_S = 30.0  # "42 min left" is drawn anew as often; browsers count on by themselves
REST_S = 0.5  # a class that starts at once changes much
NEWS_S = 30.0  # a stream without news says that it is alive


@dataclass(frozen=True, slots=True)
class PagePart:
    """A part of the page.

    Attributes:
        name: its element's name.
        html: what is in it.
        version: another one for other HTML.
    """

    name: str
    html: Markup
    version: str


class PartsCache:
    """What one viewer was shown last.

    Args:
        titles: by course, the name by which people know it; for the templates.
    """

    def __init__(self, titles: Mapping[str, str]) -> None:
        self._titles = titles
        self._kept: dict[str, tuple[object, object, PagePart]] = {}
        self._age = 0

    def part(
        self, name: str, template: str, made_of: object, draw: Callable[[], object], now: float
    ) -> PagePart:
        """The part, as it was if it is made of the same, or would look the same.

        Args:
            name: its element's name.
            template: of its HTML; finds what is drawn as ``drawn``, ``now`` and ``titles``.
            made_of: all that it follows from but the time of day.
            draw: makes what the template shows.
            now: seconds since the epoch.
        """
        if self._age != (age := int(now // AGED_S)):
            self._kept, self._age = {}, age
        made_before, drawn_before, part = self._kept.get(name, (None, None, None))
        if part is not None and made_before == made_of:
            return part
        drawn = draw()
        if part is None or drawn_before != drawn:
            html = render_part(template, drawn=drawn, now=now, titles=self._titles)
            markup = Markup(html)  # noqa: S704 -- Jinja has escaped what is in it
            part = PagePart(name, markup, f"{crc32(html.encode()):08x}")
        self._kept[name] = (made_of, drawn, part)
        return part


def parts_caches(
    titles: Mapping[str, str], limit: int = VIEWERS
) -> Callable[[Principal], PartsCache]:
    """The cache of each `Principal.viewer`; who has not looked for the longest time gives way."""
    return lru_cache(limit)(lambda _viewer: PartsCache(titles))


class QueueRow(NamedTuple):
    """One who waits.

    Attributes:
        position: in the queue; "now" for one that is being served.
        who: as the principal may name them.
        since: when it was asked for.
        wait: how long it is likely to last yet, in words; empty if it is not known.
        address: of what can be done to it; empty for nothing.
        is_next: whether staff put it in front.
    """

    ticket: int
    position: str
    who: str
    course: str
    shape: str
    since: float
    wait: str
    address: str
    is_own: bool
    is_next: bool


@dataclass(frozen=True, slots=True)
class QueueTable:
    """Who waits, the next in front; ``shapes``: how many for each, the most wanted first."""

    rows: list[QueueRow]
    shapes: list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Head:
    """What stands above: the principal's own, and the figures.

    Attributes:
        paused: why nothing is granted; empty while it is.
        own: the principal's leases.
        own_position: one sentence about the principal.
        is_told: whether that sentence is shown: not to staff who have nothing to do with it.
        sums: the figures.
        pool_button: the label of the button for the whole pool; empty for none.
    """

    paused: str
    own: list[LeaseView]
    own_position: str
    is_told: bool
    sums: list[tuple[str, str]]
    pool_button: str


def _head(
    snapshot: PoolSnapshot, own: Sequence[LeaseView], principal: Principal, doings: Doings
) -> Head:
    """What stands above, as the page shows it."""
    ticket = next((one for one in snapshot.waiting if principal.is_user(one.user)), None)
    acts = {Right.MESSAGE: "Message", Right.PAUSE: "pause"}
    return Head(
        snapshot.paused,
        list(own),
        own_position(own, ticket),
        ticket is not None or not principal.is_staff,
        sums(snapshot.people, idle_people(snapshot.gpus, doings.idle)),
        " or ".join(word for right, word in acts.items() if principal.has(right)),
    )


def _queue(waiting: Sequence[TicketView], principal: Principal) -> QueueTable:
    rows = [_row(ticket, principal) for ticket in waiting]
    return QueueTable(rows, Counter(ticket.shape for ticket in waiting).most_common())


def _row(ticket: TicketView, principal: Principal) -> QueueRow:
    is_own = principal.is_user(ticket.user)
    return QueueRow(
        ticket.id,
        "now" if ticket.position is None else str(ticket.position),
        "you" if is_own else ticket.user or "somebody",
        ticket.course,
        ticket.shape,
        ticket.created_at,
        wait_short(ticket.estimate) if ticket.estimate else "",
        f"ticket/{ticket.id}" if ticket.user is not None else "",
        is_own,
        ticket.is_next,
    )


def own_position(own: Sequence[LeaseView], ticket: TicketView | None) -> str:
    """One sentence about the principal, which a screen reader is told when it changes."""
    if own:
        return "You hold " + " and ".join(lease.shape for lease in own) + "."
    if ticket is None:
        return "You hold no GPU slice and are not waiting for one."
    if ticket.state is TicketState.OFFERED:
        return f"Your {ticket.shape} is ready: start your server."
    if ticket.position is None:
        return f"Your {ticket.shape} is being created."
    wait = f" Estimated wait: {estimated_wait(ticket.estimate)}." if ticket.estimate else ""
    return f"{queue_position(ticket)}{wait}"


async def page(request: Request, principal: Principal) -> str:
    """The whole page."""
    parts = {part.name: part for part in await pool_parts(request, principal)}
    return render("pool.html", request, principal, "pool", parts=parts, words=WORDS)


async def fragment(request: Request, principal: Who, have: str = "") -> Response:
    """The parts of the page that are not those that the browser has."""
    has = set(have.split(","))
    parts = await pool_parts(request, principal)
    changed = [part for part in parts if f"{part.name}.{part.version}" not in has]
    html = "".join(render_part("part.html", part=part) for part in changed)
    return HTMLResponse(html, headers={"X-Parts": " ".join(part.name for part in parts)})


async def live(request: Request, principal: Who, runner: Runner) -> AsyncIterator[ServerSentEvent]:
    """An event whenever the pool has changed; what has, the browser asks for itself.

    It ends when the hub does not know the listener any more.
    """
    while not runner.notifier.closed and await who_again(request, principal):
        seen = runner.notifier.version
        yield ServerSentEvent(event="pool", id=str(seen), data=seen)
        await asyncio.sleep(REST_S)
        await runner.notifier.beyond(seen, NEWS_S)


async def pool_parts(request: Request, principal: Principal) -> list[PagePart]:
    """Every part of the page, as it is now."""
    runner: PoolRunner = request.app.state.runner
    own, warned = await runner.look(lambda pool: (_own(pool, principal), pool.leases.warned()))
    snapshot = visible_snapshot(await runner.snapshot(), principal)
    activity = runner.reclaimer.activities() if runner.reclaimer else {}
    doings = Doings(frozenset(one for one in activity if activity[one] in IDLE), warned)
    cache: PartsCache = request.app.state.parts_caches(principal.viewer)
    now = time.time()
    drawn = strip(tuple(runner.last_hour), now)
    hour = cache.part("hour", "part_hour.html", drawn, lambda: drawn, now)
    return [hour, *parts_of(cache, snapshot, own, principal, doings, now)]


def _own(pool: Pool, principal: Principal) -> list[LeaseView]:
    return pool.leases.live(principal.name) if principal.is_user(principal.name) else []


def parts_of(
    cache: PartsCache,
    snapshot: PoolSnapshot,
    own: Sequence[LeaseView],
    principal: Principal,
    doings: Doings,
    now: float,
) -> list[PagePart]:
    """The page's parts.

    Args:
        cache: what the principal was shown last.
        snapshot: what the principal may see of the pool.
        own: the principal's leases.
        principal: who reads it.
        doings: what is known of leases beside the snapshot.
        now: seconds since the epoch.
    """
    gpus = [
        cache.part(
            f"gpu-{gpu.index}", "part_gpu.html", made_of, partial(draw, *made_of, principal), now
        )
        for gpu in snapshot.gpus
        for made_of in ((gpu, reserved_on(gpu, snapshot.reserved_slots), doings.on(gpu)),)
    ]
    waiting = snapshot.waiting
    head = _head(snapshot, own, principal, doings)
    parts = [
        cache.part("head", "part_head.html", head, lambda: head, now),
        cache.part("queue", "part_queue.html", waiting, partial(_queue, waiting, principal), now),
        *gpus,
    ]
    if principal.is_staff:
        is_quiet = not (snapshot.people.holding or snapshot.waiting)  # staff are told how to begin
        parts.append(cache.part("begin", "part_begin.html", is_quiet, lambda: is_quiet, now))
    return parts
