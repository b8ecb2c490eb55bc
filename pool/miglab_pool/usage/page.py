"""Usage, by course, student, shape and week: was it worth it, as a page, JSON or for a spreadsheet.

Plots are places in percent of their picture, so that it fits every screen and its words keep their
size.
"""

import datetime as dt
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Depends, Query, Request, Response

from miglab_api.usage import GroupBy, UsageReport, UsageRow, as_csv, file_name
from miglab_api.wording import lab_in_words
from miglab_pool.http.access.dependencies import Runner, needs
from miglab_pool.http.access.principal import Principal, Right
from miglab_pool.http.errors import REFUSED, DeniedError
from miglab_pool.http.pages.frame import csv_file, render, short_duration
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.pool import Pool
from miglab_pool.usage.report import (
    DAY,
    BadPeriod,
    Facts,
    Period,
    busiest,
    days,
    make,
    period_of,
    report,
    tally,
    week_of,
)

T = TypeVar("T")
FIRST_DAY = dt.date(2000, 1, 1)
Day = Annotated[dt.date | None, Query(ge=FIRST_DAY)]

router = APIRouter(prefix="/api/usage", responses=REFUSED)
MOST_COURSES = 4
MOST_LABELS = 6
TOP = 6.0  # percent of the height above the highest tick
FLOOR = 88.0  # where the columns stand
LEFT = 9.0  # percent of the width for the ticks' words
OTHERS = "others"
BY_WORDS = {
    GroupBy.COURSE: "course",
    GroupBy.USER: "student",
    GroupBy.SHAPE: "shape",
    GroupBy.WEEK: "week",
}
SPANS = ((28, "4 weeks"), (91, "3 months"), (364, "a year"))
MOST_ROWS = 200


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """What is asked for.

    Attributes:
        since: the first day.
        until: the last day.
        by: what the rows are about.
    """

    since: dt.date
    until: dt.date
    by: GroupBy
    period: Period


def usage_query(
    request: Request, since: dt.date | None, until: dt.date | None, by: GroupBy
) -> UsageQuery:
    """These days, in the lab's time zone; without any the last four weeks.

    Raises:
        BadPeriod: they make no sense.
    """
    zone, now = ZoneInfo(request.app.state.timezone), time.time()
    first, last = days(since, until, dt.datetime.fromtimestamp(now, zone).date())
    return UsageQuery(first, last, by, period_of(first, last, zone, now))


async def asked(
    request: Request, since: Day = None, until: Day = None, by: GroupBy = GroupBy.COURSE
) -> UsageQuery:
    """The days that a request names.

    Raises:
        DeniedError: 422, they make no sense.
    """
    try:
        return usage_query(request, since, until, by)
    except BadPeriod as error:
        raise DeniedError(422, "bad-input", str(error)) from error


async def told(
    principal: Principal, runner: PoolRunner, wanted: UsageQuery, more: Callable[[Facts, Period], T]
) -> tuple[UsageReport, T]:
    """The report of the courses whose usage the principal may see, and something else of its facts.

    All of it on the reports' thread: thousands of leases take seconds.
    """
    courses, period = principal.courses(Right.SEE_USAGE), wanted.period

    def work(pool: Pool) -> tuple[UsageReport, T]:
        facts = pool.usage_facts(period.since, period.until, courses)
        return make(facts, wanted.since, wanted.until, period, wanted.by), more(facts, period)

    return await runner.read(work)


@router.get("", responses={200: {"content": {"text/csv": {}}}}, response_model=UsageReport)
async def usage(
    principal: Annotated[Principal, needs(Right.SEE_USAGE)],
    runner: Runner,
    wanted: Annotated[UsageQuery, Depends(asked)],
    format: Literal["json", "csv"] = "json",
) -> UsageReport | Response:
    """Slice-hours, waits, idle share, reclaims and refusals of the courses that one may see."""
    found, _ = await told(principal, runner, wanted, lambda _facts, _period: None)
    if format == "json":
        return found
    return csv_file(file_name(found), as_csv(found))


@dataclass(frozen=True, slots=True)
class PlotBox:
    """A filled place.

    Attributes:
        kind: which of the legend's it is.
        words: what it says when asked.
    """

    kind: str
    x: float
    y: float
    width: float
    height: float
    words: str = ""


@dataclass(frozen=True, slots=True)
class Columns:
    """A picture of columns.

    Attributes:
        ticks: how high, and what stands there.
        labels: how far right, and what stands below.
        legend: each kind, and what it stands for.
        words: the picture in a sentence.
    """

    boxes: tuple[PlotBox, ...]
    ticks: tuple[tuple[float, str], ...]
    labels: tuple[tuple[float, str], ...]
    legend: tuple[tuple[str, str], ...]
    words: str


def weeks(facts: Facts, period: Period) -> Columns:
    """Slice-hours by week, stacked by course: the busiest by name, the rest as one."""
    courses = busiest(report(facts, period, GroupBy.COURSE), MOST_COURSES)
    named = {course: f"c{number}" for number, course in enumerate(courses)}
    found = tally(
        facts,
        period,
        lambda who, at: (
            week_of(at, period.zone),
            who.course if who.course in named else OTHERS,
        ),
    )
    hours = {key: row.slice_hours for key, row in found.items() if row.slice_hours > 0}
    if any(course == OTHERS and course not in named for _, course in hours):
        named[OTHERS] = "c-others"
    sums = [sum(hours.get((week, course), 0.0) for course in named) for week in period.weeks]
    step, top = scale(max(sums, default=0.0))
    return Columns(
        boxes=_boxes(period.weeks, named, hours, top),
        ticks=_ticks(step, top),
        labels=_labels(period.weeks),
        legend=tuple((kind, course) for course, kind in named.items()),
        words=_words(period.weeks, sums),
    )


def _ticks(step: float, top: float) -> tuple[tuple[float, str], ...]:
    """With as many places as the step has, so that no two ticks read the same."""
    places = max(0, -math.floor(math.log10(step)))
    all_hours = [number * step for number in range(round(top / step) + 1)]
    return tuple((_height(hours, top), f"{hours:,.{places}f}") for hours in all_hours)


def _boxes(
    all_weeks: Sequence[str],
    named: dict[str, str],
    hours: dict[tuple[str, str], float],
    top: float,
) -> tuple[PlotBox, ...]:
    room = (100 - LEFT) / len(all_weeks)
    found = []
    for number, week in enumerate(all_weeks):
        below = 0.0
        for course, kind in named.items():
            used = hours.get((week, course), 0.0)
            if used > 0:
                y = _height(below + used, top)
                words = f"{week}, {course}: {say(used)} slice-hours"
                x, height = LEFT + (number + 0.15) * room, _height(below, top) - y
                found.append(
                    PlotBox(kind, _rounded(x), y, _rounded(0.7 * room), _rounded(height), words)
                )
                below += used
    return tuple(found)


def _labels(all_weeks: Sequence[str]) -> tuple[tuple[float, str], ...]:
    """No more than there is room for on a phone."""
    every = math.ceil(len(all_weeks) / MOST_LABELS)
    room = (100 - LEFT) / len(all_weeks)
    return tuple(
        (_rounded(LEFT + (number + 0.5) * room), week.split("-")[1])
        for number, week in enumerate(all_weeks)
        if number % every == 0
    )


def _words(all_weeks: Sequence[str], sums: Sequence[float]) -> str:
    if not any(sums):
        return "Nothing was used in any week."
    most, week = max(zip(sums, all_weeks, strict=True))
    return (
        f"From {all_weeks[0]} to {all_weeks[-1]}; most in {week}, {say(most)} slice-hours; "
        f"last, in {all_weeks[-1]}, {say(sums[-1])}."
    )


def _height(hours: float, top: float) -> float:
    return _rounded(FLOOR - (FLOOR - TOP) * hours / top)


def scale(most: float) -> tuple[float, float]:
    """The step between ticks (1, 2 or 5 times a power of ten) and the highest tick.

    Guarantees two to five ticks above zero, the highest no lower than ``most``.
    """
    if most <= 0:
        return 1.0, 1.0
    power = 10.0 ** math.floor(math.log10(most / 4))
    step = next(n * power for n in (1, 2, 5, 10) if most / (n * power) <= 4)
    return step, step * math.ceil(round(most / step, 9))


@dataclass(frozen=True, slots=True)
class Bar:
    """One row's slice-hours in percent of the longest: worked, idle, not known; and its waits."""

    worked: float
    idle: float
    unknown: float
    wait_from: float | None
    wait_to: float | None


def bars(rows: Sequence[UsageRow]) -> list[Bar]:
    """Each row as it is drawn beside its figures."""
    most = max((row.slice_hours for row in rows), default=0.0) or 1.0
    longest = max((row.wait_p95_s or 0.0 for row in rows), default=0.0) or 1.0
    return [_bar(row, 100 / most, 100 / longest) for row in rows]


def _bar(row: UsageRow, per_hour: float, per_s: float) -> Bar:
    whole = row.slice_hours * per_hour
    idle = whole * row.known_share * (row.idle_share or 0.0)
    unknown = whole * (1 - row.known_share)
    return Bar(
        worked=_rounded(max(0.0, whole - idle - unknown)),
        idle=_rounded(idle),
        unknown=_rounded(unknown),
        wait_from=None if row.wait_p50_s is None else _rounded(row.wait_p50_s * per_s),
        wait_to=None if row.wait_p95_s is None else _rounded(row.wait_p95_s * per_s),
    )


def say(hours: float) -> str:
    """Hours with no more places than mean something; little is not nothing."""
    if 0 < hours < 0.05:
        return "<0.1"
    return f"{hours:,.0f}" if hours >= 100 or hours == int(hours) else f"{hours:.1f}"


def _rounded(value: float) -> float:
    return round(value, 2)


async def page(request: Request, principal: Principal) -> str:
    """The whole page."""
    runner: PoolRunner = request.app.state.runner
    wanted, problem = _wanted(request)
    found, columns = await told(principal, runner, wanted, weeks)
    is_all = principal.courses(Right.SEE_USAGE) is None
    return render(
        "usage.html",
        request,
        principal,
        "usage",
        found=found,
        problem=problem,
        rows=list(zip(found.rows, bars(found.rows), strict=True))[:MOST_ROWS],
        columns=columns,
        by_words=BY_WORDS,
        spans=_spans(wanted),
        sheet=urlencode(_query(wanted) | {"format": "csv"}),
        lab=lab_in_words((await runner.snapshot()).people),
        of_all=await _share(runner, found, wanted.period) if is_all else None,
        courses=None if is_all else sorted(principal.courses(Right.SEE_USAGE) or ()),
        say=say,
        short=short_duration,
        percent=percent,
    )


def _wanted(request: Request) -> tuple[UsageQuery, str]:
    """What the address asks for; what cannot be read is said, and the last four weeks are shown."""
    query = request.query_params
    by = GroupBy(query["by"]) if query.get("by") in tuple(GroupBy) else GroupBy.COURSE
    try:
        return usage_query(request, day(query.get("since")), day(query.get("until")), by), ""
    except BadPeriod as error:
        return usage_query(request, None, None, by), str(error)


def day(text: str | None) -> dt.date | None:
    """A day as a form sends it; None if it is left open.

    Raises:
        BadPeriod: it is no day of a lab's.
    """
    if not text:
        return None
    try:
        found = dt.date.fromisoformat(text)
    except ValueError:
        raise BadPeriod("A day is written like 2026-11-21: nothing else can be read.") from None
    if found < FIRST_DAY:
        raise BadPeriod(f"There was no lab before {FIRST_DAY}: choose a later day.")
    return found


def _query(wanted: UsageQuery) -> dict[str, str]:
    return {"since": f"{wanted.since}", "until": f"{wanted.until}", "by": wanted.by.value}


def _spans(wanted: UsageQuery) -> list[tuple[str, str, bool]]:
    """Shorter and longer periods up to the same day: words, address, and whether it is shown."""
    found = []
    for length, words in SPANS:
        since = max(FIRST_DAY, wanted.until - (length - 1) * DAY)
        query = urlencode(_query(wanted) | {"since": f"{since}"})
        found.append((words, query, since == wanted.since))
    return found


async def _share(runner: PoolRunner, found: UsageReport, period: Period) -> float | None:
    """What was used of all that the GPUs of today could have given."""
    snapshot = await runner.snapshot()
    hours = (period.until - period.since) / 3600
    most = hours * sum(gpu.memory_slices for gpu in snapshot.gpus)
    return found.total.slice_hours / most if most > 0 else None


def percent(share: float | None) -> str:
    """A share as people say it; small ones are not nothing."""
    if share is None:
        return "not known"
    return "<1 %" if 0 < share < 0.005 else f"{share:.0%}".replace("%", " %")
