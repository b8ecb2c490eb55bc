"""The pages for people: drawn on the server from the same answers as the API, one room for each.

`frame` is what they share: the way in, the navigation, the words.  The others each draw one page.
"""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

from . import pool_page
from .frame import SERVICE, callback


def page_router(prefix: str) -> APIRouter:
    """Every page, the parts of them that change, sign-in's way back, and the static files."""
    router = APIRouter(include_in_schema=False)
    router.add_api_route("/", pool_page.page, methods=["GET"], response_class=HTMLResponse)
    router.add_api_route(
        "/fragment", pool_page.fragment, methods=["GET"], response_class=HTMLResponse
    )
    router.add_api_route("/oauth_callback", callback, methods=["GET"])
    router.mount("/static", StaticFiles(directory=SERVICE / "static"), name="static")
    return router
