"""The layouts' page: what is in force on each GPU, and a file tried out before it is applied.

A GPU is drawn against its layout: what lies there now, what will, and what is in between.
"""

import datetime as dt
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from miglab_api.gpus import GpuView, SliceState
from miglab_api.layouts import (
    GpuLayout,
    LayoutDrain,
    Layouts,
    LayoutState,
    LayoutText,
    LayoutTime,
    LayoutView,
)
from miglab_api.wording import duration
from miglab_pool.http.access.dependencies import Runner, needs
from miglab_pool.http.access.principal import Principal, visible_snapshot
from miglab_pool.http.access.rights import Right
from miglab_pool.http.errors import DeniedError
from miglab_pool.http.pages.buttons import MAY_REASON, Action
from miglab_pool.http.pages.frame import render, render_part, shown
from miglab_pool.http.pages.wording import layouts_in_words
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.layouts import routes as layout_routes
from miglab_pool.layouts.file import dump

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
        layout: the layout's name; empty: none, it is cut on demand.
        then: as it is to be; empty where no layout says so.
        says: how far it is, in words.
        who: what is waited for, in words.
        blocked: what only a person can remove.
    """

    index: int
    memory_slices: int
    layout: str
    course: str
    conforms: bool
    now: tuple[Piece, ...]
    then: tuple[Piece, ...]
    says: str
    who: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()


def changes(layouts: Iterable[GpuLayout], gpus: Sequence[GpuView], at: float) -> list[GpuChange]:
    """Each GPU against what is asked of it; one that is not there any more is left out."""
    there = {gpu.uuid: gpu for gpu in gpus}
    return [_change(one, there[one.gpu], at) for one in layouts if one.gpu in there]


def _change(one: GpuLayout, gpu: GpuView, at: float) -> GpuChange:
    return GpuChange(
        gpu.index,
        gpu.memory_slices,
        one.layout,
        one.course,
        one.conforms,
        _filled(_now(one, gpu), gpu.memory_slices),
        _filled(_then(one), gpu.memory_slices) if one.layout else (),
        _says(one, at),
        tuple(_waits(drain, at) for drain in one.drains),
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
        return "No layout in force: partitioned on demand"
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
        return "a blocking lease has no end"
    return f"done in {duration(one.ready_at - at)} at the latest"


def _holder(drain: LayoutDrain) -> str:
    return drain.user or "somebody"


def _waits(drain: LayoutDrain, at: float) -> str:
    course = f" ({drain.course})" if drain.course else ""
    ends = "has no end" if drain.ends_at is None else f"ends in {duration(drain.ends_at - at)}"
    return f"{_holder(drain)}{course} holds {drain.profile}: the lease {ends}"


Viewer = Annotated[Principal, needs(Right.SEE_LAYOUTS)]
STATE_WORDS = {
    LayoutState.PLANNED: "planned",
    LayoutState.IN_FORCE: "in force",
    LayoutState.OVER: "over",
    LayoutState.REMOVED: "removed",
    LayoutState.REPLACED: "replaced",
    LayoutState.REFUSED: "refused",
}
EXAMPLES = (
    ("All small", "version: 1\nlayouts:\n  all small:\n    gpus:\n      all: 7x1g\n"),
    (
        "A practical on Tuesdays",
        "version: 1\nlayouts:\n  practical:\n    gpus:\n      all: 4g + 3x1g\n    when:\n"
        '      - weekdays: tue\n        from: "10:00"\n        to: "12:00"\n'
        "        tz: Europe/Berlin\n",
    ),
    (
        "One GPU for a course",
        "version: 1\nlayouts:\n  thesis:\n    course: COURSE\n    gpus:\n      0: [7g]\n",
    ),
)


async def page(request: Request) -> Response:
    """The whole page."""
    return await shown(request, lambda principal: _draw(request, principal))


async def _draw(request: Request, principal: Principal) -> str:
    runner: PoolRunner = request.app.state.runner
    found = layout_routes.visible(await runner.look(lambda pool: pool.layouts.all()), principal)
    snapshot = visible_snapshot(await runner.snapshot(), principal)
    return render(
        "layouts.html",
        request,
        principal,
        "layouts",
        found=found.layouts,
        changes=changes(found.gpus, snapshot.gpus, time.time()),
        text=dump(found.layouts) if found.layouts else EXAMPLES[0][1],
        examples=EXAMPLES,
        may_partition=principal.has(Right.PARTITION),
        state_words=STATE_WORDS,
        when=when,
    )


async def preview(request: LayoutText, principal: Viewer, runner: Runner) -> Response:
    """What the layouts of a file would change now, and the form that applies them."""
    found = await layout_routes.diff(request, principal, runner)
    snapshot = visible_snapshot(await runner.snapshot(), principal)
    now = time.time()
    drawn = [(one, changes(one.gpus, snapshot.gpus, now)) for one in found]
    html = render_part(
        "part_layout_diff.html",
        drawn=drawn,
        replaces=[name for one in found for name in one.replaces],
        named=layouts_in_words,
        may_partition=principal.has(Right.PARTITION),
        now=now,
    )
    return HTMLResponse(html)


async def layout_details(principal: Viewer, runner: Runner, name: str) -> Response:
    """One layout that was applied, with what ends it."""
    found = await runner.look(lambda pool: pool.layouts.all())
    one = next((one for one in found.layouts if one.name == name), None)
    if one is None:
        raise DeniedError(404, "no-such-page", "This no longer exists. Reload the page.")
    facts = [
        ("State", STATE_WORDS[one.state]),
        ("When", when(one)),
        ("Course", one.course or "everybody"),
        (
            "GPUs",
            ", ".join(
                f"{_index(found, gpu)}: {_partition(partition)}"
                for gpu, partition in one.gpus.items()
            ),
        ),
    ]
    facts += [("Why", one.message)] if one.message and principal.is_staff else []
    actions = [_remove(one)] if principal.has(Right.PARTITION) else []
    title = f"Layout {one.name}"
    return HTMLResponse(render_part("details.html", title=title, facts=facts, actions=actions))


def _index(found: Layouts, uuid: str) -> str:
    index = next((gpu.index for gpu in found.gpus if gpu.gpu == uuid), None)
    return uuid if index is None else f"GPU {index}"


def _partition(names: tuple[str, ...]) -> str:
    return " + ".join(names)


def _remove(one: LayoutView) -> Action:
    return Action(
        "remove",
        "Remove",
        "Its GPUs are partitioned on demand again, or by the layout beneath it. No running lease "
        "is ended.",
        "Remove",
        f"Layout {one.name} is removed.",
        f"layout/{one.name}",
        "DELETE",
        fields=(MAY_REASON,),
    )


def when(one: LayoutView) -> str:
    """Its times, in words."""
    return "; ".join(_time(time) for time in one.when) or "always"


def _time(one: LayoutTime) -> str:
    days = ", ".join(day.capitalize() for day in one.weekdays) or _date(one.date)
    return f"{days} {one.from_time}–{one.to_time} {one.tz}"


def _date(day: dt.date | None) -> str:
    return f"{day:%d %B %Y}" if day else ""
