"""What staff, browsers and the spawner ask of the service on Slurm: the cluster's page and its API.

Names are shown of one's own courses alone; everything of Slurm's own is read-only, with the command
by which its operator would change it.  Usage by course is as Slurm's own accounts tell it, or else
from the stays that the lab has noted.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

from miglab_api.leases import ExtendRequest, LeaseView
from miglab_api.staff import ActionRequest, MessageRequest, SentMessage
from miglab_api.tickets import TicketView
from miglab_api.wording import day_and_time
from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.access.dependencies import (
    OPEN,
    MayExtend,
    MayMessage,
    MayRelease,
    MaySeeNames,
    check_allowed,
)
from miglab_pool.http.access.hub_address import BelowBaseUrl
from miglab_pool.http.access.principal import Principal, Right
from miglab_pool.http.errors import REFUSED, DeniedError, install_refusals
from miglab_pool.http.pages import frame
from miglab_pool.reclaim.activity import Activity
from miglab_slurm.commands import run
from miglab_slurm.lab import SlurmSettings, SlurmSite
from miglab_slurm.picture import ClusterPicture
from miglab_slurm.records import Listing, Tag
from miglab_slurm.service.leases import all_servers
from miglab_slurm.service.runner import SlurmRunner
from miglab_slurm.submissions import Submissions
from miglab_slurm.views import ticket_of
from miglab_spawner.backends import BackendError

DAYS = 30
ACCOUNTED = ("ElapsedRaw", "User", "Comment")
SACCT = "Slurm's accounts (sacct)"
LOG = "the lab's own log, because Slurm's accounts (sacct) {}"


@dataclass(frozen=True)
class CourseUsage:
    """What a course used: servers and their hours."""

    course: str
    servers: int
    hours: float


async def usage(site: SlurmSite, submissions: Submissions) -> tuple[list[CourseUsage], str]:
    """Usage by course of the last 30 days, and where it is from: sacct, or else our own log.

    Accounts without comments (`AccountingStoreFlags`) know no course, and count as none.
    """
    mark = Listing(()).mark
    command = [
        "sacct", "-a", "-X", "-n", "-p", f"--delimiter={mark}", "-S", f"now-{DAYS}days", "-o",
        ",".join(ACCOUNTED), "-r", ",".join(site.partitions),
    ]  # fmt: skip
    problem = "show no job of this lab"
    try:
        output = await run(command, site.command_timeout_s)
    except BackendError:
        output, problem = "", "do not answer"
    if accounted := by_course(accounted_in(output, mark, submissions.verified_tag)):
        return accounted, SACCT
    oldest = time.time() - DAYS * 86400
    lab_stays = (stay for stay in submissions.stays() if stay.gres and stay.ended_at > oldest)
    return by_course(
        (stay.course, stay.ended_at - stay.started_at) for stay in lab_stays
    ), LOG.format(problem)


def by_course(stays: Iterable[tuple[str, float]]) -> list[CourseUsage]:
    """Courses with seconds each, added up; the most used first."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for course, lasted_s in stays:
        seconds[course].append(lasted_s)
    rows = [CourseUsage(name, len(all_), sum(all_) / 3600) for name, all_ in seconds.items()]
    return sorted(rows, key=lambda row: -row.hours)


def accounted_in(
    text: str, mark: str, signed: Callable[[str, str], Tag | None]
) -> Iterator[tuple[str, float]]:
    """`sacct -p`, parted by a mark: course and seconds of each job that the lab has signed."""
    tickets = set()
    for record in text.split(f"{mark}\n"):
        parts = record.split(mark)
        if len(parts) != len(ACCOUNTED):
            continue
        elapsed, account, comment = parts
        tag = signed(comment, account)
        if tag is not None and tag.ticket not in tickets and elapsed.isdecimal():
            tickets.add(tag.ticket)
            yield tag.course, float(elapsed)


PLACES = (frame.NavigationEntry("pool", "/", "Cluster"),)
OWN_STATIC: list[str | tuple[str, str]] = [("miglab_slurm.service", "static")]
REPORTS_WITHIN_S = 120.0
SILENT = "does not report"
frame.LOADER.searchpath.append(str(Path(__file__).with_name("templates")))
api = APIRouter(prefix="/api", responses=REFUSED)


def management_app(settings: SlurmSettings, runner: SlurmRunner, sign_in: SignIn) -> FastAPI:
    """The management application: the API, the page, sign-in's way back, and the static files."""
    prefix = sign_in.access.route
    app = FastAPI(
        title="miglab on Slurm: management",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{prefix}/api/openapi.json",
    )
    pages = APIRouter(include_in_schema=False)
    page = frame.DrawnPage(_draw, Right.SEE_POOL)
    pages.add_api_route("/", page, response_class=HTMLResponse)
    pages.add_api_route("/oauth_callback", frame.finish_sign_in, dependencies=[OPEN])
    static = StaticFiles(directory=frame.SERVICE / "static", packages=OWN_STATIC)
    pages.mount("/static", static, name="static")
    for router in (api, pages):
        app.include_router(router, prefix=prefix)
    app.state.runner, app.state.sign_in, app.state.settings = runner, sign_in, settings
    app.state.notices, app.state.title = settings.notices, settings.lab.title
    app.state.places = PLACES
    install_refusals(app, runner.metrics.count_refusal)
    app.add_middleware(BelowBaseUrl, access=lambda: sign_in.access)
    app.add_exception_handler(404, frame.no_such_page)
    return app


def runner_of(request: Request) -> SlurmRunner:
    """The service's runner."""
    runner: SlurmRunner = request.app.state.runner
    return runner


async def _draw(request: Request, principal: Principal) -> str:
    runner, settings = runner_of(request), request.app.state.settings
    picture, leases = runner.door.leases.picture, runner.door.leases
    used: tuple[list[CourseUsage], str] = ([], "")
    if principal.has(Right.SEE_USAGE) and not runner.trouble:
        used = await usage(settings.slurm_site, runner.reader.submissions)
    courses, message_courses = principal.courses(Right.SEE_USAGE), principal.courses(Right.MESSAGE)
    may_see = partial(principal.may, Right.SEE_NAMES)
    holders = [lease for lease in leases.live() if may_see(lease.course, lease.user)]
    activities = {lease.id: _activity(runner, lease) for lease in holders}
    waiting = _tickets(picture) if picture is not None else []
    return frame.render(
        "cluster.html",
        request,
        principal,
        "pool",
        picture=picture,
        trouble=runner.trouble,
        holders=[
            (view, leases.records[view.id].job.nodes, activities[view.id]) for view in holders
        ],
        has_silent=SILENT in activities.values(),
        waiting=[view for view in waiting if may_see(view.course, view.user)],
        without_gpu=sum(not record.job.gres for record in leases.records.values()),
        others=_of_others(picture, activities) if picture is not None else {},
        may_end=partial(principal.may, Right.RELEASE),
        may_extend=partial(_may_extend, settings, principal),
        at=partial(day_and_time, zone=settings.lab.timezone),
        usage=[row for row in used[0] if courses is None or row.course in courses],
        usage_from=used[1],
        is_staff=principal.is_staff,
        may_message=principal.has(Right.MESSAGE),
        messages_to=sorted(settings.courses if message_courses is None else message_courses),
        is_acting=runner.reclaimer.is_acting,
    )


def _activity(runner: SlurmRunner, lease: LeaseView) -> str:
    activity = runner.reclaimer.activities().get(lease.id, Activity.UNKNOWN)
    return activity_in_words(activity, runner.door.leases.now - lease.granted_at)


def activity_in_words(activity: Activity, age_s: float) -> str:
    """What a server does; one that has had the time to report, and did not, does not report."""
    is_silent = activity is Activity.UNKNOWN and age_s >= REPORTS_WITHIN_S
    return SILENT if is_silent else activity.value


def _tickets(picture: ClusterPicture) -> list[TicketView]:
    """Every place in the queue, and every offer."""
    waiting = (jobs.waiting for _, _, jobs in all_servers(picture))
    tickets = [ticket_of(picture, job) for job in waiting if job is not None]
    return sorted(tickets, key=lambda ticket: (ticket.shape, ticket.position or 0, ticket.id))


def _of_others(picture: ClusterPicture, tickets_shown: Collection[int]) -> Counter[str]:
    """Slices that others hold, by type: other labs, other courses, other users of the cluster."""
    jobs_on_nodes: Counter[str] = Counter()
    for job in picture.jobs.values():
        if job.gres and not job.is_pending and not job.has_ended and job.id not in tickets_shown:
            jobs_on_nodes.update(job.gres)
    return jobs_on_nodes


def _may_extend(settings: SlurmSettings, principal: Principal, course: str, user: str) -> bool:
    may = settings.slurm.operator and principal.may(Right.EXTEND, course, user)
    return may and not principal.is_user(user)


# -- the API -------------------------------------------------------------------------------------


@api.get("/health", dependencies=[OPEN])
async def health(request: Request) -> dict[str, object]:
    """Whether the service answers, and Slurm."""
    trouble = runner_of(request).trouble
    return {"ok": not trouble, "slurm": trouble or "answers"}


@api.get("/leases/{lease_id}")
async def lease(lease_id: int, principal: MaySeeNames, request: Request) -> LeaseView:
    """One server's lease, live or lately over; a lease is a job and has its number."""
    lease_view = runner_of(request).door.leases.find(lease_id)
    return check_allowed(lease_view, "lease", principal, Right.SEE_NAMES)


@api.post("/leases/{lease_id}/release")
async def end(
    lease_id: int, action: ActionRequest, principal: MayRelease, request: Request
) -> LeaseView:
    """End a server: the hub is asked to stop it."""
    runner = runner_of(request)
    check_allowed(runner.door.leases.find_live(lease_id), "lease", principal, Right.RELEASE)
    return await runner.decide(
        lambda door: door.leases.release(lease_id, principal.actor, action.reason)
    )


@api.post("/leases/{lease_id}/extend")
async def extend(
    lease_id: int, extension: ExtendRequest, principal: MayExtend, request: Request
) -> LeaseView:
    """Lengthen a job, where the lab's account is an Operator."""
    runner = runner_of(request)
    leases = runner.door.leases
    lease = check_allowed(leases.find_live(lease_id), "lease", principal, Right.EXTEND)
    lengthen = leases.extend if principal.is_user(lease.user) else leases.extend_as_staff
    return await runner.decide(lambda _door: lengthen(lease_id, extension.by_s, principal.actor))


@api.post("/tickets/{job}/cancel")
async def cancel(
    job: int, action: ActionRequest, principal: MayRelease, request: Request
) -> TicketView:
    """Take a job out of the queue."""
    runner = runner_of(request)
    picture = runner.door.leases.picture
    listed_job = picture.jobs.get(job) if picture is not None else None
    if listed_job is None or listed_job.tag is None:
        raise DeniedError(404, "unknown-ticket", f"No job {job} of this lab waits.")
    principal.require(Right.RELEASE, listed_job.tag.course, listed_job.tag.user)
    return await runner.decide(lambda door: door.tickets.cancel_job(listed_job, action.reason))


@api.post("/messages")
async def message(
    message_request: MessageRequest, principal: MayMessage, request: Request
) -> SentMessage:
    """Tell a course, one student, or all, in JupyterLab."""
    if principal.courses(Right.MESSAGE) is not None:
        principal.require(Right.MESSAGE, message_request.to_course)
    return await runner_of(request).decide(
        lambda door: door.staff.send(message_request, principal.actor)
    )
