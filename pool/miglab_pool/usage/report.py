"""Usage of a period: slice-hours, waits, idle time, reclaims and refusals.

`read_facts` reads the period's facts from the ledger; the rest is pure.  Facts are summed
while they are read, since a semester has too many leases to hold; rows are made of these sums.  A
slice-hour is one memory slice held by a server for one hour: a 3g.20gb of four memory slices uses
four of them in an hour.
"""

import datetime as dt
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    Table,
    cast,
    select,
    true,
)

from miglab_api.leases import WarningKind
from miglab_api.tickets import Purpose, TicketState
from miglab_api.usage import GroupBy, UsageReport, UsageRow
from miglab_pool.ledger import tables
from miglab_pool.ledger.tables import open_read_only
from miglab_pool.schedule import DAY_S

HOUR_S = 3600.0
WEEK = dt.timedelta(days=7)
DAYS = 28
LONGEST_DAYS = 5 * 366
DAY = dt.timedelta(days=1)


class Requester(NamedTuple):
    """A user with the course and shape of a request."""

    user: str
    course: str
    shape: str


class ReportedUse(NamedTuple):
    """The use of slices by one lease that a server took.

    Attributes:
        size: its memory slices.
        granted_at: when it was granted.
        wait_s: from the ticket to the grant; None if there is no ticket.
        began_at: when a server was attached; None if none was.
        ended_at: when it was over; None while it lives.
    """

    lease: int
    requester: Requester
    size: int
    granted_at: float
    wait_s: float | None
    began_at: float | None
    ended_at: float | None


class ObservedDay(NamedTuple):
    """A lease's activity on one day, as the reclaimer saw it; unknown time is in neither figure.

    Attributes:
        at: a moment of that day.
        active_s: seconds in which it worked.
        idle_s: seconds in which it did nothing.
    """

    lease: int
    at: float
    active_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class Event:
    """A reclaim, a refusal, or the beginning of a wait."""

    requester: Requester
    at: float


@dataclass(frozen=True, slots=True)
class Facts:
    """A period's facts in the ledger, each read once; ``waiting``: who still waits, since when."""

    lease_uses: Iterable[ReportedUse] = ()
    observed_days: Iterable[ObservedDay] = ()
    reclaims: Iterable[Event] = ()
    refusals: Iterable[Event] = ()
    waiting: Iterable[Event] = ()


# -- what the ledger says -------------------------------------------------------------------------


@contextmanager
def read_facts(
    ledger: Path, since: float, until: float, courses: Collection[str] | None
) -> Iterator[Facts]:
    """Read a period's facts from the ledger, as they are asked for in the block.

    Args:
        ledger: its file.
        since: from when, seconds since the epoch.
        until: up to when.
        courses: only of these; None for all.
    """
    moves, tickets = tables.transitions.c, tables.tickets.c
    is_then = (moves.at >= since) & (moves.at < until)
    of_lease, of_ticket = (_of_courses(columns, courses) for columns in (tables.leases.c, tickets))
    refused = _transitions_to(tables.tickets, "ticket", "refused")
    waits = (tickets.state == TicketState.WAITING) & (tickets.created_at < until)
    waiting = select(tickets.created_at, tickets.user, tickets.course, tickets.shape)
    with open_read_only(ledger) as connection:
        yield Facts(
            lease_uses=_lease_uses(connection, since, until, of_lease),
            observed_days=_observed_days(connection, since, until),
            reclaims=_events(connection, _reclaims(), is_then, of_lease),
            refusals=_events(connection, refused, is_then, of_ticket),
            waiting=_events(connection, waiting, waits, of_ticket),
        )


def _of_courses(columns: Any, courses: Collection[str] | None) -> ColumnElement[bool]:
    return true() if courses is None else columns.course.in_(sorted(courses))


def _lease_uses(
    connection: Connection, since: float, until: float, is_of: ColumnElement[bool]
) -> Iterator[ReportedUse]:
    leases = tables.leases.c
    requester_columns = (leases.user, leases.course, leases.shape)
    times = (tables.tickets.c.created_at, leases.granted_at, leases.attached_at, leases.ended_at)
    query = (
        select(leases.id, *requester_columns, *times, tables.size_of_lease)
        .outerjoin(tables.tickets, tables.tickets.c.id == leases.ticket)
        .where(leases.taken_at.is_not(None), leases.granted_at < until, is_of)
        .where(leases.ended_at.is_(None) | (leases.ended_at > since))
    )
    requesters: dict[tuple[str, str, str], Requester] = {}  # few have most of the leases
    for (
        lease, user, course, shape, requested_at, granted_at, began_at, ended_at, size,
    ) in connection.execute(query):  # fmt: skip
        wait_s = None if requested_at is None else granted_at - requested_at
        key = (user, course, shape)
        requester = requesters.get(key) or requesters.setdefault(key, Requester(*key))
        yield ReportedUse(lease, requester, size, granted_at, wait_s, began_at, ended_at)


def _observed_days(connection: Connection, since: float, until: float) -> Iterator[ObservedDay]:
    """Yield every lease's activity by day; the first and the last day count by their noon."""
    activity = tables.activity.c
    days = activity.day.between(int(since // DAY_S), int(until // DAY_S))
    query = select(activity.lease, activity.day, activity.active_s, activity.idle_s).where(days)
    for lease, day, active_s, idle_s in connection.execute(query):
        at = min(max((day + 0.5) * DAY_S, since), until - 1)
        yield ObservedDay(lease, at, active_s, idle_s)


def _reclaims() -> Select[Any]:
    """Query the leases that somebody other than their holder or the hub reclaimed.

    That is the reclaimer; the pool, when a borrow's time was up (not when its slice was lost);
    and staff, at once or after a warning.
    """
    moves, leases = tables.transitions.c, tables.leases.c
    is_over = (leases.purpose == Purpose.BORROW.value) & (leases.guaranteed_until <= moves.at)
    by_others = (
        (moves.by == "reclaimer")
        | ((moves.by == "pool") & is_over)
        | (moves.action == "reclaim")
        | (leases.warn_kind == WarningKind.STAFF.value)
    )
    return _transitions_to(tables.leases, "lease", "releasing").where(by_others)


def _transitions_to(table: Table, kind: str, to_state: str) -> Select[Any]:
    """Query the transitions to a state: when, and whose row it was."""
    moves, of = tables.transitions.c, table.c
    query = select(moves.at, of.user, of.course, of.shape)
    query = query.join(table, of.id == cast(moves.target, Integer))
    return query.where(moves.kind == kind, moves.to_state == to_state, tables.ENDINGS)


def _events(
    connection: Connection, query: Select[Any], *conditions: ColumnElement[bool]
) -> Iterator[Event]:
    for at, *requester in connection.execute(query.where(*conditions)):
        yield Event(Requester(*requester), at)


# -- the report -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Period:
    """From a moment to another, seconds since the epoch, and the time zone of its weeks."""

    since: float
    until: float
    zone: ZoneInfo

    @property
    def is_empty(self) -> bool:
        """Whether it is over when it begins, as one that lies in the future is."""
        return self.until <= self.since

    def covers(self, at: float) -> bool:
        """Whether a moment lies in it."""
        return self.since <= at < self.until

    @property
    def weeks(self) -> tuple[str, ...]:
        """Every week that it touches, in order."""
        return tuple(week_of(at, self.zone) for at in (self.since, *self.mondays))

    @property
    def mondays(self) -> tuple[float, ...]:
        """Where a week begins inside it."""
        first = dt.datetime.fromtimestamp(self.since, self.zone).date()
        monday = first + dt.timedelta(days=7 - first.weekday())
        mondays = []
        while (at := midnight(monday, self.zone)) < self.until:
            mondays.append(at)
            monday += WEEK
        return tuple(mondays)


@dataclass(slots=True)
class UsageSum:
    """The sum of some uses: seconds, those of slices by size, counts, and every wait."""

    slice_s: float = 0.0
    leases: int = 0
    waits: list[float] = field(default_factory=list)
    active_s: float = 0.0
    idle_s: float = 0.0
    reclaims: int = 0
    refusals: int = 0

    def count(self, counter: str) -> None:
        """Add one to a counter."""
        setattr(self, counter, getattr(self, counter) + 1)

    def add(self, other: "UsageSum") -> None:
        """Add the other sum to this one."""
        self.slice_s += other.slice_s
        self.leases += other.leases
        self.waits += other.waits
        self.active_s += other.active_s
        self.idle_s += other.idle_s
        self.reclaims += other.reclaims
        self.refusals += other.refusals

    def row(self, key: str) -> UsageRow:
        """Return the row of a report."""
        waits = sorted(self.waits)
        known_s = self.active_s + self.idle_s
        return UsageRow(
            key=key,
            slice_hours=self.slice_s / HOUR_S,
            leases=self.leases,
            wait_p50_s=quantile(waits, 0.5),
            wait_p95_s=quantile(waits, 0.95),
            idle_share=self.idle_s / known_s if known_s > 0 else None,
            known_share=min(1.0, known_s / self.slice_s) if self.slice_s > 0 else 0.0,
            reclaims=self.reclaims,
            refusals=self.refusals,
        )


@dataclass(frozen=True, slots=True)
class UsageSums:
    """What happened in a period, summed.

    Attributes:
        group_by: what the groups are.
        groups: the sum of each group in which something happened.
        slice_s: the use of slices by week and course, seconds by size.
    """

    group_by: GroupBy
    groups: Mapping[str, UsageSum]
    slice_s: Mapping[tuple[str, str], float]


def report(usage_sums: UsageSums, period: Period) -> tuple[tuple[UsageRow, ...], UsageRow]:
    """Return one row per group, and the row of the whole period.

    Weeks come in order without gaps, other groups by use, most first.
    """
    groups, total = usage_sums.groups, UsageSum()
    for group_sum in groups.values():
        total.add(group_sum)
    if usage_sums.group_by is GroupBy.WEEK:
        rows = [groups.get(week, UsageSum()).row(week) for week in period.weeks]
    else:
        rows = [group_sum.row(key) for key, group_sum in groups.items()]
        rows.sort(key=lambda row: (-row.slice_hours, row.key))
    return tuple(rows), total.row("")


def hours_by_week(usage_sums: UsageSums) -> dict[tuple[str, str], float]:
    """Return the slice-hours of each week and course in which there are any."""
    return {key: slice_s / HOUR_S for key, slice_s in usage_sums.slice_s.items()}


def sum_facts(facts: Facts, period: Period, group_by: GroupBy) -> UsageSums:
    """Sum what happened, in one pass.

    Args:
        facts: of the period, or of more: what lies outside does not count.
        period: a lease that lives, or goes on, counts up to its end.
        group_by: what the rows will be about.
    """
    key = _key_of(group_by, period)
    groups: dict[str, UsageSum] = defaultdict(UsageSum)
    slice_s: dict[tuple[str, str], float] = defaultdict(float)
    weeks, mondays = period.weeks, period.mondays
    requesters: dict[int, Requester] = {}
    sizes: dict[int, int] = {}
    for lease_use in facts.lease_uses:
        requester, size = lease_use.requester, lease_use.size
        requesters[lease_use.lease], sizes[lease_use.lease] = requester, size
        _add_start(groups, lease_use, period, key)
        for begin, end in _periods_in(lease_use, period, mondays):
            used_s = size * (end - begin)
            groups[key(requester, begin)].slice_s += used_s
            slice_s[weeks[bisect_right(mondays, begin)], requester.course] += used_s
    for observed in facts.observed_days:
        if (size := sizes.get(observed.lease, 0)) and period.covers(observed.at):
            group_sum = groups[key(requesters[observed.lease], observed.at)]
            group_sum.active_s += size * observed.active_s
            group_sum.idle_s += size * observed.idle_s
    _add_events(groups, facts, period, key)
    return UsageSums(group_by, groups, slice_s)


def _add_start(
    groups: dict[str, UsageSum],
    lease_use: ReportedUse,
    period: Period,
    key: Callable[[Requester, float], str],
) -> None:
    requester, began_at = lease_use.requester, lease_use.began_at
    if lease_use.wait_s is not None and period.covers(lease_use.granted_at):
        groups[key(requester, lease_use.granted_at)].waits.append(max(0.0, lease_use.wait_s))
    if began_at is not None and period.covers(began_at):
        groups[key(requester, began_at)].leases += 1


def _add_events(
    groups: dict[str, UsageSum],
    facts: Facts,
    period: Period,
    key: Callable[[Requester, float], str],
) -> None:
    for waiting in () if period.is_empty else facts.waiting:
        if waiting.at < period.until:  # so long already; those served alone would make it short
            waited_s = period.until - waiting.at
            groups[key(waiting.requester, period.until - 1)].waits.append(waited_s)
    for counter, events in (("reclaims", facts.reclaims), ("refusals", facts.refusals)):
        for event in events:
            if period.covers(event.at):
                groups[key(event.requester, event.at)].count(counter)


def _periods_in(
    lease_use: ReportedUse, period: Period, mondays: Sequence[float]
) -> Iterable[tuple[float, float]]:
    if lease_use.began_at is None:
        return ()
    return periods_of_use(lease_use.began_at, lease_use.ended_at, period, mondays)


def periods_of_use(
    started_at: float, ended_at: float | None, period: Period, boundaries: Sequence[float]
) -> Iterator[tuple[float, float]]:
    """Yield the parts of a lease's use that lie in the period, split where a week begins."""
    begin = max(started_at, period.since)
    end = period.until if ended_at is None else min(ended_at, period.until)
    for boundary in boundaries[bisect_right(boundaries, begin) :]:
        if boundary >= end:
            break
        yield begin, boundary
        begin = boundary
    if begin < end:
        yield begin, end


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of the values does not exceed; None if empty."""
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def week_of(at: float, zone: ZoneInfo) -> str:
    """The ISO week of a moment, such as ``2026-W47``."""
    year, week, _ = dt.datetime.fromtimestamp(at, zone).isocalendar()
    return f"{year}-W{week:02}"


def midnight(day: dt.date, zone: ZoneInfo) -> float:
    """When a day begins there, seconds since the epoch."""
    return dt.datetime.combine(day, dt.time(), zone).timestamp()


def _key_of(group_by: GroupBy, period: Period) -> Callable[[Requester, float], str]:
    weeks, mondays = period.weeks, period.mondays
    keys: dict[GroupBy, Callable[[Requester, float], str]] = {
        GroupBy.COURSE: lambda requester, _at: requester.course,
        GroupBy.USER: lambda requester, _at: requester.user,
        GroupBy.SHAPE: lambda requester, _at: requester.shape,
        GroupBy.WEEK: lambda _requester, at: weeks[bisect_right(mondays, at)],
    }
    return keys[group_by]


class BadPeriod(ValueError):
    """There is no such period; the message says why."""


def days(since: dt.date | None, until: dt.date | None, today: dt.date) -> tuple[dt.date, dt.date]:
    """The first and the last day that are meant; without any: the last four weeks.

    The first may be tomorrow, which is today already for those who ask from east of the lab.

    Raises:
        BadPeriod: they are the wrong way round, too many, or all in the future.
    """
    last = until or max(today, since or today)
    first = since or max(dt.date(2000, 1, 1), min(last, today) - (DAYS - 1) * DAY)
    if first > today + DAY:
        raise BadPeriod(f"The period begins on {first}, in the future: choose an earlier day.")
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


def build_report(
    usage_sums: UsageSums, first: dt.date, last: dt.date, period: Period
) -> UsageReport:
    """Build the report of a period."""
    rows, total = report(usage_sums, period)
    return UsageReport(
        since=first,
        until=last,
        timezone=period.zone.key,
        group_by=usage_sums.group_by,
        rows=rows,
        total=total,
    )


def busiest(hours: Mapping[str, float], limit: int) -> list[str]:
    """Return the courses with the most slice-hours."""
    ordered = sorted(hours, key=lambda course: (-hours[course], course))
    return [course for course in ordered[:limit] if hours[course] > 0]
