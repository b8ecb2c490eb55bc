"""The layouts' page: what is in force on each GPU, and a file tried out before it is applied."""

import datetime as dt
import time
from typing import Annotated

from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from miglab_api.layouts import Layouts, LayoutState, LayoutText, LayoutTime, LayoutView
from miglab_pool.http.access.dependencies import Runner, needs
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.access.redaction import visible_snapshot
from miglab_pool.http.access.rights import Right
from miglab_pool.http.errors import DeniedError
from miglab_pool.http.layout_files.resolver import dump
from miglab_pool.http.pages.drawing.layout_drawing import changes
from miglab_pool.http.pages.elements.buttons import MAY_REASON, Action
from miglab_pool.http.pages.elements.wording import layouts_in_words
from miglab_pool.http.pages.frame import render, render_part, shown
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.http.routes import layout_routes

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
