"""What may be promised, and how certain it is.  Reads only.

A grant goes where nothing is promised within the longest guarantee, if there is such a place.
Else its guarantee ends `clear_s` before the first start that it would break; less than `least_s`
of it is not granted.  An extension is refused where it would break a start.

How much of a reservation is certain is said in words, for the form, the calendar and the pool page.
It may be made if its shape, its times and the room on empty GPUs allow it: what is guaranteed to
others at its time is no reason to refuse it, fewer are certain then.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zoneinfo import ZoneInfo

from miglab_api.reservations import ReservationRequest
from miglab_api.wording import clock_time, day_and_time
from miglab_pool.gpu.geometry import Placed
from miglab_pool.gpu.shapes import ShapeError, resolve
from miglab_pool.ledger.rows import FULL, GPU_OK, LeaseRow, ReservationRow
from miglab_pool.refused import Refused
from miglab_pool.reservations.feasible import (
    Guarantee,
    bare,
    feasible,
    guaranteed_ends,
    holders,
    is_usable,
    room_beside,
    starts,
)
from miglab_pool.reservations.rules import Key, in_words, reserved_until, schedule_of, undrawn
from miglab_pool.reservations.slots import MINUTE_S, count_held_up, reserving, slots_of
from miglab_pool.schedule import (
    DAY_S,
    Occurrence,
    local_day,
    next_occurrence,
    occurrence,
    occurrences,
    schedule_problem,
)
from miglab_pool.state.placement import Choice, GpuOccupancy, Slot, places_by_gpu, without_reserved
from miglab_pool.state.view import GpuSnapshot, PoolView, cached_on_instance


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


def of_grant(view: PoolView, user: str, key: Key, where: Sequence[Choice]) -> Guarantee:
    """What is about to be granted, as a guarantee.

    Whoever holds nothing of that course and shape is nobody in particular: one answer serves all.
    """
    slices = tuple(
        (one.gpu, None if one.profile.name == FULL else Placed(one.profile, one.placement))
        for one in where
    )
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
    return without_reserved(gpus, places_by_gpu(_promised(view, key)))


@cached_on_instance
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
    view: PoolView, user: str, key: Key, where: Sequence[Choice], until: float
) -> GuaranteeLimit:
    """Until when a lease that is granted now there is guaranteed.

    Args:
        view: the pool.
        user: who gets it.
        key: its course and shape.
        where: its slices.
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


# -- how certain it is ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Certainty:
    """What a reservation will have at one of its times.

    Attributes:
        certain: how many of its slices are certain from the start on.
        all_from: when all of them are, if that is later.
        words: the same for people, with the reason; empty: all are certain.
    """

    certain: int
    all_from: float | None = None
    words: str = ""


def outlook(view: PoolView, row: ReservationRow, time: Occurrence, zone: str = "") -> Certainty:
    """What a reservation, made or about to be, will have at one of its times.

    The words tell times by the clock of ``zone``; empty: of the reservation's own.
    """
    is_made = view.reservations.get(row.id) == row
    others = (one for one in view.reservations.values() if one.id != row.id)
    rows = None if is_made else (*others, row)
    begins = max(view.at, time.starts_at)
    turns = [begins, *starts(view, begins, time.ends_at)]

    def held(since: float) -> int:
        moments = {since, *(at for at in turns if at >= since)}
        return min(feasible(view, at, None, rows).held.get(row.id, row.count) for at in moments)

    certain = held(begins)
    if certain == row.count:
        return _as_it_stands(view, row, time)
    ends = (at for at in guaranteed_ends(view) if begins < at < time.ends_at)
    all_from = next((at for at in ends if held(at) == row.count), None)
    words = f"{certain} of {row.count} at {clock_time(begins, zone or row.tz)}"
    if all_from is not None:
        since = clock_time(all_from, zone or row.tz)
        return Certainty(certain, all_from, f"{words}, all from {since}.")
    lost = [_why_lost(gpu) for gpu in view.gpus.values() if not is_usable(gpu)]
    return Certainty(certain, None, f"{words}: {'; '.join(lost)}." if lost else f"{words}.")


def _as_it_stands(view: PoolView, row: ReservationRow, time: Occurrence) -> Certainty:
    """All find a place; but one may still be held up, or nothing is reclaimed for it."""
    if not view.settings.reclaim.acts:
        return Certainty(row.count, None, "Not certain: this lab does not end leases.")
    late = count_held_up(view, row) if time.starts_at <= view.at else 0
    if late:
        words = f"{row.count - late} of {row.count} now: the rest waits for servers to end."
        return Certainty(row.count - late, None, words)
    return Certainty(row.count)


def _why_lost(gpu: GpuSnapshot) -> str:
    row = gpu.row
    if row.draining:
        return f"GPU {row.idx} takes no new leases ({row.draining})"
    why = row.reason or "does not answer"
    said = why if row.state != GPU_OK else "its last servers have not ended"
    return f"GPU {row.idx}: {said}"


def of_week(
    view: PoolView, since: float, until: float, zone: str = ""
) -> dict[tuple[int, float], str]:
    """The words of each time between two moments that is not all certain, by number and start."""
    found = {
        (row.id, time.starts_at): outlook(view, row, time, zone).words
        for row in view.reservations.values()
        for time in occurrences(schedule_of(row), max(since, view.at), until)
    }
    return {key: words for key, words in found.items() if words}


def hours_left(
    view: PoolView, course: str, shape: str, since: float, until: float
) -> dict[float, int]:
    """How many more leases of a shape a course can reserve, by the hour between two moments.

    As `check_room` judges it: beside all other reservations, on GPUs where nothing else lies.
    Hours that are over, and those in which the lab is closed, are left out.
    """
    windows = view.settings.maintenance_windows
    closed = [one for rule in windows for one in occurrences(rule, since, until)]
    known: dict[frozenset[int], int] = {}

    def left(moment: float) -> int:
        beside = undrawn(view.reservations.values(), moment, 0.0)
        key = frozenset(one.row.id for one in beside)
        if key not in known:
            known[key] = room_beside(view, course, shape, beside)
        return known[key]

    hours = (since + n * HOUR_S for n in range(round((until - since) / HOUR_S)))
    return {
        at: min(map(left, (at, *starts(view, at, at + HOUR_S))))
        for at in hours
        if at + HOUR_S > view.at
        and not any(Occurrence(at, at + HOUR_S).overlaps(one) for one in closed)
    }


def unkept(view: PoolView) -> list[str]:
    """The reservations in progress that lack slots although all of everybody's are feasible."""
    if any(gpu.is_resting or gpu.closed for gpu in view.gpus.values()):
        return []
    found = []
    for one in reserving(view):
        moment = max(one.time.starts_at, view.at // MINUTE_S * MINUTE_S)
        held = feasible(view, moment).held
        is_all = all(held[number] == view.reservations[number].count for number in held)
        if one.has_begun and is_all and one.row.shape != FULL:
            slots = {slot.request for slot in slots_of(view).get(one.row.id, ())}
            if len(slots) < one.left:
                found.append(f"reservation {one.row.id} has {len(slots)} slots for {one.left}")
    return found


# -- may it be made -------------------------------------------------------------------------------

HOUR_S = 3600.0
YEAR_S = 366 * DAY_S


def shape_of(view: PoolView, asked: ReservationRequest) -> str:
    """The shape, resolved; it must be one that students of the course can ask for."""
    rules = view.settings.courses.get(asked.course)
    if rules is None:
        raise no_course(view, asked.course, 422)
    if not view.geometries:
        raise gpus_unknown()
    geometries = view.geometries
    try:
        shape = resolve(asked.shape, geometries)
        offered = {str(resolve(text, geometries)) for text in rules.shapes}
    except ShapeError as error:
        raise Refused("bad-shape", str(error), 422) from error
    if shape.is_cpu:
        raise Refused("bad-shape", "'cpu' needs no slice, so there is nothing to reserve.", 422)
    if str(shape) not in offered:
        raise Refused(
            "shape-not-offered",
            f"{rules.title or asked.course} does not offer {shape}; it offers "
            f"{', '.join(rules.shapes) or 'nothing'}. Students could not ask for what is reserved.",
            422,
        )
    return str(shape)


def no_course(view: PoolView, course: str, status: int) -> Refused:
    """The lab has no such course."""
    names = ", ".join(sorted(view.settings.courses)) or "none"
    message = f"There is no course {course!r} here. Courses: {names}."
    return Refused("not-in-course", message, status)


def gpus_unknown() -> Refused:
    """What the GPUs can hold is not known yet."""
    return Refused("gpus-unknown", "No GPU has answered yet. Try again in a minute.", 503)


def check_times(asked: ReservationRequest, at: float) -> None:
    """Its times must make sense."""
    reason = schedule_problem(
        asked.weekdays, asked.date, asked.from_time, asked.to_time, asked.tz, at
    )
    if reason:
        raise _bad_time(reason)
    if asked.until is None:
        return
    if not asked.weekdays:
        raise _bad_time("A single time has no last day; leave it out, or name weekdays.")
    first = asked.date or local_day(at, asked.tz)
    if asked.until < first:
        raise _bad_time(f"It would end on {asked.until}, before its first day, {first}.")


def check_ahead(row: ReservationRow, at: float) -> None:
    """It must take place again, and a single one must not have begun."""
    rule = schedule_of(row)
    found = next_occurrence(rule, at)
    is_ahead = rule.first >= local_day(at, row.tz)
    if not row.weekdays and is_ahead and occurrence(rule, rule.first) is None:
        raise _bad_time("The clocks go forward over the whole of that time: it does not exist.")
    if found is None or (not row.weekdays and found.starts_at <= at):
        raise Refused(
            "in-the-past",
            f"{in_words(row)}: this time has begun or is over. Choose a later time.",
            422,
        )


def _bad_time(message: str) -> Refused:
    return Refused("bad-time", message, 422)


def check_open(view: PoolView, row: ReservationRow) -> None:
    """The lab must not be closed at any of its times."""
    for window in view.settings.maintenance_windows:
        met = (
            max(mine.starts_at, closed.starts_at)
            for mine in occurrences(schedule_of(row), view.at, _first(view, row) + YEAR_S)
            for closed in occurrences(window, *mine)
            if closed.overlaps(mine)
        )
        moment = next(met, None)
        if moment is not None:
            raise Refused(
                "in-maintenance",
                f"On {day_and_time(moment, row.tz)} the lab is closed for maintenance. "
                "Choose another time, or an earlier last day.",
                422,
            )


def check_room(view: PoolView, row: ReservationRow) -> None:
    """It must fit on the GPUs its course may use, alone and beside what is reserved.

    Raises:
        Refused: ``impossible-reservation``, or ``reservation-clash`` with whom and when.
    """
    others = [one for one in view.reservations.values() if one.id != row.id]
    most = bare(view, undrawn([row], _first(view, row), 0.0)).held[row.id]
    if most < row.count:
        raise Refused(
            "impossible-reservation",
            f"{row.count} times {row.shape} do not fit on {_gpus(view, row.course)}, even "
            f"if nothing else lies there; {most or 'none'} would. Reserve fewer, or a smaller "
            "shape.",
            422,
        )
    known: set[frozenset[int]] = set()
    for mine in occurrences(schedule_of(row), view.at, _first(view, row) + YEAR_S):
        for moment in (mine.starts_at, *starts(view, *mine)):
            met = undrawn([*others, row], moment, 0.0)
            numbers = frozenset(one.row.id for one in met)
            if numbers in known:
                continue
            known.add(numbers)
            held = bare(view, met).held
            if any(held[one.row.id] < one.row.count for one in met):
                theirs = (one.row for one in sorted(met, key=lambda one: one.row.id))
                said = "; ".join(
                    f"{one.id} ({in_words(one)})" for one in theirs if one.id != row.id
                )
                raise Refused(
                    "reservation-clash",
                    f"On {day_and_time(moment, row.tz)} it clashes with reservation {said}: "
                    f"together they do not fit on {_gpus(view, row.course)}. Reserve fewer, a "
                    "smaller shape, or another time.",
                )


def _first(view: PoolView, row: ReservationRow) -> float:
    """When it begins for the first time from now on."""
    found = next_occurrence(schedule_of(row), view.at)
    assert found is not None
    return found.starts_at


def _gpus(view: PoolView, course: str) -> str:
    """The GPUs that a course may use, for people."""
    number = sum(gpu.course in ("", course) for gpu in view.gpus.values() if gpu.hardware)
    cut = " as the layouts cut them" if any(gpu.layout for gpu in view.gpus.values()) else ""
    if view.settings.assigned:
        return f"the GPUs that {course} may use ({number}){cut}"
    return f"the lab's one GPU{cut}" if number == 1 else f"the lab's {number} GPUs{cut}"
