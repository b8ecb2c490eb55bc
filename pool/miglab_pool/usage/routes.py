"""Usage over HTTP: what courses, students, shapes and weeks used, as JSON or for a spreadsheet."""

import datetime as dt
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Depends, Query, Request, Response

from miglab_api.spreadsheet import as_csv, file_name
from miglab_api.usage import GroupBy, UsageReport
from miglab_pool.http.access.dependencies import Runner, needs
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.access.rights import Right
from miglab_pool.http.errors import REFUSED, DeniedError
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.pool import Pool
from miglab_pool.usage.report import BadPeriod, Facts, Period, days, make, period_of

T = TypeVar("T")
FIRST_DAY = dt.date(2000, 1, 1)
Day = Annotated[dt.date | None, Query(ge=FIRST_DAY)]

router = APIRouter(prefix="/api/usage", responses=REFUSED)


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


async def asked(
    request: Request, since: Day = None, until: Day = None, by: GroupBy = GroupBy.COURSE
) -> UsageQuery:
    """The days that a request names, in the lab's time zone; without any the last four weeks.

    Raises:
        DeniedError: 422, they make no sense.
    """
    zone = ZoneInfo(request.app.state.timezone)
    now = time.time()
    today = dt.datetime.fromtimestamp(now, zone).date()
    try:
        first, last = days(since, until, today)
    except BadPeriod as error:
        raise DeniedError(422, "bad-input", str(error)) from error
    return UsageQuery(first, last, by, period_of(first, last, zone, now))


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
    save = f'attachment; filename="{file_name(found)}"'
    return Response(as_csv(found), media_type="text/csv", headers={"Content-Disposition": save})
