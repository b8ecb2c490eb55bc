"""The ends that come whatever anybody does: the lease's, the class's, maintenance.  Pure.

Times of a class and of maintenance are written as people say them, ``tue 12:00``,
``mon-fri 18:00``, ``2026-11-24 06:00-08:00``, and are readings of the wall clock.
"""

from dataclasses import dataclass

from miglab_api.leases import WarningKind
from miglab_api.wording import clock_time
from miglab_pool.model.closing_times import Closings
from miglab_pool.model.reservations import MakesWay
from miglab_pool.model.schedule import Occurrence, Schedule, next_occurrence

KEPT = "Your files are kept; what is in memory is lost."
TIME_IS_UP = "The lease's time is up. Your files are kept; start again for a new lease."


@dataclass(frozen=True, slots=True)
class HardEnd:
    """An end that no activity puts off."""

    at: float
    kind: WarningKind
    reason: str


def ends_of(
    course: str,
    held_since: float,
    ends_at: float | None,
    closings: Closings,
    makes_way: MakesWay | None = None,
    time_is_up: str = TIME_IS_UP,
) -> list[HardEnd]:
    """The hard ends of a lease: of each kind the first since it is held.

    Args:
        course: whose lease it is.
        held_since: since when its server is attached.
        ends_at: its own end.
        closings: when classes end, and the lab is closed.
        makes_way: when its reserved time is up because others need its slot.
        time_is_up: why it ends at its own end.
    """
    ends = []
    if makes_way is not None:
        reason = f"{makes_way.reason} {KEPT}"
        ends.append(HardEnd(makes_way.at, WarningKind.CLASS_END, reason))
    if ends_at is not None:
        ends.append(HardEnd(ends_at, WarningKind.TIME, time_is_up))
    for rule in closings.classes.get(course, ()):
        if (found := next_occurrence(rule, held_since)) is not None:
            reason = f"The class ends at {clock_time(found.ends_at, rule.tz)}. {KEPT}"
            ends.append(HardEnd(found.ends_at, WarningKind.CLASS_END, reason))
    for rule in closings.maintenance:
        if (found := next_occurrence(rule, held_since)) is not None:
            ends.append(
                HardEnd(found.starts_at, WarningKind.MAINTENANCE, f"{_closed(found, rule)} {KEPT}")
            )
    return ends


def closed_now(closings: Closings, now: float) -> str:
    """Why nothing is granted now; empty outside of every maintenance window."""
    for rule in closings.maintenance:
        found = next_occurrence(rule, now)
        if found is not None and found.starts_at <= now:
            return _closed(found, rule)
    return ""


def _closed(found: Occurrence, rule: Schedule) -> str:
    begins, ends = clock_time(found.starts_at, rule.tz), clock_time(found.ends_at, rule.tz)
    return f"Maintenance of the lab from {begins} to {ends}."
