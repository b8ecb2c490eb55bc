"""A class that is over makes way: which leases drawn from it end, when, and for what.  Reads only.

Who drew on a reservation had its slot for its time.  When that is over the lease runs on like any
other, until another reservation needs its slot, or somebody waits who draws on the course's own
next one.  Then its time is up: at the reservation's end, or when the slots of the next are first
reserved, whichever is later.  Who has drawn on nothing is never in question.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from miglab_api.wording import clock_time
from miglab_pool.ledger.rows import LeaseRow, ReservationRow
from miglab_pool.reservations import ahead as reservations_ahead
from miglab_pool.reservations.ahead import ReservedTime
from miglab_pool.reservations.rules import InForce, MakesWay, schedule_of
from miglab_pool.schedule import DAY_S, Occurrence, next_occurrence
from miglab_pool.state.view import PoolView

Key = tuple[str, str]


@dataclass(frozen=True)
class _Drawn:
    """A lease that was drawn from a reservation, and when its class takes place."""

    lease: LeaseRow
    row: ReservationRow
    time: Occurrence

    @property
    def over_at(self) -> float:
        """When the class is over."""
        return self.time.ends_at


def ends(view: PoolView, ahead_s: float) -> dict[int, MakesWay]:
    """When leases end because their class is over and others need their slots.

    Args:
        view: the pool.
        ahead_s: how far to look ahead, seconds.

    Returns:
        By lease; those that nobody needs are missing.
    """
    now = view.at
    found: dict[int, MakesWay] = {}
    times = reservations_ahead.reserved_times(view, now, now + ahead_s)
    drawn = _drawn(view, now) if times else []
    for at in _moments(times, drawn, now, now + ahead_s) if drawn else ():
        over = {one.lease.id: one for one in drawn if one.over_at <= at}
        for lease in _in_the_way(view, at, over.keys() - found.keys(), found):
            found[lease.id] = MakesWay(at, _why(over[lease.id], at))
    return found


def _moments(
    times: Sequence[ReservedTime], drawn: Sequence[_Drawn], now: float, until: float
) -> list[float]:
    """When something begins to be reserved, or a class is over while something is."""
    begins = {max(now, time.begins) for time in times}
    overs = {max(now, one.over_at) for one in drawn}
    reserved = {at for at in overs if any(time.begins <= at < time.ends for time in times)}
    return sorted(at for at in begins | reserved if at <= until)


def _in_the_way(
    view: PoolView, at: float, over: Collection[int], gone: Collection[int]
) -> list[LeaseRow]:
    """Those of the leases whose class is over that lie where slots are needed at a moment."""
    there = [lease for lease in reservations_ahead.staying(view, at) if lease.id not in gone]
    go = [lease for lease in there if lease.id in over]
    stays = [lease for lease in there if lease.id not in over]
    if not go:
        return []
    needing = _needing(view, reservations_ahead.reserving(view, at, stays), go)
    return reservations_ahead.on_slots(view, at, needing, stays, go) if needing else []


def _needing(view: PoolView, reserving: Sequence[InForce], go: Sequence[LeaseRow]) -> list[InForce]:
    """What needs slots: of the course's own next class only as many as wait for them.

    It may well be the same people who go on.
    """
    own = {_key(lease) for lease in go}
    waiting = Counter((t.course, t.shape) for t in view.tickets.values() if t.is_queued)
    found = []
    for one in reserving:
        key = (one.row.course, one.row.shape)
        wanted = min(one.left, waiting[key]) if key in own else one.left
        if wanted:
            found.append(replace(one, left=wanted))
    return found


def _key(lease: LeaseRow) -> Key:
    return lease.course, lease.shape


# -- what was drawn -------------------------------------------------------------------------------


def _drawn(view: PoolView, now: float) -> list[_Drawn]:
    """The leases that count as drawn from a reservation, the oldest first, as many as it holds."""
    found: dict[int, _Drawn] = {}
    for row in (*view.reservations.values(), *_past(view)):
        for one in _drawn_from(view, row, found):
            known = found.get(one.lease.id)
            if known is None or one.over_at < known.over_at:
                found[one.lease.id] = one
    return list(found.values())


def _drawn_from(view: PoolView, row: ReservationRow, known: Mapping[int, _Drawn]) -> list[_Drawn]:
    """The leases drawn from one reservation, without those drawn from another at that time."""
    found = []
    for lease in sorted(view.leases.values(), key=lambda one: one.id):
        if _key(lease) != (row.course, row.shape):
            continue
        time = next_occurrence(schedule_of(row), lease.attached_at or lease.granted_at)
        other = known.get(lease.id)
        if time is not None and not (other and other.time.overlaps(time)):
            found.append(_Drawn(lease, row, time))
    return found[: row.count]


def _past(view: PoolView) -> list[ReservationRow]:
    """The reservations that came to their end within a day: leases may still live from them."""
    since = view.at - DAY_S
    return [row for row in view.past if next_occurrence(schedule_of(row), since)]


def _why(one: _Drawn, at: float) -> str:
    over, needed = (clock_time(moment, one.row.tz) for moment in (one.over_at, at))
    since = "" if over == needed else f", from {needed} on"
    return f"The class that reserved this slice is over at {over}, and others need it{since}."
