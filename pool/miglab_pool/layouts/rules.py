"""Which layout is in force on which GPU, and how a GPU is to be cut by it.  Pure, like a table.

A layout without times holds always; one with times holds from the lead before each of them, so
that the slices are there when it begins, to its end.  Of several on one GPU the one that takes
place now goes before one that is about to begin, that before one without times, and of equals the
one that was applied last.

A *cut* is the names of the profiles a GPU is to have, in any order; where each lies is chosen here
(`arrange`), so that the fewest leases block it and the most slices can stay.  `change` says
what is to be done; nothing in it ever ends a lease.  Knows neither ledger, clock nor NVML.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import combinations, product
from typing import NamedTuple

from pydantic import TypeAdapter

from miglab_api.layouts import LayoutTime
from miglab_api.wording import in_words
from miglab_pool.gpu.geometry import Geometry, Placed, Profile
from miglab_pool.ledger.rows import LayoutRow
from miglab_pool.schedule import (
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
from miglab_pool.state.placement import Layout, clash, layouts_beside

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


MOST_SLICES = 64
FORMS = "'1g.5gb', '1g' (the plain profile of one compute slice), or '3x1g'"

_PART = re.compile(r"(?:(\d{1,3}) ?[x×] ?)?([0-9]+g(?:\.[0-9]+gb(?:[+-][a-z.]+)?)?)")
_BETWEEN = re.compile(r"\s*(?:,|\+(?=\s*\d))\s*")  # the + of "1g.5gb+me" is part of a name


class PartitionError(ValueError):
    """A cut that cannot be read, or that a GPU cannot have; says what would fit."""


# -- reading ------------------------------------------------------------------------------------


def parse(text: str) -> tuple[str, ...]:
    """The profiles of a cut in words, such as ``4g + 3x1g`` or ``2x3g.20gb``, one name each.

    Raises:
        PartitionError: it cannot be read.
    """
    names: list[str] = []
    for part in _BETWEEN.split(text.strip().lower()):
        match = _PART.fullmatch(part)
        if match is None:
            raise PartitionError(f"{_brief(part)} is no profile: write {FORMS}.")
        count = int(match[1] or 1)
        if not 1 <= count <= MOST_SLICES:
            raise PartitionError(
                f"{_brief(part)} asks for {count} slices; 1 to {MOST_SLICES} can be."
            )
        names += [match[2]] * count
    if len(names) > MOST_SLICES:
        raise PartitionError(f"{_brief(text)} asks for more than {MOST_SLICES} slices of one GPU.")
    return tuple(names)


def resolve(names: Iterable[str], geometry: Geometry) -> tuple[str, ...]:
    """The cut in full names, sorted, if an empty GPU can have it.

    Args:
        names: full names, or short ones such as ``1g`` for the plain profile of so many compute
            slices with the least memory.
        geometry: the GPU's.

    Raises:
        PartitionError: there is no such profile, or they do not fit; the message says what would.
    """
    found = [_profile(name, geometry).name for name in names]
    if not is_possible(found, geometry):
        raise PartitionError(_what_fits(found, geometry))
    return tuple(sorted(found))


def _profile(name: str, geometry: Geometry) -> Profile:
    if name in geometry.by_name:
        return geometry.by_name[name]
    size = int(name.partition("g")[0]) if "." not in name else None
    plain = [p for p in geometry.profiles if p.compute_slices == size and not p.has_media]
    if not plain:
        raise PartitionError(f"it has no {name}; it can be cut into {_names(geometry)}")
    return min(plain, key=lambda profile: (profile.size, profile.memory_mib))


def is_possible(names: Sequence[str], geometry: Geometry) -> bool:
    """Whether an empty GPU can be cut into all of them."""
    return bool(arrangements(geometry, tuple(sorted(names))))


def _what_fits(names: Sequence[str], geometry: Geometry) -> str:
    """The most of them that fit, in the order they were named, and what is one too many."""
    kept: list[str] = []
    left: list[str] = []
    for name in names:
        fits = name not in left and is_possible([*kept, name], geometry)
        (kept if fits else left).append(name)
    return (
        f"{in_words(names)} do not fit on it: beside {in_words(kept)}, which would fit, there is "
        f"no place for {in_words(left)}"
    )


def _names(geometry: Geometry) -> str:
    return ", ".join(profile.name for profile in geometry.profiles) or "nothing"


def _brief(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")


# -- where the slices go ------------------------------------------------------------------------


class Kind(StrEnum):
    """What a slice that lies on a GPU is to a layout."""

    FREE = "free"
    HELD = "held"
    COMING = "coming"  # being made, for nobody
    GRANTED = "granted"  # being made for a lease
    GOING = "going"  # being destroyed
    FIXED = "fixed"  # foreign, quarantined, or drained by hand


HELD = frozenset({Kind.HELD, Kind.GRANTED})


@dataclass(frozen=True, slots=True)
class PresentSlice:
    """A slice on a GPU, by the ledger's number."""

    number: int
    placed: Placed
    kind: Kind

    @property
    def where(self) -> tuple[int, str]:
        """Start and profile: what makes it the slice that a layout wants."""
        return where(self.placed)


def where(placed: Placed) -> tuple[int, str]:
    """The start and profile of a slice."""
    return placed.placement.start, placed.profile.name


@dataclass(frozen=True)
class Change:
    """What is to be done to a GPU so that it has its cut.

    Attributes:
        wanted: the slices of the cut, each with its placement.
        keeps: slices that are there and stay.
        makes: wanted slices that are not there and not under way.
        comes: slices that are being made where they are wanted.
        removes: free slices that are not wanted.
        drains: leased slices that are not wanted: their leases run on, then they are removed.
        goes: slices that are being destroyed, or made though not wanted.
        fixed: foreign, quarantined or drained slices: a person's to decide.
    """

    wanted: tuple[Placed, ...]
    keeps: tuple[PresentSlice, ...] = ()
    makes: tuple[Placed, ...] = ()
    comes: tuple[PresentSlice, ...] = ()
    removes: tuple[PresentSlice, ...] = ()
    drains: tuple[PresentSlice, ...] = ()
    goes: tuple[PresentSlice, ...] = ()
    fixed: tuple[PresentSlice, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether the GPU has exactly the slices wanted, all of them usable."""
        return len(self.keeps) == len(self.wanted) and not (
            self.removes or self.drains or self.goes or self.fixed
        )

    @property
    def ready(self) -> tuple[Placed, ...]:
        """The wanted slices that can be made as soon as ``removes`` are gone."""
        others = (*self.keeps, *self.comes, *self.drains, *self.goes, *self.fixed)
        return tuple(
            placed
            for placed in self.makes
            if not any(clash(placed, other.placed) for other in others)
        )


@lru_cache(maxsize=1024)
def arrangements(geometry: Geometry, names: tuple[str, ...]) -> tuple[Layout, ...]:
    """Every way to lay the slices, sorted by name, on an empty GPU; none if they do not fit."""
    wanted = [geometry.by_name[name] for name in names]
    if sum(profile.has_media for profile in wanted) > 1:
        return ()
    if sum(profile.size for profile in wanted) > geometry.memory_slices:
        return ()
    return tuple(layouts_beside(wanted, 0))


def arrange(geometry: Geometry, names: Sequence[str], present: Sequence[PresentSlice]) -> Layout:
    """Choose where the slices are to lie.

    Args:
        geometry: the GPU's.
        names: the cut, resolved (`resolve`).
        present: what is on the GPU.

    Returns:
        Of all arrangements the one with the fewest slices under what nobody may remove, then the
        fewest leases on slices not wanted, then the most slices that stay, then the lowest starts.
    """
    found = arrangements(geometry, tuple(sorted(names)))
    return min(found, key=lambda layout: _how_bad(layout, present))


def _how_bad(
    layout: Layout, present: Sequence[PresentSlice]
) -> tuple[int, int, int, tuple[int, ...]]:
    wanted = {where(placed) for placed in layout}
    fixed = [item.placed for item in present if item.kind is Kind.FIXED]
    under = sum(any(clash(placed, other) for other in fixed) for placed in layout)
    drained = sum(item.kind in HELD and item.where not in wanted for item in present)
    stays = sum(item.kind is not Kind.FIXED and item.where in wanted for item in present)
    return under, drained, -stays, tuple(placed.placement.start for placed in layout)


def change(geometry: Geometry, names: Sequence[str], present: Sequence[PresentSlice]) -> Change:
    """What is to be done so that the GPU has its cut.  Guarantees: nothing leased is removed."""
    wanted = arrange(geometry, names, present)
    wanted_at = {where(placed) for placed in wanted}
    there = {item.where for item in present if item.kind in (*HELD, Kind.FREE, Kind.COMING)}

    def some(*kinds: Kind, is_wanted: bool | None = None) -> tuple[PresentSlice, ...]:
        return tuple(
            item
            for item in present
            if item.kind in kinds and is_wanted in (None, item.where in wanted_at)
        )

    return Change(
        wanted=wanted,
        keeps=some(Kind.FREE, Kind.HELD, is_wanted=True),
        makes=tuple(placed for placed in wanted if where(placed) not in there),
        comes=some(Kind.COMING, Kind.GRANTED, is_wanted=True),
        removes=some(Kind.FREE, is_wanted=False),
        drains=some(*HELD, is_wanted=False),
        goes=(*some(Kind.GOING), *some(Kind.COMING, is_wanted=False)),
        fixed=some(Kind.FIXED),
    )


# -- what may be granted meanwhile --------------------------------------------------------------


@lru_cache(maxsize=1024)
def only(geometry: Geometry, wanted: Layout) -> Geometry:
    """The GPU as it may be used while the layout is in force: its profiles at its starts alone.

    What is placed there fits the layout, so no new lease is ever in its way.
    """
    return Geometry(geometry.memory_slices, tuple(_wanted_profiles(geometry, wanted)))


def _wanted_profiles(geometry: Geometry, wanted: Layout) -> Iterator[Profile]:
    for profile in geometry.profiles:
        starts = tuple(
            sorted(
                placed.placement.start for placed in wanted if placed.profile.name == profile.name
            )
        )
        if starts:
            yield Profile(
                profile.name,
                profile.profile_id,
                profile.enum,
                profile.compute_slices,
                profile.size,
                profile.sm_count,
                profile.memory_mib,
                len(starts),
                starts,
            )
