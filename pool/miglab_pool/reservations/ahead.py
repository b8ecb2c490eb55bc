"""When slots are reserved ahead, and who is guaranteed to be there then: for estimates."""

from dataclasses import dataclass

from miglab_api.leases import LeaseState
from miglab_pool.ledger.rows import LeaseRow, ReservationRow
from miglab_pool.reservations.rules import reserved_until, schedule_of
from miglab_pool.schedule import Occurrence, occurrences
from miglab_pool.state.placement import SOON
from miglab_pool.state.view import PoolView


@dataclass(frozen=True)
class ReservedTime:
    """A time at which a reservation has its slots.

    Attributes:
        time: when the class takes place.
        begins: the lead before its start.
        ends: the end of its grace.
    """

    row: ReservationRow
    time: Occurrence
    begins: float
    ends: float


def reserved_times(view: PoolView, since: float, until: float) -> list[ReservedTime]:
    """When slots are reserved between two moments, the first in front."""
    lead_s = view.settings.pool.reserve_lead_s
    found = [
        ReservedTime(row, time, time.starts_at - lead_s, reserved_until(row, time))
        for row in view.reservations.values()
        for time in occurrences(schedule_of(row), since, until + lead_s)
    ]
    times = [one for one in found if one.begins < until and since < one.ends]
    return sorted(times, key=lambda one: (one.begins, one.row.id))


def stays_until(view: PoolView, lease: LeaseRow) -> float:
    """Until when a lease is reckoned to stay: its guarantee's end."""
    return SOON if lease.state == LeaseState.RELEASING else lease.guaranteed_until


def staying(view: PoolView, at: float) -> list[LeaseRow]:
    """The leases whose end, as it is set, lies behind a moment."""
    return [lease for lease in view.leases.values() if stays_until(view, lease) > at]
