"""What all pages share: sign-in, navigation, templates, and the wording of times and amounts.

A page is a function that draws it for a principal::

    async def page(request: Request, principal: Principal) -> str:
        return render("usage.html", request, principal, "usage", rows=...)

Its template extends ``frame.html``.  `management_app.PAGES` names the function, and `PLACES` its
address and the right that it needs.
"""

import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from miglab_api.staff import display_name
from miglab_api.tickets import WaitEstimate
from miglab_api.wording import duration, guarantee_in_words, server_in_words
from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.access.dependencies import find_principal
from miglab_pool.http.access.principal import Principal, Right, forbidden
from miglab_pool.http.errors import DeniedError, http_error

SERVICE = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    """One entry of the navigation.

    Attributes:
        key: the key that its page passes to `render`.
        path: its path below the service's prefix.
        title: its label.
        right: the right that a principal needs to see it.
    """

    key: str
    path: str
    title: str
    right: Right = Right.SEE_POOL


PLACES = (
    NavigationEntry("pool", "/", "Pool"),
    NavigationEntry("class", "/class", "Class", Right.SEE_CLASS),
    NavigationEntry("layouts", "/layouts", "Layouts", Right.SEE_LAYOUTS),
    NavigationEntry("reservations", "/reservations", "Reservations"),
    NavigationEntry("log", "/log", "Log", Right.AUDIT),
    NavigationEntry("usage", "/usage", "Usage", Right.SEE_USAGE),
    NavigationEntry("health", "/health", "Health", Right.HEALTH),
)


# -- durations, moments, amounts ------------------------------------------------------------------


def short_duration(duration_s: float) -> str:
    """Return a duration in few characters: minutes, hours and minutes, or days and hours."""
    minutes = max(0, round(duration_s / 60))
    hours, remaining_minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min" if minutes else "<1 min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if days else f"{hours} h {remaining_minutes:02d}"


def time_left(at: float, now: float) -> str:
    """Return how long it is until then, such as "5 min left"."""
    return f"{short_duration(at - now)} left" if at > now else "time is up"


def time_left_short(at: float, now: float, over: str = "time is up", before: str = "") -> str:
    """Return how long it is until then, after the words ``before``; ``over`` once it is past."""
    return f"{before}{short_duration(at - now)}" if at > now else over


def time_since(at: float, now: float) -> str:
    """Return how long ago it was."""
    return short_duration(now - at)


def wait_short(estimate: WaitEstimate) -> str:
    """Return the range of an estimated wait, in minutes or hours."""
    low, high = estimate.low_s / 60, max(1.0, estimate.high_s / 60)
    unit = "min"
    if high >= 120:
        low, high, unit = low / 60, high / 60, "h"
    first, last = round(low), math.ceil(high)
    if not first:
        return f"≤{last} {unit}"
    return f"{last} {unit}" if first == last else f"{first}–{last} {unit}"


def iso_text(at: float) -> str:
    """Return a moment in ISO 8601, for ``<time datetime>``."""
    return datetime.fromtimestamp(at, UTC).isoformat("T", "seconds")


def moment(at: float, zone: ZoneInfo) -> str:
    """Return a moment as day and time of day."""
    return f"{datetime.fromtimestamp(at, zone):%-d %b %Y, %H:%M %Z}"


def moment_to_second(at: float, zone: ZoneInfo) -> str:
    """Return a moment as day and time to the second, so that the order of entries shows."""
    return f"{datetime.fromtimestamp(at, zone):%-d %b %Y, %H:%M:%S}"


def utc_text(at: float) -> str:
    """Return a moment in UTC, as spreadsheets read it."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def memory_amount(used_mib: int | None, of_mib: int) -> str:
    """Return the memory used of the total, in GiB; "?" if it is not known."""
    used = "?" if used_mib is None else f"{used_mib / 1024:.1f}"
    return f"{used} of {of_mib / 1024:.1f} GiB"


# -- templates ------------------------------------------------------------------------------------


LOADER = FileSystemLoader(SERVICE / "templates")
"""The folders of templates; a service with pages of its own adds its folder to ``searchpath``."""


def _environment() -> Environment:
    environment = Environment(
        loader=LOADER,
        auto_reload=False,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "by": display_name,
        "duration": duration,
        "guarantee_in_words": guarantee_in_words,
        "iso": iso_text,
        "left": time_left,
        "left_short": time_left_short,
        "server": server_in_words,
        "since": time_since,
    }
    return environment


TEMPLATES = _environment()


Draw = Callable[[Request, Principal], Awaitable[str]]
"""Draws a page's HTML for a principal; a `DeniedError` is shown as a page."""


@dataclass(frozen=True, slots=True)
class DrawnPage:
    """The route of a page, for principals that have its right over anything at all.

    A browser that is not signed in is sent to the hub first, then back here.
    """

    draw: Draw
    right: Right

    async def __call__(self, request: Request) -> Response:
        """Return the page, or the page that says why it is refused."""
        sign_in: SignIn = request.app.state.sign_in
        principal = None
        try:
            principal = await find_principal(request)
            if not principal.has(self.right):
                raise forbidden(self.right)
            return HTMLResponse(await self.draw(request, principal))
        except DeniedError as refused:
            if refused.status == 401:
                return sign_in.begin(request)
            return failure_page(request, refused, principal)


def render(
    template: str, request: Request, principal: Principal, place_key: str = "", **values: object
) -> str:
    """Render a template with what every page needs.

    Args:
        template: the name of its file.
        request: the request.
        principal: the reader.
        place_key: the key of the page in `PLACES`; empty for a part of a page.
        values: what this template needs besides.
    """
    return TEMPLATES.get_template(template).render(
        **_frame(request, principal, place_key), principal=principal, **values
    )


def render_part(template: str, **values: object) -> str:
    """Render the template of a part of a page."""
    return TEMPLATES.get_template(template).render(values)


def csv_file(name: str, text: str) -> Response:
    """Return a CSV response that the browser saves under a name."""
    save = f'attachment; filename="{name}"'
    return Response(text, media_type="text/csv", headers={"Content-Disposition": save})


async def no_such_page(request: Request, error: Exception) -> Response:
    """Return the 404 of an unknown address: a page for browsers, the usual refusal for programs."""
    if "text/html" not in request.headers.get("accept", ""):
        return await http_error(request, error)
    try:
        principal = await find_principal(request)
    except DeniedError:
        principal = None
    message = "There is no page at this address. It may be mistyped."
    return failure_page(request, DeniedError(404, "no-such-page", message), principal)


def failure_page(
    request: Request, refused: DeniedError, principal: Principal | None = None, again: str = ""
) -> Response:
    """Return the page that explains a refusal, with a link to ``again`` or here, but for 404."""
    request.app.state.runner.metrics.count_refusal(refused.reason)
    again = "" if refused.status == 404 else again or request.url.path
    values = _frame(request, principal, "") | {"again": again}
    html = TEMPLATES.get_template("failed.html").render(**values, message=refused.message)
    return HTMLResponse(html, refused.status)


STEPS = (
    ("n", range(1, 17), 0),
    ("at", range(16), 1),
    ("span", range(1, 17), 0),
    ("rows", range(4, 97, 4), 0),
    ("from", range(96), 1),
    ("long", range(1, 97), 0),
    ("lanes", range(1, 13), 0),
    ("lane", range(12), 1),
)
"""Positions in drawings: memory slices, quarters of an hour, lanes; grids count from 1."""


async def steps_css() -> Response:
    """Return a CSS class for each number of `STEPS`, since pages may have no inline styles."""
    lines = (
        f".{name}{number} {{ --{name}: {number + add}; }}"
        for name, numbers, add in STEPS
        for number in numbers
    )
    return Response("\n".join(lines), media_type="text/css")


async def finish_sign_in(request: Request) -> Response:
    """Finish a sign-in when the browser comes back from the hub."""
    sign_in: SignIn = request.app.state.sign_in
    try:
        return await sign_in.finish(request)
    except DeniedError as refused:
        return failure_page(request, refused, again=f"{sign_in.access.prefix}/")


def _frame(request: Request, principal: Principal | None, place_key: str) -> dict[str, object]:
    access = request.app.state.sign_in.access
    places = getattr(request.app.state, "places", PLACES)  # a lab on Slurm has its own
    return {
        "prefix": access.prefix,
        "hub": f"{access.hub_origin}{access.hub_prefix}",
        "user": principal.name if principal else "",
        "is_admin": principal is not None and principal.admin,
        "lab_title": request.app.state.title,
        "notices": request.app.state.notices,
        "warnings": _warnings(request, principal),
        "xsrf": principal.xsrf if principal else "",
        "service_now": time.time(),
        "places": [place for place in places if principal and principal.has(place.right)],
        "here": place_key,
    }


def _warnings(request: Request, principal: Principal | None) -> list[str]:
    """What staff have to see to soon, on every page; a service without a pool watches no disk."""
    if principal is None or not principal.is_staff:
        return []
    disks = getattr(request.app.state.runner, "disks", ())
    return [f"The {disk.words}. Ask the operator to make room." for disk in disks if disk.is_low]
