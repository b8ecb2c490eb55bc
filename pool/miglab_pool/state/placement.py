"""Chooses the placements of slices.  Pure: from GPUs and the slices on them to placements.

The rule: of all legal placements, the one that destroys the fewest still-legal placements over free
memory.  A free warm slice counts as free memory; warmth only breaks ties, because preferring warm
slices fragments the GPUs (docs/explanation/placement.md has the measurements).  A shape of several
slices is all or nothing: on one GPU if one has room, else on the fewest GPUs.

What fits on one GPU, and at what cost, is looked up in tables that are worked out once for each
geometry; there a GPU is the bits that are taken of it (`ProfilePlacement.bits`).  Knows neither
ledger, clock nor NVML.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import inf
from typing import NamedTuple

from miglab_pool.gpu.geometry import Geometry, Placement, Profile, ProfilePlacement, occupied_bits

Layout = tuple[ProfilePlacement, ...]
WITHIN_SECONDS = -inf  # when a slice that is being destroyed, or created for no lease, is free
PlacementsByGpu = Mapping[str, Sequence[ProfilePlacement]]
"""Placements that not everybody may use, by GPU."""


class Fit(NamedTuple):
    """The best ways to put some slices on one GPU.

    Attributes:
        cost: how many still-legal placements they destroy.
        layouts: every layout of that cost, lowest starts first.
    """

    cost: int
    layouts: tuple[Layout, ...]


class Fits:
    """The best layouts of a geometry, computed once for each occupancy of a GPU."""

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
        self._counts: dict[tuple[int, str], int] = {}

    def best(self, occupied: int, names: tuple[str, ...]) -> Fit | None:
        """The cheapest ways to place all of ``names`` (sorted) on a GPU, None if it has no room."""
        key = (occupied, names)
        if key not in self._fits:
            self._fits[key] = self._find_best(occupied, names)
        return self._fits[key]

    def count(self, occupied: int, name: str) -> int:
        """How many slices of a profile fit beside occupied bits, lowest start first."""
        key = (occupied, name)
        if key not in self._counts:
            self._counts[key] = self._count(occupied, name)
        return self._counts[key]

    def _count(self, occupied: int, name: str) -> int:
        count = 0
        for bits, _ in reversed(self._geometry.placements.get(name, ())):
            if not bits & occupied:
                count, occupied = count + 1, occupied | bits
        return count

    def _find_best(self, occupied: int, names: tuple[str, ...]) -> Fit | None:
        if any(name not in self._geometry.by_name for name in names):
            return None
        layouts = list(layouts_beside([self._geometry.by_name[name] for name in names], occupied))
        if not layouts:
            return None
        before = self._legal[occupied & self._memory]
        costs = [
            before - self._legal[(occupied | occupied_bits(layout)) & self._memory]
            for layout in layouts
        ]
        best = min(costs)
        return Fit(
            best,
            tuple(
                layout_of_cost
                for layout_of_cost, cost in zip(layouts, costs, strict=True)
                if cost == best
            ),
        )


def layouts_beside(profiles: Sequence[Profile], occupied: int, least: int = 0) -> Iterator[Layout]:
    """Yield every layout of slices beside occupied bits; equal neighbours only in rising order."""
    if not profiles:
        yield ()
        return
    first, remaining = profiles[0], profiles[1:]
    for placed_slice in (ProfilePlacement(first, placement) for placement in first.placements):
        if placed_slice.placement.start < least or placed_slice.bits & occupied:
            continue
        after = placed_slice.placement.start + 1 if remaining and remaining[0] is first else 0
        for layout in layouts_beside(remaining, occupied | placed_slice.bits, after):
            yield (placed_slice, *layout)


@lru_cache(maxsize=64)
def _fits_of_equal(geometry: Geometry) -> Fits:
    return Fits(geometry)


_fits_by_id: dict[int, tuple[Geometry, Fits]] = {}
_FITS_MAX = 1024


def fits(geometry: Geometry) -> Fits:
    """The tables of a geometry; equal geometries share them.

    They are found by identity, as hashing 64 geometries costs more than a decision.  The entry
    holds the geometry, so its id cannot become another's.
    """
    entry = _fits_by_id.get(id(geometry))
    if entry is None:
        if len(_fits_by_id) >= _FITS_MAX:
            _fits_by_id.clear()
        entry = _fits_by_id[id(geometry)] = (geometry, _fits_of_equal(geometry))
    return entry[1]


@dataclass(frozen=True)
class GpuOccupancy:
    """The slices on one GPU, as placement sees them.

    Attributes:
        gpu: its UUID.
        geometry: how it can be cut.
        live: what cannot be used: leased, being made or scrubbed, quarantined, foreign.
        warm: free slices that already exist; they count as free memory.
        usable: whether it takes new leases now.
        immovable: the part of ``live`` that is foreign, quarantined, or reserved: it will
            not become free by a lease's end.
        frees_at: when the rest of ``live`` is free by the ends that are set, by `Placement.mask`;
            infinite for what has no end, and for what is not named.
        course: the only course that gets leases there; empty: every course.
    """

    gpu: str
    geometry: Geometry
    live: tuple[ProfilePlacement, ...] = ()
    warm: tuple[ProfilePlacement, ...] = ()
    usable: bool = True
    immovable: tuple[ProfilePlacement, ...] = ()
    frees_at: Mapping[int, float] = field(default_factory=dict)
    course: str = ""

    @cached_property
    def occupied(self) -> int:
        """What cannot be used of the GPU, as `ProfilePlacement.bits`."""
        return occupied_bits(self.live)

    @cached_property
    def warm_bits(self) -> tuple[tuple[int, ProfilePlacement], ...]:
        """The warm slices, each with its `ProfilePlacement.bits`."""
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
    destroy: tuple[ProfilePlacement, ...] = ()


def usable_by_course(gpus: Sequence[GpuOccupancy], course: str) -> list[GpuOccupancy]:
    """Return every GPU as a course may use it: those of other courses are not usable."""
    return [gpu if gpu.course in ("", course) else replace(gpu, usable=False) for gpu in gpus]


def course_gpus_first(gpus: Sequence[GpuOccupancy], course: str) -> list[GpuOccupancy]:
    """As `usable_by_course`, the course's own GPUs first, so that shared ones stay free."""
    return sorted(usable_by_course(gpus, course), key=lambda gpu: gpu.course != course)


def clash(first: ProfilePlacement, second: ProfilePlacement) -> bool:
    """Whether two slices cannot be on one GPU: they overlap, or need the same engines."""
    return bool(first.bits & second.bits)


def without_places(gpu: GpuOccupancy, reserved: Sequence[ProfilePlacement]) -> GpuOccupancy:
    """Return the GPU as seen by those who may not use the reserved placements."""
    if not reserved:
        return gpu
    warm = tuple(
        warm_slice
        for warm_slice in gpu.warm
        if not any(clash(warm_slice, place) for place in reserved)
    )
    return replace(
        gpu, live=(*gpu.live, *reserved), warm=warm, immovable=(*gpu.immovable, *reserved)
    )


def without_reserved(gpus: Iterable[GpuOccupancy], reserved: PlacementsByGpu) -> list[GpuOccupancy]:
    """Return the GPUs as seen by those who may not use the reserved placements."""
    return [without_places(gpu, reserved.get(gpu.gpu, ())) for gpu in gpus]


def is_same(first: ProfilePlacement, second: ProfilePlacement) -> bool:
    """Whether two slices have one profile and one placement."""
    return first.placement == second.placement and first.profile.name == second.profile.name


class Slot(NamedTuple):
    """One slice of a reserved slot: the number of its request, its GPU, and its placement."""

    request: int
    gpu: str
    placed_slice: ProfilePlacement


def places_by_gpu(slots: Iterable[Slot]) -> PlacementsByGpu:
    """Group the slots' placements by GPU."""
    places: defaultdict[str, list[ProfilePlacement]] = defaultdict(list)
    for slot in slots:
        places[slot.gpu].append(slot.placed_slice)
    return places


def place(profiles: Sequence[str], gpus: Sequence[GpuOccupancy]) -> tuple[Choice, ...] | None:
    """Choose the placements of a shape's slices.

    Args:
        profiles: the profile of each slice, by name.
        gpus: every GPU, in a fixed order; earlier ones win what is otherwise equal.

    Returns:
        A choice for each profile, in the order asked, or None if there is no room for all.
        None is exact: no placement of all the slices exists.
    """
    if not profiles:
        return ()
    names = tuple(sorted(profiles))
    usable = [gpu for gpu in gpus if gpu.usable]
    if len(names) > sum(gpu.geometry.memory_slices for gpu in usable):
        return None
    parts = _on_one_gpu(names, usable)
    if parts is None and len(names) > 1:
        parts = _on_fewest_gpus(names, usable)
    return None if parts is None else _in_profile_order(profiles, parts)


def could_ever_fit(profiles: Sequence[str], gpus: Sequence[GpuOccupancy]) -> bool:
    """Whether a shape fits when every GPU, usable now or not, is empty."""
    empty = list(_emptied(gpus, len(profiles)))
    return any(place(profiles, [gpu]) for gpu in empty) or place(profiles, empty) is not None


def _emptied(gpus: Iterable[GpuOccupancy], limit: int) -> Iterator[GpuOccupancy]:
    """Yield every GPU as if it were empty, of each geometry no more than a shape can need.

    A lab's GPUs share a few geometries, which are told apart by identity: comparing costs more.
    """
    alike: Counter[int] = Counter()
    for gpu in gpus:
        geometry = id(gpu.geometry)
        alike[geometry] += 1
        if alike[geometry] <= limit:
            yield GpuOccupancy(gpu.gpu, gpu.geometry)


class _Part(NamedTuple):
    """One GPU's share of a decision."""

    gpu: GpuOccupancy
    layout: Layout


def _on_one_gpu(names: tuple[str, ...], gpus: Iterable[GpuOccupancy]) -> list[_Part] | None:
    best_cost: int | None = None
    ties: list[tuple[GpuOccupancy, Fit]] = []
    for gpu in gpus:
        fit = fits(gpu.geometry).best(gpu.occupied, names)
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
        if any(is_same(warm, placed_slice) for placed_slice in part.layout):
            reused += 1
        else:
            destroyed += 1
    return (-reused, destroyed)


def _choices(part: _Part) -> list[Choice]:
    layout, warm = part.layout, part.gpu.warm
    unassigned = [
        warm_slice
        for warm_slice in warm
        if not any(is_same(warm_slice, placed_slice) for placed_slice in layout)
    ]
    choices = []
    for placed_slice in layout:
        reuse = any(is_same(warm_slice, placed_slice) for warm_slice in warm)
        destroy = (
            ()
            if reuse
            else tuple(warm_slice for warm_slice in unassigned if clash(warm_slice, placed_slice))
        )
        unassigned = [warm_slice for warm_slice in unassigned if warm_slice not in destroy]
        choices.append(
            Choice(part.gpu.gpu, placed_slice.profile, placed_slice.placement, reuse, destroy)
        )
    return choices


class _Plan(NamedTuple):
    """A way to place some of the slices; compared by GPUs used, cost, then work."""

    score: tuple[int, int, int, int]
    parts: tuple[_Part, ...]


def _on_fewest_gpus(names: tuple[str, ...], gpus: Sequence[GpuOccupancy]) -> list[_Part] | None:
    """The best plan over several GPUs, exact: GPU by GPU, the best for each sub-shape so far.

    Takes time proportional to the GPUs that differ, times the square of the sub-shapes
    (``4x1g.5gb`` has five).
    """
    counts = Counter(names)
    goal = tuple(counts.values())
    plans = {tuple(0 for _ in goal): _Plan((0, 0, 0, 0), ())}
    max_slices = max(gpu.geometry.memory_slices for gpu in gpus)
    shares = [
        s for s in itertools.product(*(range(min(n, max_slices) + 1) for n in goal)) if any(s)
    ]
    for gpu in _distinct_gpus(gpus, len(names)):
        options = [
            (share, plan) for share in shares if (plan := _plan_of_share(gpu, counts, share))
        ]
        plans = _extended_plans(plans, options, goal)
    return list(plans[goal].parts) if goal in plans else None


def _distinct_gpus(gpus: Iterable[GpuOccupancy], copies: int) -> Iterator[GpuOccupancy]:
    """Yield the GPUs; of those in equal state only as many as the slices could use."""
    copies_by_state: Counter[Hashable] = Counter()
    for gpu in gpus:
        warm = tuple((bits, warm_slice.profile.name) for bits, warm_slice in gpu.warm_bits)
        state = (fits(gpu.geometry), gpu.occupied, warm)
        copies_by_state[state] += 1
        if copies_by_state[state] <= copies:
            yield gpu


def _plan_of_share(
    gpu: GpuOccupancy, counts: Mapping[str, int], share: tuple[int, ...]
) -> _Plan | None:
    names = tuple(itertools.chain.from_iterable(map(itertools.repeat, counts, share)))
    fit = fits(gpu.geometry).best(gpu.occupied, names)
    if fit is None:
        return None
    part = _warmest([(gpu, fit)])
    return _Plan((1, fit.cost, *_work(part)), (part,))


def _extended_plans(
    plans: dict[tuple[int, ...], _Plan],
    options: Sequence[tuple[tuple[int, ...], _Plan]],
    goal: tuple[int, ...],
) -> dict[tuple[int, ...], _Plan]:
    """Return the plans with those added that use one more GPU."""
    extended = dict(plans)
    for (placed_counts, plan), (share, option) in itertools.product(plans.items(), options):
        total = tuple(map(sum, zip(placed_counts, share, strict=True)))
        if any(count > limit for count, limit in zip(total, goal, strict=True)):
            continue
        score = tuple(map(sum, zip(plan.score, option.score, strict=True)))
        if total not in extended or score < extended[total].score:
            extended[total] = _Plan(score, plan.parts + option.parts)  # type: ignore[arg-type]
    return extended


def _in_profile_order(profiles: Sequence[str], parts: Iterable[_Part]) -> tuple[Choice, ...]:
    choices_by_profile: dict[str, list[Choice]] = {}
    for choice in itertools.chain.from_iterable(map(_choices, parts)):
        choices_by_profile.setdefault(choice.profile.name, []).append(choice)
    return tuple(choices_by_profile[name].pop(0) for name in profiles)
