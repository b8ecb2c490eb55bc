"""Usage, by course, student, shape and week: was it worth it, as a page, JSON or for a spreadsheet.

Plots are places in percent of their picture, so that it fits every screen and its words keep their
size.
"""

import datetime as dt
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, TypeVar
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Depends, Query, Request, Response

from miglab_api.usage import GroupBy, UsageReport, UsageRow, file_name, to_csv
from miglab_api.wording import lab_in_words
from miglab_pool.http.access.dependencies import RUNNER, needs
from miglab_pool.http.access.principal import Principal, Right
from miglab_pool.http.errors import REFUSED, DeniedError
from miglab_pool.http.pages.frame import csv_file, render, short_duration
from miglab_pool.http.runner_protocol import RunnerOf
from miglab_pool.usage.report import (
    DAY,
    BadPeriod,
    Period,
    UsageSums,
    build_report,
    busiest,
    days,
    hours_by_week,
    period_of,
)

T = TypeVar("T")
FIRST_DAY = dt.date(2000, 1, 1)
Day = Annotated[dt.date | None, Query(ge=FIRST_DAY)]


class UsagePool(Protocol):
    """What the routes of usage use of the pool."""

    def sum_usage(
        self, period: Period, group_by: GroupBy, courses: Collection[str] | None = None
    ) -> UsageSums:
        """Read the usage of a period, of these courses or of all."""


Runner = Annotated[RunnerOf[UsagePool], RUNNER]
router = APIRouter(prefix="/api/usage", responses=REFUSED)
MOST_COURSES = 4
MOST_LABELS = 6
TOP = 6.0  # percent of the height above the highest tick
FLOOR = 88.0  # where the columns stand
LEFT = 9.0  # percent of the width for the ticks' words
OTHERS = "others"
GROUP_LABELS = {
    GroupBy.COURSE: "course",
    GroupBy.USER: "student",
    GroupBy.SHAPE: "shape",
    GroupBy.WEEK: "week",
}
SPANS = ((28, "4 weeks"), (91, "3 months"), (364, "a year"))
MOST_ROWS = 200


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """The days and the grouping of a requested report.

    Attributes:
        since: the first day.
        until: the last day.
        group_by: what the rows are about.
        today: the day in the lab's time zone.
    """

    since: dt.date
    until: dt.date
    group_by: GroupBy
    period: Period
    today: dt.date


def usage_query(
    request: Request, since: dt.date | None, until: dt.date | None, group_by: GroupBy
) -> UsageQuery:
    """Return the query for these days in the lab's time zone; without days, the last four weeks.

    Raises:
        BadPeriod: they make no sense.
    """
    zone, now = ZoneInfo(request.app.state.timezone), time.time()
    today = dt.datetime.fromtimestamp(now, zone).date()
    first, last = days(since, until, today)
    return UsageQuery(first, last, group_by, period_of(first, last, zone, now), today)


async def parse_query(
    request: Request, since: Day = None, until: Day = None, by: GroupBy = GroupBy.COURSE
) -> UsageQuery:
    """Parse the query of a request.

    Raises:
        DeniedError: 422, its days make no sense.
    """
    try:
        return usage_query(request, since, until, by)
    except BadPeriod as error:
        raise DeniedError(422, "bad-input", str(error)) from error


async def read_report(
    principal: Principal,
    runner: RunnerOf[UsagePool],
    query: UsageQuery,
    derive: Callable[[UsageSums, Period], T],
) -> tuple[UsageReport, T]:
    """Read the report of the courses that the principal may see, and a value from its usage.

    Both are computed on the reports' thread, since thousands of leases take seconds.
    """
    courses, period = principal.courses(Right.SEE_USAGE), query.period

    def work(pool: UsagePool) -> tuple[UsageReport, T]:
        usage_sums = pool.sum_usage(period, query.group_by, courses)
        built_report = build_report(usage_sums, query.since, query.until, period)
        return built_report, derive(usage_sums, period)

    return await runner.query_ledger(work)


@router.get("", responses={200: {"content": {"text/csv": {}}}}, response_model=UsageReport)
async def usage(
    principal: Annotated[Principal, needs(Right.SEE_USAGE)],
    runner: Runner,
    query: Annotated[UsageQuery, Depends(parse_query)],
    format: Literal["json", "csv"] = "json",
) -> UsageReport | Response:
    """Slice-hours, waits, idle share, reclaims and refusals of the courses that one may see."""
    usage_report, _ = await read_report(principal, runner, query, lambda _sums, _period: None)
    if format == "json":
        return usage_report
    return csv_file(file_name(usage_report), to_csv(usage_report))


@dataclass(frozen=True, slots=True)
class PlotBox:
    """A filled rectangle of a chart.

    Attributes:
        kind: its entry in the legend.
        tooltip: what it stands for, in words.
    """

    kind: str
    x: float
    y: float
    width: float
    height: float
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class Columns:
    """A column chart.

    Attributes:
        ticks: each height with its label.
        labels: each horizontal position with its label.
        legend: each kind with its label.
        description: the chart in a sentence.
    """

    boxes: tuple[PlotBox, ...]
    ticks: tuple[tuple[float, str], ...]
    labels: tuple[tuple[float, str], ...]
    legend: tuple[tuple[str, str], ...]
    description: str


def weeks(usage_sums: UsageSums, period: Period) -> Columns:
    """Chart slice-hours by week, stacked by course: the busiest by name, the others together."""
    by_week, by_course = hours_by_week(usage_sums), defaultdict[str, float](float)
    for (_, course), used in by_week.items():
        by_course[course] += used
    courses = busiest(by_course, MOST_COURSES)
    kinds = {course: f"c{number}" for number, course in enumerate(courses)}
    hours = defaultdict[tuple[str, str], float](float)
    for (week, course), used in by_week.items():
        hours[week, course if course in kinds else OTHERS] += used
    if OTHERS not in kinds and any(course == OTHERS for _, course in hours):
        kinds[OTHERS] = "c-others"
    sums = [sum(hours.get((week, course), 0.0) for course in kinds) for week in period.weeks]
    step, top = scale(max(sums, default=0.0))
    return Columns(
        boxes=_boxes(period.weeks, kinds, hours, top),
        ticks=_ticks(step, top),
        labels=_labels(period.weeks),
        legend=tuple((kind, course) for course, kind in kinds.items()),
        description=_describe_weeks(period.weeks, sums),
    )


def _ticks(step: float, top: float) -> tuple[tuple[float, str], ...]:
    """Ticks with as many decimals as the step has, so that no two labels are equal."""
    places = max(0, -math.floor(math.log10(step)))
    all_hours = [number * step for number in range(round(top / step) + 1)]
    return tuple((_height(hours, top), f"{hours:,.{places}f}") for hours in all_hours)


def _boxes(
    all_weeks: Sequence[str],
    kinds: dict[str, str],
    hours: dict[tuple[str, str], float],
    top: float,
) -> tuple[PlotBox, ...]:
    room = (100 - LEFT) / len(all_weeks)
    boxes = []
    for number, week in enumerate(all_weeks):
        below = 0.0
        for course, kind in kinds.items():
            used = hours.get((week, course), 0.0)
            if used > 0:
                y = _height(below + used, top)
                tooltip = f"{week}, {course}: {hours_in_words(used)} slice-hours"
                x, height = LEFT + (number + 0.15) * room, _height(below, top) - y
                boxes.append(
                    PlotBox(kind, _rounded(x), y, _rounded(0.7 * room), _rounded(height), tooltip)
                )
                below += used
    return tuple(boxes)


def _labels(all_weeks: Sequence[str]) -> tuple[tuple[float, str], ...]:
    """Labels of the weeks, no more than fit on a phone."""
    every = math.ceil(len(all_weeks) / MOST_LABELS)
    room = (100 - LEFT) / len(all_weeks)
    return tuple(
        (_rounded(LEFT + (number + 0.5) * room), week.split("-")[1])
        for number, week in enumerate(all_weeks)
        if number % every == 0
    )


def _describe_weeks(all_weeks: Sequence[str], sums: Sequence[float]) -> str:
    if not any(sums):
        return "Nothing was used in any week."
    largest, week = max(zip(sums, all_weeks, strict=True))
    return (
        f"From {all_weeks[0]} to {all_weeks[-1]}; most in {week}, {hours_in_words(largest)} "
        f"slice-hours; last, in {all_weeks[-1]}, {hours_in_words(sums[-1])}."
    )


def _height(hours: float, top: float) -> float:
    return _rounded(FLOOR - (FLOOR - TOP) * hours / top)


def scale(largest: float) -> tuple[float, float]:
    """The step between ticks (1, 2 or 5 times a power of ten) and the highest tick.

    Guarantees two to five ticks above zero, the highest no lower than ``largest``.
    """
    if largest <= 0:
        return 1.0, 1.0
    power = 10.0 ** math.floor(math.log10(largest / 4))
    step = next(n * power for n in (1, 2, 5, 10) if largest / (n * power) <= 4)
    return step, step * math.ceil(round(largest / step, 9))


@dataclass(frozen=True, slots=True)
class Bar:
    """One row's slice-hours in percent of the longest: worked, idle, not known; and its waits."""

    worked: float
    idle: float
    unknown: float
    wait_from: float | None
    wait_to: float | None


def bars(rows: Sequence[UsageRow]) -> list[Bar]:
    """Return the bar of each row, relative to the largest."""
    largest = max((row.slice_hours for row in rows), default=0.0) or 1.0
    longest = max((row.wait_p95_s or 0.0 for row in rows), default=0.0) or 1.0
    return [_bar(row, 100 / largest, 100 / longest) for row in rows]


def _bar(row: UsageRow, per_hour: float, per_s: float) -> Bar:
    length = row.slice_hours * per_hour
    idle = length * row.known_share * (row.idle_share or 0.0)
    unknown = length * (1 - row.known_share)
    return Bar(
        worked=_rounded(max(0.0, length - idle - unknown)),
        idle=_rounded(idle),
        unknown=_rounded(unknown),
        wait_from=None if row.wait_p50_s is None else _rounded(row.wait_p50_s * per_s),
        wait_to=None if row.wait_p95_s is None else _rounded(row.wait_p95_s * per_s),
    )


def hours_in_words(hours: float) -> str:
    """Format hours with significant places only; a little is never shown as 0."""
    if 0 < hours < 0.05:
        return "<0.1"
    return f"{hours:,.0f}" if hours >= 100 or hours == int(hours) else f"{hours:.1f}"


def _rounded(value: float) -> float:
    return round(value, 2)


async def page(request: Request, principal: Principal) -> str:
    """Render the page of usage."""
    runner: RunnerOf[UsagePool] = request.app.state.runner
    query, problem = _query_or_default(request)
    usage_report, columns = await read_report(principal, runner, query, weeks)
    is_all = principal.courses(Right.SEE_USAGE) is None
    return render(
        "usage.html",
        request,
        principal,
        "usage",
        report=usage_report,
        problem=problem,
        rows=list(zip(usage_report.rows, bars(usage_report.rows), strict=True))[:MOST_ROWS],
        columns=columns,
        group_labels=GROUP_LABELS,
        spans=_spans(query),
        sheet=urlencode(_query_parameters(query) | {"format": "csv"}),
        lab=lab_in_words((await runner.snapshot()).people),
        of_all=await _share_of_capacity(runner, usage_report, query.period) if is_all else None,
        courses=None if is_all else sorted(principal.courses(Right.SEE_USAGE) or ()),
        hours_in_words=hours_in_words,
        short=short_duration,
        percent=percent,
    )


def _query_or_default(request: Request) -> tuple[UsageQuery, str]:
    """Parse the page's address; if it makes no sense, return the default and the problem."""
    parameters = request.query_params
    group_by = (
        GroupBy(parameters["by"]) if parameters.get("by") in tuple(GroupBy) else GroupBy.COURSE
    )
    try:
        return usage_query(
            request,
            parse_day(parameters.get("since")),
            parse_day(parameters.get("until")),
            group_by,
        ), ""
    except BadPeriod as error:
        return usage_query(request, None, None, group_by), str(error)


def parse_day(text: str | None) -> dt.date | None:
    """Parse a day as a form sends it; None if it is left open.

    Raises:
        BadPeriod: it is no date, or before there was a lab.
    """
    if not text:
        return None
    try:
        parsed = dt.date.fromisoformat(text)
    except ValueError:
        raise BadPeriod("A day is written like 2026-11-21: nothing else can be read.") from None
    if parsed < FIRST_DAY:
        raise BadPeriod(f"There was no lab before {FIRST_DAY}: choose a later day.")
    return parsed


def _query_parameters(query: UsageQuery) -> dict[str, str]:
    return {"since": f"{query.since}", "until": f"{query.until}", "by": query.group_by.value}


def _spans(query: UsageQuery) -> list[tuple[str, str, bool]]:
    """Links to other periods up to the same day: label, query, and whether it is shown now.

    Where that day lies in the future, the length is counted back from today.
    """
    spans = []
    for length, label in SPANS:
        since = max(FIRST_DAY, min(query.until, query.today) - (length - 1) * DAY)
        address = urlencode(_query_parameters(query) | {"since": f"{since}"})
        spans.append((label, address, since == query.since))
    return spans


async def _share_of_capacity(
    runner: RunnerOf[UsagePool], usage_report: UsageReport, period: Period
) -> float | None:
    """The share of the present GPUs' capacity that was used in the period."""
    snapshot = await runner.snapshot()
    hours = (period.until - period.since) / 3600
    capacity_hours = hours * sum(gpu.memory_slices for gpu in snapshot.gpus)
    return usage_report.total.slice_hours / capacity_hours if capacity_hours > 0 else None


def percent(share: float | None) -> str:
    """Format a share in percent; a little is never shown as 0."""
    if share is None:
        return "not known"
    return "<1 %" if 0 < share < 0.005 else f"{share:.0%}".replace("%", " %")
