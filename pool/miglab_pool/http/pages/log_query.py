"""What the Log page's address asks for, and the question to the audit that it is.  Pure."""

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from miglab_api.base import USER_MAX
from miglab_pool.http.pages.usage_page import day
from miglab_pool.ledger.ledger import LARGEST_ID
from miglab_pool.rules.audit_wording import NAMES
from miglab_pool.views.audit import Question
from miglab_pool.views.usage_period import DAY, BadPeriod
from miglab_pool.views.usage_report import midnight

KINDS = {
    "gpu": "GPUs",
    "slice": "slices",
    "lease": "leases",
    "ticket": "tickets",
    "reservation": "reservations",
    "layout": "layouts",
    "message": "messages",
    "pool": "the whole pool",
}
"""The kinds of things that something is done to, as the ledger has them, and as people say."""

AS_SAID = {words: name for name, words in NAMES.items()}
SWAPPED = "The days end before they begin: swap them."


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for; None and empty leave a thing open.

    Attributes:
        since: the first day.
        until: the last day.
        by: who did it, as the page names them.
        kind: gpu, slice, lease ….
        everything: also what nobody did by hand.
        before: only what is older than the entry of this id.
    """

    since: dt.date | None = None
    until: dt.date | None = None
    by: str = ""
    course: str | None = None
    kind: str = ""
    everything: bool = False
    before: int | None = None

    def as_query(self) -> dict[str, str]:
        """The same as an address has it; what is open is left out."""
        found = {
            "since": self.since, "until": self.until, "by": self.by, "course": self.course,
            "kind": self.kind, "everything": "on" if self.everything else "",
            "before": self.before,
        }  # fmt: skip
        return {key: str(value) for key, value in found.items() if value}


def wanted_of(query: Mapping[str, str]) -> tuple[Wanted, str]:
    """What an address asks for, and what of it cannot be read, in words; that is left open."""
    since, until, problem = _days(query)
    wanted = Wanted(
        since,
        until,
        query.get("by", "")[:USER_MAX].strip(),
        query.get("course") or None,
        query["kind"] if query.get("kind") in KINDS else "",
        bool(query.get("everything")),
        _number(query.get("before", "")),
    )
    return wanted, problem


def _days(query: Mapping[str, str]) -> tuple[dt.date | None, dt.date | None, str]:
    try:
        since, until = day(query.get("since")), day(query.get("until"))
    except BadPeriod as error:
        return None, None, str(error)
    if since and until and until < since:
        return None, None, SWAPPED
    return since, until, ""


def _number(text: str) -> int | None:
    is_one = text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST_ID))
    return (min(int(text), LARGEST_ID) or None) if is_one else None


def question(
    wanted: Wanted, courses: Collection[str] | None, zone: ZoneInfo, limit: int
) -> Question:
    """What the audit is asked.

    Args:
        wanted: by the address.
        courses: of which courses; None for everything.
        zone: where the days begin.
        limit: the newest so many.
    """
    has_end = wanted.until is not None and wanted.until < dt.date.max
    return Question(
        since=midnight(wanted.since, zone) if wanted.since else None,
        until=midnight(wanted.until + DAY, zone) if wanted.until and has_end else None,
        before=wanted.before,
        by=AS_SAID.get(wanted.by, wanted.by) or None,
        kind=wanted.kind or None,
        courses=courses,
        is_all=wanted.everything,
        limit=limit,
    )


def sheet_query(wanted: Wanted, zone: ZoneInfo, limit: int) -> dict[str, str]:
    """The same question to `GET /api/audit`, from the newest on, for a spreadsheet."""
    asked = question(wanted, None, zone, limit)
    found = {
        "since": asked.since, "until": asked.until, "by": asked.by, "kind": asked.kind,
        "course": wanted.course, "everything": asked.is_all or None, "limit": limit,
        "format": "csv",
    }  # fmt: skip
    return {key: str(value) for key, value in found.items() if value is not None}
