"""The pages for people: drawn on the server from the same answers as the API, one room for each.

`frame` is what they share: the way in, the navigation, the words.  The others each draw one page.
"""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from fastapi.sse import EventSourceResponse
from fastapi.staticfiles import StaticFiles

from miglab_hub.service.rights import Right
from miglab_hub.service.roles import OPEN, page_needs

from . import (
    desk_page,
    health_page,
    layouts_page,
    log_page,
    pool_page,
    reservations_page,
    usage_page,
)
from .frame import SERVICE, callback

PAGE = page_needs(Right.LOOK)


def page_router(prefix: str) -> APIRouter:
    """Every page, the parts of them that change, sign-in's way back, and the static files."""
    router = APIRouter(include_in_schema=False)
    router.add_api_route("/", pool_page.page, response_class=HTMLResponse, dependencies=[PAGE])
    router.add_api_route("/fragment", pool_page.fragment, response_class=HTMLResponse)
    router.add_api_route("/live", pool_page.live, response_class=EventSourceResponse)
    router.add_api_route(
        "/reservations", reservations_page.page, response_class=HTMLResponse, dependencies=[PAGE]
    )
    router.add_api_route(
        "/desk/reserve", reservations_page.reserve_desk, response_class=HTMLResponse
    )
    router.add_api_route(
        "/desk/reservation/{thing}",
        reservations_page.reservation_desk,
        response_class=HTMLResponse,
    )
    router.add_api_route(
        "/layouts",
        layouts_page.page,
        response_class=HTMLResponse,
        dependencies=[page_needs(Right.SEE_LAYOUTS)],
    )
    router.add_api_route(
        "/layouts/preview", layouts_page.preview, methods=["POST"], response_class=HTMLResponse
    )
    router.add_api_route(
        "/desk/layout/{name}", layouts_page.layout_desk, response_class=HTMLResponse
    )
    router.add_api_route("/desk/note/{thing}", log_page.note_desk, response_class=HTMLResponse)
    for address in ("/desk/{kind}", "/desk/{kind}/{thing}"):
        router.add_api_route(address, desk_page.desk, response_class=HTMLResponse)
    router.add_api_route(
        "/log",
        log_page.page,
        response_class=HTMLResponse,
        dependencies=[page_needs(Right.AUDIT)],
    )
    router.add_api_route(
        "/usage",
        usage_page.page,
        response_class=HTMLResponse,
        dependencies=[page_needs(Right.SEE_USAGE)],
    )
    router.add_api_route(
        "/health",
        health_page.page,
        response_class=HTMLResponse,
        dependencies=[page_needs(Right.HEALTH)],
    )
    router.add_api_route("/oauth_callback", callback, dependencies=[OPEN])
    router.mount("/static", StaticFiles(directory=SERVICE / "static"), name="static")
    return router
