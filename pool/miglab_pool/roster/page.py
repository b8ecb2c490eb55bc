"""The Class page and its routes: who of a course waits, works or idles, and how far they are.

The class can also be read as JSON or CSV, and some of it can be sent messages.  Unknown is never
absent: a student who has not read the notice, or whose course shares nothing, may well be there.
"""

import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Annotated, Literal, NamedTuple, Protocol

from fastapi import APIRouter, Path, Request, Response

from miglab_api.base import COURSE_MAX
from miglab_api.leases import LeaseView
from miglab_api.roster import ClassMessage, ExperimentStage, Presence, RosterRow, RosterView
from miglab_api.staff import MessageRequest, SentMessage
from miglab_api.tickets import TicketState, TicketView
from miglab_api.usage import csv_text
from miglab_pool.course_roles import student_courses
from miglab_pool.http.access.dependencies import RUNNER, MayMessage, needs
from miglab_pool.http.access.principal import Principal, Right
from miglab_pool.http.errors import REFUSED, DeniedError
from miglab_pool.http.pages.frame import csv_file, render, utc_text
from miglab_pool.http.runner_protocol import RunnerOf
from miglab_pool.leases.transactions import Leases
from miglab_pool.reclaim.activity import IDLE
from miglab_pool.reclaim.round import Reclaimer
from miglab_pool.roster.members import CourseMembership
from miglab_pool.roster.transactions import ClassRoster, LastReport, SharedProgress
from miglab_pool.staff.actions import Staff


class ClassPool(Protocol):
    """What the routes of classes use of the pool."""

    leases: Leases
    staff: Staff
    roster: ClassRoster


class ClassRunner(RunnerOf[ClassPool], Protocol):
    """What runs their decisions, and knows who uses their slice."""

    @property
    def reclaimer(self) -> Reclaimer | None:
        """Watches the leases in use; None in a pool that reclaims nothing by itself."""


Runner = Annotated[ClassRunner, RUNNER]
SILENT_S = 180.0  # a server reports the progress of its student once a minute
MARKS = {
    Presence.HOLDING: "leased",
    Presence.IDLE: "idle",
    Presence.OFFERED: "offered",
    Presence.WAITING: "ending",
    Presence.CPU: "free",
    Presence.ABSENT: "unpartitioned",
    Presence.UNKNOWN: "unpartitioned",
}
"""The pattern of each presence, as the pool's page draws it."""
AT_SERVER = frozenset({Presence.HOLDING, Presence.IDLE, Presence.CPU})


def experiment_counts(row: RosterRow) -> tuple[int, int, str] | None:
    """Return how many experiments a student claimed and handed in, and the latest of them.

    The latest is empty if there is none.  None if the student's progress is not known.
    """
    if row.experiments is None:
        return None
    handed_in = sum(experiment.stage is ExperimentStage.HANDED_IN for experiment in row.experiments)
    return len(row.experiments), handed_in, next((o.experiment for o in row.experiments), "")


class ExperimentCount(NamedTuple):
    """How many students have claimed an experiment, and how many of them have handed it in."""

    experiment: str
    claimed: int
    handed_in: int


def count_presences(rows: Sequence[RosterRow]) -> dict[str, int]:
    """Return how many students have each presence that occurs."""
    count = Counter(row.presence for row in rows)
    return {presence.value: count[presence] for presence in Presence if count[presence]}


def has_handed_in(row: RosterRow) -> bool:
    """Return whether a student has handed in an experiment."""
    return any(shared.stage is ExperimentStage.HANDED_IN for shared in row.experiments or ())


def count_experiments(rows: Sequence[RosterRow]) -> list[ExperimentCount]:
    """Return how far the class is with each experiment, by its key."""
    claimed: Counter[str] = Counter()
    handed_in: Counter[str] = Counter()
    for shared in (shared for row in rows for shared in row.experiments or ()):
        claimed[shared.experiment] += 1
        handed_in[shared.experiment] += shared.stage is ExperimentStage.HANDED_IN
    return [ExperimentCount(key, claimed[key], handed_in[key]) for key in sorted(claimed)]


async def page(request: Request, principal: Principal) -> str:
    """Return the Class page; without a course in the address, that of the first course.

    With ``names=no`` in the address, staff get the figures alone, as a projector may show them.
    """
    state = request.app.state
    courses = _visible_courses(request, principal, await _current_courses(request, principal))
    course = request.query_params.get("course") or (courses[0] if courses else "")
    roster_view = RosterView(course="", is_shared=False, is_complete=True, rows=())
    if course:
        roster_view = await read_class(request, principal, course, "look")
    is_staff = principal.may(Right.SEE_CLASS, course)
    return render(
        "class.html",
        request,
        principal,
        "class",
        course=course,
        is_default=course == state.default_course,
        courses={name: state.course_titles.get(name) or name for name in courses},
        roster=roster_view,
        marks=MARKS,
        at_server=AT_SERVER,
        experiment_counts=experiment_counts,
        presences=count_presences(roster_view.rows),
        handed_in=sum(map(has_handed_in, roster_view.rows)),
        has_handed_in=has_handed_in,
        experiments=count_experiments(roster_view.rows),
        is_projected=is_staff and request.query_params.get("names") == "no",
        may_see_all=is_staff,
        may_tell=principal.may(Right.MESSAGE, course),
        now=time.time(),
    )


async def _current_courses(request: Request, principal: Principal) -> set[str]:
    """Return the courses in which the principal holds a slice or waits, on their roster or not."""
    runner: ClassRunner = request.app.state.runner
    leases = await runner.query_view(lambda pool: pool.leases.brief_views())
    snapshot = await runner.snapshot()
    courses = {lease.course for lease in leases if lease.user == principal.name}
    return courses | {lease.course for lease in snapshot.waiting if lease.user == principal.name}


def _courses_of(
    request: Request, principal: Principal, now_in: Collection[str] = ()
) -> frozenset[str]:
    """Return the courses of a student, with those in which they hold a slice or wait."""
    state, groups = request.app.state, {*now_in, *principal.course_names}
    return student_courses(groups, state.sign_in.book.courses, state.default_course)


def _visible_courses(request: Request, principal: Principal, now_in: set[str]) -> list[str]:
    """Return the courses of which the principal may see the whole class, or themselves."""
    all_courses = request.app.state.sign_in.book.courses
    staffed = principal.courses(Right.SEE_CLASS)
    own_courses = frozenset() if principal.is_staff else _courses_of(request, principal, now_in)
    return sorted(all_courses if staffed is None else (staffed | own_courses) & all_courses.keys())


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
    """Return the students of a course, what they do now and how far they are.

    Students see themselves only.  The audit records that staff read or exported the class.
    """
    roster_view = await read_class(
        request, principal, course, "look" if format == "json" else "export"
    )
    if format == "json":
        return roster_view
    return csv_file("class.csv", as_csv(roster_view))


@router.post("/{course}/messages", status_code=201)
async def send_messages(
    request: Request,
    course: CourseName,
    message: ClassMessage,
    principal: MayMessage,
    runner: Runner,
) -> list[SentMessage]:
    """Send a message to some students of a course, whether or not they hold or wait for a slice."""
    principal.require(Right.MESSAGE, course)
    students = {row.user for row in (await _read_roster(request, principal, course)).rows}
    if not students.issuperset(message.users):
        raise DeniedError(403, "forbidden", "You can message students of this class only.")

    content = {"text": message.text, "minutes": message.minutes}
    each = [MessageRequest(to_user=user, **content) for user in dict.fromkeys(message.users)]
    return await runner.decide(lambda pool: pool.staff.send_each(each, principal.actor))


async def read_class(
    request: Request, principal: Principal, course: str, action: str
) -> RosterView:
    """Return the class as the principal may see it, and record in the audit that staff read it.

    Raises:
        DeniedError: 403 if the principal may not see it; 404 if the lab has no such course.
    """
    principal.require(Right.SEE_CLASS, course, principal.name)
    if course not in request.app.state.sign_in.book.courses:
        raise DeniedError(404, "not-in-course", f"This lab has no course “{course}”.")
    roster_view = await _read_roster(request, principal, course)
    if principal.may(Right.SEE_CLASS, course):
        runner: ClassRunner = request.app.state.runner
        await runner.decide(lambda pool: pool.roster.record_look(course, principal.actor, action))
    return roster_view


async def _read_roster(request: Request, principal: Principal, course: str) -> RosterView:
    state = request.app.state
    runner: ClassRunner = state.runner
    is_staff = principal.may(Right.SEE_CLASS, course)
    own_name = {principal.name} if course in _courses_of(request, principal) else set()
    members = CourseMembership(frozenset(own_name), is_complete=True)
    if is_staff:
        members = await state.members(course)
    activity = runner.reclaimer.activities() if runner.reclaimer else {}
    idle = {lease for lease, doing in activity.items() if doing in IDLE}
    snapshot = await runner.snapshot()
    offered = {offer.lease for offer in snapshot.offered}

    live_leases, shared = await runner.query_view(
        lambda pool: (pool.leases.brief_views(), pool.roster.progress_of(course))
    )
    leases = {r.user: r for r in live_leases if r.course == course and r.id not in offered}
    in_queue = (*snapshot.waiting, *snapshot.offered)  # of two tickets, the offer is shown
    tickets = {r.user: r for r in in_queue if r.course == course and r.user}
    listed = members.users if is_staff and members.is_complete else None
    staff = state.sign_in.book.courses.get(course)
    teachers = (staff.instructors | staff.assistants) if staff else frozenset()
    users = (members.users | leases.keys() | tickets.keys()) - teachers
    return RosterView(
        course=course,
        is_shared=shared.is_shared,
        is_complete=members.is_complete,
        rows=tuple(
            _roster_row(user, leases.get(user), tickets.get(user), idle, shared).model_copy(
                update={"is_outside": listed is not None and user not in listed}
            )
            for user in sorted(users)
            if principal.may(Right.SEE_CLASS, course, user)
        ),
    )


def _roster_row(
    user: str,
    lease: LeaseView | None,
    ticket: TicketView | None,
    idle: Collection[int],
    shared: SharedProgress,
) -> RosterRow:
    """Return a student's row.

    Args:
        user: the student.
        lease: their lease in the course.
        ticket: their ticket there.
        idle: the leases that are idle, as the reclaimer judges them.
        shared: what the course's servers have reported.
    """
    is_known = shared.is_shared and user in shared.readers
    report = shared.reports.get(user)
    row = RosterRow(
        user=user,
        presence=_presence_without_slice(report, shared) if is_known else Presence.UNKNOWN,
        last_sign_at=report.sign_at if is_known and report else None,
        experiments=shared.experiments.get(user, ()) if is_known else None,
    )
    if lease is not None:
        presence = Presence.IDLE if lease.id in idle else Presence.HOLDING
        holding = {"shape": lease.shape, "since": lease.granted_at, "lease": lease.id}
        return row.model_copy(update={"presence": presence, **holding})
    if ticket is not None and ticket.state is TicketState.OFFERED:
        offer = {"offered_until": ticket.expires_at, "ticket": ticket.id}
        return row.model_copy(update={"presence": Presence.OFFERED, "shape": ticket.shape, **offer})
    if ticket is not None:
        waiting = {"since": ticket.created_at, "position": ticket.position, "ticket": ticket.id}
        return row.model_copy(
            update={"presence": Presence.WAITING, "shape": ticket.shape, **waiting}
        )
    return row


def _presence_without_slice(report: LastReport | None, shared: SharedProgress) -> Presence:
    """Return the presence of a student who has read the notice and holds no slice.

    It is unknown as long as the pool has not listened for `SILENT_S`.
    """
    if report is not None and shared.now - report.at <= SILENT_S:
        return Presence.CPU
    return Presence.ABSENT if shared.now - shared.since > SILENT_S else Presence.UNKNOWN


def as_csv(roster_view: RosterView) -> str:
    """Return the rows as CSV; what is not known is empty."""
    return csv_text(COLUMNS, map(_cells, roster_view.rows))


def _cells(row: RosterRow) -> list[str | float]:
    signed = "" if row.last_sign_at is None else utc_text(row.last_sign_at)
    counts = experiment_counts(row) or ("", "", "")
    return [
        row.user,
        row.presence.value,
        row.shape,
        signed,
        *counts,
        "yes" if row.is_outside else "",
    ]
