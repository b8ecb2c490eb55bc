"""A ledger as two semesters leave it, written in bulk into the ledger of a lab that has just begun.

Each stay is written as the pool writes one, row by row and transition by transition; a test holds
the two beside each other.  Must not decide anything that the pool decides: who got which slice is
drawn at random, and no two stays share a slice.
"""

import itertools
import random
import sqlite3
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Table

from miglab_api.leases import LeaseState, WarningKind
from miglab_api.tickets import TicketState
from miglab_pool.gpu.geometry import ProfilePlacement
from miglab_pool.gpu.simulated.geometry import model_geometry
from miglab_pool.ledger import tables
from miglab_pool.ledger.rows import GONE, LeaseRow, Row, SliceRow, TicketRow

MODEL = "A100-40GB"
CUTS = (("1g.5gb", 7), ("3g.20gb", 2))
"""What a GPU is cut into: the last one into the second, all others into the first."""
SEMESTERS = (range(48, 32, -1), range(16, 0, -1))  # weeks ago
TEACHING_DAYS = 5  # of a week
DAY_S, HOUR_S = 86_400.0, 3_600.0
OPENS_S, CLOSES_S = 8 * HOUR_S, 22 * HOUR_S
MEAN_WAIT_S = 600.0
WARNING_S = 300.0
CACHE_KIB = 512 << 10  # the indexes are written all over
IDLE = "unused for 15 min"
CANCELLED = "The ticket was cancelled."
Values = tuple[Any, ...]


@dataclass(frozen=True)
class HistorySize:
    """How much has happened: by default, two semesters of a department."""

    students: int = 600
    courses: int = 16
    leases: int = 150_000


@dataclass(frozen=True)
class SlicePlace:
    """A place for slices, one after another."""

    gpu: str
    profile_placement: ProfilePlacement


@dataclass(frozen=True)
class Stay:
    """One student's use of one slice, from the request to the end; moments since the epoch.

    Attributes:
        number: of the lease, and of its slice.
        ticket: the number of its ticket.
        generation: of the slice, on its GPU.
        fence: the lease's.
        instructor: who put the ticket in front; empty if nobody did.
        is_extended: whether the student extended the guarantee once.
        is_reclaimed: whether it ended because it was idle.
    """

    number: int
    ticket: int
    generation: int
    fence: int
    user: str
    course: str
    place: SlicePlace
    asked_at: float
    granted_at: float
    releasing_at: float
    ended_at: float
    guaranteed_s: float = 14_400.0
    instructor: str = ""
    is_extended: bool = False
    is_reclaimed: bool = False

    @property
    def shape(self) -> str:
        return self.place.profile_placement.profile.name

    @property
    def holder(self) -> str:
        return f"container:{self.number:064x}"

    @property
    def ending(self) -> tuple[str, str]:
        """Who began its end, and why."""
        return ("reclaimer", IDLE) if self.is_reclaimed else ("hub", "stopped")

    @property
    def warned_at(self) -> float | None:
        return self.releasing_at - WARNING_S if self.is_reclaimed else None


def course_names(count: int) -> list[str]:
    """The names of the courses of a history."""
    return [f"course-{number}" for number in range(count)]


def write_history(ledger: Path, size: HistorySize, now: float, seed: int = 0) -> None:
    """Write a history before a moment; the ledger has its GPUs, and no lease yet.

    Args:
        ledger: the file, which no pool holds.
        size: how much has happened.
        now: the end of the second semester, seconds since the epoch.
        seed: the same seed writes the same history.
    """
    rng = random.Random(seed)  # noqa: S311 -- a simulation, not a secret
    first_day = _days(now)[0]
    with closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute("PRAGMA synchronous=OFF")  # nobody misses what a power cut takes
        connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        gpus = [row[0] for row in connection.execute("SELECT uuid FROM gpus ORDER BY idx")]
        connection.execute("UPDATE transitions SET at = ?", (first_day,))  # when the lab began
        names = [(f"history:{number}", f"student-{number}") for number in range(size.students)]
        _insert(connection, tables.people, names)
        generations: Counter[str] = Counter()
        for stays in _stays_by_day(rng, size, places_on(gpus), generations, now):
            _write_day(connection, stays)
        for gpu, generation in generations.items():
            values = (generation, gpu)
            connection.execute("UPDATE gpus SET generation = ? WHERE uuid = ?", values)


def places_on(gpus: Sequence[str]) -> list[SlicePlace]:
    """The places for slices on these GPUs."""
    geometry = model_geometry(MODEL)
    return [
        SlicePlace(gpu, ProfilePlacement(profile, placement))
        for gpu in gpus
        for name, count in (CUTS[gpu == gpus[-1]],)
        for profile in (geometry.by_name[name],)
        for placement in profile.placements[:count]
    ]


def _days(now: float) -> list[float]:
    """When each teaching day begins."""
    today = now // DAY_S * DAY_S
    weeks = (week for semester in SEMESTERS for week in semester)
    return [today + (day - 7 * week) * DAY_S for week in weeks for day in range(TEACHING_DAYS)]


def _stays_by_day(
    rng: random.Random,
    size: HistorySize,
    places: Sequence[SlicePlace],
    generations: Counter[str],
    now: float,
) -> Iterator[list[Stay]]:
    days, number, ticket = _days(now), 0, 0
    for day, day_at in enumerate(days):
        count = _share(size.leases, day, len(days))
        uses = [
            (*times, place)
            for position, place in enumerate(places)
            for times in _uses(rng, day_at, _share(count, position, len(places)))
        ]
        stays = []
        for granted_at, ended_at, place in sorted(uses, key=lambda use: use[:2]):
            number += 1
            ticket += 2 if _is_followed(number) else 1
            generations[place.gpu] += 1
            student = rng.randrange(size.students)
            course = course_names(size.courses)[(student + rng.randrange(2)) % size.courses]
            stays.append(
                Stay(
                    number,
                    ticket,
                    generations[place.gpu],
                    rng.getrandbits(47),
                    f"student-{student}",
                    course,
                    place,
                    granted_at - rng.expovariate(1 / MEAN_WAIT_S),
                    granted_at,
                    ended_at - 0.5,
                    ended_at,
                    instructor=f"instructor-of-{course}" if number % 40 == 0 else "",
                    is_extended=number % 4 == 0,
                    is_reclaimed=number % 7 == 0 and ended_at - granted_at > 2 * WARNING_S,
                )
            )
        yield stays


def _share(total: int, position: int, count: int) -> int:
    return total * (position + 1) // count - total * position // count


def _is_followed(number: int) -> bool:
    """Whether somebody else gave up waiting after this stay's ticket."""
    return number % 12 == 0


def _uses(rng: random.Random, day_at: float, count: int) -> Iterator[tuple[float, float]]:
    """The beginnings and ends of so many uses of one place on a day, one after another."""
    opens, closes = day_at + OPENS_S, day_at + CLOSES_S
    begins = sorted(rng.uniform(opens, closes) for _ in range(count))
    for begin, after in itertools.pairwise([*begins, closes]):
        yield begin, begin + 0.9 * (after - begin)


# -- what the pool writes of a stay ----------------------------------------------------------------


def _write_day(connection: sqlite3.Connection, stays: Sequence[Stay]) -> None:
    cancelled = [cancelled_ticket(stay) for stay in stays if _is_followed(stay.number)]
    _insert_rows(connection, tables.tickets, [*map(ticket_row, stays), *cancelled])
    _insert_rows(connection, tables.slices, map(slice_row, stays))
    _insert_rows(connection, tables.leases, map(lease_row, stays))
    _insert(connection, tables.lease_slices, ((stay.number, stay.number, 0) for stay in stays))
    _insert(connection, tables.activity, map(_activity, stays))
    entries = [entry for stay in stays for entry in transitions_of(stay)]
    entries += [entry for ticket in cancelled for entry in cancelled_transitions(ticket)]
    entries.sort(key=lambda entry: entry[0])
    _insert(connection, tables.transitions, ((None, *entry) for entry in entries))


def _insert_rows(connection: sqlite3.Connection, table: Table, rows: Iterable[Row]) -> None:
    columns = table.c.keys()
    _insert(connection, table, (tuple(getattr(row, name) for name in columns) for row in rows))


def _insert(connection: sqlite3.Connection, table: Table, values: Iterable[Values]) -> None:
    marks = ", ".join("?" * len(table.c))
    connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", values)  # noqa: S608


def ticket_row(stay: Stay) -> TicketRow:
    """The ticket of a stay."""
    return TicketRow(
        stay.ticket, stay.user, "", stay.course, stay.shape, stay.shape, TicketState.TAKEN,
        created_at=stay.asked_at, attended_at=stay.asked_at, offered_at=stay.granted_at,
        lease=stay.number, next_at=stay.asked_at if stay.instructor else None,
        since=stay.granted_at,
    )  # fmt: skip


def cancelled_ticket(stay: Stay) -> TicketRow:
    """The ticket of somebody who asked after this stay's student, and gave up."""
    return TicketRow(
        stay.ticket - 1, stay.user, "other", stay.course, stay.shape, stay.shape,
        TicketState.CANCELLED, created_at=stay.asked_at, attended_at=stay.granted_at,
        reason="cancelled", message=CANCELLED,
    )  # fmt: skip


def slice_row(stay: Stay) -> SliceRow:
    """The slice of a stay, which is gone."""
    profile_placement = stay.place.profile_placement
    profile, placement = profile_placement.profile, profile_placement.placement
    return SliceRow(
        stay.number, stay.place.gpu, stay.generation, profile.name, placement.start, profile.size,
        profile.sm_count, profile.memory_mib, GONE, gi_id=placement.start, ci_id=0,
        uuid=f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, stay.holder)}", tried=True,
        reason=f"lease {stay.number} is over",
    )  # fmt: skip


def lease_row(stay: Stay) -> LeaseRow:
    """The lease of a stay, which is over."""
    cause, reason = stay.ending
    extended_s = 1800.0 * stay.is_extended
    return LeaseRow(
        stay.number, stay.ticket, stay.fence, stay.user, "", stay.course, stay.shape,
        LeaseState.RELEASED, stay.granted_at, stay.holder,
        taken_at=stay.granted_at, attached_at=stay.granted_at, releasing_at=stay.releasing_at,
        ended_at=stay.ended_at, guaranteed_until=stay.granted_at + stay.guaranteed_s + extended_s,
        extensions=int(stay.is_extended), reason=reason, warned_at=stay.warned_at,
        reclaim_at=stay.warned_at and stay.warned_at + WARNING_S,
        warn_kind=WarningKind.IDLE if stay.is_reclaimed else "",
        warn_reason=IDLE if stay.is_reclaimed else "", warn_by=cause,
    )  # fmt: skip


def _activity(stay: Stay) -> Values:
    """Half of the time worked, a quarter idle, the rest not known."""
    length_s = stay.ended_at - stay.granted_at
    day = int(stay.granted_at // DAY_S)
    return stay.number, day, length_s / 2, length_s / 4, length_s / 4


def transitions_of(stay: Stay) -> list[Values]:
    """What the log says of a stay, in order; the columns are the table's without the number."""
    granted, ended, (cause, reason) = stay.granted_at, stay.ended_at, stay.ending
    entries = [
        (stay.asked_at, "ticket", "", "waiting", stay.user, "", ""),
        (granted, "slice", "", "making", "pool", f"for lease {stay.number}", ""),
        (granted, "lease", "", "granted", "pool",
         f"ticket {stay.ticket} is next and there is room", ""),
        (granted, "slice", "making", "leased", "pool", "made", ""),
        (granted, "ticket", "waiting", "offered", "pool", f"lease {stay.number} is ready", ""),
        (granted, "ticket", "offered", "taken", stay.user, "taken", ""),
        (granted, "lease", "granted", "attached", "spawner", f"holder {stay.holder}", ""),
        (granted, "lease", "attached", "running", "spawner", "started", ""),
    ]  # fmt: skip
    if stay.instructor:
        person = f"person:{stay.instructor}"
        entries.insert(
            1, (stay.asked_at, "ticket", "waiting", "waiting", person, "exam tomorrow", "next")
        )
    if stay.is_extended:
        server = f"server:{stay.user}/"
        entries.append(
            (granted, "lease", "running", "running", server, "extended by 1800 s", "extend")
        )
    if stay.warned_at is not None:
        entries.append((stay.warned_at, "lease", "running", "warned", "reclaimer", IDLE, ""))
    used = "warned" if stay.is_reclaimed else "running"
    entries += [
        (stay.releasing_at, "lease", used, "releasing", cause, reason, ""),
        (ended, "slice", "leased", "scrubbing", "pool", f"lease {stay.number} is over", ""),
        (ended, "lease", "releasing", "released", "pool",
         f"{reason}; holder {stay.holder} is gone", ""),
        (ended, "slice", "scrubbing", "gone", "pool", "destroyed", ""),
    ]  # fmt: skip
    return [_logged(stay, *entry) for entry in entries]


def cancelled_transitions(ticket: TicketRow) -> list[Values]:
    """What the log says of a ticket that its student cancelled."""
    target, course = str(ticket.id), ticket.course
    requested = (ticket.created_at, "ticket", target, "", "waiting", ticket.user, "", course, "")
    cancelled = (
        ticket.attended_at, "ticket", target, "waiting", "cancelled", ticket.user, CANCELLED,
        course, "",
    )  # fmt: skip
    return [requested, cancelled]


def _logged(
    stay: Stay, at: float, kind: str, before: str, after: str, cause: str, reason: str, action: str
) -> Values:
    target = stay.ticket if kind == "ticket" else stay.number
    course = "" if after in ("scrubbing", "gone") else stay.course
    return at, kind, str(target), before, after, cause, reason, course, action
