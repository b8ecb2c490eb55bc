"""The reservations' page: a week as a picture and as a list, and the forms that make and change."""

import datetime as dt
import time
from collections import Counter
from collections.abc import Sequence
from typing import Annotated
from zoneinfo import ZoneInfo

from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from miglab_api.offers import CourseOffers
from miglab_api.reservations import WEEKDAYS, ReservationView
from miglab_pool.http.access.dependencies import Runner, Who, needs
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.access.redaction import visible_reservation
from miglab_pool.http.access.rights import Right
from miglab_pool.http.errors import DeniedError
from miglab_pool.http.pages.drawing.week_calendar import STATE_WORDS, monday_of, week
from miglab_pool.http.pages.frame import render, render_part, shown
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.model.schedule import is_zone

DAY_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
OUT_OF_DATE = "This no longer exists. Reload the page."


async def page(request: Request, monday: str = "", zone: str = "") -> Response:
    """The whole page; ``monday`` is any day of the week that is shown."""
    return await shown(request, lambda principal: _draw(request, principal, monday, zone))


async def _draw(request: Request, principal: Principal, day: str, zone: str) -> str:
    runner: PoolRunner = request.app.state.runner
    found = await runner.look(lambda pool: pool.reservations.all())
    seen = [visible_reservation(one, principal) for one in found]
    zone = zone if is_zone(zone) else usual_zone(seen)
    now = time.time()
    shown_week = week(seen, monday_of(_date(day, now, zone)), zone, now)
    return render(
        "reservations.html",
        request,
        principal,
        "reservations",
        week=shown_week,
        found=seen,
        may_change={one.id for one in seen if principal.may(Right.RESERVE, one.course)},
        may_reserve=bool(_courses(request, principal)),
        number=shown_week.monday.isocalendar().week,
        before=shown_week.monday - dt.timedelta(days=7),
        after=shown_week.monday + dt.timedelta(days=7),
        zones=sorted({zone, "UTC", *(one.tz for one in seen)}),
        day_names=DAY_NAMES,
        weekday_keys=WEEKDAYS,
        state_words=STATE_WORDS,
        when=when,
        local=lambda at: f"{dt.datetime.fromtimestamp(at, ZoneInfo(zone)):%a %d %b, %H:%M %Z}",
    )


def usual_zone(found: Sequence[ReservationView]) -> str:
    """The time zone that most reservations are made in."""
    return Counter(one.tz for one in found).most_common(1)[0][0] if found else "UTC"


def when(one: ReservationView) -> str:
    """Its times, as they were said."""
    days = ", ".join(day.capitalize() for day in one.weekdays) or f"{one.date:%d %B %Y}"
    until = f", until {one.until:%d %B %Y}" if one.until else ""
    return f"{days} {one.from_time}–{one.to_time} {one.tz}{until}"


def _date(text: str, now: float, zone: str) -> dt.date:
    try:
        day = dt.date.fromisoformat(text)
    except ValueError:
        day = dt.datetime.fromtimestamp(now, ZoneInfo(zone)).date()
    is_drawn = 1971 < day.year < 9000
    return day if is_drawn else dt.datetime.fromtimestamp(now, ZoneInfo(zone)).date()


async def new_reservation(
    request: Request, principal: Annotated[Principal, needs(Right.RESERVE)], runner: Runner
) -> Response:
    """The form that makes a reservation."""
    offers = await _offers(request, principal, runner)
    return HTMLResponse(render_part("details_reservation.html", one=None, **_choices(offers)))


async def reservation_details(
    request: Request, principal: Who, runner: Runner, target: str
) -> Response:
    """One reservation, with the forms that change and cancel it."""
    found = await runner.look(lambda pool: pool.reservations.all())
    one = next((one for one in found if str(one.id) == target), None)
    if one is None:
        raise DeniedError(404, "no-such-page", OUT_OF_DATE)
    may = principal.may(Right.RESERVE, one.course)
    offers = await _offers(request, principal, runner) if may else []
    html = render_part(
        "details_reservation.html",
        one=visible_reservation(one, principal),
        state_words=STATE_WORDS,
        when=when,
        **_choices(offers),
    )
    return HTMLResponse(html)


def _courses(request: Request, principal: Principal) -> list[str]:
    courses = request.app.state.sign_in.book.courses
    return [name for name in courses if principal.may(Right.RESERVE, name)]


async def _offers(request: Request, principal: Principal, runner: PoolRunner) -> list[CourseOffers]:
    courses = _courses(request, principal)
    return list((await runner.look(lambda pool: pool.offers(courses, None))).courses)


def _choices(offers: Sequence[CourseOffers]) -> dict[str, object]:
    """What can be reserved for whom."""
    shapes = {shape.shape: shape.good_for for one in offers for shape in one.shapes if shape.slices}
    return {
        "courses": [(one.course, one.title or one.course) for one in offers],
        "shapes": shapes,
        "day_names": DAY_NAMES,
        "weekday_keys": WEEKDAYS,
    }
