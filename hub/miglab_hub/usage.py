"""The report of usage: for which days, as it is sent, and as a spreadsheet reads it.  Pure."""

import datetime as dt
from collections.abc import Iterable
from zoneinfo import ZoneInfo

from miglab_hub.sheet import sheet
from miglab_spawner.messages import Message
from miglab_spawner.pool.accounts.usage_report import (
    By,
    Facts,
    Period,
    UsageRow,
    midnight,
    report,
    total,
)

DAYS = 28
LONGEST_DAYS = 5 * 366
DAY = dt.timedelta(days=1)
FIGURES = (
    "slice_hours", "leases", "wait_p50_s", "wait_p95_s", "idle_share", "known_share",
    "reclaims", "refusals",
)  # fmt: skip


class UsageReport(Message):
    """What was used in a period.

    Attributes:
        since: its first day.
        until: its last day.
        timezone: where its days begin.
        by: what the rows are about.
        rows: one for each, the most used first; weeks in order.
        total: all together; its key is empty.
    """

    since: dt.date
    until: dt.date
    timezone: str
    by: By
    rows: tuple[UsageRow, ...]
    total: UsageRow


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


def make(facts: Facts, first: dt.date, last: dt.date, period: Period, by: By) -> UsageReport:
    """The report of what the ledger says."""
    return UsageReport(
        since=first,
        until=last,
        timezone=period.zone.key,
        by=by,
        rows=report(facts, period, by),
        total=total(facts, period),
    )


def as_csv(found: UsageReport) -> str:
    """The rows for a spreadsheet: with a byte-order mark, so that it takes the text for UTF-8.

    Shares are from 0 to 1; what is unknown is empty.
    """
    rows = [[row.key, *(_number(getattr(row, name)) for name in FIGURES)] for row in found.rows]
    return sheet([found.by.value, *FIGURES], rows)


def file_name(found: UsageReport) -> str:
    """What a browser saves it as."""
    return f"usage-by-{found.by.value}-{found.since}-{found.until}.csv"


def _number(value: float | None) -> float | str:
    if value is None:
        return ""
    return value if isinstance(value, int) else round(value, 3)


def busiest(rows: Iterable[UsageRow], most: int) -> list[str]:
    """The keys of those that used most."""
    ordered = sorted(rows, key=lambda row: (-row.slice_hours, row.key))
    return [row.key for row in ordered[:most] if row.slice_hours > 0]
