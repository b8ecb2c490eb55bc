"""Layouts against reservations: what was promised to a class must be among what is cut.

Judged for GPUs on which nothing else lies, like reservations among themselves, by whose each GPU is
then: the layout's course, else the one it is assigned to.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from miglab_api.wording import day_and_time
from miglab_pool.layouts.rules import Planned
from miglab_pool.ledger.rows import ReservationRow
from miglab_pool.refused import Refused
from miglab_pool.reservations.checks import Room, fit
from miglab_pool.reservations.rules import in_words, schedule_of
from miglab_pool.schedule import DAY_S, Occurrence, Schedule, next_occurrence, occurrences
from miglab_pool.state.view import GpuSnapshot, PoolView, gpus_at

AHEAD_S = 8 * DAY_S  # whatever is weekly has come by within it


def check(view: PoolView, before: Sequence[Planned], after: Sequence[Planned]) -> None:
    """Refuse layouts under which a reservation loses its slots, if it had them before.

    Raises:
        Refused: ``layout-clash``, naming the reservation and when.
    """
    rows = list(view.reservations.values())
    if not rows:
        return
    known = broken(view, before, rows)
    for number, moment in broken(view, after, rows).items():
        if number not in known:
            row = view.reservations[number]
            raise Refused("layout-clash", _why(row, moment))


def check_reserved(view: PoolView, row: ReservationRow, plans: Sequence[Planned]) -> None:
    """Refuse a reservation that the layouts leave no slots for.

    Raises:
        Refused: ``layout-clash``, saying when.
    """
    if plans:
        others = [one for one in view.reservations.values() if one.id != row.id]
        found = broken(view, plans, [*others, row])
        if row.id in found:
            raise Refused("layout-clash", _why(row, found[row.id]))


def _why(row: ReservationRow, moment: float) -> str:
    return (
        f"On {day_and_time(moment, row.tz)} reservation {row.id} ({in_words(row)}) would not find "
        "its slots among the slices of the layouts that are in force then. Cut more of that shape, "
        "leave a GPU out of the layouts, or change the reservation."
    )


def broken(
    view: PoolView, plans: Sequence[Planned], rows: Sequence[ReservationRow]
) -> dict[int, float]:
    """The reservations that do not find their slots, each with the first such moment."""
    missing: dict[int, float] = {}
    for moment in _moments(plans, rows, view.at):
        taking = [row for row in rows if _takes_place(row, moment)]
        if taking and not _holds(gpus_at(view, moment, None, plans), taking):
            for row in taking:
                missing.setdefault(row.id, moment)
    return missing


def _moments(plans: Iterable[Planned], rows: Iterable[ReservationRow], at: float) -> list[float]:
    """When slots can turn out to be missing: a class begins, or a layout's time turns."""
    classes = [schedule_of(row) for row in rows]
    layout_times = [rule for plan in plans for rule in plan.rules]
    found: set[float] = set()
    for mine, others in (
        *((one, layout_times) for one in classes),
        *((one, classes) for one in layout_times),
    ):
        found |= _turns(mine, others, at)
    once = [time.ends_at for rule in layout_times if not rule.weekdays for time in _soon(rule, at)]
    after = (next_occurrence(rule, over_at) for rule in classes for over_at in once)
    found |= {one.starts_at for one in after if one}
    return sorted({max(at, moment) for moment in found})


def _turns(mine: Schedule, others: Sequence[Schedule], at: float) -> set[float]:
    """When its next times begin and end, and the others' that overlap with them."""
    found: set[float] = set()
    for time in _soon(mine, at):
        found.update(time)
        for other in others:
            for met in occurrences(other, *time):
                found.update(met)
    return found


def _soon(rule: Schedule, at: float) -> list[Occurrence]:
    """Its times of a week, from the next one on."""
    first = next_occurrence(rule, at)
    return list(occurrences(rule, at, max(at, first.starts_at) + AHEAD_S)) if first else []


def _takes_place(row: ReservationRow, at: float) -> bool:
    found = next_occurrence(schedule_of(row), at)
    return found is not None and found.starts_at <= at


def _holds(gpus: Mapping[str, GpuSnapshot], rows: Collection[ReservationRow]) -> bool:
    """Whether all of them find their slots at once."""
    return fit(rows, partial(_room, gpus.values()))


def _room(gpus: Iterable[GpuSnapshot], course: str) -> Room:
    """The GPUs that are a course's own; of no course: nobody's own."""
    own = [gpu for gpu in gpus if gpu.facts.hardware and gpu.course == course]
    sliced = [gpu for gpu in own if not gpu.is_whole]
    layout_slices = Counter(name for gpu in sliced if gpu.layout for name in gpu.layout.partition)
    free = [gpu.facts.hardware for gpu in sliced if not gpu.layout and gpu.facts.hardware]
    return Room(tuple(free), len(own) - len(sliced), layout_slices)
