"""Which reservations are in force at a moment, and how much of each is left.  Reads only."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from miglab_api.leases import LeaseState
from miglab_api.reservations import ReservationState
from miglab_pool.model.reservations import phase
from miglab_pool.model.rows import LeaseRow, ReservationRow
from miglab_pool.model.schedule import Occurrence
from miglab_pool.state.store import Store


@dataclass(frozen=True)
class InForce:
    """A reservation that keeps places or takes place at a moment.

    Attributes:
        row: what is reserved.
        time: when.
        is_kept: whether its places are set aside.
        has_begun: whether it takes place.
        left: how many leases its course has not drawn.
    """

    row: ReservationRow
    time: Occurrence
    is_kept: bool
    has_begun: bool
    left: int


def in_force(store: Store, at: float, leases: Iterable[LeaseRow] | None = None) -> list[InForce]:
    """The reservations in force at a moment, those that began first in front.

    Args:
        store: the pool.
        at: the moment.
        leases: those that live then; None: those that live now.
    """
    ahead = found(store, at)
    if not ahead:
        return []
    return less_drawn(ahead, drawn(store.state.leases.values() if leases is None else leases))


def found(store: Store, at: float) -> list[InForce]:
    """The reservations in force at a moment if no lease lives, those that began first in front."""
    lead_s = store.settings.pool.reserve_lead_s
    phases = ((row, *phase(row, at, lead_s)) for row in store.state.reservations.values())
    in_time = [
        InForce(row, time, state is ReservationState.KEPT, time.starts_at <= at, row.count)
        for row, state, time in phases
        if time is not None and state in (ReservationState.KEPT, ReservationState.OPEN)
    ]
    return sorted(in_time, key=lambda one: (one.time, one.row.id))


def drawn(leases: Iterable[LeaseRow]) -> Counter[tuple[str, str]]:
    """How many leases of each course and shape count as drawn, if these live."""
    return Counter(
        (lease.course, lease.shape) for lease in leases if lease.state != LeaseState.RELEASING
    )


def less_drawn(found: Sequence[InForce], drawn: Mapping[tuple[str, str], int]) -> list[InForce]:
    """Leases of the course and shape draw on its reservations, the earliest first."""
    rest, less = Counter(drawn), []
    for one in found:
        key = (one.row.course, one.row.shape)
        mine = min(rest[key], one.row.count)
        rest[key] -= mine
        less.append(replace(one, left=one.row.count - mine))
    return less


def left(store: Store, at: float) -> Counter[tuple[str, str]]:
    """How many leases of a course and shape the reservations in force still hold for it."""
    total: Counter[tuple[str, str]] = Counter()
    for one in in_force(store, at):
        total[one.row.course, one.row.shape] += one.left
    return total
