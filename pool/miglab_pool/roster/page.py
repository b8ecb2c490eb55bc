"""The Class page: who of a course waits, holds a slice or idles, and how far everybody is."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request, Response

from miglab_api.roster import ExperimentStage, Presence, RosterRow, RosterView
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.access.rights import Right
from miglab_pool.http.pages.frame import render, shown
from miglab_pool.roster.routes import class_seen

MARKS = {
    Presence.HOLDING: "leased",
    Presence.IDLE: "idle",
    Presence.WAITING: "ending",
    Presence.CPU: "free",
    Presence.ABSENT: "unpartitioned",
    Presence.UNKNOWN: "unpartitioned",
}
"""The pattern of each, as the pool's page draws it."""
AT_SERVER = frozenset({Presence.HOLDING, Presence.IDLE, Presence.CPU})


@dataclass(frozen=True, slots=True)
class ClassRow:
    """A student as the page shows them.

    Attributes:
        latest: the experiment that was reached last; empty for none.
        claimed: how many are claimed, those that are handed in included; None if not known.
        keys: all of them, in words.
        is_there: whether a message is seen at once.
    """

    row: RosterRow
    mark: str
    latest: str
    claimed: int | None
    handed_in: int | None
    keys: str
    is_there: bool

    @classmethod
    def of(cls, row: RosterRow) -> "ClassRow":
        """The row as it is drawn."""
        done = row.experiments
        return cls(
            row,
            MARKS[row.presence],
            done[0].experiment if done else "",
            None if done is None else len(done),
            None if done is None else sum(o.stage is ExperimentStage.HANDED_IN for o in done),
            ", ".join(f"{one.experiment} {one.stage.value}" for one in done or ()),
            row.presence in AT_SERVER,
        )


def figures(rows: Sequence[RosterRow]) -> list[tuple[int, str]]:
    """How many students there are, and what they do; what nobody does is left out."""
    count = Counter(row.presence for row in rows)
    return [(len(rows), "students"), *((count[one], one.value) for one in Presence if count[one])]


async def page(request: Request) -> Response:
    """The whole page; without a course in the address, that of the first."""
    return await shown(request, lambda principal: _draw(request, principal))


async def _draw(request: Request, principal: Principal) -> str:
    state = request.app.state
    courses = _courses(request, principal)
    course = request.query_params.get("course") or (courses[0] if courses else "")
    found = RosterView(course="", is_shared=False, is_complete=True, rows=())
    if course:
        found = await class_seen(request, principal, course, "look")
    is_staff = principal.may(Right.SEE_CLASS, course)
    return render(
        "class.html",
        request,
        principal,
        "class",
        course=course,
        courses={name: state.course_titles.get(name) or name for name in courses},
        found=found,
        rows=[ClassRow.of(row) for row in found.rows],
        figures=figures(found.rows),
        may_see_all=is_staff,
        may_tell=principal.may(Right.MESSAGE, course),
        now=time.time(),
    )


def _courses(request: Request, principal: Principal) -> list[str]:
    """Whose class the principal may see: all of it, or themselves in it."""
    known = request.app.state.sign_in.book.courses
    seen = principal.courses(Right.SEE_CLASS)
    own = {*principal.course_names} if not principal.is_staff else set()
    return sorted(known if seen is None else (seen | own) & known.keys())
