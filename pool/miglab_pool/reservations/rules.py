"""A reservation's times and phases, worked out from its row and the clock alone.  Pure.

They say which reservations are in force at a moment, and how many leases of each are not drawn yet.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from miglab_api.leases import LeaseState
from miglab_api.reservations import ReservationState
from miglab_pool.ledger.rows import LeaseRow, ReservationRow
from miglab_pool.schedule import Occurrence, next_occurrence, occurrences, weekday_names
from miglab_pool.state.reservation_times import schedule_of

RELEASING = LeaseState.RELEASING
Phase = tuple[ReservationState, Occurrence | None]
Key = tuple[str, str]  # course and shape


def phase(row: ReservationRow, at: float, lead_s: float) -> Phase:
    """Return the phase of a reservation at a moment.

    Args:
        row: a reservation that is not cancelled or refused.
        at: the moment, seconds since the epoch.
        lead_s: how long before the start its slots are reserved.

    Returns:
        ``reserved`` from the lead before its start to the end of its grace, ``open`` from then to
        its end, ``planned`` before, each with its time; ``over``, without one, after all.
    """
    times = schedule_of(row)
    current = next(occurrences(times, at, at + lead_s), None)
    if current is None:
        ahead = next_occurrence(times, at)
        return (ReservationState.PLANNED if ahead else ReservationState.OVER), ahead
    is_reserved = at < reserved_until(row, current)
    return (ReservationState.RESERVED if is_reserved else ReservationState.OPEN), current


def reserved_until(row: ReservationRow, occurrence: Occurrence) -> float:
    """Return when the slots that were not taken up are free for all."""
    return min(occurrence.starts_at + row.grace_s, occurrence.ends_at)


def describe(row: ReservationRow) -> str:
    """Return what is reserved and when, for people."""
    days = "+".join(weekday_names(row.weekdays)) or row.first_date
    times = f"{days} {row.from_time}-{row.to_time} {row.tz}"
    return f"{row.count} times {row.shape} for {row.course}, {times}"


@dataclass(frozen=True)
class ReservationInForce:
    """A reservation that has slots reserved or takes place at a moment.

    Attributes:
        row: the reservation.
        time: the occurrence that is in force.
        is_reserved: whether its slots are reserved.
        has_begun: whether it takes place.
        undrawn: how many of its leases the course has not drawn yet.
    """

    row: ReservationRow
    time: Occurrence
    is_reserved: bool
    has_begun: bool
    undrawn: int

    @property
    def key(self) -> Key:
        """The course and shape of the leases that draw on it."""
        return self.row.course, self.row.shape


def reservations_in_force_at(
    rows: Iterable[ReservationRow], at: float, lead_s: float
) -> list[ReservationInForce]:
    """Return the reservations in force at a moment as if nothing were drawn, by start."""
    phases = ((row, *phase(row, at, lead_s)) for row in rows)
    in_time = [
        ReservationInForce(
            row, time, state is ReservationState.RESERVED, time.starts_at <= at, row.count
        )
        for row, state, time in phases
        if time is not None and state in (ReservationState.RESERVED, ReservationState.OPEN)
    ]
    return sorted(in_time, key=lambda reservation: (reservation.time, reservation.row.id))


def count_drawing(leases: Iterable[LeaseRow]) -> Counter[Key]:
    """Return how many people draw on the reservations of each course and shape."""
    claims = (
        (lease.course, lease.shape, lease.user) for lease in leases if lease.state != RELEASING
    )
    return Counter((course, shape) for course, shape, _ in set(claims))


def subtract_drawn(
    reservations: Sequence[ReservationInForce], drawn_counts: Mapping[Key, int]
) -> list[ReservationInForce]:
    """Return the reservations less what is drawn; each lease draws on the earliest of its key."""
    unassigned, remaining = Counter(drawn_counts), []
    for reservation in reservations:
        drawn_here = min(unassigned[reservation.key], reservation.row.count)
        unassigned[reservation.key] -= drawn_here
        remaining.append(replace(reservation, undrawn=reservation.row.count - drawn_here))
    return remaining
