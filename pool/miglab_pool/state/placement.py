"""Where slices go.  Pure: GPUs and what lies on them in, placements out.

The rule: of all legal placements, the one that destroys the fewest still-legal placements over free
memory.  A free warm slice counts as free memory; warmth only breaks ties, because preferring warm
slices fragments the GPUs (docs/explanation/placement.md has the measurements).  A shape of several
slices is all or nothing: on one GPU if one has room, else on the fewest GPUs.

What fits on one GPU, and at what cost, is looked up in tables that are worked out once for each
geometry; there a GPU is the bits that are taken of it (`Placed.bits`).  Knows neither ledger, clock
nor NVML.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import inf
from typing import NamedTuple

from miglab_pool.gpu.geometry import Geometry, Placed, Placement, Profile, occupied_bits

Layout = tuple[Placed, ...]
SOON = -inf  # what is being scrubbed, or made for nobody yet, is free in seconds
Kept = Mapping[str, Sequence[Placed]]
"""Places that not everybody may use, by GPU."""


class Fit(NamedTuple):
    """The best ways to put some slices on one GPU.

    Attributes:
        cost: how many still-legal placements they destroy.
        layouts: every layout of that cost, lowest starts first.
    """

    cost: int
    layouts: tuple[Layout, ...]


class Fits:
    """What one geometry's decisions look up, worked out once for each state of a GPU."""

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self._memory = (1 << geometry.memory_slices) - 1
        # A +me slice can lie exactly where its plain twin can: counting both would count the
        # same room twice (measured: .750 instead of .752 of the slices on the teaching mix).
        masks = [p.mask for q in geometry.profiles if q.is_plain for p in q.placements]
        self._legal = [
            sum(not mask & placement for placement in masks) for mask in range(self._memory + 1)
        ]
        self._fits: dict[tuple[int, tuple[str, ...]], Fit | None] = {}

    def best(self, taken: int, names: tuple[str, ...]) -> Fit | None:
        """The cheapest ways to place all of ``names`` (sorted) on a GPU, None if it has no room."""
        key = (taken, names)
        if key not in self._fits:
            self._fits[key] = self._work_out(taken, names)
        return self._fits[key]

    def _work_out(self, taken: int, names: tuple[str, ...]) -> Fit | None:
        if any(name not in self._geometry.by_name for name in names):
            return None
        layouts = list(layouts_beside([self._geometry.by_name[name] for name in names], taken))
        if not layouts:
            return None
        before = self._legal[taken & self._memory]
        costs = [
            before - self._legal[(taken | occupied_bits(layout)) & self._memory]
            for layout in layouts
        ]
        best = min(costs)
        return Fit(
            best, tuple(item for item, cost in zip(layouts, costs, strict=True) if cost == best)
        )


def layouts_beside(profiles: Sequence[Profile], taken: int, least: int = 0) -> Iterator[Layout]:
    """Every way to lay slices beside what is taken; equal neighbours only in rising order."""
    if not profiles:
        yield ()
        return
    first, others = profiles[0], profiles[1:]
    for placed in (Placed(first, placement) for placement in first.placements):
        if placed.placement.start < least or placed.bits & taken:
            continue
        after = placed.placement.start + 1 if others and others[0] is first else 0
        for layout in layouts_beside(others, taken | placed.bits, after):
            yield (placed, *layout)


@lru_cache(maxsize=64)
def _of_equal(geometry: Geometry) -> Fits:
    return Fits(geometry)


_known: dict[int, tuple[Geometry, Fits]] = {}
_KNOWN_MAX = 1024


def fits(geometry: Geometry) -> Fits:
    """The tables of a geometry; equal geometries share them.

    They are found by identity, as hashing 64 geometries costs more than a decision.  The entry
    holds the geometry, so its id cannot become another's.
    """
    entry = _known.get(id(geometry))
    if entry is None:
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        entry = _known[id(geometry)] = (geometry, _of_equal(geometry))
    return entry[1]


@dataclass(frozen=True)
class GpuOccupancy:
    """What lies on one GPU, without the rows that say so.

    Attributes:
        gpu: its UUID.
        geometry: how it can be cut.
        live: what cannot be used: leased, being made or scrubbed, quarantined, foreign.
        warm: free slices that already exist; they count as free memory.
        usable: whether it takes new leases now.
        fixed: the part of ``live`` that is foreign, quarantined, or reserved: it will
            not become free by a lease's end.
        frees_at: when the rest of ``live`` is free by the ends that are set, by `Placement.mask`;
            infinite for what has no end, and for what is not named.
        course: the only course that gets leases there; empty: every course.
    """

    gpu: str
    geometry: Geometry
    live: tuple[Placed, ...] = ()
    warm: tuple[Placed, ...] = ()
    usable: bool = True
    fixed: tuple[Placed, ...] = ()
    frees_at: Mapping[int, float] = field(default_factory=dict)
    course: str = ""

    @cached_property
    def taken(self) -> int:
        """What cannot be used of the GPU, as `Placed.bits`."""
        return occupied_bits(self.live)

    @cached_property
    def warm_bits(self) -> tuple[tuple[int, Placed], ...]:
        """The warm slices, each with its `Placed.bits`."""
        return tuple((item.bits, item) for item in self.warm)


@dataclass(frozen=True)
class Choice:
    """One slice of a decision.

    Attributes:
        gpu: UUID of the GPU.
        profile: what to make there.
        placement: where.
        reuse: whether that very slice exists, warm; then there is nothing to make.
        destroy: warm slices to destroy first.  A slice in the way of several choices is named by
            the first of them only.
    """

    gpu: str
    profile: Profile
    placement: Placement
    reuse: bool = False
    destroy: tuple[Placed, ...] = ()


def open_to(gpus: Sequence[GpuOccupancy], course: str) -> list[GpuOccupancy]:
    """Every GPU as a course may use it: another course's own takes nothing of it."""
    return [one if one.course in ("", course) else replace(one, usable=False) for one in gpus]


def own_first(gpus: Sequence[GpuOccupancy], course: str) -> list[GpuOccupancy]:
    """As `open_to`, a course's own in front: of equal places room for all is left to others."""
    return sorted(open_to(gpus, course), key=lambda one: one.course != course)


def clash(one: Placed, other: Placed) -> bool:
    """Whether two slices cannot be on one GPU: they overlap, or need the same engines."""
    return bool(one.bits & other.bits)


def without(gpu: GpuOccupancy, kept: Sequence[Placed]) -> GpuOccupancy:
    """The GPU for those who may not use these places: no lease's end will free them."""
    if not kept:
        return gpu
    warm = tuple(item for item in gpu.warm if not any(clash(item, keep) for keep in kept))
    return replace(gpu, live=(*gpu.live, *kept), warm=warm, fixed=(*gpu.fixed, *kept))


def beside(gpus: Iterable[GpuOccupancy], kept: Kept) -> list[GpuOccupancy]:
    """The GPUs for those who may not use what is kept."""
    return [without(one, kept.get(one.gpu, ())) for one in gpus]


def is_same(one: Placed, other: Placed) -> bool:
    """Whether two slices have one profile and one placement."""
    return one.placement == other.placement and one.profile.name == other.profile.name


class Slot(NamedTuple):
    """A reserved slot's slice: for which lease of those asked for, by number, and where."""

    request: int
    gpu: str
    placed: Placed


def by_gpu(slots: Iterable[Slot]) -> Kept:
    """Where slots lie."""
    kept: defaultdict[str, list[Placed]] = defaultdict(list)
    for slot in slots:
        kept[slot.gpu].append(slot.placed)
    return kept


def place(profiles: Sequence[str], gpus: Sequence[GpuOccupancy]) -> tuple[Choice, ...] | None:
    """Decide where a shape goes now.

    Args:
        profiles: the profile of each slice wanted, by name.
        gpus: every GPU, in a fixed order; earlier ones win what is otherwise equal.

    Returns:
        A choice for each profile, in the order asked, or None if there is no room for all.
        None is exact: no placement of all the slices exists.
    """
    if not profiles:
        return ()
    wanted = tuple(sorted(profiles))
    usable = [gpu for gpu in gpus if gpu.usable]
    if len(wanted) > sum(gpu.geometry.memory_slices for gpu in usable):
        return None
    parts = _on_one_gpu(wanted, usable)
    if parts is None and len(wanted) > 1:
        parts = _on_fewest_gpus(wanted, usable)
    return None if parts is None else _in_order(profiles, parts)


def could_ever_fit(profiles: Sequence[str], gpus: Sequence[GpuOccupancy]) -> bool:
    """Whether a shape fits when every GPU, usable now or not, is empty."""
    empty = list(_empty(gpus, len(profiles)))
    return any(place(profiles, [one]) for one in empty) or place(profiles, empty) is not None


def _empty(gpus: Iterable[GpuOccupancy], most: int) -> Iterator[GpuOccupancy]:
    """Every GPU as if it were empty, but of each geometry no more than a shape can need.

    A lab's GPUs share a few geometries, which are told apart by identity: comparing costs more.
    """
    alike: Counter[int] = Counter()
    for gpu in gpus:
        alike[id(gpu.geometry)] += 1
        if alike[id(gpu.geometry)] <= most:
            yield GpuOccupancy(gpu.gpu, gpu.geometry)


class _Part(NamedTuple):
    """One GPU's share of a decision."""

    gpu: GpuOccupancy
    layout: Layout


def _on_one_gpu(wanted: tuple[str, ...], gpus: Iterable[GpuOccupancy]) -> list[_Part] | None:
    best_cost: int | None = None
    ties: list[tuple[GpuOccupancy, Fit]] = []
    for gpu in gpus:
        fit = fits(gpu.geometry).best(gpu.taken, wanted)
        if fit is None or (best_cost is not None and fit.cost > best_cost):
            continue
        if fit.cost != best_cost:
            best_cost, ties = fit.cost, []
        ties.append((gpu, fit))
    return [_warmest(ties)] if ties else None


def _warmest(ties: Iterable[tuple[GpuOccupancy, Fit]]) -> _Part:
    """Break ties: the most slices reused, then the fewest warm ones destroyed, then the first."""
    parts = (_Part(gpu, layout) for gpu, fit in ties for layout in fit.layouts)
    best = next(parts)
    best_work = _work(best)
    for part in parts:
        if best_work[0] == -len(best.layout):
            break  # nothing to make: no later one can be better
        work = _work(part)
        if work < best_work:
            best, best_work = part, work
    return best


def _work(part: _Part) -> tuple[int, int]:
    """What a part asks of the GPU: minus the slices reused, and the warm slices destroyed."""
    reused = destroyed = 0
    bits = occupied_bits(part.layout)
    for warm_bits, warm in part.gpu.warm_bits:
        if not warm_bits & bits:
            continue
        if any(is_same(warm, item) for item in part.layout):
            reused += 1
        else:
            destroyed += 1
    return (-reused, destroyed)


def _choices(part: _Part) -> list[Choice]:
    layout, warm = part.layout, part.gpu.warm
    left = [other for other in warm if not any(is_same(other, item) for item in layout)]
    choices = []
    for item in layout:
        reuse = any(is_same(other, item) for other in warm)
        destroy = () if reuse else tuple(other for other in left if clash(other, item))
        left = [other for other in left if other not in destroy]
        choices.append(Choice(part.gpu.gpu, item.profile, item.placement, reuse, destroy))
    return choices


class _Plan(NamedTuple):
    """A way to place some of the slices; compared by GPUs used, cost, then work."""

    score: tuple[int, int, int, int]
    parts: tuple[_Part, ...]


def _on_fewest_gpus(wanted: tuple[str, ...], gpus: Sequence[GpuOccupancy]) -> list[_Part] | None:
    """The best plan over several GPUs, exact: GPU by GPU, the best for each sub-shape so far.

    Takes time proportional to the GPUs that differ, times the square of the sub-shapes
    (``4x1g.5gb`` has five).
    """
    counts = Counter(wanted)
    goal = tuple(counts.values())
    plans = {tuple(0 for _ in goal): _Plan((0, 0, 0, 0), ())}
    most = max(gpu.geometry.memory_slices for gpu in gpus)
    shares = [s for s in itertools.product(*(range(min(n, most) + 1) for n in goal)) if any(s)]
    for gpu in _distinct(gpus, len(wanted)):
        options = [(share, plan) for share in shares if (plan := _share(gpu, counts, share))]
        plans = _extended(plans, options, goal)
    return list(plans[goal].parts) if goal in plans else None


def _distinct(gpus: Iterable[GpuOccupancy], copies: int) -> Iterator[GpuOccupancy]:
    """The GPUs; of those in equal state only as many as the slices could use."""
    seen: Counter[Hashable] = Counter()
    for gpu in gpus:
        warm = tuple((bits, item.profile.name) for bits, item in gpu.warm_bits)
        state = (fits(gpu.geometry), gpu.taken, warm)
        seen[state] += 1
        if seen[state] <= copies:
            yield gpu


def _share(gpu: GpuOccupancy, counts: Mapping[str, int], share: tuple[int, ...]) -> _Plan | None:
    names = tuple(itertools.chain.from_iterable(map(itertools.repeat, counts, share)))
    fit = fits(gpu.geometry).best(gpu.taken, names)
    if fit is None:
        return None
    part = _warmest([(gpu, fit)])
    return _Plan((1, fit.cost, *_work(part)), (part,))


def _extended(
    plans: dict[tuple[int, ...], _Plan],
    options: Sequence[tuple[tuple[int, ...], _Plan]],
    goal: tuple[int, ...],
) -> dict[tuple[int, ...], _Plan]:
    """The plans that use one more GPU, or not."""
    extended = dict(plans)
    for (done, plan), (share, option) in itertools.product(plans.items(), options):
        total = tuple(map(sum, zip(done, share, strict=True)))
        if any(have > most for have, most in zip(total, goal, strict=True)):
            continue
        score = tuple(map(sum, zip(plan.score, option.score, strict=True)))
        if total not in extended or score < extended[total].score:
            extended[total] = _Plan(score, plan.parts + option.parts)  # type: ignore[arg-type]
    return extended


def _in_order(profiles: Sequence[str], parts: Iterable[_Part]) -> tuple[Choice, ...]:
    made: dict[str, list[Choice]] = {}
    for choice in itertools.chain.from_iterable(map(_choices, parts)):
        made.setdefault(choice.profile.name, []).append(choice)
    return tuple(made[name].pop(0) for name in profiles)
