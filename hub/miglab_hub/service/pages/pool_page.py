"""The pool's page: drawn from the same snapshot as the API's answer, in parts that change alone.

The browser says which parts it has, by name and version; it is sent only those that are others now.
"""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from zlib import crc32

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from fastapi.sse import ServerSentEvent
from markupsafe import Markup

from miglab_hub.reclaimer.states import Activity
from miglab_hub.service.asker import Asker
from miglab_hub.service.host import PoolHost
from miglab_hub.service.rights import Right
from miglab_hub.service.roles import Host, Who
from miglab_hub.service.views import visible_snapshot
from miglab_spawner.messages import LeaseView, PoolSnapshot

from .drawing import WORDS, Doings, draw, sums
from .frame import render, render_part, shown
from .line import by_shape, own_line, rows

NEWS_S = 30.0  # a stream without news says that it is alive
IDLE = frozenset({Activity.IDLE_FREE, Activity.IDLE_HOLDING})


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the page.

    Attributes:
        name: its element's name.
        html: what is in it.
        version: another one for other HTML.
    """

    name: str
    html: Markup
    version: str


async def page(request: Request) -> Response:
    """The whole page."""

    async def draw_page(asker: Asker) -> str:
        parts = {part.name: part for part in await pool_parts(request, asker)}
        return render("pool.html", request, asker, "pool", parts=parts, words=WORDS)

    return await shown(request, draw_page)


async def fragment(request: Request, asker: Who, have: str = "") -> Response:
    """The parts of the page that are not those that the browser has."""
    has = set(have.split(","))
    parts = await pool_parts(request, asker)
    changed = [part for part in parts if f"{part.name}.{part.version}" not in has]
    html = "".join(render_part("part.html", part=part) for part in changed)
    return HTMLResponse(html, headers={"X-Parts": " ".join(part.name for part in parts)})


async def live(_: Who, host: Host) -> AsyncIterator[ServerSentEvent]:
    """An event whenever the pool has changed; what has, the browser asks for itself."""
    while not host.waker.closed:
        seen = host.waker.version
        yield ServerSentEvent(event="pool", id=str(seen), data=seen)
        await host.waker.beyond(seen, NEWS_S)


async def pool_parts(request: Request, asker: Asker) -> list[Part]:
    """Every part of the page, as it is now."""
    host: PoolHost = request.app.state.host
    held = await host.decide(lambda pool: pool.leases())
    leases = [one for one in held if asker.may(Right.SEE_NAMES, one.course, one.user)]
    snapshot = visible_snapshot(await host.snapshot(), asker)
    return parts_of(snapshot, leases, asker, _doings(host, leases), time.time())


def _doings(host: PoolHost, leases: Sequence[LeaseView]) -> Doings:
    activity = host.reclaimer.activities() if host.reclaimer else {}
    return Doings(
        idle={lease.id for lease in leases if activity.get(lease.id) in IDLE},
        warned={lease.id for lease in leases if lease.warning is not None},
    )


def parts_of(
    snapshot: PoolSnapshot, leases: Sequence[LeaseView], asker: Asker, doings: Doings, now: float
) -> list[Part]:
    """The page's parts.  Pure.

    Args:
        snapshot: what the asker may see of the pool.
        leases: those that the asker may see.
        asker: who reads it.
        doings: what else is known of leases.
        now: seconds since the epoch.
    """
    drawings = draw(snapshot, asker, doings)
    waiting = snapshot.waiting
    head = {
        "asker": asker,
        "paused": snapshot.paused,
        "own": [lease for lease in leases if asker.is_user(lease.user)],
        "own_line": own_line(snapshot, leases, asker),
        "is_waiting": any(asker.is_user(ticket.user) for ticket in waiting),
        "sums": sums(drawings, len(waiting)),
        "desk": _pool_desk(asker),
    }
    line = {"rows": rows(waiting, asker), "shapes": by_shape(waiting)}
    return [
        _part("head", "part_head.html", now, **head),
        _part("line", "part_line.html", now, **line),
        *(_part(f"gpu-{one.index}", "part_gpu.html", now, gpu=one) for one in drawings),
    ]


def _pool_desk(asker: Asker) -> str:
    """What the button that is about the whole pool is called; empty for nothing to do."""
    words = {Right.MESSAGE: "Message", Right.PAUSE: "pause"}
    return " or ".join(word for right, word in words.items() if asker.has(right))


def _part(name: str, template: str, now: float, **values: object) -> Part:
    html = render_part(template, now=now, **values)
    return Part(name, Markup(html), f"{crc32(html.encode()):08x}")  # noqa: S704 -- escaped by Jinja
