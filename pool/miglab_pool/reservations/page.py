"""The page of reservations, with its calendar and forms, and the routes of the API.

The calendar shows the local times of one time zone; a class that runs over midnight there is two
blocks.  Blocks of one day that overlap lie side by side, in lanes.
"""

import datetime as dt
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Protocol
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse

from miglab_api.base import REASON_MAX
from miglab_api.offers import CourseOffers, Offers, ShapeOffer
from miglab_api.reservations import (
    WEEKDAYS,
    ReservationRequest,
    ReservationState,
    ReservationView,
)
from miglab_api.wording import shape_title
from miglab_pool.http.access.dependencies import RUNNER, MayReserve, Viewer
from miglab_pool.http.access.principal import Principal, Right, visible_reservation
from miglab_pool.http.errors import REFUSED, DeniedError
from miglab_pool.http.pages.frame import render, render_part
from miglab_pool.http.runner_protocol import RunnerOf
from miglab_pool.reservations import certainty
from miglab_pool.reservations.transactions import Reservations
from miglab_pool.schedule import Occurrence, Schedule, is_zone, occurrences, schedule, weekday_mask
from miglab_pool.state.view import PoolView

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


class ReservationsPool(Protocol):
    """What the routes of reservations use of the pool."""

    reservations: Reservations

    @property
    def view(self) -> PoolView:
        """The pool at this moment."""

    def offers(self, courses: Sequence[str], user: str | None = None) -> Offers:
        """Return the shapes that these courses offer."""


Runner = Annotated[RunnerOf[ReservationsPool], RUNNER]


@dataclass(frozen=True, slots=True)
class Block:
    """One occurrence of a reservation, or its part on one day of the calendar.

    Attributes:
        first: the quarter of an hour in which it begins, counted from midnight.
        quarters: how many quarters of an hour it touches.
        lane: the number of its lane, from 0.
        times: its local times.
        state: the reservation's state if this occurrence is in force; else planned or over.
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
    """One day of the calendar.

    Attributes:
        lanes: how many blocks lie side by side at most.
        hours: how many more leases could be reserved, by the quarter in which an hour begins.
    """

    date: dt.date
    is_today: bool
    blocks: tuple[Block, ...]
    lanes: int
    hours: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Week:
    """The calendar of a week, Monday first.

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
        """The first day."""
        return self.days[0].date


def monday_of(day: dt.date) -> dt.date:
    """Return the Monday of a day's week."""
    return day - dt.timedelta(days=day.weekday())


def schedule_of(reservation: ReservationView) -> Schedule:
    """Return when a reservation takes place."""
    days = weekday_mask(reservation.weekdays)
    return schedule(
        days,
        reservation.date,
        reservation.until,
        reservation.from_time,
        reservation.to_time,
        reservation.tz,
    )


def draw_week(
    reservations: Iterable[ReservationView],
    monday: dt.date,
    zone: str,
    now: float,
    outlooks: Mapping[tuple[int, float], str] = MappingProxyType({}),
    reservable: Mapping[float, int] = MappingProxyType({}),
) -> Week:
    """Draw the calendar of a week.

    Args:
        reservations: the reservations to draw.
        monday: the week's first day.
        zone: the time zone of the local times; one that this machine knows.
        now: seconds since the epoch.
        outlooks: messages on what is not certain, by reservation and start.
        reservable: how many more leases could be reserved, by the start of an hour.
    """
    clock = ZoneInfo(zone)
    dates = [monday + dt.timedelta(days=n) for n in range(7)]
    since, until = week_bounds(monday, zone)
    blocks: dict[dt.date, list[Block]] = {day: [] for day in dates}
    for reservation in reservations:
        for occurrence in occurrences(schedule_of(reservation), since, until):
            outlook = outlooks.get((reservation.id, occurrence.starts_at), "")
            for day, block in _day_blocks(reservation, occurrence, clock, now):
                if day in blocks:
                    blocks[day].append(replace(block, outlook=outlook))
    today = dt.datetime.fromtimestamp(now, clock).date()
    drawn_blocks = [block for of_day in blocks.values() for block in of_day]
    from_hour = min([DAY_BEGINS, *(block.first // 4 for block in drawn_blocks)])
    to_hour = max([DAY_ENDS, *(-(-(block.first + block.quarters) // 4) for block in drawn_blocks)])
    hours: dict[dt.date, dict[int, int]] = {day: {} for day in dates}
    for moment, count in reservable.items():
        at = dt.datetime.fromtimestamp(moment, clock)
        if at.date() in hours and from_hour <= at.hour < to_hour:
            hours[at.date()].setdefault(_minutes_of_day(at) // 15, count)
    days = (_draw_day(day, blocks[day], day == today, hours[day]) for day in dates)
    return Week(tuple(days), from_hour, to_hour, zone)


def week_bounds(monday: dt.date, zone: str) -> tuple[float, float]:
    """Return when a week begins and ends in a time zone."""
    clock = ZoneInfo(zone)
    return _midnight(monday, clock), _midnight(monday + dt.timedelta(days=7), clock)


def _midnight(day: dt.date, clock: ZoneInfo) -> float:
    return dt.datetime.combine(day, dt.time(), clock).timestamp()


def _day_blocks(
    reservation: ReservationView, time: Occurrence, clock: ZoneInfo, now: float
) -> Iterable[tuple[dt.date, Block]]:
    """Yield the blocks of an occurrence, one for each local day that it touches."""
    starts, ends = (dt.datetime.fromtimestamp(at, clock) for at in time)
    times = f"{starts:%H:%M}–{ends:%H:%M}"
    state = _state(reservation, time, now)
    day = starts.date()
    while day <= ends.date():
        first = _minutes_of_day(starts) // 15 if day == starts.date() else 0
        last = -(-_minutes_of_day(ends) // 15) if day == ends.date() else QUARTERS
        if last > first:
            yield day, Block(reservation, first, last - first, times, state)
        day += dt.timedelta(days=1)


def _minutes_of_day(at: dt.datetime) -> int:
    return at.hour * 60 + at.minute


def _state(reservation: ReservationView, time: Occurrence, now: float) -> ReservationState:
    if reservation.starts_at == time.starts_at:
        return reservation.state
    return ReservationState.OVER if time.ends_at <= now else ReservationState.PLANNED


def _draw_day(
    date: dt.date, blocks: Sequence[Block], is_today: bool, hours: Mapping[int, int]
) -> CalendarDay:
    """Draw a day, each block in the first lane that is free where the block begins."""
    ends: list[int] = []
    blocks_in_lanes = []
    for block in sorted(blocks, key=lambda block: (block.first, -block.quarters)):
        free = (lane for lane, end in enumerate(ends) if end <= block.first)
        lane = min(next(free, len(ends)), MOST_LANES - 1)
        ends[lane : lane + 1] = [block.first + block.quarters]
        blocks_in_lanes.append(replace(block, lane=lane))
    return CalendarDay(
        date, is_today, tuple(blocks_in_lanes), max(1, len(ends)), tuple(hours.items())
    )


async def page(request: Request, principal: Principal) -> str:
    """Return the page; ``monday`` is any day of the week, ``seats`` a course and a shape."""
    day, zone, wanted_shape = (
        request.query_params.get(key, "") for key in ("monday", "zone", "seats")
    )
    runner: RunnerOf[ReservationsPool] = request.app.state.runner
    zones = await runner.query_view(
        lambda pool: [row.tz for row in pool.view.reservations.values()]
    )
    zone = zone if is_zone(zone) else usual_zone(zones)
    now = time.time()
    monday = monday_of(_date(day, now, zone))
    times = week_bounds(monday, zone)
    reservations = await runner.query_view(lambda pool: pool.reservations.between(*times))
    visible = [visible_reservation(reservation, principal) for reservation in reservations]
    outlooks = await runner.query_view(
        lambda pool: certainty.week_outlooks(pool.view, *times, zone)
    )
    offers = await _offers(request, principal, runner)
    reservable: Mapping[float, int] = {}
    if seats := _selected_shape(offers, wanted_shape):
        reservable = await runner.query_view(
            lambda pool: certainty.reservable_by_hour(pool.view, *seats, *times)
        )
    shown_week = draw_week(visible, monday, zone, now, outlooks, reservable)
    return render(
        "reservations.html",
        request,
        principal,
        "reservations",
        week=shown_week,
        found=visible,
        elsewhere=len(zones) - len(visible),
        titles=request.app.state.course_titles,
        may_change={
            reservation.id
            for reservation in visible
            if principal.may(Right.RESERVE, reservation.course)
        },
        may_reserve=bool(offers),
        seats=" ".join(seats or ()),
        seat_choices=[
            (f"{course.course} {shape.shape}", f"{course.title or course.course}: {shape.shape}")
            for course, shape in _reservable_shapes(offers)
        ],
        number=shown_week.monday.isocalendar().week,
        before=shown_week.monday - dt.timedelta(days=7),
        after=shown_week.monday + dt.timedelta(days=7),
        zones=sorted({zone, "UTC", *zones}),
        day_names=DAY_NAMES,
        weekday_keys=WEEKDAYS,
        state_words=STATE_WORDS,
        when=describe_times,
        clock=lambda quarter: f"{quarter // 4 % 24:02}:{quarter % 4 * 15:02}",
        local=lambda at: f"{dt.datetime.fromtimestamp(at, ZoneInfo(zone)):%a %d %b, %H:%M %Z}",
    )


def _selected_shape(offers: Sequence[CourseOffers], wanted_shape: str) -> tuple[str, str] | None:
    """Return the course and the shape whose free hours are drawn: as asked, or the first."""
    choices = [(course.course, shape.shape) for course, shape in _reservable_shapes(offers)]
    return next(
        (choice for choice in choices if " ".join(choice) == wanted_shape),
        next(iter(choices), None),
    )


def _reservable_shapes(offers: Iterable[CourseOffers]) -> list[tuple[CourseOffers, ShapeOffer]]:
    """Return the shapes that can be reserved, each with its course."""
    return [(course, shape) for course in offers for shape in course.shapes if shape.slices]


def usual_zone(zones: Sequence[str]) -> str:
    """Return the time zone that most reservations are made in."""
    return Counter(zones).most_common(1)[0][0] if zones else "UTC"


def describe_times(reservation: ReservationView) -> str:
    """Return when a reservation takes place, as its request said."""
    days = (
        ", ".join(day.capitalize() for day in reservation.weekdays)
        or f"{reservation.date:%d %B %Y}"
    )
    until = f", until {reservation.until:%d %B %Y}" if reservation.until else ""
    return f"{days} {reservation.from_time}–{reservation.to_time} {reservation.tz}{until}"


def _date(text: str, now: float, zone: str) -> dt.date:
    try:
        day = dt.date.fromisoformat(text)
    except ValueError:
        day = dt.datetime.fromtimestamp(now, ZoneInfo(zone)).date()
    is_drawn = 1971 < day.year < 9000
    return day if is_drawn else dt.datetime.fromtimestamp(now, ZoneInfo(zone)).date()


async def new_reservation(request: Request, principal: MayReserve, runner: Runner) -> Response:
    """Return the form that makes a reservation."""
    offers = await _offers(request, principal, runner)
    return HTMLResponse(render_part("details_reservation.html", one=None, **_form_choices(offers)))


async def reservation_details(
    request: Request, principal: Viewer, runner: Runner, target: str, zone: str = ""
) -> Response:
    """Return one reservation, with its next time and the forms that change and cancel it."""
    number = int(target) if target.isdecimal() else 0
    reservation = await runner.query_view(lambda pool: pool.reservations.find(number))
    if reservation is None:
        raise DeniedError(404, "no-such-page", OUT_OF_DATE)
    may = principal.may(Right.RESERVE, reservation.course)
    offers = await _offers(request, principal, runner) if may else []
    html = render_part(
        "details_reservation.html",
        one=visible_reservation(reservation, principal),
        title=request.app.state.course_titles.get(reservation.course, reservation.course),
        state_words=STATE_WORDS,
        when=describe_times,
        next_time=_next_time(reservation, zone if is_zone(zone) else reservation.tz),
        **_form_choices(offers),
    )
    return HTMLResponse(html)


def _next_time(reservation: ReservationView, zone: str) -> str:
    """Return when a reservation takes place next, in the local time of a time zone."""
    if reservation.starts_at is None or reservation.ends_at is None:
        return ""
    clock = ZoneInfo(zone)
    starts, ends = (
        dt.datetime.fromtimestamp(at, clock) for at in (reservation.starts_at, reservation.ends_at)
    )
    return f"{starts:%a %d %b, %H:%M}–{ends:%H:%M %Z}"


def _courses(request: Request, principal: Principal) -> list[str]:
    courses = request.app.state.sign_in.book.courses
    return [name for name in courses if principal.may(Right.RESERVE, name)]


async def _offers(
    request: Request, principal: Principal, runner: RunnerOf[ReservationsPool]
) -> list[CourseOffers]:
    courses = _courses(request, principal)
    return list((await runner.query_view(lambda pool: pool.offers(courses, None))).courses)


def _form_choices(offers: Sequence[CourseOffers]) -> dict[str, object]:
    """Return the choices of the form: courses, and the shapes that each offers."""
    offered = [(course.course, shape) for course, shape in _reservable_shapes(offers)]
    return {
        "courses": [(course.course, course.title or course.course) for course in offers],
        "shapes": {
            shape.shape: shape_title(shape.shape, shape.compute_slices) for _, shape in offered
        },
        "offered_by": {
            shape.shape: json.dumps(
                [course for course, other in offered if other.shape == shape.shape]
            )
            for _, shape in offered
        },
        "day_names": DAY_NAMES,
        "weekday_keys": WEEKDAYS,
    }


# -- over HTTP -----------------------------------------------------------------------------------


router = APIRouter(prefix="/api/reservations", responses=REFUSED)


@router.get("")
async def reservations(principal: Viewer, runner: Runner) -> list[ReservationView]:
    """What is reserved, the next in front; who made it and what for, staff alone see."""
    reservations = await runner.query_view(lambda pool: pool.reservations.all())
    return [visible_reservation(reservation, principal) for reservation in reservations]


@router.post("", status_code=201)
async def reserve(
    request: ReservationRequest, principal: MayReserve, runner: Runner
) -> ReservationView:
    """Reserve slices for a course; what clashes or cannot be is refused, saying why."""
    principal.require(Right.RESERVE, request.course)
    return await runner.decide(lambda pool: pool.reservations.make(request, principal.actor))


@router.post("/preview")
async def preview(
    request: ReservationRequest,
    principal: MayReserve,
    runner: Runner,
    reservation: Annotated[int, Query(ge=0)] = 0,
) -> ReservationView:
    """What would be reserved, or changed, and how much of it is certain; nothing is saved."""
    principal.require(Right.RESERVE, request.course)
    return await runner.query_view(lambda pool: pool.reservations.preview(request, reservation))


@router.put("/{reservation_id}")
async def change(
    reservation_id: int, request: ReservationRequest, principal: MayReserve, runner: Runner
) -> ReservationView:
    """Reserve otherwise; if that clashes or cannot be, it stays as it was."""
    principal.require(Right.RESERVE, request.course)

    def decision(pool: ReservationsPool) -> ReservationView:
        _check_right(pool, principal, reservation_id)
        return pool.reservations.change(reservation_id, request, principal.actor)

    return await runner.decide(decision)


@router.delete("/{reservation_id}")
async def unreserve(
    reservation_id: int,
    principal: MayReserve,
    runner: Runner,
    reason: Annotated[str, Query(max_length=REASON_MAX)] = "",
) -> ReservationView:
    """Cancel a reservation; leases drawn from it live on."""

    def decision(pool: ReservationsPool) -> ReservationView:
        _check_right(pool, principal, reservation_id)
        return pool.reservations.cancel(reservation_id, principal.actor, reason)

    return await runner.decide(decision)


def _check_right(pool: ReservationsPool, principal: Principal, number: int) -> None:
    """Refuse who may not reserve for the course; the pool refuses a reservation that is over."""
    reservation = next(
        (candidate for candidate in pool.reservations.all() if candidate.id == number), None
    )
    if reservation is not None:
        principal.require(Right.RESERVE, reservation.course)
