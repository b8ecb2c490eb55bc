"""Reservations: a page, with a week as picture and list and the forms, and the routes of the API.

Times are drawn as the clock on the wall of one time zone shows them; a class that runs over
midnight there is two blocks.  Blocks of one day that overlap lie side by side, in lanes.
"""

import datetime as dt
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse

from miglab_api.base import REASON_MAX
from miglab_api.offers import CourseOffers, ShapeOffer
from miglab_api.reservations import (
    WEEKDAYS,
    ReservationRequest,
    ReservationState,
    ReservationView,
)
from miglab_api.wording import shape_title
from miglab_pool.http.access.dependencies import MayReserve, Runner, Who
from miglab_pool.http.access.principal import Principal, Right, visible_reservation
from miglab_pool.http.errors import REFUSED, DeniedError
from miglab_pool.http.pages.frame import render, render_part
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.pool import Pool
from miglab_pool.reservations import promises
from miglab_pool.schedule import Occurrence, Schedule, is_zone, occurrences, schedule, weekday_mask

QUARTERS = 96  # of an hour, in a day
DAY_BEGINS, DAY_ENDS = 8, 18  # the hours that are always drawn
MOST_LANES = 12
STATE_WORDS = {
    ReservationState.PLANNED: "planned",
    ReservationState.RESERVED: "slots reserved",
    ReservationState.OPEN: "in progress",
    ReservationState.OVER: "over",
    ReservationState.CANCELLED: "cancelled",
    ReservationState.REFUSED: "refused",
}
DAY_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
OUT_OF_DATE = "This no longer exists. Reload the page."


@dataclass(frozen=True, slots=True)
class Block:
    """One time that a reservation takes place.

    Attributes:
        first: the quarter of an hour in which it begins, counted from midnight.
        quarters: how many it touches.
        lane: beside how many it lies.
        times: from when to when, as the clock shows it.
        state: what it is doing at that time, if this is the one in force; else planned or over.
        outlook: how much of it is certain, in words; empty: all of it.
    """

    reservation: ReservationView
    first: int
    quarters: int
    times: str
    state: ReservationState
    outlook: str = ""
    lane: int = 0


@dataclass(frozen=True, slots=True)
class CalendarDay:
    """One day of the week.

    Attributes:
        lanes: how many blocks lie side by side at most.
        hours: how many more could be reserved, by the quarter in which an hour begins.
    """

    date: dt.date
    is_today: bool
    blocks: tuple[Block, ...]
    lanes: int
    hours: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Week:
    """A week, Monday first.

    Attributes:
        from_hour: the first hour that is drawn.
        to_hour: the hour after the last.
    """

    days: tuple[CalendarDay, ...]
    from_hour: int
    to_hour: int
    zone: str

    @property
    def monday(self) -> dt.date:
        """Its first day."""
        return self.days[0].date


def monday_of(day: dt.date) -> dt.date:
    """The Monday of a day's week."""
    return day - dt.timedelta(days=day.weekday())


def schedule_of(one: ReservationView) -> Schedule:
    """When it takes place."""
    days = weekday_mask(one.weekdays)
    return schedule(days, one.date, one.until, one.from_time, one.to_time, one.tz)


def week(
    found: Iterable[ReservationView],
    monday: dt.date,
    zone: str,
    now: float,
    outlooks: Mapping[tuple[int, float], str] = MappingProxyType({}),
    left: Mapping[float, int] = MappingProxyType({}),
) -> Week:
    """The timetable of a week.

    Args:
        found: what is reserved.
        monday: the week's first day.
        zone: the time zone whose clock is drawn; one that this machine knows.
        now: seconds since the epoch.
        outlooks: what is not certain, in words, by number and start.
        left: how many more could be reserved in an hour, by when that begins.
    """
    clock = ZoneInfo(zone)
    dates = [monday + dt.timedelta(days=n) for n in range(7)]
    since, until = span(monday, zone)
    blocks: dict[dt.date, list[Block]] = {day: [] for day in dates}
    for one in found:
        for when in occurrences(schedule_of(one), since, until):
            words = outlooks.get((one.id, when.starts_at), "")
            for day, block in _blocks(one, when, clock, now):
                if day in blocks:
                    blocks[day].append(replace(block, outlook=words))
    today = dt.datetime.fromtimestamp(now, clock).date()
    drawn = [block for of_day in blocks.values() for block in of_day]
    from_hour = min([DAY_BEGINS, *(block.first // 4 for block in drawn)])
    to_hour = max([DAY_ENDS, *(-(-(block.first + block.quarters) // 4) for block in drawn)])
    hours: dict[dt.date, dict[int, int]] = {day: {} for day in dates}
    for moment, count in left.items():
        at = dt.datetime.fromtimestamp(moment, clock)
        if at.date() in hours and from_hour <= at.hour < to_hour:
            hours[at.date()].setdefault(_minutes(at) // 15, count)
    days = (_day(day, blocks[day], day == today, hours[day]) for day in dates)
    return Week(tuple(days), from_hour, to_hour, zone)


def span(monday: dt.date, zone: str) -> tuple[float, float]:
    """When a week begins and ends on a time zone's clock."""
    clock = ZoneInfo(zone)
    return _midnight(monday, clock), _midnight(monday + dt.timedelta(days=7), clock)


def _midnight(day: dt.date, clock: ZoneInfo) -> float:
    return dt.datetime.combine(day, dt.time(), clock).timestamp()


def _blocks(
    one: ReservationView, time: Occurrence, clock: ZoneInfo, now: float
) -> Iterable[tuple[dt.date, Block]]:
    """A time as blocks, one for each day of the drawn clock that it touches."""
    starts, ends = (dt.datetime.fromtimestamp(at, clock) for at in time)
    times = f"{starts:%H:%M}–{ends:%H:%M}"
    state = _state(one, time, now)
    day = starts.date()
    while day <= ends.date():
        first = _minutes(starts) // 15 if day == starts.date() else 0
        last = -(-_minutes(ends) // 15) if day == ends.date() else QUARTERS
        if last > first:
            yield day, Block(one, first, last - first, times, state)
        day += dt.timedelta(days=1)


def _minutes(at: dt.datetime) -> int:
    return at.hour * 60 + at.minute


def _state(one: ReservationView, time: Occurrence, now: float) -> ReservationState:
    if one.starts_at == time.starts_at:
        return one.state
    return ReservationState.OVER if time.ends_at <= now else ReservationState.PLANNED


def _day(
    date: dt.date, blocks: Sequence[Block], is_today: bool, hours: Mapping[int, int]
) -> CalendarDay:
    """The blocks in lanes: each in the first that is free where it begins."""
    ends: list[int] = []
    placed = []
    for block in sorted(blocks, key=lambda block: (block.first, -block.quarters)):
        free = (lane for lane, end in enumerate(ends) if end <= block.first)
        lane = min(next(free, len(ends)), MOST_LANES - 1)
        ends[lane : lane + 1] = [block.first + block.quarters]
        placed.append(replace(block, lane=lane))
    return CalendarDay(date, is_today, tuple(placed), max(1, len(ends)), tuple(hours.items()))


async def page(request: Request, principal: Principal) -> str:
    """The whole page; ``monday`` is any day of the week, ``seats`` a course and a shape."""
    day, zone, asked = (request.query_params.get(key, "") for key in ("monday", "zone", "seats"))
    runner: PoolRunner = request.app.state.runner
    found = await runner.look(lambda pool: pool.reservations.all())
    seen = [visible_reservation(one, principal) for one in found]
    zone = zone if is_zone(zone) else usual_zone(seen)
    now = time.time()
    monday = monday_of(_date(day, now, zone))
    times = span(monday, zone)
    outlooks = await runner.look(lambda pool: promises.of_week(pool.view, *times, zone))
    offers = await _offers(request, principal, runner)
    left: Mapping[float, int] = {}
    if seats := _seats(offers, asked):
        left = await runner.look(lambda pool: promises.hours_left(pool.view, *seats, *times))
    shown_week = week(seen, monday, zone, now, outlooks, left)
    return render(
        "reservations.html",
        request,
        principal,
        "reservations",
        week=shown_week,
        found=seen,
        titles=request.app.state.course_titles,
        may_change={one.id for one in seen if principal.may(Right.RESERVE, one.course)},
        may_reserve=bool(offers),
        seats=" ".join(seats or ()),
        seat_choices=[
            (f"{one.course} {shape.shape}", f"{one.title or one.course}: {shape.shape}")
            for one, shape in _shapes(offers)
        ],
        number=shown_week.monday.isocalendar().week,
        before=shown_week.monday - dt.timedelta(days=7),
        after=shown_week.monday + dt.timedelta(days=7),
        zones=sorted({zone, "UTC", *(one.tz for one in seen)}),
        day_names=DAY_NAMES,
        weekday_keys=WEEKDAYS,
        state_words=STATE_WORDS,
        when=when,
        clock=lambda quarter: f"{quarter // 4 % 24:02}:{quarter % 4 * 15:02}",
        local=lambda at: f"{dt.datetime.fromtimestamp(at, ZoneInfo(zone)):%a %d %b, %H:%M %Z}",
    )


def _seats(offers: Sequence[CourseOffers], asked: str) -> tuple[str, str] | None:
    """The course and the shape whose hours are told: as asked, or the first that there is."""
    found = [(one.course, shape.shape) for one, shape in _shapes(offers)]
    return next((one for one in found if " ".join(one) == asked), next(iter(found), None))


def _shapes(offers: Iterable[CourseOffers]) -> list[tuple[CourseOffers, ShapeOffer]]:
    """The shapes that can be reserved, each with its course."""
    return [(one, shape) for one in offers for shape in one.shapes if shape.slices]


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


async def new_reservation(request: Request, principal: MayReserve, runner: Runner) -> Response:
    """The form that makes a reservation."""
    offers = await _offers(request, principal, runner)
    return HTMLResponse(render_part("details_reservation.html", one=None, **_choices(offers)))


async def reservation_details(
    request: Request, principal: Who, runner: Runner, target: str, zone: str = ""
) -> Response:
    """One reservation, with the forms that change and cancel it; its next time by one clock."""
    found = await runner.look(lambda pool: pool.reservations.all())
    one = next((one for one in found if str(one.id) == target), None)
    if one is None:
        raise DeniedError(404, "no-such-page", OUT_OF_DATE)
    may = principal.may(Right.RESERVE, one.course)
    offers = await _offers(request, principal, runner) if may else []
    html = render_part(
        "details_reservation.html",
        one=visible_reservation(one, principal),
        title=request.app.state.course_titles.get(one.course, one.course),
        state_words=STATE_WORDS,
        when=when,
        next_time=_next_time(one, zone if is_zone(zone) else one.tz),
        **_choices(offers),
    )
    return HTMLResponse(html)


def _next_time(one: ReservationView, zone: str) -> str:
    """When it takes place next, as the clock of a time zone shows it."""
    if one.starts_at is None or one.ends_at is None:
        return ""
    clock = ZoneInfo(zone)
    starts, ends = (dt.datetime.fromtimestamp(at, clock) for at in (one.starts_at, one.ends_at))
    return f"{starts:%a %d %b, %H:%M}–{ends:%H:%M %Z}"


def _courses(request: Request, principal: Principal) -> list[str]:
    courses = request.app.state.sign_in.book.courses
    return [name for name in courses if principal.may(Right.RESERVE, name)]


async def _offers(request: Request, principal: Principal, runner: PoolRunner) -> list[CourseOffers]:
    courses = _courses(request, principal)
    return list((await runner.look(lambda pool: pool.offers(courses, None))).courses)


def _choices(offers: Sequence[CourseOffers]) -> dict[str, object]:
    """What can be reserved for whom."""
    found = [(one.course, shape) for one, shape in _shapes(offers)]
    return {
        "courses": [(one.course, one.title or one.course) for one in offers],
        "shapes": {
            shape.shape: shape_title(shape.shape, shape.compute_slices) for _, shape in found
        },
        "offered_by": {
            shape.shape: json.dumps(
                [course for course, other in found if other.shape == shape.shape]
            )
            for _, shape in found
        },
        "day_names": DAY_NAMES,
        "weekday_keys": WEEKDAYS,
    }


# -- over HTTP -----------------------------------------------------------------------------------


router = APIRouter(prefix="/api/reservations", responses=REFUSED)


@router.get("")
async def reservations(principal: Who, runner: Runner) -> list[ReservationView]:
    """What is reserved, the next in front; who made it and what for, staff alone see."""
    found = await runner.look(lambda pool: pool.reservations.all())
    return [visible_reservation(one, principal) for one in found]


@router.post("", status_code=201)
async def reserve(
    request: ReservationRequest, principal: MayReserve, runner: Runner
) -> ReservationView:
    """Reserve slices for a course; what clashes or cannot be is refused, saying why."""
    principal.require(Right.RESERVE, request.course)
    return await runner.decide(lambda pool: pool.reservations.make(request, principal.by))


@router.post("/preview")
async def preview(
    request: ReservationRequest,
    principal: MayReserve,
    runner: Runner,
    reservation: Annotated[int, Query(ge=0)] = 0,
) -> ReservationView:
    """What would be reserved, or changed, and how much of it is certain; nothing is saved."""
    principal.require(Right.RESERVE, request.course)
    return await runner.look(lambda pool: pool.reservations.preview(request, reservation))


@router.put("/{reservation_id}")
async def change(
    reservation_id: int, request: ReservationRequest, principal: MayReserve, runner: Runner
) -> ReservationView:
    """Reserve otherwise; if that clashes or cannot be, it stays as it was."""
    principal.require(Right.RESERVE, request.course)

    def decision(pool: Pool) -> ReservationView:
        _check_right(pool, principal, reservation_id)
        return pool.reservations.change(reservation_id, request, principal.by)

    return await runner.decide(decision)


@router.delete("/{reservation_id}")
async def unreserve(
    reservation_id: int,
    principal: MayReserve,
    runner: Runner,
    reason: Annotated[str, Query(max_length=REASON_MAX)] = "",
) -> ReservationView:
    """Cancel a reservation; leases drawn from it live on."""

    def decision(pool: Pool) -> ReservationView:
        _check_right(pool, principal, reservation_id)
        return pool.reservations.cancel(reservation_id, principal.by, reason)

    return await runner.decide(decision)


def _check_right(pool: Pool, principal: Principal, number: int) -> None:
    """Refuse whoever may not reserve for the course whose it is; what is over, the pool refuses."""
    found = next((one for one in pool.reservations.all() if one.id == number), None)
    if found is not None:
        principal.require(Right.RESERVE, found.course)
