"""Which reservations are in force at a moment, and how much of each is left.  Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from miglab_api.leases import LeaseState
from miglab_api.reservations import ReservationState
from miglab_pool.model.reservations import phase
from miglab_pool.model.rows import LeaseRow, ReservationRow
from miglab_pool.model.schedule import Occurrence

Key = tuple[str, str]  # course and shape


@dataclass(frozen=True)
class InForce:
    """A reservation that keeps places or takes place at a moment.

    Attributes:
        row: what is reserved.
        time: when.
        is_reserved: whether its slots are kept.
        has_begun: whether it takes place.
        left: how many leases its course has not drawn.
    """

    row: ReservationRow
    time: Occurrence
    is_reserved: bool
    has_begun: bool
    left: int

    @property
    def key(self) -> Key:
        """What a lease must be of to be drawn from it: the course and the shape."""
        return self.row.course, self.row.shape


def in_force(
    rows: Iterable[ReservationRow], at: float, lead_s: float, leases: Iterable[LeaseRow]
) -> list[InForce]:
    """The reservations in force at a moment, those that began first in front.

    Args:
        rows: those that are not over.
        at: the moment.
        lead_s: how long before their start slots are reserved.
        leases: those that live then.
    """
    ahead = undrawn(rows, at, lead_s)
    return less_drawn(ahead, drawn(leases)) if ahead else []


def undrawn(rows: Iterable[ReservationRow], at: float, lead_s: float) -> list[InForce]:
    """The reservations in force at a moment if no lease lives, those that began first in front."""
    phases = ((row, *phase(row, at, lead_s)) for row in rows)
    in_time = [
        InForce(row, time, state is ReservationState.RESERVED, time.starts_at <= at, row.count)
        for row, state, time in phases
        if time is not None and state in (ReservationState.RESERVED, ReservationState.OPEN)
    ]
    return sorted(in_time, key=lambda one: (one.time, one.row.id))


def drawn(leases: Iterable[LeaseRow]) -> Counter[Key]:
    """How many leases of each course and shape count as drawn, if these live."""
    return Counter(
        (lease.course, lease.shape) for lease in leases if lease.state != LeaseState.RELEASING
    )


def less_drawn(ahead: Sequence[InForce], drawn: Mapping[Key, int]) -> list[InForce]:
    """Leases of the course and shape draw on its reservations, the earliest first."""
    rest, less = Counter(drawn), []
    for one in ahead:
        mine = min(rest[one.key], one.row.count)
        rest[one.key] -= mine
        less.append(replace(one, left=one.row.count - mine))
    return less


def left_of(reservations: Iterable[InForce]) -> Counter[Key]:
    """How many leases of a course and shape the reservations in force still hold for it."""
    total: Counter[Key] = Counter()
    for one in reservations:
        total[one.key] += one.left
    return total
