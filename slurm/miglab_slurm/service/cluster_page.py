"""The instructors' page of a lab on Slurm, and what can be done from it."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from pydantic import Field

from miglab_api.base import WireModel
from miglab_api.leases import ExtendRequest, LeaseView
from miglab_api.staff import ActionRequest, MessageRequest, SentMessage
from miglab_api.tickets import TicketView
from miglab_api.wording import day_and_time
from miglab_pool.http.access.dependencies import OPEN, needs, page_needs
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.access.rights import Right
from miglab_pool.http.errors import DeniedError
from miglab_pool.http.pages.frame import (
    LOADER,
    SERVICE,
    NavigationEntry,
    callback,
    everybody,
    render,
    shown,
)
from miglab_slurm.lab import SlurmSettings
from miglab_slurm.service.cluster_view import (
    ClusterView,
    HolderRow,
    WaitingRow,
    holder_rows,
    node_rows,
    shape_rows,
    strangers,
    waiting_rows,
)
from miglab_slurm.service.course_usage import CourseUsage, usage
from miglab_slurm.service.management import lease_for, runner_of
from miglab_slurm.service.runner import SlurmRunner

PLACES = (NavigationEntry("pool", "/", "Cluster", everybody),)
OWN_STATIC: list[str | tuple[str, str]] = [("miglab_slurm.service", "static")]
LOADER.searchpath.append(str(Path(__file__).with_name("templates")))

router = APIRouter()


class CancelRequest(WireModel):
    """Take a job out of the queue, for this reason."""

    reason: Annotated[str, Field(min_length=1, max_length=500)]


def page_router() -> APIRouter:
    """The page, its acts, sign-in's way back, and the static files."""
    pages = APIRouter(include_in_schema=False)
    pages.add_api_route(
        "/", page, response_class=HTMLResponse, dependencies=[page_needs(Right.SEE_POOL)]
    )
    pages.add_api_route("/oauth_callback", callback, dependencies=[OPEN])
    pages.mount(
        "/static", StaticFiles(directory=SERVICE / "static", packages=OWN_STATIC), name="static"
    )
    pages.include_router(router)
    return pages


async def page(request: Request) -> Response:
    """The whole page."""
    return await shown(request, lambda principal: _draw(request, principal))


async def _draw(request: Request, principal: Principal) -> str:
    runner, settings = runner_of(request), _settings(request)
    view = view_for(runner, settings, principal)
    used: tuple[list[CourseUsage], str] = ([], "")
    picture, zone = runner.door.leases.picture, settings.reclaim.timezone
    reserved = [
        (each, day_and_time(each.begins_at, zone), day_and_time(each.ends_at, zone))
        for each in (picture.reservations if picture is not None else ())
    ]
    if principal.has(Right.SEE_USAGE) and not runner.trouble:
        used = await usage(settings.slurm_site, runner.reader.submissions, runner.usage.stays())
    courses = principal.courses(Right.SEE_USAGE)
    return render(
        "cluster.html",
        request,
        principal,
        "pool",
        view=view,
        trouble=runner.trouble,
        reservations=reserved,
        usage=[row for row in used[0] if courses is None or row.course in courses],
        usage_from=used[1],
        is_staff=principal.is_staff,
        may_message=principal.has(Right.MESSAGE),
        messages_to=_courses(settings, principal),
        is_acting=runner.reclaimer.is_acting,
    )


def view_for(
    runner: SlurmRunner, settings: SlurmSettings, principal: Principal
) -> ClusterView | None:
    """The cluster as somebody may see it; None before Slurm has answered."""
    picture, leases = runner.door.leases.picture, runner.door.leases
    if picture is None:
        return None
    holders = [
        _holder(row, settings, principal)
        for row in holder_rows(leases, runner.reclaimer.activities(), runner.door.now)
        if principal.may(Right.SEE_NAMES, row.lease.course, row.lease.user)
    ]
    waiting = [
        _waiting(row, principal)
        for row in waiting_rows(picture, runner.reader.stays_s)
        if principal.may(Right.SEE_NAMES, row.course, row.user)
    ]
    shown_jobs = {row.lease.id for row in holders}
    return ClusterView(
        node_rows(picture.nodes.values()),
        shape_rows(picture),
        tuple(holders),
        tuple(waiting),
        sum(not record.job.gres for record in leases.records.values()),
        strangers(picture, shown_jobs),
    )


def _holder(row: HolderRow, settings: SlurmSettings, principal: Principal) -> HolderRow:
    course, user = row.lease.course, row.lease.user
    can_extend = settings.slurm.operator and not principal.is_user(user)
    return replace(
        row,
        may_end=principal.may(Right.RELEASE, course, user),
        may_extend=can_extend and principal.may(Right.EXTEND, course, user),
    )


def _waiting(row: WaitingRow, principal: Principal) -> WaitingRow:
    return replace(row, may_end=principal.may(Right.RELEASE, row.course, row.user))


def _courses(settings: SlurmSettings, principal: Principal) -> list[str]:
    courses = principal.courses(Right.MESSAGE)
    return sorted(settings.courses if courses is None else courses)


def _settings(request: Request) -> SlurmSettings:
    settings: SlurmSettings = request.app.state.settings
    return settings


# -- acts ----------------------------------------------------------------------------------------


@router.post("/api/leases/{lease_id}/release")
async def end(
    lease_id: int,
    asked: ActionRequest,
    principal: Annotated[Principal, needs(Right.RELEASE)],
    request: Request,
) -> LeaseView:
    """End a server: the hub is asked to stop it."""
    runner = runner_of(request)
    lease_for(runner, principal, lease_id, Right.RELEASE)
    return await runner.decide(
        lambda door: door.leases.release(lease_id, principal.by, asked.reason)
    )


@router.post("/api/leases/{lease_id}/extend")
async def extend(
    lease_id: int,
    asked: ExtendRequest,
    principal: Annotated[Principal, needs(Right.EXTEND)],
    request: Request,
) -> LeaseView:
    """Lengthen a job, where the lab's account is an Operator."""
    runner = runner_of(request)
    lease = lease_for(runner, principal, lease_id, Right.EXTEND)
    if principal.is_user(lease.user):
        return await runner.decide(
            lambda door: door.leases.extend(lease_id, asked.by_s, principal.by)
        )
    return await runner.decide(
        lambda door: door.leases.extend_as_staff(lease_id, asked.by_s, principal.by)
    )


@router.post("/api/tickets/{job}/cancel")
async def cancel(
    job: int,
    asked: CancelRequest,
    principal: Annotated[Principal, needs(Right.RELEASE)],
    request: Request,
) -> TicketView:
    """Take a job out of the queue."""
    runner = runner_of(request)
    picture = runner.door.leases.picture
    found = picture.jobs.get(job) if picture is not None else None
    if found is None or found.tag is None:
        raise DeniedError(404, "unknown-ticket", f"No job {job} of this lab waits.")
    principal.require(Right.RELEASE, found.tag.course, found.tag.user)
    return await runner.decide(lambda door: door.tickets.cancel_job(found, asked.reason))


@router.post("/api/messages")
async def message(
    asked: MessageRequest,
    principal: Annotated[Principal, needs(Right.MESSAGE)],
    request: Request,
) -> SentMessage:
    """Tell a course, one student, or all, in JupyterLab."""
    if principal.courses(Right.MESSAGE) is not None:
        principal.require(Right.MESSAGE, asked.to_course)
    return await runner_of(request).decide(lambda door: door.staff.send(asked, principal.by))
