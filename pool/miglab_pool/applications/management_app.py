"""The management application, for the spawner, staff and browsers.

It has the routes of the pool as a whole (offers, the snapshot and the stream of its events,
invariants, metrics), and puts the routes and pages of all subjects together.  Pages are drawn on
the server from the same answers as the API; `http.pages.frame` has what they share.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Annotated, Protocol

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent

from miglab_api.base import SERVER_MAX, USER_ID_MAX, USER_MAX
from miglab_api.gpus import PoolSnapshot
from miglab_api.offers import Offers
from miglab_api.tickets import TicketView
from miglab_pool.applications import details_page, pool_page, proof_loan_routes
from miglab_pool.applications import health as health_page
from miglab_pool.applications.pool_runner import PoolRunner, Runner
from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.access.dependencies import (
    OPEN,
    Viewer,
    find_principal,
    needs,
    refresh_principal,
)
from miglab_pool.http.access.hub_address import BelowBaseUrl
from miglab_pool.http.access.principal import Principal, Right, forbidden, visible_snapshot
from miglab_pool.http.errors import REFUSED, DeniedError, install_refusals
from miglab_pool.http.pages.frame import (
    PLACES,
    DrawnPage,
    finish_sign_in,
    no_such_page,
    steps_css,
)
from miglab_pool.http.pages.static_files import static_files
from miglab_pool.http.runner_protocol import LONGEST_POLL_S, RunnerOf
from miglab_pool.layouts import page as layouts_page
from miglab_pool.layouts.page import LayoutsPool
from miglab_pool.leases import routes as lease_routes
from miglab_pool.pool import Pool
from miglab_pool.reclaim.round import Explanation
from miglab_pool.reservations import page as reservations_page
from miglab_pool.reservations.page import ReservationsPool
from miglab_pool.roster import page as class_page
from miglab_pool.roster.members import Members, unknown_members
from miglab_pool.roster.page import ClassPool, ClassRunner
from miglab_pool.staff import log_page
from miglab_pool.staff import routes as staff_routes
from miglab_pool.staff.routes import StaffPool
from miglab_pool.usage import page as usage_page
from miglab_pool.usage.page import UsagePool

MOST_STREAMS_OF_ONE = 16  # of one principal: tabs and `miglab pool watch`


class SnapshotJson:
    """The pool's snapshot as JSON, as each principal may see it.

    Each version of the pool has one snapshot object, so another object is another version.
    """

    def __init__(self) -> None:
        self._snapshot: PoolSnapshot | None = None
        self._texts: dict[Principal, str] = {}

    async def of(self, runner: PoolRunner, principal: Principal) -> str:
        """Return the current snapshot for the principal."""
        snapshot = await runner.snapshot()
        if snapshot is not self._snapshot:
            self._snapshot, self._texts = snapshot, {}
        if principal.viewer not in self._texts:
            text = visible_snapshot(snapshot, principal).model_dump_json()
            self._texts[principal.viewer] = text
        return self._texts[principal.viewer]


async def _count_stream(request: Request) -> AsyncIterator[None]:
    """Count a stream while it is open, by principal.

    The route's own parameter says which right it needs.

    Raises:
        DeniedError: 429 if the principal has too many.
    """
    principal = await find_principal(request)
    now_open: Counter[str] = request.app.state.streams
    if not principal.is_spawner and now_open[principal.actor] >= MOST_STREAMS_OF_ONE:
        message = f"You follow the pool in {MOST_STREAMS_OF_ONE} windows already. Close one."
        raise DeniedError(429, "too-many-streams", message)
    now_open[principal.actor] += 1
    try:
        yield
    finally:
        now_open[principal.actor] -= 1
        if not now_open[principal.actor]:
            del now_open[principal.actor]


COUNTED_STREAM = Depends(_count_stream)


router = APIRouter(prefix="/api", responses=REFUSED)


@router.get("/offers")
async def offers(
    request: Request,
    principal: Viewer,
    runner: Runner,
    course: Annotated[list[str], Query(max_length=100)],
    user: str | None = None,
    server: Annotated[str | None, Query(max_length=SERVER_MAX)] = None,
    user_id: Annotated[str, Query(max_length=USER_ID_MAX)] = "",
) -> Offers:
    """Return what courses offer; a student may ask about themselves and their own courses only.

    The offers for another user show what that user's quotas leave, so they need the right to see
    names.  The spawner may name a server of the user: then its ticket is attended and returned too.
    """
    if server is not None and not principal.has(Right.SPAWN):
        raise forbidden(Right.SPAWN)
    if user is None and not principal.is_spawner:
        user = principal.name
    own_courses = (
        (*principal.course_names, request.app.state.default_course)
        if principal.is_user(user)
        else ()
    )
    visible_courses = [
        name for name in course if name in own_courses or principal.may(Right.SEE_NAMES, name)
    ]
    if course and not visible_courses and not principal.is_user(user):
        raise DeniedError(403, "forbidden", "You can see your own offers only.")
    if user is None or server is None:
        return await runner.query_view(lambda pool: pool.offers(visible_courses, user))

    def attend_ticket(pool: Pool) -> TicketView | None:
        pool.people.rename_user(user_id, user)
        return pool.tickets.attend_for_server(user, server)

    ticket = await runner.decide(attend_ticket)
    course_offers = await runner.query_view(lambda pool: pool.offers(visible_courses, user))
    return course_offers.model_copy(update={"ticket": ticket})


@router.get("/pool")
async def pool_now(principal: Viewer, runner: Runner) -> PoolSnapshot:
    """Return the pool now, as far as the principal may see it."""
    return visible_snapshot(await runner.snapshot(), principal)


@router.get("/invariants")
async def invariants(_: Annotated[Principal, needs(Right.HEALTH)], runner: Runner) -> list[str]:
    """Return in words what contradicts the pool's invariants; empty if nothing does."""
    return await runner.query_ledger(lambda pool: pool.check_invariants())


@router.get("/reclaim")
async def reclaim(
    principal: Annotated[Principal, needs(Right.EXPLAIN)],
    runner: Runner,
    user: Annotated[str | None, Query(max_length=USER_MAX)] = None,
) -> list[Explanation]:
    """Return how the reclaimer judges each lease in use, or one user's; changes nothing."""
    reclaimer = runner.reclaimer
    if reclaimer is None:
        return []
    explanations = await runner.decide(lambda pool: reclaimer.explain(pool, user))
    return [
        explanation
        for explanation in explanations
        if principal.may(Right.EXPLAIN, explanation.course)
    ]


@router.get("/events", response_class=EventSourceResponse, dependencies=[COUNTED_STREAM])
async def events(
    principal: Viewer, runner: Runner, request: Request
) -> AsyncIterator[ServerSentEvent]:
    """Send an event ``pool`` with the snapshot, now and after every change.

    Before each event, and at least every half minute, the principal is read again from the hub,
    whose answers are cached for as long: a lost role hides the names, a sign-out ends the stream.
    """
    reader: Principal | None = principal
    while reader is not None and not runner.notifier.closed:
        seen_version = runner.notifier.version
        texts: SnapshotJson = request.app.state.texts
        yield ServerSentEvent(
            event="pool", id=str(seen_version), raw_data=await texts.of(runner, reader)
        )
        reader = await _principal_at_next_news(request, runner, seen_version, reader)


async def _principal_at_next_news(
    request: Request, runner: PoolRunner, seen_version: int, shown_to: Principal
) -> Principal | None:
    """Wait for a change of the pool or of the reader's rights; None once they may see nothing."""
    while True:
        await runner.notifier.beyond(seen_version, LONGEST_POLL_S)
        reader = await refresh_principal(request, shown_to)
        if reader != shown_to or runner.notifier.version != seen_version or runner.notifier.closed:
            return reader


async def metrics(request: Request) -> Response:
    """Return the metrics for Prometheus, at the listener's root, which the hub's proxy hides."""
    runner: PoolRunner = request.app.state.runner
    leases = await runner.query_view(lambda pool: pool.leases.brief_views())
    runner.metrics.gpu_call_s.set(runner.gpu_call_s)
    runner.metrics.silent_servers.set(runner.silent_servers)
    runner.metrics.disk_full.set(runner.is_disk_full)
    runner.metrics.watched_disks(runner.disks)
    wellness = await runner.decide(lambda pool: pool.wellness())
    healths = {gpu: gpu_wellness.health for gpu, gpu_wellness in wellness.items()}
    text = runner.metrics.render(await runner.snapshot(), leases, healths)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


# -- the application ------------------------------------------------------------------------------


PAGES = {
    "pool": pool_page.page,
    "class": class_page.page,
    "layouts": layouts_page.page,
    "reservations": reservations_page.page,
    "log": log_page.page,
    "usage": usage_page.page,
    "health": health_page.page,
}
"""The function that draws each of `PLACES`."""

PARTS = (
    ("/fragment", pool_page.fragment),
    ("/details/reserve", reservations_page.new_reservation),
    ("/details/reservation/{target}", reservations_page.reservation_details),
    ("/details/message/{target}", log_page.message_details),
    ("/details/{kind}", details_page.details),
    ("/details/{kind}/{target}", details_page.details),
)
"""The parts that pages fetch: the first address that matches answers; each has its own right."""

ROUTERS = (
    lease_routes.router,
    router,
    staff_routes.router,
    proof_loan_routes.router,
    log_page.router,
    reservations_page.router,
    layouts_page.router,
    usage_page.router,
    class_page.router,
    health_page.router,
)


class RoutesPool(ClassPool, LayoutsPool, ReservationsPool, StaffPool, UsagePool, Protocol):
    """What the routes of all subjects use of the pool."""


_SERVES: tuple[type[RunnerOf[RoutesPool]], type[ClassRunner]] = (PoolRunner, PoolRunner)
"""Here the type checker sees that the pool and its runner have what the routes use."""


def page_router() -> APIRouter:
    """Return the routes of the pages, their parts, the end of the sign-in, and the static files."""
    pages = APIRouter(include_in_schema=False)
    add = partial(pages.add_api_route, response_class=HTMLResponse)
    for place in PLACES:
        add(place.path, DrawnPage(PAGES[place.key], place.right), name=f"{place.key}_page")
    for address, part in PARTS:
        add(address, part)
    add("/layouts/preview", layouts_page.preview, methods=["POST"])
    pages.add_api_route(
        "/live",
        pool_page.stream_changes,
        response_class=EventSourceResponse,
        dependencies=[COUNTED_STREAM],
    )
    pages.add_api_route("/oauth_callback", finish_sign_in, dependencies=[OPEN])
    pages.add_api_route("/static/steps.css", steps_css, dependencies=[OPEN])
    pages.mount("/static", static_files(), name="static")
    return pages


def management_app(
    runner: PoolRunner,
    sign_in: SignIn,
    *,
    default_course: str,
    notices: tuple[str, ...] = (),
    title: str = "miglab",
    course_titles: Mapping[str, str] = MappingProxyType({}),
    members: Members = unknown_members,
    timezone: str = "UTC",
    look: health_page.Examine = list,
) -> FastAPI:
    """Return the management application of a pool.

    Args:
        runner: runs the pool.
        sign_in: finds the principal of a request.
        default_course: the course of users who are in none.
        notices: labels that every page shows, such as "simulated GPUs".
        title: the lab's name on every page.
        course_titles: the title of each course.
        members: returns who is in a course, as far as that is known.
        timezone: the time zone of the days and weeks of usage reports.
        look: examines the host, for the Health page; may take long.
    """
    prefix = sign_in.access.route
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
    app.state.members, app.state.parts_caches = members, pool_page.parts_caches(course_titles)
    app.state.streams, app.state.texts = Counter(), SnapshotJson()
    install_refusals(app, runner.metrics.count_refusal)
    app.add_middleware(BelowBaseUrl, access=lambda: sign_in.access)
    app.add_exception_handler(404, no_such_page)
    return app


@cache
def _routes(prefix: str) -> APIRouter:
    """Return all routes; FastAPI prepares each at its first request, once for all applications."""
    routes = APIRouter()
    for part in ROUTERS:
        routes.include_router(part, prefix=prefix)
    routes.include_router(page_router(), prefix=prefix)
    routes.add_api_route("/metrics", metrics, response_class=PlainTextResponse, dependencies=[OPEN])
    return routes
