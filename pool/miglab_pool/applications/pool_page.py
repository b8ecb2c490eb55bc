"""The Pool page, drawn from the API's snapshot, in parts that change separately.

A full lab changes often and in one place: of seven GPUs and 200 waiting tickets, one GPU.  The
parts that each viewer was shown last are kept here, with what they were drawn from, and compared by
value.  The browser says which parts it has, by name and version, and is sent only changed ones.
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
from miglab_api.tickets import TicketView
from miglab_pool.applications.gpu_drawing import (
    MARK_WORDS,
    LeaseActivity,
    count_idle_holders,
    draw_gpu,
    draw_last_hour,
    headline_figures,
    reserved_slots_on,
)
from miglab_pool.applications.pool_runner import PoolRunner, Runner
from miglab_pool.http.access.dependencies import Viewer, refresh_principal
from miglab_pool.http.access.principal import Principal, Right, visible_snapshot
from miglab_pool.http.pages.frame import render, render_part, wait_short
from miglab_pool.reclaim.activity import IDLE

VIEWERS = 64
REDRAW_S = 30.0  # "42 min left" is redrawn so often; browsers count on by themselves
REST_S = 0.5  # between two events, since a class that starts at once changes much
NEWS_S = 30.0  # after which a stream without changes sends an event all the same


@dataclass(frozen=True, slots=True)
class PagePart:
    """A part of the page.

    Attributes:
        name: the name of its element.
        html: its HTML.
        version: changes with the HTML.
    """

    name: str
    html: Markup
    version: str


class PartsCache:
    """The parts that one viewer was shown last.

    Args:
        titles: the title of each course, for the templates.
    """

    def __init__(self, titles: Mapping[str, str]) -> None:
        self._titles = titles
        self._kept: dict[str, tuple[object, object, PagePart]] = {}
        self._age = 0

    def part(
        self, name: str, template: str, made_of: object, draw: Callable[[], object], now: float
    ) -> PagePart:
        """Return a part, unchanged if its inputs or its content are.

        Args:
            name: the name of its element.
            template: the template of its HTML, which gets ``drawn``, ``now`` and ``titles``.
            made_of: all inputs but the time of day.
            draw: draws the content from them.
            now: seconds since the epoch.
        """
        if self._age != (age := int(now // REDRAW_S)):
            self._kept, self._age = {}, age
        made_before, drawn_before, part = self._kept.get(name, (None, None, None))
        if part is not None and made_before == made_of:
            return part
        content = draw()
        if part is None or drawn_before != content:
            html = render_part(template, drawn=content, now=now, titles=self._titles)
            markup = Markup(html)  # noqa: S704 -- Jinja has escaped what is in it
            part = PagePart(name, markup, f"{crc32(html.encode()):08x}")
        self._kept[name] = (made_of, content, part)
        return part


def parts_caches(
    titles: Mapping[str, str], limit: int = VIEWERS
) -> Callable[[Principal], PartsCache]:
    """Return the function that finds each viewer's cache; the least recently used are dropped."""
    return lru_cache(limit)(lambda _viewer: PartsCache(titles))


class QueueRow(NamedTuple):
    """One waiting ticket.

    Attributes:
        position: its position in the queue; "now" if it is being served.
        user_label: its user, as the principal may name them.
        since: when it was made.
        wait: the estimated wait, in words; empty if there is no estimate.
        address: the address of its details; empty if the principal may not open them.
        is_next: whether staff put it in front.
    """

    ticket: int
    position: str
    user_label: str
    course: str
    shape: str
    since: float
    wait: str
    address: str
    is_own: bool
    is_next: bool


@dataclass(frozen=True, slots=True)
class QueueTable:
    """The queue in its order; ``shapes``: how many tickets wait for each shape, the most first."""

    rows: list[QueueRow]
    shapes: list[tuple[str, int]]

    @property
    def has_unknown_wait(self) -> bool:
        """Whether nobody knows yet how long one of them waits."""
        return any(not row.wait for row in self.rows)


@dataclass(frozen=True, slots=True)
class Head:
    """The head of the page: the figures of the pool.

    Attributes:
        paused: why grants are paused; empty if they are not.
        figures: the figures: how many, and of what.
        pool_button: the label of the button for the whole pool; empty for none.
    """

    paused: str
    figures: list[tuple[str, str]]
    pool_button: str


def _draw_head(snapshot: PoolSnapshot, principal: Principal, lease_activity: LeaseActivity) -> Head:
    """Draw the head of the page."""
    verbs = {Right.MESSAGE: "Message", Right.PAUSE: "pause"}
    return Head(
        snapshot.paused,
        headline_figures(snapshot.people, count_idle_holders(snapshot.gpus, lease_activity.idle)),
        " or ".join(verb for right, verb in verbs.items() if principal.has(right)),
    )


def _draw_queue(waiting: Sequence[TicketView], principal: Principal) -> QueueTable:
    rows = [_draw_row(ticket, principal) for ticket in waiting]
    return QueueTable(rows, Counter(ticket.shape for ticket in waiting).most_common())


def _draw_row(ticket: TicketView, principal: Principal) -> QueueRow:
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


async def page(request: Request, principal: Principal) -> str:
    """Return the Pool page."""
    parts = {part.name: part for part in await pool_parts(request, principal)}
    return render("pool.html", request, principal, "pool", parts=parts, words=MARK_WORDS)


async def fragment(request: Request, principal: Viewer, have: str = "") -> Response:
    """Return the parts of the page that differ from those that the browser has."""
    has = set(have.split(","))
    parts = await pool_parts(request, principal)
    changed = [part for part in parts if f"{part.name}.{part.version}" not in has]
    html = "".join(render_part("part.html", part=part) for part in changed)
    return HTMLResponse(html, headers={"X-Parts": " ".join(part.name for part in parts)})


async def stream_changes(
    request: Request, principal: Viewer, runner: Runner
) -> AsyncIterator[ServerSentEvent]:
    """Send an event whenever the pool changes; the browser then asks for the changed parts.

    The stream ends when the hub no longer knows the principal.
    """
    while not runner.notifier.closed and await refresh_principal(request, principal):
        seen_version = runner.notifier.version
        yield ServerSentEvent(event="pool", id=str(seen_version), data=seen_version)
        await asyncio.sleep(REST_S)
        await runner.notifier.beyond(seen_version, NEWS_S)


async def pool_parts(request: Request, principal: Principal) -> list[PagePart]:
    """Return every part of the page, as it is now."""
    runner: PoolRunner = request.app.state.runner
    warned = await runner.look(lambda pool: pool.leases.warned())
    snapshot = visible_snapshot(await runner.snapshot(), principal)
    activity = runner.reclaimer.activities() if runner.reclaimer else {}
    lease_activity = LeaseActivity(
        frozenset(lease_id for lease_id in activity if activity[lease_id] in IDLE),
        warned,
        {ticket.lease: ticket.expires_at or 0.0 for ticket in snapshot.offered if ticket.lease},
    )
    cache: PartsCache = request.app.state.parts_caches(principal.viewer)
    now = time.time()
    hour_drawing = draw_last_hour(tuple(runner.last_hour), now)
    hour = cache.part("hour", "part_hour.html", hour_drawing, lambda: hour_drawing, now)
    return [hour, *draw_parts(cache, snapshot, principal, lease_activity, now)]


def draw_parts(
    cache: PartsCache,
    snapshot: PoolSnapshot,
    principal: Principal,
    lease_activity: LeaseActivity,
    now: float,
) -> list[PagePart]:
    """Draw the parts of the page.

    Args:
        cache: the parts that the principal was shown last.
        snapshot: what the principal may see of the pool.
        principal: the reader.
        lease_activity: which leases are idle, warned, or not taken yet.
        now: seconds since the epoch.
    """
    gpus = [
        cache.part(
            f"gpu-{gpu.index}",
            "part_gpu.html",
            made_of,
            partial(draw_gpu, *made_of, principal),
            now,
        )
        for gpu in snapshot.gpus
        for made_of in (
            (gpu, reserved_slots_on(gpu, snapshot.reserved_slots), lease_activity.on(gpu)),
        )
    ]
    waiting = snapshot.waiting
    head = _draw_head(snapshot, principal, lease_activity)
    parts = [
        cache.part("head", "part_head.html", head, lambda: head, now),
        cache.part(
            "queue", "part_queue.html", waiting, partial(_draw_queue, waiting, principal), now
        ),
        *gpus,
    ]
    if principal.is_staff:
        is_quiet = not (snapshot.people.holding or snapshot.waiting)  # staff are told how to begin
        parts.append(cache.part("begin", "part_begin.html", is_quiet, lambda: is_quiet, now))
    return parts
