"""Until when a lease may be guaranteed, so that it breaks no reservation.  Reads only.

A grant goes where nothing is promised within the longest guarantee, if there is such a place.
Else its guarantee ends `clear_s` before the first start that it would break; less than `least_s`
of it is not granted.  An extension is refused where it would break a start.
"""

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple
from zoneinfo import ZoneInfo

from miglab_api.wording import clock_time
from miglab_pool.gpu.geometry import Placed
from miglab_pool.ledger.rows import FULL, LeaseRow, ReservationRow
from miglab_pool.refused import Refused
from miglab_pool.reservations.feasible import Guarantee, feasible, holders, starts
from miglab_pool.reservations.rules import Key, in_words, reserved_until, schedule_of
from miglab_pool.schedule import next_occurrence
from miglab_pool.state.placement import Choice, GpuOccupancy, Slot, beside, by_gpu
from miglab_pool.state.view import GpuSnapshot, PoolView, once


class GuaranteeLimit(NamedTuple):
    """Until when a lease may be guaranteed.

    Attributes:
        until: seconds since the epoch.
        row: the reservation that it would break if it were guaranteed longer; None: none.
        is_enough: whether a lease is granted for that long.
    """

    until: float
    row: ReservationRow | None = None
    is_enough: bool = True


def limit(
    view: PoolView, one: Guarantee, until: float, since: float | None = None
) -> GuaranteeLimit:
    """Until when a lease may be guaranteed.

    Args:
        view: the pool.
        one: the lease.
        until: the longest that it might be.
        since: until when it is guaranteed already; None: it is not.

    Returns:
        ``until``, or `clear_s` before the first start that would have fewer of its slices, whose
        reservation is named.
    """
    if not view.reservations:
        return GuaranteeLimit(until)
    clear_s = view.settings.pool.clear_s
    begins = max(view.at, since or view.at)
    now = [view.at] if begins == view.at else []
    for start in (*now, *starts(view, begins, until + clear_s)):
        row = _broken(view, start, one)
        if row is not None:
            return GuaranteeLimit(max(begins, start - clear_s), row)
    return GuaranteeLimit(until)


def _broken(view: PoolView, moment: float, one: Guarantee) -> ReservationRow | None:
    """The reservation that has fewer of its slices at a moment beside a lease; None if none has."""
    before = feasible(view, moment)
    is_whole = any(place is None for _, place in one.slices)
    if not before.held or not (is_whole or before.lies_on(one)):
        return None
    after = feasible(view, moment, one)
    fewer = (number for number, held in before.held.items() if after.held.get(number, 0) < held)
    number = next(fewer, None)
    return None if number is None else view.reservations[number]


def of_lease(view: PoolView, lease: LeaseRow) -> Guarantee:
    """A lease that there is, as a guarantee."""
    slices = tuple(
        (row.gpu, None if row.profile == FULL else view.placed(row))
        for row in view.slices_of(lease)
    )
    return Guarantee(lease.user, (lease.course, lease.shape), slices)


def of_grant(
    view: PoolView, user: str, key: Key, where: Sequence[Choice] | GpuSnapshot
) -> Guarantee:
    """What is about to be granted, as a guarantee: slices, or a whole GPU.

    Whoever holds nothing of that course and shape is nobody in particular: one answer serves all.
    """
    if isinstance(where, GpuSnapshot):
        slices: tuple[tuple[str, Placed | None], ...] = ((where.uuid, None),)
    else:
        slices = tuple((one.gpu, Placed(one.profile, one.placement)) for one in where)
    return Guarantee(user if user in holders(view, key) else "", key, slices)


# -- extensions -----------------------------------------------------------------------------------


def extension_limit(view: PoolView, lease: LeaseRow, until: float) -> GuaranteeLimit:
    """Until when the guarantee of a lease may be lengthened, at most until a moment."""
    return limit(view, of_lease(view, lease), until, lease.guaranteed_until)


def check_end(view: PoolView, lease: LeaseRow, until: float) -> None:
    """Refuse to lengthen a guarantee that would then break a reservation.

    Raises:
        Refused: ``no-extension``, with what is reserved and by how much it may be extended.
    """
    most, row, _ = extension_limit(view, lease, until)
    if row is None:
        return
    left_s = most - max(view.at, lease.guaranteed_until)
    reserved = (
        f"Its slices are reserved from {clock_time(most + view.settings.pool.clear_s, row.tz)} on "
        f"for reservation {row.id} ({in_words(row)}). "
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


NOBODYS: Key = ("", "")


def claimable(view: PoolView, user: str, key: Key) -> Key:
    """The course and shape whose reservations a new lease draws on; nobody's: it draws on none."""
    is_reserved = any((row.course, row.shape) == key for row in view.reservations.values())
    return key if is_reserved and user not in holders(view, key) else NOBODYS


def without_promised(view: PoolView, gpus: Sequence[GpuOccupancy], key: Key) -> list[GpuOccupancy]:
    """The GPUs without what is promised to others than a course's reservations of a shape."""
    return beside(gpus, by_gpu(_promised(view, key)))


@once
def _promised(view: PoolView, mine: Key) -> list[Slot]:
    """Where slices might lie that are promised to others within the longest guarantee."""
    rows = view.reservations
    quotas = (quota.lease_s for quota in view.settings.quotas.values())
    pool = view.settings.pool
    until = view.at + pool.offer_s + pool.attach_s + max(pool.lease_s, pool.borrow_s, *quotas)
    return [
        slot
        for start in starts(view, view.at, until + pool.clear_s)
        for number, slot in feasible(view, start).slots
        if (rows[number].course, rows[number].shape) != mine
    ]


def grant_limit(
    view: PoolView, user: str, key: Key, where: Sequence[Choice] | GpuSnapshot, until: float
) -> GuaranteeLimit:
    """Until when a lease that is granted now there is guaranteed.

    Args:
        view: the pool.
        user: who gets it.
        key: its course and shape.
        where: its slices, or its GPU.
        until: until when it is to be guaranteed.
    """
    found = limit(view, of_grant(view, user, key, where), until)
    least = min(view.at + view.settings.pool.least_s, until)
    return found._replace(is_enough=found.until >= least)


def kept_until(view: PoolView) -> float:
    """When what is reserved next, or now, and is not taken up, is free for all."""
    times = (
        (row, next_occurrence(schedule_of(row), view.at)) for row in view.reservations.values()
    )
    ends = [reserved_until(row, time) for row, time in times if time]
    return min((end for end in ends if end > view.at), default=view.at)


def shortened(view: PoolView, found: GuaranteeLimit) -> str:
    """A guarantee that a reservation ends, for people: "until Tue 09:58: reserved for Vision"."""
    if found.row is None:
        return ""
    course = view.settings.courses.get(found.row.course)
    title = course.title if course else found.row.course
    until = dt.datetime.fromtimestamp(found.until, ZoneInfo(found.row.tz))
    return f"until {until:%a %H:%M}: reserved for {title}"
