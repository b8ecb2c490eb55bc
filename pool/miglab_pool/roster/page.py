"""A class: who of a course waits, holds a slice or idles, and how far everybody is.

As a page, as JSON or for a spreadsheet; and messages to some of it.  Unknown is never absent: who
has not read the notice, or whose course shares nothing, may well sit in the room.
"""

import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request, Response

from miglab_api.base import COURSE_MAX
from miglab_api.leases import LeaseView
from miglab_api.roster import ClassMessage, ExperimentStage, Presence, RosterRow, RosterView
from miglab_api.staff import MessageRequest, SentMessage
from miglab_api.tickets import TicketView
from miglab_api.usage import csv_text
from miglab_pool.http.access.dependencies import MayMessage, Runner, needs
from miglab_pool.http.access.principal import Principal, Right
from miglab_pool.http.errors import REFUSED, DeniedError
from miglab_pool.http.pages.frame import csv_file, in_utc, render
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.pool import Pool
from miglab_pool.reclaim.activity import IDLE
from miglab_pool.roster.transactions import Heard, SharedProgress

SILENT_S = 180.0  # a server tells how far its student is once a minute
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


def done_by(row: RosterRow) -> tuple[int, int, str] | None:
    """How many experiments a student has claimed, how many of these handed in, and the latest.

    Returns:
        The latest empty for none; None where it is not known.
    """
    if row.experiments is None:
        return None
    handed_in = sum(one.stage is ExperimentStage.HANDED_IN for one in row.experiments)
    return len(row.experiments), handed_in, next((o.experiment for o in row.experiments), "")


def figures(rows: Sequence[RosterRow]) -> list[tuple[int, str]]:
    """How many students there are, and what they do; what nobody does is left out."""
    count = Counter(row.presence for row in rows)
    return [(len(rows), "students"), *((count[one], one.value) for one in Presence if count[one])]


async def page(request: Request, principal: Principal) -> str:
    """The whole page; without a course in the address, that of the first."""
    state = request.app.state
    courses = _courses(request, principal, await _now_in(request, principal))
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
        marks=MARKS,
        at_server=AT_SERVER,
        done_by=done_by,
        figures=figures(found.rows),
        may_see_all=is_staff,
        may_tell=principal.may(Right.MESSAGE, course),
        now=time.time(),
    )


async def _now_in(request: Request, principal: Principal) -> set[str]:
    """The courses in which the principal holds a slice or waits, on its roster or not."""
    runner: PoolRunner = request.app.state.runner
    held = await runner.look(lambda pool: pool.leases.brief())
    waiting = (await runner.snapshot()).waiting
    holds = {one.course for one in held if one.user == principal.name}
    return holds | {one.course for one in waiting if one.user == principal.name}


def _courses(request: Request, principal: Principal, now_in: set[str]) -> list[str]:
    """Whose class the principal may see: all of it, or themselves in it."""
    known = request.app.state.sign_in.book.courses
    seen = principal.courses(Right.SEE_CLASS)
    own = now_in.union(principal.course_names) if not principal.is_staff else set()
    return sorted(known if seen is None else (seen | own) & known.keys())


router = APIRouter(prefix="/api/classes", responses=REFUSED)
COLUMNS = ("user", "now", "shape", "last_sign_utc", "claimed", "handed_in", "latest", "outside")
CourseName = Annotated[str, Path(min_length=1, max_length=COURSE_MAX)]


@router.get("/{course}", responses={200: {"content": {"text/csv": {}}}}, response_model=RosterView)
async def roster(
    request: Request,
    course: CourseName,
    principal: Annotated[Principal, needs(Right.SEE_CLASS)],
    format: Literal["json", "csv"] = "json",
) -> RosterView | Response:
    """The students of a course, what each does now and how far they are; students see themselves.

    That staff looked, or took it away as a file, is in the log.
    """
    found = await class_seen(request, principal, course, "look" if format == "json" else "export")
    if format == "json":
        return found
    return csv_file("class.csv", as_csv(found))


@router.post("/{course}/messages", status_code=201)
async def tell(
    request: Request, course: CourseName, asked: ClassMessage, principal: MayMessage, runner: Runner
) -> list[SentMessage]:
    """Tell some students of a course, whether or not they hold a slice or wait for one."""
    principal.require(Right.MESSAGE, course)
    there = {row.user for row in (await _rows(request, principal, course)).rows}
    if not there.issuperset(asked.users):
        raise DeniedError(403, "forbidden", "You can message students of this class only.")

    def decision(pool: Pool) -> list[SentMessage]:
        said = {"text": asked.text, "minutes": asked.minutes}
        return [
            pool.staff.send(MessageRequest(to_user=user, **said), principal.by)
            for user in dict.fromkeys(asked.users)
        ]

    return await runner.decide(decision)


async def class_seen(
    request: Request, principal: Principal, course: str, action: str
) -> RosterView:
    """The class as the principal may see it; that staff have seen it is written down.

    Raises:
        DeniedError: 403, it is not theirs; 404, the lab has no such course.
    """
    principal.require(Right.SEE_CLASS, course, principal.name)
    if course not in request.app.state.sign_in.book.courses:
        raise DeniedError(404, "not-in-course", f"This lab has no course “{course}”.")
    found = await _rows(request, principal, course)
    if principal.may(Right.SEE_CLASS, course):
        runner: PoolRunner = request.app.state.runner
        await runner.decide(lambda pool: pool.roster.looked(course, principal.by, action))
    return found


async def _rows(request: Request, principal: Principal, course: str) -> RosterView:
    state = request.app.state
    runner: PoolRunner = state.runner
    is_staff = principal.may(Right.SEE_CLASS, course)
    own = {principal.name} if course in principal.course_names else set()
    members = await state.members(course) if is_staff else own
    activity = runner.reclaimer.activities() if runner.reclaimer else {}
    idle = {lease for lease, does in activity.items() if does in IDLE}
    waiting = (await runner.snapshot()).waiting

    held, shared = await runner.look(lambda pool: (pool.leases.brief(), pool.roster.shared(course)))
    leases = {one.user: one for one in held if one.course == course}
    tickets = {one.user: one for one in waiting if one.course == course and one.user}
    listed = members if is_staff and course != state.default_course else None
    staff = state.sign_in.book.courses.get(course)
    teachers = (staff.instructors | staff.assistants) if staff else frozenset()
    users = ((members or set()) | leases.keys() | tickets.keys()) - teachers
    return RosterView(
        course=course,
        is_shared=shared.is_shared,
        is_complete=members is not None,
        rows=tuple(
            _row_of(user, leases.get(user), tickets.get(user), idle, shared).model_copy(
                update={"is_outside": listed is not None and user not in listed}
            )
            for user in sorted(users)
            if principal.may(Right.SEE_CLASS, course, user)
        ),
    )


def _row_of(
    user: str,
    lease: LeaseView | None,
    ticket: TicketView | None,
    idle: Collection[int],
    shared: SharedProgress,
) -> RosterRow:
    """A student's row.

    Args:
        user: who.
        lease: what they hold in the course.
        ticket: what they wait for there.
        idle: the leases that do nothing, as the reclaimer sees it.
        shared: what the course's servers have reported.
    """
    is_known = shared.is_shared and user in shared.told
    heard = shared.heard.get(user)
    row = RosterRow(
        user=user,
        presence=_without_slice(heard, shared) if is_known else Presence.UNKNOWN,
        last_sign_at=heard.sign_at if is_known and heard else None,
        experiments=shared.experiments.get(user, ()) if is_known else None,
    )
    if lease is not None:
        presence = Presence.IDLE if lease.id in idle else Presence.HOLDING
        held = {"presence": presence, "shape": lease.shape, "since": lease.granted_at}
        return row.model_copy(update=held)
    if ticket is not None:
        waits = {"shape": ticket.shape, "since": ticket.created_at, "position": ticket.position}
        return row.model_copy(update={"presence": Presence.WAITING, **waits})
    return row


def _without_slice(heard: Heard | None, shared: SharedProgress) -> Presence:
    """Of somebody who has read the notice; who began to listen just now knows of nobody."""
    if heard is not None and shared.now - heard.at <= SILENT_S:
        return Presence.CPU
    return Presence.ABSENT if shared.now - shared.since > SILENT_S else Presence.UNKNOWN


def as_csv(found: RosterView) -> str:
    """The rows for a spreadsheet; what is not known is empty."""
    return csv_text(COLUMNS, map(_cells, found.rows))


def _cells(row: RosterRow) -> list[str | float]:
    signed = "" if row.last_sign_at is None else in_utc(row.last_sign_at)
    done = done_by(row) or ("", "", "")
    return [row.user, row.presence.value, row.shape, signed, *done, "yes" if row.is_outside else ""]
