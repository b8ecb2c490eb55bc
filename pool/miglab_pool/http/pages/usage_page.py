"""The Usage page: was it worth it, in one look, by course, student, shape and week."""

import datetime as dt
import time
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from fastapi import Request, Response

from miglab_api.usage import GroupBy, UsageReport
from miglab_api.wording import lab_in_words
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.access.rights import Right
from miglab_pool.http.pages.drawing import usage_plots
from miglab_pool.http.pages.elements.wording import short
from miglab_pool.http.pages.frame import render, shown
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.http.routes.usage_routes import FIRST_DAY, UsageQuery, told
from miglab_pool.views.usage_period import DAY, BadPeriod, days, period_of
from miglab_pool.views.usage_report import Period

BY_WORDS = {
    GroupBy.COURSE: "course",
    GroupBy.USER: "student",
    GroupBy.SHAPE: "shape",
    GroupBy.WEEK: "week",
}
SPANS = ((28, "4 weeks"), (91, "3 months"), (364, "a year"))
MOST_ROWS = 200


async def page(request: Request) -> Response:
    """The whole page."""
    return await shown(request, lambda principal: _draw(request, principal))


async def _draw(request: Request, principal: Principal) -> str:
    runner: PoolRunner = request.app.state.runner
    wanted, problem = _wanted(request)
    found, columns = await told(principal, runner, wanted, usage_plots.weeks)
    is_all = principal.courses(Right.SEE_USAGE) is None
    return render(
        "usage.html",
        request,
        principal,
        "usage",
        found=found,
        problem=problem,
        rows=list(zip(found.rows, usage_plots.bars(found.rows), strict=True))[:MOST_ROWS],
        columns=columns,
        by_words=BY_WORDS,
        spans=_spans(wanted),
        sheet=urlencode(_query(wanted) | {"format": "csv"}),
        lab=lab_in_words((await runner.snapshot()).people),
        of_all=await _share(runner, found, wanted.period) if is_all else None,
        courses=None if is_all else sorted(principal.courses(Right.SEE_USAGE) or ()),
        say=usage_plots.say,
        short=short,
        percent=percent,
    )


def _wanted(request: Request) -> tuple[UsageQuery, str]:
    """What the address asks for; what cannot be read is said, and the last four weeks are shown."""
    zone = ZoneInfo(request.app.state.timezone)
    now = time.time()
    today = dt.datetime.fromtimestamp(now, zone).date()
    query, problem = request.query_params, ""
    by = GroupBy(query["by"]) if query.get("by") in tuple(GroupBy) else GroupBy.COURSE
    try:
        first, last = days(day(query.get("since")), day(query.get("until")), today)
    except BadPeriod as error:
        problem = str(error)
        first, last = days(None, None, today)
    return UsageQuery(first, last, by, period_of(first, last, zone, now)), problem


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
