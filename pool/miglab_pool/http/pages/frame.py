"""What all pages share: the way in, the navigation, the templates, and how they say things.

A page is a function that draws it for whoever asks::

    async def page(request: Request, principal: Principal) -> str:
        return render("usage.html", request, principal, "usage", rows=...)

Its template extends ``frame.html``; it is named in `management_app.PAGES`, and its address and who
may see it in `PLACES`.
"""

import math
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
from miglab_pool.http.access.dependencies import who
from miglab_pool.http.access.principal import Principal, Right, forbidden
from miglab_pool.http.errors import DeniedError, http_error

SERVICE = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    """One entry of the navigation.

    Attributes:
        key: what a page names itself by in `render`.
        path: below the service's prefix.
        title: what is read.
        right: of those who find it in the navigation.
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


def short(duration_s: float) -> str:
    """A duration where there is little room: minutes, hours and minutes, days and hours."""
    minutes = max(0, round(duration_s / 60))
    hours, rest = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min" if minutes else "<1 min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if days else f"{hours} h {rest:02d}"


def left(at: float, now: float) -> str:
    """How long it is until then."""
    return f"{short(at - now)} left" if at > now else "time is up"


def left_short(at: float, now: float, over: str = "time is up") -> str:
    """The same where it is plain what is meant."""
    return short(at - now) if at > now else over


def since(at: float, now: float) -> str:
    """How long ago it was."""
    return short(now - at)


def wait_short(estimate: WaitEstimate) -> str:
    """The range of a likely wait, in minutes or hours."""
    low, high = estimate.low_s / 60, max(1.0, estimate.high_s / 60)
    unit = "min"
    if high >= 120:
        low, high, unit = low / 60, high / 60, "h"
    first, last = round(low), math.ceil(high)
    if not first:
        return f"≤{last} {unit}"
    return f"{last} {unit}" if first == last else f"{first}–{last} {unit}"


def iso(at: float) -> str:
    """A moment for ``<time datetime>``."""
    return datetime.fromtimestamp(at, UTC).isoformat("T", "seconds")


def moment(at: float, zone: ZoneInfo) -> str:
    """A day and a time of day."""
    return f"{datetime.fromtimestamp(at, zone):%-d %b %Y, %H:%M %Z}"


def second(at: float, zone: ZoneInfo) -> str:
    """The same to the second: what follows what."""
    return f"{datetime.fromtimestamp(at, zone):%-d %b %Y, %H:%M:%S}"


def in_utc(at: float) -> str:
    """A moment as spreadsheets read it."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def amount(used_mib: int | None, of_mib: int) -> str:
    """Memory used of what there is; "?" where it is not known."""
    used = "?" if used_mib is None else f"{used_mib / 1024:.1f}"
    return f"{used} of {of_mib / 1024:.1f} GiB"


# -- templates ------------------------------------------------------------------------------------


LOADER = FileSystemLoader(SERVICE / "templates")
"""A service with pages of its own adds its folder to ``searchpath``."""


def _environment() -> Environment:
    environment = Environment(
        loader=LOADER,
        auto_reload=False,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for said in (duration, guarantee_in_words, iso, left, left_short, since):
        environment.filters[said.__name__] = said
    environment.filters["by"] = display_name
    environment.filters["server"] = server_in_words
    return environment


TEMPLATES = _environment()


Draw = Callable[[Request, Principal], Awaitable[str]]
"""Makes a page's HTML for whoever asks; may raise `DeniedError`, which is shown as a page."""


@dataclass(frozen=True, slots=True)
class DrawnPage:
    """A page's route, for who has the right over anything at all.

    Whoever is not signed in is sent to the hub first, then back here.
    """

    draw: Draw
    right: Right

    async def __call__(self, request: Request) -> Response:
        """The page, or the one that says why there is none."""
        sign_in: SignIn = request.app.state.sign_in
        principal = None
        try:
            principal = await who(request)
            if not principal.has(self.right):
                raise forbidden(self.right)
            return HTMLResponse(await self.draw(request, principal))
        except DeniedError as refused:
            if refused.status == 401:
                return sign_in.begin(request)
            return failed(request, refused, principal)


def render(
    template: str, request: Request, principal: Principal, here: str = "", **values: object
) -> str:
    """A template, with what every page needs.

    Args:
        template: its file's name.
        request: what is answered.
        principal: who reads it.
        here: the key of the page's place in `PLACES`; empty for a part of a page.
        values: what this template needs beside.
    """
    return TEMPLATES.get_template(template).render(
        **_frame(request, principal, here), principal=principal, **values
    )


def render_part(template: str, **values: object) -> str:
    """A template that stands in a page, or replaces a part of one."""
    return TEMPLATES.get_template(template).render(values)


def csv_file(name: str, text: str) -> Response:
    """A spreadsheet that the browser saves under a name."""
    save = f'attachment; filename="{name}"'
    return Response(text, media_type="text/csv", headers={"Content-Disposition": save})


async def no_such_page(request: Request, error: Exception) -> Response:
    """Nothing at this address: a page for a browser, for programs the refusal as everywhere."""
    if "text/html" not in request.headers.get("accept", ""):
        return await http_error(request, error)
    try:
        principal = await who(request)
    except DeniedError:
        principal = None
    said = "There is no page at this address. It may be mistyped."
    return failed(request, DeniedError(404, "no-such-page", said), principal)


def failed(
    request: Request, refused: DeniedError, principal: Principal | None = None, again: str = ""
) -> Response:
    """The page that says why there is none, and where it helps leads to ``again`` or here."""
    request.app.state.runner.metrics.refused(refused.reason)
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
"""Where things lie in a drawing: memory slices, quarters of an hour, lanes; grids count from 1."""


async def steps() -> Response:
    """A class for each number of `STEPS`: the pages' policy allows no style of an element's own."""
    lines = (
        f".{name}{number} {{ --{name}: {number + add}; }}"
        for name, numbers, add in STEPS
        for number in numbers
    )
    return Response("\n".join(lines), media_type="text/css")


async def callback(request: Request) -> Response:
    """The way back from the hub."""
    sign_in: SignIn = request.app.state.sign_in
    try:
        return await sign_in.finish(request)
    except DeniedError as refused:
        return failed(request, refused, again=f"{sign_in.access.prefix}/")


def _frame(request: Request, principal: Principal | None, here: str) -> dict[str, object]:
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
        "places": [place for place in places if principal and principal.has(place.right)],
        "here": here,
    }


def _warnings(request: Request, principal: Principal | None) -> list[str]:
    """What staff have to see to soon, on every page; a service without a pool watches no disk."""
    if principal is None or not principal.is_staff:
        return []
    disks = getattr(request.app.state.runner, "disks", ())
    return [f"The {disk.words}. Ask the operator to make room." for disk in disks if disk.is_low]
