"""Which layout is in force on which GPU, and when the next comes.  Pure, like a table.

A layout without times holds always; one with times holds from the lead before each of them, so
that the slices are there when it begins, to its end.  Of several on one GPU the one that takes
place now goes before one that is about to begin, that before one without times, and of equals the
one that was applied last.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from typing import NamedTuple

from pydantic import TypeAdapter

from miglab_api.layouts import LayoutTime
from miglab_pool.model.rows import LayoutRow
from miglab_pool.model.schedule import (
    DAY_S,
    Occurrence,
    Schedule,
    first_overlap,
    mask_of,
    next_occurrence,
    occurrences,
    schedule,
    why_not,
)

YEAR_S = 366 * DAY_S
_PARTITIONS: TypeAdapter[dict[str, tuple[str, ...]]] = TypeAdapter(dict[str, tuple[str, ...]])
_TIMES: TypeAdapter[tuple[LayoutTime, ...]] = TypeAdapter(tuple[LayoutTime, ...])


@dataclass(frozen=True)
class Planned:
    """A layout as decisions see it.

    Attributes:
        number: grows with each that is applied.
        course: whose slices they are while it is in force; empty: everybody's.
        partitions: the profiles of each GPU, by its UUID.
        rules: its times; none: always.
    """

    number: int
    name: str
    course: str
    partitions: Mapping[str, tuple[str, ...]]
    rules: tuple[Schedule, ...] = ()


class Phase(NamedTuple):
    """A layout at a moment.

    Attributes:
        rank: 0 not in force, 1 without times, 2 about to begin, 3 takes place.
        time: the time it is about, or the next; None if there is none (any more).
    """

    rank: int
    time: Occurrence | None


@dataclass(frozen=True)
class InForce:
    """What holds on one GPU; ``until`` is when it ends, None without an end."""

    number: int
    name: str
    course: str
    partition: tuple[str, ...]
    until: float | None = None


# -- the row ------------------------------------------------------------------------------------


def partitions_text(partitions: Mapping[str, Iterable[str]]) -> str:
    """The cuts as the ledger keeps them."""
    return _PARTITIONS.dump_json({gpu: tuple(names) for gpu, names in partitions.items()}).decode()


def times_text(times: Sequence[LayoutTime]) -> str:
    """The times as the ledger keeps them."""
    return _TIMES.dump_json(tuple(times)).decode()


@lru_cache(maxsize=1024)
def times_of(text: str) -> tuple[LayoutTime, ...]:
    """The times of a row."""
    return _TIMES.validate_json(text)


@lru_cache(maxsize=1024)
def planned(row: LayoutRow) -> Planned:
    """The row's layout."""
    rules = tuple(map(schedule_of, times_of(row.times)))
    return Planned(row.id, row.name, row.course, _PARTITIONS.validate_json(row.partitions), rules)


def schedule_of(time: LayoutTime) -> Schedule:
    """A time as the calendar reads it; it must be one in which `why_no_time` finds no fault."""
    days = mask_of(time.weekdays)
    return schedule(days, time.date, None, time.from_time, time.to_time, time.tz)


def why_no_time(time: LayoutTime, at: float) -> str:
    """What is wrong with a time, in words; empty: it makes sense, and has not ended."""
    reason = why_not(time.weekdays, time.date, time.from_time, time.to_time, time.tz, at)
    if not reason and next_occurrence(schedule_of(time), at) is None:
        return f"{time.date} {time.from_time}-{time.to_time} is over. Choose a time ahead."
    return reason


# -- what is in force ---------------------------------------------------------------------------


def phase(plan: Planned, at: float, lead_s: float) -> Phase:
    """What a layout is doing at a moment, by the clock alone."""
    if not plan.rules:
        return Phase(1, None)
    begun = [found for rule in plan.rules for found in occurrences(rule, at, at + lead_s)]
    if begun:
        first = min(begun)
        return Phase(3 if first.starts_at <= at else 2, first)
    ahead = [found for rule in plan.rules if (found := next_occurrence(rule, at))]
    return Phase(0, min(ahead, default=None))


def in_force(plans: Iterable[Planned], at: float, lead_s: float) -> dict[str, InForce]:
    """What holds on each GPU at a moment; a GPU without any is not named."""
    found = [(phase(plan, at, lead_s), plan) for plan in plans]
    found.sort(key=lambda one: (one[0].rank, one[1].number))
    return {
        gpu: InForce(plan.number, plan.name, plan.course, partition, time.ends_at if time else None)
        for (rank, time), plan in found
        if rank
        for gpu, partition in plan.partitions.items()
    }


def overlap(one: Planned, other: Planned, at: float) -> Occurrence | None:
    """The first time within a year at which both claim a GPU with equal right; None if never."""
    if not one.partitions.keys() & other.partitions.keys() or bool(one.rules) is not bool(
        other.rules
    ):
        return None
    if not one.rules:
        return Occurrence(at, at)
    found = (
        first_overlap(mine, theirs, at, at + YEAR_S)
        for mine, theirs in product(one.rules, other.rules)
        if _may_overlap(mine, theirs)
    )
    return min((time for time in found if time is not None), default=None)


def _may_overlap(one: Schedule, other: Schedule) -> bool:
    """Whether a look at every day is worth it.

    Of two in one time zone, one after the other, it says no, though both belong to the hour that a
    clock going back shows twice: then the later one applied holds, and nobody is refused for it.
    """
    if one.tz != other.tz or not (one.weekdays and other.weekdays):
        return True
    same_day = bool(one.weekdays & other.weekdays)
    return same_day and one.starts < other.ends and other.starts < one.ends


def clashes(plans: Sequence[Planned], at: float) -> Iterator[tuple[Planned, Planned, Occurrence]]:
    """The pairs that claim a GPU at one time with equal right, and when they first do."""
    for one, other in combinations(plans, 2):
        time = overlap(one, other, at)
        if time is not None:
            yield one, other, time


def hidden(plans: Sequence[Planned]) -> list[Planned]:
    """The layouts without times of which nothing is left: each of their GPUs has a later one."""
    always = [plan for plan in plans if not plan.rules]
    return [
        plan
        for plan in always
        if all(
            any(gpu in other.partitions for other in always if other.number > plan.number)
            for gpu in plan.partitions
        )
    ]


def replaced(plans: Sequence[Planned], new: Sequence[Planned]) -> list[Planned]:
    """The layouts that end when others are applied: of the same name, or nothing is left of them.

    Args:
        plans: what is planned or in force.
        new: what is applied, with higher numbers.
    """
    names = {plan.name for plan in new}
    gone = {plan.number for plan in hidden([*plans, *new])}
    return [plan for plan in plans if plan.name in names or plan.number in gone]
