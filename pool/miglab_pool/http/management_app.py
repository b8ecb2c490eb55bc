"""The management application: what spawner, staff and browsers may ask, put together.

Pages are drawn on the server from the same answers as the API; `pages.frame` is what they share.
"""

import logging
from collections.abc import Mapping
from functools import cache, partial
from types import MappingProxyType

from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.sse import EventSourceResponse
from fastapi.staticfiles import StaticFiles

from miglab_pool.http import health as health_page
from miglab_pool.http import pool_routes
from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.access.dependencies import OPEN, page_needs
from miglab_pool.http.access.hub_tokens import Members, nobody_says
from miglab_pool.http.access.principal import Right
from miglab_pool.http.errors import install
from miglab_pool.http.pages import details_page, pool_page
from miglab_pool.http.pages.frame import SERVICE, callback, no_such_page, steps
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.layouts import page as layouts_page
from miglab_pool.leases import routes as lease_routes
from miglab_pool.queue import routes as ticket_routes
from miglab_pool.reservations import page as reservations_page
from miglab_pool.reservations import routes as reservation_routes
from miglab_pool.roster import page as class_page
from miglab_pool.staff import log_page
from miglab_pool.staff import routes as staff_routes
from miglab_pool.usage import page as usage_page

PAGES = (
    ("/", pool_page.page, Right.SEE_POOL),
    ("/class", class_page.page, Right.SEE_CLASS),
    ("/reservations", reservations_page.page, Right.SEE_POOL),
    ("/layouts", layouts_page.page, Right.SEE_LAYOUTS),
    ("/log", log_page.page, Right.AUDIT),
    ("/usage", usage_page.page, Right.SEE_USAGE),
    ("/health", health_page.page, Right.HEALTH),
)
"""Each page's address, what draws it, and the right that it needs."""

PARTS = (
    ("/fragment", pool_page.fragment),
    ("/details/reserve", reservations_page.new_reservation),
    ("/details/reservation/{target}", reservations_page.reservation_details),
    ("/details/message/{target}", log_page.message_details),
    ("/details/{kind}", details_page.details),
    ("/details/{kind}/{target}", details_page.details),
)
"""What pages fetch: the first address that matches answers, and asks for its own right."""

log = logging.getLogger(__name__)
ROUTERS = (
    ticket_routes.router,
    lease_routes.router,
    pool_routes.router,
    staff_routes.router,
    log_page.router,
    reservation_routes.router,
    layouts_page.router,
    usage_page.router,
    class_page.router,
    health_page.router,
)


def page_router() -> APIRouter:
    """Every page, the parts of them that change, sign-in's way back, and the static files."""
    router = APIRouter(include_in_schema=False)
    add = partial(router.add_api_route, response_class=HTMLResponse)
    for address, page, right in PAGES:
        add(address, page, dependencies=[page_needs(right)])
    for address, part in PARTS:
        add(address, part)
    add("/layouts/preview", layouts_page.preview, methods=["POST"])
    router.add_api_route(
        "/live",
        pool_page.live,
        response_class=EventSourceResponse,
        dependencies=[pool_routes.ONE_STREAM],
    )
    router.add_api_route("/oauth_callback", callback, dependencies=[OPEN])
    router.add_api_route("/static/steps.css", steps, dependencies=[OPEN])
    router.mount(
        "/static",
        StaticFiles(directory=SERVICE / "static", packages=[("miglab_api", "web")]),
        name="static",
    )
    return router


def management_app(
    runner: PoolRunner,
    sign_in: SignIn,
    *,
    default_course: str,
    notices: tuple[str, ...] = (),
    title: str = "miglab",
    course_titles: Mapping[str, str] = MappingProxyType({}),
    members: Members = nobody_says,
    timezone: str = "UTC",
    look: health_page.Look = list,
) -> FastAPI:
    """The management application.

    Args:
        runner: the pool.
        sign_in: says who asks.
        default_course: the course of those who are in none.
        notices: labels that every page shows, such as "simulated GPUs".
        title: the lab's name on every page.
        course_titles: by course, the name by which people know it.
        members: says who is in a course; None while nobody can say.
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
    app.state.timezone, app.state.doctor = timezone, health_page.Doctor(look)
    app.state.default_course, app.state.notices = default_course, notices
    app.state.title, app.state.course_titles = title, course_titles
    app.state.members, app.state.parts_caches = members, pool_page.PartsCaches(course_titles)
    app.state.streams, app.state.texts = pool_routes.Streams(), pool_routes.SnapshotTexts()
    install(app, runner.metrics.refused)
    app.add_exception_handler(404, no_such_page)
    return app


@cache
def _routes(prefix: str) -> APIRouter:
    """All routes; FastAPI prepares each at its first request, once for every application."""
    router = APIRouter()
    for part in ROUTERS:
        router.include_router(part, prefix=prefix)
    router.include_router(page_router(), prefix=prefix)
    router.add_api_route(
        "/metrics", pool_routes.metrics, response_class=PlainTextResponse, dependencies=[OPEN]
    )
    return router
