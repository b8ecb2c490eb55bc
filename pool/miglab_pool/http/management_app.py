"""The management application: what spawner, staff and browsers may ask, put together."""

import logging
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from fastapi import APIRouter, FastAPI
from fastapi.responses import PlainTextResponse

from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.access.dependencies import OPEN
from miglab_pool.http.errors import install
from miglab_pool.http.event_streams import SnapshotTexts, Streams
from miglab_pool.http.examiner import Doctor, Look
from miglab_pool.http.pages.router import page_router
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.http.routes.audit_routes import router as audit_router
from miglab_pool.http.routes.health_routes import router as health_router
from miglab_pool.http.routes.layout_routes import router as layout_router
from miglab_pool.http.routes.lease_routes import router as lease_router
from miglab_pool.http.routes.message_routes import router as messages_router
from miglab_pool.http.routes.pool_routes import metrics
from miglab_pool.http.routes.pool_routes import router as pool_router
from miglab_pool.http.routes.reservation_routes import router as reservations_router
from miglab_pool.http.routes.server_status_routes import router as server_status_router
from miglab_pool.http.routes.staff_routes import router as staff_router
from miglab_pool.http.routes.ticket_routes import router as ticket_router
from miglab_pool.http.routes.usage_routes import router as usage_router

log = logging.getLogger(__name__)
ROUTERS = (
    ticket_router,
    lease_router,
    pool_router,
    staff_router,
    messages_router,
    audit_router,
    reservations_router,
    layout_router,
    server_status_router,
    usage_router,
    health_router,
)


def management_app(
    runner: PoolRunner,
    sign_in: SignIn,
    *,
    default_course: str,
    notices: tuple[str, ...] = (),
    title: str = "miglab",
    course_titles: Mapping[str, str] = MappingProxyType({}),
    timezone: str = "UTC",
    look: Look = list,
) -> FastAPI:
    """The management application.

    Args:
        runner: the pool.
        sign_in: says who asks.
        default_course: the course of those who are in none.
        notices: labels that every page shows, such as "simulated GPUs".
        title: the lab's name on every page.
        course_titles: by course, the name by which people know it.
        timezone: where the days and weeks of a report of usage begin.
        look: examines the host, for the Health page; may take long.
    """
    prefix = sign_in.access.prefix
    app = FastAPI(
        title="miglab pool: management",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{prefix}/api/openapi.json",
        routes=_routes(prefix).routes,
    )
    app.state.runner, app.state.sign_in = runner, sign_in
    app.state.timezone, app.state.doctor = timezone, Doctor(look)
    app.state.default_course, app.state.notices = default_course, notices
    app.state.title, app.state.course_titles = title, course_titles
    app.state.streams, app.state.texts = Streams(), SnapshotTexts()
    install(app, runner.metrics.refused)
    return app


@cache
def _routes(prefix: str) -> APIRouter:
    """All routes; FastAPI prepares each at its first request, once for every application."""
    router = APIRouter()
    for part in ROUTERS:
        router.include_router(part, prefix=prefix)
    router.include_router(page_router(), prefix=prefix)
    router.add_api_route("/metrics", metrics, response_class=PlainTextResponse, dependencies=[OPEN])
    return router
