"""Whether a reservation may be made: its shape, its times, and the room on empty GPUs.  Reads only.

What is guaranteed to others at its time is no reason to refuse a reservation: fewer of its slices
are certain then.
"""

from miglab_api.reservations import ReservationRequest
from miglab_api.wording import day_and_time
from miglab_pool.gpu.shapes import ShapeError, resolve
from miglab_pool.ledger.rows import ReservationRow
from miglab_pool.refused import Refused
from miglab_pool.reservations.feasible import (
    feasible_if_empty,
    start_times,
)
from miglab_pool.reservations.rules import describe, reservations_in_force_at
from miglab_pool.schedule import (
    DAY_S,
    local_day,
    next_occurrence,
    occurrence,
    occurrences,
    schedule_problem,
)
from miglab_pool.state.reservation_times import schedule_of
from miglab_pool.state.view import PoolView

YEAR_S = 366 * DAY_S


def resolve_shape(view: PoolView, request: ReservationRequest) -> str:
    """Return the shape in profiles; refuse one that students of the course cannot ask for."""
    rules = view.settings.courses.get(request.course)
    if rules is None:
        raise no_course_refusal(view, request.course, 422)
    if not view.geometries:
        raise gpus_unknown_refusal()
    geometries = view.geometries
    try:
        shape = resolve(request.shape, geometries)
        offered = {str(resolve(text, geometries)) for text in rules.shapes}
    except ShapeError as error:
        raise Refused("bad-shape", str(error), 422) from error
    if shape.is_cpu:
        raise Refused("bad-shape", "'cpu' needs no slice, so there is nothing to reserve.", 422)
    if str(shape) not in offered:
        raise Refused(
            "shape-not-offered",
            f"{rules.title or request.course} does not offer {shape}; it offers "
            f"{', '.join(rules.shapes) or 'nothing'}. Students could not ask for what is reserved.",
            422,
        )
    return str(shape)


def no_course_refusal(view: PoolView, course: str, status: int) -> Refused:
    """Return the refusal for a course that the lab does not have."""
    names = ", ".join(sorted(view.settings.courses)) or "none"
    message = f"There is no course {course!r} here. Courses: {names}."
    return Refused("not-in-course", message, status)


def gpus_unknown_refusal() -> Refused:
    """Return the refusal while it is not known what the GPUs can hold."""
    return Refused("gpus-unknown", "No GPU has answered yet. Try again in a minute.", 503)


def count_refusal(view: PoolView, row: ReservationRow) -> Refused | None:
    """Return why a person may not make one more reservation for a course; None if they may."""
    limit = view.settings.pool.reservations_each
    owner = (row.course, row.made_by)
    count = sum((other.course, other.made_by) == owner for other in view.reservations.values())
    if count < limit:
        return None
    return Refused(
        "too-many-reservations",
        f"You have {count} reservations for {row.course} that are not over, the most that one "
        "person may have. Cancel some, or reserve weekly times in place of single ones.",
    )


def check_times(request: ReservationRequest, at: float) -> None:
    """Refuse times that contradict each other or do not exist."""
    reason = schedule_problem(
        request.weekdays, request.date, request.from_time, request.to_time, request.tz, at
    )
    if reason:
        raise _bad_time(reason)
    if request.until is None:
        return
    if not request.weekdays:
        raise _bad_time("A single time has no last day; leave it out, or name weekdays.")
    first = request.date or local_day(at, request.tz)
    if request.until < first:
        raise _bad_time(f"It would end on {request.until}, before its first day, {first}.")


def check_ahead(row: ReservationRow, at: float) -> None:
    """Refuse a reservation that never takes place again, or a single one that has begun."""
    rule = schedule_of(row)
    next_time = next_occurrence(rule, at)
    is_ahead = rule.first >= local_day(at, row.tz)
    if not row.weekdays and is_ahead and occurrence(rule, rule.first) is None:
        raise _bad_time("The clocks go forward over the whole of that time: it does not exist.")
    if next_time is None or (not row.weekdays and next_time.starts_at <= at):
        raise Refused(
            "in-the-past",
            f"{describe(row)}: this time has begun or is over. Choose a later time.",
            422,
        )


def _bad_time(message: str) -> Refused:
    return Refused("bad-time", message, 422)


def check_open(view: PoolView, row: ReservationRow) -> None:
    """Refuse a reservation at one of whose times the lab is closed."""
    for window in view.settings.maintenance_windows:
        overlaps = (
            max(own_time.starts_at, closed.starts_at)
            for own_time in occurrences(schedule_of(row), view.at, _next_start(view, row) + YEAR_S)
            for closed in occurrences(window, *own_time)
            if closed.overlaps(own_time)
        )
        moment = next(overlaps, None)
        if moment is not None:
            raise Refused(
                "in-maintenance",
                f"On {day_and_time(moment, row.tz)} the lab is closed for maintenance. "
                "Choose another time, or an earlier last day.",
                422,
            )


def check_room(view: PoolView, row: ReservationRow) -> None:
    """Refuse a reservation that does not fit on its course's GPUs, alone or beside the others.

    Raises:
        Refused: ``impossible-reservation``, or ``reservation-clash`` with the others and the time.
    """
    first_start = _next_start(view, row)
    alone = reservations_in_force_at([row], first_start, 0.0)
    most_leases = feasible_if_empty(view, alone).counts[row.id]
    if most_leases < row.count:
        raise Refused(
            "impossible-reservation",
            f"{row.count} times {row.shape} do not fit on {_describe_gpus(view, row.course)}, even "
            f"if nothing else lies there; {most_leases or 'none'} would. "
            "Reserve fewer, or a smaller shape.",
            422,
        )
    checked: set[frozenset[int]] = set()
    for own_time in occurrences(schedule_of(row), view.at, first_start + YEAR_S):
        for moment in (own_time.starts_at, *start_times(view, *own_time)):
            near_rows = view.reservations.between(moment, moment)
            other_rows = (other for other in near_rows if other.id != row.id)
            reservations = reservations_in_force_at([*other_rows, row], moment, 0.0)
            rows = sorted((reservation.row for reservation in reservations), key=lambda r: r.id)
            numbers = frozenset(reserved.id for reserved in rows)
            if numbers in checked:
                continue
            checked.add(numbers)
            counts = feasible_if_empty(view, reservations).counts
            if any(counts[reserved.id] < reserved.count for reserved in rows):
                clashing = [
                    f"{other.id} ({describe(other)})" for other in rows if other.id != row.id
                ]
                raise Refused(
                    "reservation-clash",
                    f"On {day_and_time(moment, row.tz)} it clashes with reservation "
                    f"{'; '.join(clashing)}: together they do not fit on "
                    f"{_describe_gpus(view, row.course)}. "
                    "Reserve fewer, a smaller shape, or another time.",
                )


def _next_start(view: PoolView, row: ReservationRow) -> float:
    """Return when a reservation begins next."""
    occurrence = next_occurrence(schedule_of(row), view.at)
    assert occurrence is not None
    return occurrence.starts_at


def _describe_gpus(view: PoolView, course: str) -> str:
    """Return which GPUs a course may use, for people."""
    number = sum(gpu.course in ("", course) for gpu in view.gpus.values() if gpu.hardware)
    cut = " as the layouts cut them" if any(gpu.layout for gpu in view.gpus.values()) else ""
    if view.settings.assigned:
        return f"the GPUs that {course} may use ({number}){cut}"
    return f"the lab's one GPU{cut}" if number == 1 else f"the lab's {number} GPUs{cut}"
