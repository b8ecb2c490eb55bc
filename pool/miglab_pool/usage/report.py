"""Was it worth it: slice-hours, waits, idle time, reclaims and refusals of a period.

`read_facts` reads what the ledger says of the period; the rest is pure: facts in, rows out.  A
slice-hour is one memory slice held by a server for one hour: a 3g.20gb of four memory slices uses
four of them in an hour.
"""

import datetime as dt
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from sqlalchemy import ColumnElement, Connection, Integer, Select, Table, cast, func, select, true

from miglab_api.leases import WarningKind
from miglab_api.tickets import Purpose, TicketState
from miglab_api.usage import GroupBy, UsageReport, UsageRow
from miglab_pool.ledger import tables
from miglab_pool.ledger.tables import open_read_only
from miglab_pool.schedule import DAY_S

K = TypeVar("K", bound=Hashable)
HOUR_S = 3600.0
WEEK = dt.timedelta(days=7)
DAYS = 28
LONGEST_DAYS = 5 * 366
DAY = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Who:
    """Whose it was, and what was asked for."""

    user: str
    course: str
    shape: str


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that was taken.

    Attributes:
        size: its memory slices.
        granted_at: when it was granted.
        wait_s: from the ticket to the grant; None if there is no ticket.
        began: when a server was attached; None if none was.
        ended: when it was over; None while it lives.
    """

    lease: int
    who: Who
    size: int
    granted_at: float
    wait_s: float | None
    began: float | None
    ended: float | None


@dataclass(frozen=True, slots=True)
class Looked:
    """What the reclaimer saw of a lease on one day; time that could not be told is in neither.

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

    who: Who
    at: float


@dataclass(frozen=True, slots=True)
class Facts:
    """What the ledger says of a period; ``waiting``: who still waits, and since when."""

    held: tuple[Held, ...] = ()
    looked: tuple[Looked, ...] = ()
    reclaims: tuple[Event, ...] = ()
    refusals: tuple[Event, ...] = ()
    waiting: tuple[Event, ...] = ()


# -- what the ledger says -------------------------------------------------------------------------


def read_facts(ledger: Path, since: float, until: float, courses: Collection[str] | None) -> Facts:
    """What the ledger says of a period.

    Args:
        ledger: its file.
        since: from when, seconds since the epoch.
        until: up to when.
        courses: only of these; None for all.
    """
    moves, tickets = tables.transitions.c, tables.tickets.c
    is_then = (moves.at >= since) & (moves.at < until)
    of_lease, of_ticket = (_is_of(columns, courses) for columns in (tables.leases.c, tickets))
    refused = _moved(tables.tickets, "ticket", "refused")
    waits = (tickets.state == TicketState.WAITING) & (tickets.created_at < until)
    waiting = select(tickets.created_at, tickets.user, tickets.course, tickets.shape)
    with open_read_only(ledger) as connection:
        held = tuple(_held(connection, since, until, of_lease))
        return Facts(
            held=held,
            looked=tuple(_looked(connection, since, until, {one.lease for one in held})),
            reclaims=_events(connection, _reclaims(), is_then, of_lease),
            refusals=_events(connection, refused, is_then, of_ticket),
            waiting=_events(connection, waiting, waits, of_ticket),
        )


def _is_of(columns: Any, courses: Collection[str] | None) -> ColumnElement[bool]:
    return true() if courses is None else columns.course.in_(sorted(courses))


def _held(
    connection: Connection, since: float, until: float, is_of: ColumnElement[bool]
) -> Iterator[Held]:
    leases, slices = tables.leases.c, tables.slices.c
    who = (leases.user, leases.course, leases.shape)
    times = (tables.tickets.c.created_at, leases.granted_at, leases.attached_at, leases.ended_at)
    query = (
        select(leases.id, *who, *times, func.sum(slices.size))
        .outerjoin(tables.tickets, tables.tickets.c.id == leases.ticket)
        .join(tables.lease_slices, tables.lease_slices.c.lease == leases.id)
        .join(tables.slices, slices.id == tables.lease_slices.c.slice)
        .where(leases.taken_at.is_not(None), leases.granted_at < until, is_of)
        .where(leases.ended_at.is_(None) | (leases.ended_at > since))
        .group_by(leases.id)
    )
    for lease, user, course, shape, asked, granted, began, ended, size in connection.execute(query):
        wait_s = None if asked is None else granted - asked
        yield Held(lease, Who(user, course, shape), size, granted, wait_s, began, ended)


def _looked(
    connection: Connection, since: float, until: float, leases: Collection[int]
) -> Iterator[Looked]:
    """By day: the days on which the period begins and ends count by their noon."""
    seen = tables.activity.c
    days = seen.day.between(int(since // DAY_S), int(until // DAY_S))
    query = select(seen.lease, seen.day, seen.active_s, seen.idle_s).where(days)
    for lease, day, active_s, idle_s in connection.execute(query):
        if lease in leases:
            at = min(max((day + 0.5) * DAY_S, since), until - 1)
            yield Looked(lease, at, active_s, idle_s)


def _reclaims() -> Select[Any]:
    """Leases that somebody other than their holder and the hub asked back.

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
    return _moved(tables.leases, "lease", "releasing").where(by_others)


def _moved(table: Table, kind: str, to_state: str) -> Select[Any]:
    """When what came to a state, and whose it was."""
    moves, of = tables.transitions.c, table.c
    query = select(moves.at, of.user, of.course, of.shape)
    query = query.join(table, of.id == cast(moves.target, Integer))
    return query.where(moves.kind == kind, moves.to_state == to_state)


def _events(
    connection: Connection, query: Select[Any], *conditions: ColumnElement[bool]
) -> tuple[Event, ...]:
    return tuple(Event(Who(*who), at) for at, *who in connection.execute(query.where(*conditions)))


# -- the report -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Period:
    """From a moment to another, seconds since the epoch, and the time zone of its weeks."""

    since: float
    until: float
    zone: ZoneInfo

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
        found = []
        while (at := midnight(monday, self.zone)) < self.until:
            found.append(at)
            monday += WEEK
        return tuple(found)


@dataclass(slots=True)
class _Sum:
    slice_s: float = 0.0
    leases: int = 0
    waits: list[float] = field(default_factory=list)
    active_s: float = 0.0
    idle_s: float = 0.0
    reclaims: int = 0
    refusals: int = 0

    def count(self, what: str) -> None:
        setattr(self, what, getattr(self, what) + 1)

    def row(self, key: str) -> UsageRow:
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


def report(facts: Facts, period: Period, by: GroupBy) -> tuple[UsageRow, ...]:
    """A row for each; weeks in order and without a gap, others by what they used, most first."""
    found = tally(facts, period, _key_of(by, period.zone))
    if by is GroupBy.WEEK:
        return tuple(found.get(week) or _Sum().row(week) for week in period.weeks)
    return tuple(sorted(found.values(), key=lambda row: (-row.slice_hours, row.key)))


def total(facts: Facts, period: Period) -> UsageRow:
    """All together."""
    return tally(facts, period, lambda _who, _at: "").get("") or _Sum().row("")


def tally(facts: Facts, period: Period, key: Callable[[Who, float], K]) -> dict[K, UsageRow]:
    """The figures by any key.

    Args:
        facts: of the period, or of more: what lies outside does not count.
        period: a lease that lives, or goes on, counts up to its end.
        key: under which something of somebody at a moment counts.
    """
    sums: dict[K, _Sum] = defaultdict(_Sum)
    mondays = period.mondays
    for held in facts.held:
        _add(sums, held, period, mondays, key)
    for waiting in facts.waiting:
        if waiting.at < period.until:  # so long already; those served alone would make it short
            waited_s = period.until - waiting.at
            sums[key(waiting.who, period.until - 1)].waits.append(waited_s)
    leases = {held.lease: held for held in facts.held}
    for looked in facts.looked:
        if period.covers(looked.at) and looked.lease in leases:
            held = leases[looked.lease]
            one = sums[key(held.who, looked.at)]
            one.active_s += held.size * looked.active_s
            one.idle_s += held.size * looked.idle_s
    for what, events in (("reclaims", facts.reclaims), ("refusals", facts.refusals)):
        for event in events:
            if period.covers(event.at):
                sums[key(event.who, event.at)].count(what)
    return {one: found.row(str(one)) for one, found in sums.items()}


def _add(
    sums: dict[K, _Sum],
    held: Held,
    period: Period,
    mondays: Sequence[float],
    key: Callable[[Who, float], K],
) -> None:
    if held.wait_s is not None and period.covers(held.granted_at):
        sums[key(held.who, held.granted_at)].waits.append(max(0.0, held.wait_s))
    if held.began is None:
        return
    if period.covers(held.began):
        sums[key(held.who, held.began)].leases += 1
    for begin, end in pieces(held.began, held.ended, period, mondays):
        sums[key(held.who, begin)].slice_s += held.size * (end - begin)


def pieces(
    began: float, ended: float | None, period: Period, boundaries: Sequence[float]
) -> Iterator[tuple[float, float]]:
    """What of a stretch lies in the period, cut where a week begins."""
    begin = max(began, period.since)
    end = period.until if ended is None else min(ended, period.until)
    for boundary in boundaries[bisect_right(boundaries, begin) :]:
        if boundary >= end:
            break
        yield begin, boundary
        begin = boundary
    if begin < end:
        yield begin, end


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest of them that so many are no longer than; None of none."""
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


def _key_of(by: GroupBy, zone: ZoneInfo) -> Callable[[Who, float], str]:
    keys: dict[GroupBy, Callable[[Who, float], str]] = {
        GroupBy.COURSE: lambda who, _at: who.course,
        GroupBy.USER: lambda who, _at: who.user,
        GroupBy.SHAPE: lambda who, _at: who.shape,
        GroupBy.WEEK: lambda _who, at: week_of(at, zone),
    }
    return keys[by]


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
