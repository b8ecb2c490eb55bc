"""The report of usage, and its form as CSV."""

import csv
import datetime as dt
import io
import unicodedata
from collections.abc import Iterable, Sequence
from enum import StrEnum

from miglab_api.base import WireModel
from miglab_api.plain_text import one_line


class GroupBy(StrEnum):
    """The grouping of a report's rows."""

    COURSE = "course"
    USER = "user"
    SHAPE = "shape"
    WEEK = "week"


class UsageRow(WireModel):
    """The usage of one course, user, shape or week.

    Attributes:
        key: which one; empty for all together.
        slice_hours: memory slices times hours, held by servers.
        leases: leases whose server began in the period.
        wait_p50_s: half of the waits for a lease granted in it, and of those that go on, were no
            longer; None without any.
        wait_p95_s: nineteen of twenty were no longer.
        idle_share: of the slice time that could be told, the part in which nothing was done; None
            if none could be told.
        known_share: of the slice time, the part that could be told.
        reclaims: leases reclaimed: unused, at their end, at a class's end, by a person.
        refusals: tickets refused.
    """

    key: str
    slice_hours: float
    leases: int
    wait_p50_s: float | None
    wait_p95_s: float | None
    idle_share: float | None
    known_share: float
    reclaims: int
    refusals: int


class UsageReport(WireModel):
    """The usage of a period.

    Attributes:
        since: its first day.
        until: its last day.
        timezone: where its days begin.
        group_by: what each row is about.
        rows: one for each, the most used first; weeks in order.
        total: all together; its key is empty.
    """

    since: dt.date
    until: dt.date
    timezone: str
    group_by: GroupBy
    rows: tuple[UsageRow, ...]
    total: UsageRow


# -- rows as CSV that a spreadsheet opens without running anything ---------------------------------

FIGURES = (
    "slice_hours", "leases", "wait_p50_s", "wait_p95_s", "idle_share", "known_share",
    "reclaims", "refusals",
)  # fmt: skip
BOM = "\ufeff"
FORMULA = frozenset("=+-@|%")


def to_csv(report: UsageReport) -> str:
    """Return a report as CSV, with a byte-order mark so that spreadsheets read it as UTF-8.

    Shares are from 0 to 1; what is unknown is empty.
    """
    rows = [[row.key, *(_number(getattr(row, name)) for name in FIGURES)] for row in report.rows]
    return csv_text([report.group_by.value, *FIGURES], rows)


def file_name(report: UsageReport) -> str:
    """Return the file name under which a browser saves the report."""
    return f"usage-by-{report.group_by.value}-{report.since}-{report.until}.csv"


def _number(value: float | None) -> float | str:
    if value is None:
        return ""
    return value if isinstance(value, int) else round(value, 3)


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[float | str]]) -> str:
    """Return a CSV table; text passes through `escape_formula`, numbers stay numbers."""
    text = io.StringIO()
    text.write(BOM)
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([escape_formula(cell) if isinstance(cell, str) else cell for cell in row])
    return text.getvalue()


def escape_formula(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet could run as a formula.

    The first visible sign decides, in its normal form: a spreadsheet may drop what stands before
    it, and take ``＝`` for ``=``.  Line ends become spaces, so that a row stays a row, and control
    characters question marks, so that they command no terminal.
    """
    signs = (sign for sign in text if unicodedata.category(sign)[0] not in "CZ")
    first = unicodedata.normalize("NFKC", next(signs, ""))[:1]
    is_formula = first in FORMULA or text[:1] in ("\t", "'")
    return f"'{one_line(text)}" if is_formula else one_line(text)
