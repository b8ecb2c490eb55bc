"""Whether a reservation may be made: its shape, its times, and room for it on empty GPUs.

What is guaranteed to others at its time is no reason to refuse it: fewer are certain then, which
`outlook` says.
"""

from collections.abc import Iterable, Iterator, Sequence

from miglab_api.reservations import ReservationRequest
from miglab_api.wording import day_and_time
from miglab_pool.gpu.shapes import ShapeError, resolve
from miglab_pool.ledger.rows import ReservationRow
from miglab_pool.refused import Refused
from miglab_pool.reservations.feasible import bare
from miglab_pool.reservations.rules import in_words, schedule_of
from miglab_pool.schedule import (
    DAY_S,
    first_overlap,
    local_day,
    next_occurrence,
    occurrence,
    occurrences,
    why_not,
)
from miglab_pool.state.view import PoolView

YEAR_S = 366 * DAY_S


def shape_of(view: PoolView, asked: ReservationRequest) -> str:
    """The shape, resolved; it must be one that students of the course can ask for."""
    rules = view.settings.courses.get(asked.course)
    if rules is None:
        names = ", ".join(sorted(view.settings.courses)) or "none"
        raise Refused(
            "not-in-course", f"There is no course {asked.course!r} here. Courses: {names}.", 422
        )
    if not view.geometries:
        raise Refused("gpus-unknown", "No GPU has answered yet. Try again in a minute.", 503)
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


def check_times(asked: ReservationRequest, at: float) -> None:
    """Its times must make sense."""
    reason = why_not(asked.weekdays, asked.date, asked.from_time, asked.to_time, asked.tz, at)
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
    first = next_occurrence(schedule_of(row), view.at)
    assert first is not None
    for window in view.settings.maintenance_windows:
        met = first_overlap(schedule_of(row), window, view.at, first.starts_at + YEAR_S)
        if met is not None:
            raise Refused(
                "in-maintenance",
                f"On {day_and_time(met.starts_at, row.tz)} the lab is closed for maintenance. "
                "Choose another time, or an earlier last day.",
                422,
            )


def check_room(view: PoolView, row: ReservationRow) -> None:
    """It must fit on the GPUs its course may use, alone and beside what is reserved.

    Raises:
        Refused: ``impossible-reservation``, or ``reservation-clash`` with whom and when.
    """
    others = {one.id: one for one in view.reservations.values() if one.id != row.id}
    first = next_occurrence(schedule_of(row), view.at)
    assert first is not None
    if not _fit(view, [row], first.starts_at):
        raise Refused(
            "impossible-reservation",
            f"{row.count} times {row.shape} do not fit on {_gpus(view, row.course)}, even "
            "if nothing else lies there. Reserve fewer, or a smaller shape.",
            422,
        )
    known: set[frozenset[int]] = set()
    for moment, beside in _meetings(row, others.values(), (view.at, first.starts_at + YEAR_S)):
        if beside and beside not in known:
            known.add(beside)
            if not _fit(view, [row, *(others[number] for number in beside)], moment):
                theirs = "; ".join(f"{n} ({in_words(others[n])})" for n in sorted(beside))
                raise Refused(
                    "reservation-clash",
                    f"On {day_and_time(moment, row.tz)} it clashes with reservation {theirs}: "
                    f"together they do not fit on {_gpus(view, row.course)}. Reserve fewer, a "
                    "smaller shape, or another time.",
                )


def _meetings(
    row: ReservationRow, others: Iterable[ReservationRow], span: tuple[float, float]
) -> Iterator[tuple[float, frozenset[int]]]:
    """The moments at which its need can only grow, each with what takes place beside it."""
    schedules = [(other.id, schedule_of(other)) for other in others]
    for mine in occurrences(schedule_of(row), *span):
        met = [
            (number, one)
            for number, rule in schedules
            for one in occurrences(rule, *mine)
            if one.overlaps(mine)
        ]
        for moment in sorted({max(mine.starts_at, one.starts_at) for _, one in met}):
            held = (number for number, one in met if one.starts_at <= moment < one.ends_at)
            yield moment, frozenset(held)


def _fit(view: PoolView, rows: Sequence[ReservationRow], moment: float) -> bool:
    held = bare(view, moment, rows).held
    return all(held[row.id] == row.count for row in rows)


def _gpus(view: PoolView, course: str) -> str:
    """The GPUs that a course may use, for people."""
    number = sum(gpu.course in ("", course) for gpu in view.gpus.values() if gpu.hardware)
    cut = " as the layouts cut them" if any(gpu.layout for gpu in view.gpus.values()) else ""
    if view.settings.assigned:
        return f"the GPUs that {course} may use ({number}){cut}"
    return f"the lab's one GPU{cut}" if number == 1 else f"the lab's {number} GPUs{cut}"
