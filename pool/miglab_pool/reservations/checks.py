"""Whether what is reserved at the same time fits.  Pure: counts and rules in, verdicts out.

Whether a reservation can be honoured: its times, its GPUs, the others'.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from miglab_api.reservations import ReservationRequest
from miglab_api.wording import day_and_time
from miglab_pool.gpu.geometry import Geometry
from miglab_pool.gpu.shapes import FULL, ShapeError, profiles, resolve
from miglab_pool.ledger.rows import ReservationRow
from miglab_pool.refused import Refused
from miglab_pool.reservations.rules import in_words, schedule_of
from miglab_pool.schedule import (
    DAY_S,
    Occurrence,
    Schedule,
    local_day,
    next_occurrence,
    occurrence,
    occurrences,
    why_not,
)
from miglab_pool.state.placement import GpuOccupancy, packs
from miglab_pool.state.slot_choice import SlotCandidate, choose_slots
from miglab_pool.state.view import PoolView

YEAR_S = 366 * DAY_S

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Room:
    """The GPUs, all empty.

    Attributes:
        geometries: of each GPU that is cut on demand.
        whole: how many GPUs are leased whole.
        layout_slices: the slices, by profile, of GPUs that a layout cuts.
    """

    geometries: tuple[Geometry, ...]
    whole: int = 0
    layout_slices: Mapping[str, int] = field(default_factory=dict)

    def holds(self, profiles: Mapping[str, int]) -> bool:
        """Whether so many of each profile (``full`` for a whole GPU) fit together.

        What layouts have cut is taken from them first, as each serves only its own profile.  The
        rest by the closed form where it holds; for GPUs of several kinds and ``+me`` slices by
        choosing slots on them.
        """
        wanted = dict(
            Counter({n: k for n, k in profiles.items() if n != FULL}) - Counter(self.layout_slices)
        )
        if profiles.get(FULL, 0) > self.whole:
            return False
        if not wanted:
            return True
        kinds = set(self.geometries)
        if not wanted.keys() <= {name for kind in kinds for name in kind.by_name}:
            return False
        has_media = any(
            kind.by_name[name].has_media
            for kind in kinds
            for name in wanted
            if name in kind.by_name
        )
        if len(kinds) == 1 and not has_media:
            return packs(wanted, len(self.geometries), self.geometries[0])
        candidates = [
            SlotCandidate(GpuOccupancy(str(index), kind))
            for index, kind in enumerate(self.geometries)
        ]
        names = list(Counter(wanted).elements())
        if len(names) > sum(kind.memory_slices for kind in self.geometries):
            return False
        return len(choose_slots([(name,) for name in names], candidates)) == len(names)


def times(profiles: Iterable[str], count: int) -> Counter[str]:
    """The profiles of ``count`` leases."""
    return Counter({name: n * count for name, n in Counter(profiles).items()})


def first_clash(
    rule: Schedule,
    others: Mapping[Name, Schedule],
    span: tuple[float, float],
    fits: Callable[[frozenset[Name]], bool],
) -> tuple[float, frozenset[Name]] | None:
    """The first moment at which a class and those held at the same time do not fit.

    Args:
        rule: of the class that is to be reserved.
        others: the rules of those that are, by name.
        span: between which moments to look.
        fits: whether the class fits beside these.

    Returns:
        The moment and who clashes; None if it fits always.
    """
    held = {name: list(occurrences(other, *span)) for name, other in others.items()}
    known: dict[frozenset[Name], bool] = {}
    for mine in occurrences(rule, *span):
        near = {name: met for name, every in held.items() if (met := _meeting(mine, every))}
        for at in _moments(mine, near.values()):
            beside = frozenset(name for name, met in near.items() if _is_held(met, at))
            if beside not in known:
                known[beside] = fits(beside)
            if not known[beside]:
                return at, beside
    return None


def _meeting(mine: Occurrence, every: Sequence[Occurrence]) -> list[Occurrence]:
    """Those of an ordered list that overlap with one."""
    found = []
    for one in every[max(0, bisect_left(every, (mine.starts_at,)) - 1) :]:
        if one.starts_at >= mine.ends_at:
            break
        if one.overlaps(mine):
            found.append(one)
    return found


def _moments(mine: Occurrence, near: Iterable[Sequence[Occurrence]]) -> list[float]:
    """When something begins during an occurrence: the sum can only grow then."""
    starts = {max(mine.starts_at, one.starts_at) for met in near for one in met}
    return sorted(starts | {mine.starts_at})


def _is_held(met: Sequence[Occurrence], at: float) -> bool:
    return any(one.starts_at <= at < one.ends_at for one in met)


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


def check_room(view: PoolView, row: ReservationRow) -> None:
    """It must fit on the GPUs its course may use, if nothing else lies there."""
    if not _fit(view, [row]):
        raise Refused(
            "impossible-reservation",
            f"{row.count} times {row.shape} do not fit on {_gpus(view, row.course)}, even "
            "if nothing else lies there. Reserve fewer, or a smaller shape.",
            422,
        )


def check_clashes(view: PoolView, row: ReservationRow) -> None:
    """It must fit beside what is reserved at the same time."""
    at = view.at
    others = {n: one for n, one in view.reservations.items() if n != row.id}
    rule = schedule_of(row)
    first = next_occurrence(rule, at)
    assert first is not None
    clash = first_clash(
        rule,
        {number: schedule_of(other) for number, other in others.items()},
        (at, first.starts_at + YEAR_S),
        lambda beside: _fit(view, [row, *(others[number] for number in beside)]),
    )
    if clash is not None:
        moment, numbers = clash
        theirs = "; ".join(f"{n} ({in_words(others[n])})" for n in sorted(numbers))
        raise Refused(
            "reservation-clash",
            f"On {day_and_time(moment, row.tz)} it clashes with reservation {theirs}: together "
            f"they do not fit on {_gpus(view, row.course)}. Reserve fewer, a smaller shape, or "
            "another time.",
        )


def _fit(view: PoolView, rows: Collection[ReservationRow]) -> bool:
    """Whether these fit at once, if every layout gave its course whole GPUs all the time.

    What there really is at each moment is `reservations_ahead`'s.
    """
    return fit(rows, partial(_room, view))


def fit(rows: Collection[ReservationRow], room: Callable[[str], Room]) -> bool:
    """Whether these fit at once: what their courses' own GPUs hold there, the rest on the others.

    Args:
        rows: the reservations.
        room: the GPUs that are a course's own; of no course: those of nobody's own.
    """
    rest: Counter[str] = Counter()
    for course in {row.course for row in rows}:
        own, taken = room(course), Counter[str]()
        for row in (row for row in rows if row.course == course):
            names = profiles(row.shape)
            number = _most(row, own, taken)
            taken += times(names, number)
            rest += times(names, row.count - number)
    return room("").holds(rest)


def _most(row: ReservationRow, room: Room, taken: Mapping[str, int]) -> int:
    """How many of a reservation's leases a room holds beside what is taken of it."""
    names = profiles(row.shape)
    low, high = 0, row.count
    while low < high:
        middle = (low + high + 1) // 2
        if room.holds(times(names, middle) + Counter(taken)):
            low = middle
        else:
            high = middle - 1
    return low


def _room(view: PoolView, course: str) -> Room:
    """The GPUs that are a course's own, and others' that a layout gives it; of none: the rest."""
    lent = _lent(view, course)
    gpus = [
        one
        for uuid, one in view.facts.items()
        if one.hardware is not None and (one.assigned == course or uuid in lent)
    ]
    partitionable = tuple(one.hardware for one in gpus if one.hardware and not one.is_whole)
    return Room(partitionable, len(gpus) - len(partitionable))


def _lent(view: PoolView, course: str) -> set[str]:
    """Other courses' own GPUs that layouts give to this one, now or at their times."""
    named = {
        gpu for plan in view.plans if course and plan.course == course for gpu in plan.partitions
    }
    return {gpu for gpu in named if gpu in view.facts and view.facts[gpu].assigned}


def _gpus(view: PoolView, course: str) -> str:
    """The GPUs that a course may use, for people."""
    rooms = [_room(view, whose) for whose in {course, ""}]
    number = sum(len(room.geometries) + room.whole for room in rooms)
    if view.settings.assigned:
        return f"the GPUs that {course} may use ({number})"
    return "the lab's one GPU" if number == 1 else f"the lab's {number} GPUs"
