"""The pages for people: drawn on the server from the same answers as the API, one room for each.

`frame` is what they share: the way in, the navigation, the words.  The others each draw one page.
"""

from functools import partial

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from fastapi.sse import EventSourceResponse
from fastapi.staticfiles import StaticFiles

from miglab_pool.http.access.dependencies import OPEN, page_needs
from miglab_pool.http.access.rights import Right
from miglab_pool.http.event_streams import ONE_STREAM
from miglab_pool.http.pages import (
    details_page,
    health_page,
    layouts_page,
    log_page,
    pool_page,
    reservations_page,
    usage_page,
)
from miglab_pool.http.pages.frame import SERVICE, callback

PAGES = (
    ("/", pool_page.page, Right.SEE_POOL),
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
    ("/details/layout/{name}", layouts_page.layout_details),
    ("/details/message/{target}", log_page.message_details),
    ("/details/{kind}", details_page.details),
    ("/details/{kind}/{target}", details_page.details),
)
"""What pages fetch: the first address that matches answers, and asks for its own right."""


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
        "/live", pool_page.live, response_class=EventSourceResponse, dependencies=[ONE_STREAM]
    )
    router.add_api_route("/oauth_callback", callback, dependencies=[OPEN])
    router.mount(
        "/static",
        StaticFiles(directory=SERVICE / "static", packages=[("miglab_api", "web")]),
        name="static",
    )
    return router
