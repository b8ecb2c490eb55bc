"""The report of usage: for which days, as it is sent, and as a spreadsheet reads it.  Pure."""

import datetime as dt
from collections.abc import Iterable
from zoneinfo import ZoneInfo

from miglab_api.usage import GroupBy, UsageReport, UsageRow
from miglab_pool.views.usage_report import Facts, Period, midnight, report, total

DAYS = 28
LONGEST_DAYS = 5 * 366
DAY = dt.timedelta(days=1)


class BadPeriod(ValueError):
    """There is no such period; the message says why."""


def days(since: dt.date | None, until: dt.date | None, today: dt.date) -> tuple[dt.date, dt.date]:
    """The first and the last day that are meant; without any: the last four weeks.

    Raises:
        BadPeriod: they are the wrong way round, or too many.
    """
    last = until or max(today, since or today)
    first = since or max(dt.date(2000, 1, 1), last - (DAYS - 1) * DAY)
    if first > last:
        raise BadPeriod(f"The period ends on {last}, before it begins on {first}: swap the days.")
    if (last - first).days >= LONGEST_DAYS:
        raise BadPeriod(f"A report covers at most {LONGEST_DAYS} days: ask for fewer.")
    return first, last


def period_of(first: dt.date, last: dt.date, zone: ZoneInfo, now: float) -> Period:
    """From the beginning of the first day to the end of the last, but no further than now."""
    since = midnight(first, zone)
    until = midnight(last + DAY, zone) if last < dt.date.max else now
    return Period(since, max(since, min(until, now)), zone)


def make(facts: Facts, first: dt.date, last: dt.date, period: Period, by: GroupBy) -> UsageReport:
    """The report of what the ledger says."""
    return UsageReport(
        since=first,
        until=last,
        timezone=period.zone.key,
        by=by,
        rows=report(facts, period, by),
        total=total(facts, period),
    )


def busiest(rows: Iterable[UsageRow], most: int) -> list[str]:
    """The keys of those that used most."""
    ordered = sorted(rows, key=lambda row: (-row.slice_hours, row.key))
    return [row.key for row in ordered[:most] if row.slice_hours > 0]
