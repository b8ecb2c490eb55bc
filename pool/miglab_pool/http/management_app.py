"""The management application: what spawner, staff and browsers may ask.

Here are the routes of the pool as a whole (offers, its snapshot and the stream of its events, what
it says of itself, metrics), and all subjects' routes and pages are put together.  Pages are drawn
on the server from the same answers as the API; `pages.frame` is what they share.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from fastapi.staticfiles import StaticFiles

from miglab_api.base import USER_MAX
from miglab_api.gpus import PoolSnapshot
from miglab_api.offers import Offers
from miglab_pool.http import health as health_page
from miglab_pool.http import proof
from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.access.dependencies import OPEN, Runner, Who, needs, who, who_again
from miglab_pool.http.access.hub_address import BelowBaseUrl
from miglab_pool.http.access.hub_tokens import Members, nobody_says
from miglab_pool.http.access.principal import Principal, Right, visible_snapshot
from miglab_pool.http.errors import REFUSED, DeniedError, install
from miglab_pool.http.pages import details_page, pool_page
from miglab_pool.http.pages.frame import PLACES, SERVICE, DrawnPage, callback, no_such_page, steps
from miglab_pool.http.pool_runner import LONGEST_POLL_S, PoolRunner
from miglab_pool.layouts import page as layouts_page
from miglab_pool.leases import routes as lease_routes
from miglab_pool.reclaim.round import Explanation
from miglab_pool.reservations import page as reservations_page
from miglab_pool.roster import page as class_page
from miglab_pool.staff import log_page
from miglab_pool.staff import routes as staff_routes
from miglab_pool.usage import page as usage_page

A_PERSON = 16  # tabs and `miglab pool watch`


class SnapshotTexts:
    """The pool's snapshot as JSON, as each principal may see it.

    It is the snapshot's identity that says whether it is another: of one version there is one.
    """

    def __init__(self) -> None:
        self._snapshot: PoolSnapshot | None = None
        self._texts: dict[Principal, str] = {}

    async def of(self, runner: PoolRunner, principal: Principal) -> str:
        """The snapshot of this moment for the principal."""
        snapshot = await runner.snapshot()
        if snapshot is not self._snapshot:
            self._snapshot, self._texts = snapshot, {}
        if principal.viewer not in self._texts:
            text = visible_snapshot(snapshot, principal).model_dump_json()
            self._texts[principal.viewer] = text
        return self._texts[principal.viewer]


async def _one_stream(request: Request) -> AsyncIterator[None]:
    """Count a stream while it is open, by whoever reads it.

    Beside the route's own parameter, which says the right.

    Raises:
        DeniedError: 429: there are enough.
    """
    principal = await who(request)
    now_open: Counter[str] = request.app.state.streams
    if not principal.is_spawner and now_open[principal.by] >= A_PERSON:
        said = f"You follow the pool in {A_PERSON} windows already. Close one."
        raise DeniedError(429, "too-many-streams", said)
    now_open[principal.by] += 1
    try:
        yield
    finally:
        now_open[principal.by] -= 1
        if not now_open[principal.by]:
            del now_open[principal.by]


ONE_STREAM = Depends(_one_stream)


router = APIRouter(prefix="/api", responses=REFUSED)


@router.get("/offers")
async def offers(
    request: Request,
    principal: Who,
    runner: Runner,
    course: Annotated[list[str], Query(max_length=100)],
    user: str | None = None,
) -> Offers:
    """What the courses offer; a student may ask about themselves and their own courses only.

    Of another user one learns what that user's quotas leave, so it takes the right to see names.
    """
    if user is None and not principal.is_spawner:
        user = principal.name
    own = (
        (*principal.course_names, request.app.state.default_course)
        if principal.is_user(user)
        else ()
    )
    seen = [name for name in course if name in own or principal.may(Right.SEE_NAMES, name)]
    if course and not seen and not principal.is_user(user):
        raise DeniedError(403, "forbidden", "You can see your own offers only.")
    course = seen
    return await runner.look(lambda pool: pool.offers(course, user))


@router.get("/pool")
async def pool_now(principal: Who, runner: Runner) -> PoolSnapshot:
    """The pool now, as far as the principal may see it."""
    return visible_snapshot(await runner.snapshot(), principal)


@router.get("/invariants")
async def invariants(_: Annotated[Principal, needs(Right.HEALTH)], runner: Runner) -> list[str]:
    """What contradicts the pool's invariants, in words; empty is well."""
    return await runner.read(lambda pool: pool.check_invariants())


@router.get("/reclaim")
async def reclaim(
    principal: Annotated[Principal, needs(Right.EXPLAIN)],
    runner: Runner,
    user: Annotated[str | None, Query(max_length=USER_MAX)] = None,
) -> list[Explanation]:
    """What the reclaimer thinks of every lease in use, or of one user's, and why; asks only."""
    reclaimer = runner.reclaimer
    if reclaimer is None:
        return []
    found = await runner.decide(lambda pool: reclaimer.explain(pool, user))
    return [one for one in found if principal.may(Right.EXPLAIN, one.course)]


@router.get("/events", response_class=EventSourceResponse, dependencies=[ONE_STREAM])
async def events(
    principal: Who, runner: Runner, request: Request
) -> AsyncIterator[ServerSentEvent]:
    """A server-sent event ``pool`` with the snapshot, now and after every change.

    Before each event, and at least every half minute, the hub is asked again who asks (it believes
    its last answer for as long again): a lost role hides the names, a sign-out ends the stream.
    """
    now: Principal | None = principal
    while now is not None and not runner.notifier.closed:
        seen = runner.notifier.version
        texts: SnapshotTexts = request.app.state.texts
        yield ServerSentEvent(event="pool", id=str(seen), raw_data=await texts.of(runner, now))
        now = await _principal_at_next_news(request, runner, seen, now)


async def _principal_at_next_news(
    request: Request, runner: PoolRunner, seen: int, shown_to: Principal
) -> Principal | None:
    """Wait for a change of the pool or of their rights; None if they may see nothing."""
    while True:
        await runner.notifier.beyond(seen, LONGEST_POLL_S)
        now = await who_again(request, shown_to)
        if now != shown_to or runner.notifier.version != seen or runner.notifier.closed:
            return now


async def metrics(request: Request) -> Response:
    """For Prometheus.  At the listener's root, which the hub's proxy does not pass on."""
    runner: PoolRunner = request.app.state.runner
    held = await runner.look(lambda pool: pool.leases.brief())
    runner.metrics.gpu_call_s.set(runner.gpu_call_s)
    runner.metrics.silent_servers.set(runner.silent_servers)
    runner.metrics.disk_full.set(runner.is_disk_full)
    runner.metrics.watched_disks(runner.disks)
    said = await runner.decide(lambda pool: pool.wellness())
    healths = {gpu: one.health for gpu, one in said.items()}
    text = runner.metrics.render(await runner.snapshot(), held, healths)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


# -- all of it put together -----------------------------------------------------------------------


PAGES = {
    "pool": pool_page.page,
    "class": class_page.page,
    "layouts": layouts_page.page,
    "reservations": reservations_page.page,
    "log": log_page.page,
    "usage": usage_page.page,
    "health": health_page.page,
}
"""What draws each of `PLACES`."""

PARTS = (
    ("/fragment", pool_page.fragment),
    ("/details/reserve", reservations_page.new_reservation),
    ("/details/reservation/{target}", reservations_page.reservation_details),
    ("/details/message/{target}", log_page.message_details),
    ("/details/{kind}", details_page.details),
    ("/details/{kind}/{target}", details_page.details),
)
"""What pages fetch: the first address that matches answers, and asks for its own right."""

ROUTERS = (
    lease_routes.router,
    router,
    staff_routes.router,
    proof.router,
    log_page.router,
    reservations_page.router,
    layouts_page.router,
    usage_page.router,
    class_page.router,
    health_page.router,
)


def page_router() -> APIRouter:
    """Every page, the parts of them that change, sign-in's way back, and the static files."""
    pages = APIRouter(include_in_schema=False)
    add = partial(pages.add_api_route, response_class=HTMLResponse)
    for place in PLACES:
        add(place.path, DrawnPage(PAGES[place.key], place.right), name=f"{place.key}_page")
    for address, part in PARTS:
        add(address, part)
    add("/layouts/preview", layouts_page.preview, methods=["POST"])
    pages.add_api_route(
        "/live",
        pool_page.live,
        response_class=EventSourceResponse,
        dependencies=[ONE_STREAM],
    )
    pages.add_api_route("/oauth_callback", callback, dependencies=[OPEN])
    pages.add_api_route("/static/steps.css", steps, dependencies=[OPEN])
    pages.mount(
        "/static",
        StaticFiles(directory=SERVICE / "static", packages=[("miglab_api", "web")]),
        name="static",
    )
    return pages


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
    app.state.streams, app.state.texts = Counter(), SnapshotTexts()
    install(app, runner.metrics.refused)
    app.add_middleware(BelowBaseUrl, access=lambda: sign_in.access)
    app.add_exception_handler(404, no_such_page)
    return app


@cache
def _routes(prefix: str) -> APIRouter:
    """All routes; FastAPI prepares each at its first request, once for every application."""
    routes = APIRouter()
    for part in ROUTERS:
        routes.include_router(part, prefix=prefix)
    routes.include_router(page_router(), prefix=prefix)
    routes.add_api_route("/metrics", metrics, response_class=PlainTextResponse, dependencies=[OPEN])
    return routes
