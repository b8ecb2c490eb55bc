"""Until when a lease may be guaranteed beside the reservations.  Reads only.

A grant goes where nothing is promised within the longest guarantee, if there is such a place.
Otherwise its guarantee ends `clear_s` before the first start of a reservation that it would break,
and it is not granted if that leaves less than `least_s`.  An extension is refused where it would
break a reservation.
"""

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple
from zoneinfo import ZoneInfo

from miglab_api.wording import clock_time
from miglab_pool.gpu.geometry import ProfilePlacement
from miglab_pool.ledger.rows import FULL, LeaseRow, ReservationRow
from miglab_pool.refused import Refused
from miglab_pool.reservations.feasible import (
    Guarantee,
    feasible,
    holders,
    start_times,
)
from miglab_pool.reservations.rules import Key, describe, reserved_until
from miglab_pool.schedule import (
    next_occurrence,
)
from miglab_pool.state.placement import Choice, GpuOccupancy, Slot, places_by_gpu, without_reserved
from miglab_pool.state.reservation_times import schedule_of
from miglab_pool.state.view import PoolView, cached_on_instance


class GuaranteeLimit(NamedTuple):
    """Until when a lease may be guaranteed, and which reservation limits that.

    Attributes:
        until: seconds since the epoch.
        row: the reservation that a longer guarantee would break; None if nothing limits it.
        is_enough: whether a lease is granted for that long.
    """

    until: float
    row: ReservationRow | None = None
    is_enough: bool = True


def guarantee_limit(
    view: PoolView, guarantee: Guarantee, until: float, since: float | None = None
) -> GuaranteeLimit:
    """Return until when a lease may be guaranteed.

    Args:
        view: the pool.
        guarantee: the lease.
        until: the longest that it might be guaranteed.
        since: until when it is guaranteed already; None: it is not.

    Returns:
        ``until``, or `clear_s` before the first start of a reservation that would have fewer of its
        slices; that reservation is named.
    """
    if not view.reservations:
        return GuaranteeLimit(until)
    clear_s = view.settings.pool.clear_s
    begins = max(view.at, since or view.at)
    now = [view.at] if begins == view.at else []
    for start in (*now, *start_times(view, begins, until + clear_s)):
        row = _broken_reservation(view, start, guarantee)
        if row is not None:
            return GuaranteeLimit(max(begins, start - clear_s), row)
    return GuaranteeLimit(until)


def _broken_reservation(
    view: PoolView, moment: float, guarantee: Guarantee
) -> ReservationRow | None:
    """Return a reservation that would have fewer slices at a moment beside a lease, if any."""
    before = feasible(view, moment)
    is_whole = any(place is None for _, place in guarantee.slices)
    if not before.counts or not (is_whole or before.lies_on(guarantee)):
        return None
    after = feasible(view, moment, guarantee)
    for number, count in before.counts.items():
        if after.counts.get(number, 0) < count:
            return view.reservations[number]
    return None


def lease_guarantee(view: PoolView, lease: LeaseRow) -> Guarantee:
    """Return a lease as a guarantee."""
    slices = tuple(
        (row.gpu, None if row.profile == FULL else view.placement_of(row))
        for row in view.slices_of(lease)
    )
    return Guarantee(lease.user, (lease.course, lease.shape), slices)


def grant_guarantee(view: PoolView, user: str, key: Key, choices: Sequence[Choice]) -> Guarantee:
    """Return a lease that is about to be granted as a guarantee.

    A user who holds no lease of that course and shape is left anonymous, so that one answer serves
    all such users.
    """
    slices = tuple(
        (
            choice.gpu,
            None
            if choice.profile.name == FULL
            else ProfilePlacement(choice.profile, choice.placement),
        )
        for choice in choices
    )
    return Guarantee(user if user in holders(view, key) else "", key, slices)


# -- extensions -----------------------------------------------------------------------------------


def extension_limit(view: PoolView, lease: LeaseRow, until: float) -> GuaranteeLimit:
    """Return until when the guarantee of a lease may be extended, at most to ``until``."""
    return guarantee_limit(view, lease_guarantee(view, lease), until, lease.guaranteed_until)


def check_extension(view: PoolView, lease: LeaseRow, until: float) -> None:
    """Refuse an extension of a lease that would break a reservation.

    Raises:
        Refused: ``no-extension``, with what is reserved and by how much it may be extended.
    """
    latest_end, row, _ = extension_limit(view, lease, until)
    if row is None:
        return
    left_s = latest_end - max(view.at, lease.guaranteed_until)
    reserved_from = clock_time(latest_end + view.settings.pool.clear_s, row.tz)
    reserved = (
        f"Its slices are reserved from {reserved_from} on for reservation "
        f"{row.id} ({describe(row)}). "
    )
    if left_s < 60:
        raise Refused(
            "no-extension", f"{reserved}So it cannot be extended: save your work in time."
        )
    minutes = int(left_s // 60)
    raise Refused(
        "no-extension", f"{reserved}It may be extended by {minutes} minutes: ask for less."
    )


# -- grants ---------------------------------------------------------------------------------------


NO_KEY: Key = ("", "")  # of a lease that draws on no reservation


def claimable_key(view: PoolView, user: str, key: Key) -> Key:
    """Return the key whose reservations a new lease would draw on; `NO_KEY` if it draws on none."""
    is_reserved = key in view.reservations.keys_reserved
    return key if is_reserved and user not in holders(view, key) else NO_KEY


def without_promised_slots(
    view: PoolView, gpus: Sequence[GpuOccupancy], key: Key
) -> list[GpuOccupancy]:
    """Return the GPUs without the slots that are promised to reservations of other keys."""
    return without_reserved(gpus, places_by_gpu(_promised_slots(view, key)))


@cached_on_instance
def _promised_slots(view: PoolView, own_key: Key) -> list[Slot]:
    """Return the slots of other keys' reservations that begin within the longest guarantee."""
    rows = view.reservations
    quotas = (quota.lease_s for quota in view.settings.quotas.values())
    pool = view.settings.pool
    until = view.at + pool.offer_s + pool.attach_s + max(pool.lease_s, pool.borrow_s, *quotas)
    return [
        slot
        for start in start_times(view, view.at, until + pool.clear_s)
        for number, slot in feasible(view, start).slots
        if (rows[number].course, rows[number].shape) != own_key
    ]


def grant_limit(
    view: PoolView, user: str, key: Key, choices: Sequence[Choice], until: float
) -> GuaranteeLimit:
    """Return until when a lease that is granted now would be guaranteed.

    Args:
        view: the pool.
        user: the user who gets it.
        key: its course and shape.
        choices: its slices.
        until: the longest that it might be guaranteed.
    """
    limit = guarantee_limit(view, grant_guarantee(view, user, key, choices), until)
    least_until = min(view.at + view.settings.pool.least_s, until)
    return limit._replace(is_enough=limit.until >= least_until)


def next_release_time(view: PoolView) -> float:
    """Return when slots that are reserved now or next are free for all if not taken up."""
    times = (
        (row, next_occurrence(schedule_of(row), view.at)) for row in view.reservations.values()
    )
    ends = [reserved_until(row, time) for row, time in times if time]
    return min((end for end in ends if end > view.at), default=view.at)


def describe_limit(view: PoolView, limit: GuaranteeLimit) -> str:
    """Return what limits a guarantee, for people: "until Tue 09:58: reserved for Vision"."""
    if limit.row is None:
        return ""
    course = view.settings.courses.get(limit.row.course)
    title = course.title if course else limit.row.course
    until = dt.datetime.fromtimestamp(limit.until, ZoneInfo(limit.row.tz))
    return f"until {until:%a %H:%M}: reserved for {title}"
