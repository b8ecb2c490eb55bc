"""`./lab bench placement`: how much our placement accepts beside other policies, and how fast.

Every policy meets the same arrivals: Poisson, with exponential lifetimes of mean 1, one slice each.
The load is ρ = arrivals per lifetime × mean memory slices asked / memory slices there are.
What is refused is gone: no queue, so that packing alone is compared.

Ours is the pool's own decision function.  The others know a GPU only as a bit mask of its occupied
memory slices; slices they get back are simply free.
"""

import heapq
import itertools
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Annotated, Any, Protocol

import typer

from miglab_bench.harness.results import say, table_of
from miglab_pool.gpu.geometry import Geometry, ProfilePlacement, legal_placements
from miglab_pool.gpu.simulated.geometry import model_geometry
from miglab_pool.state.placement import Choice, GpuOccupancy, place

MODEL = "A100-40GB"
PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
MIXES = {
    "teach": (0.60, 0.05, 0.20, 0.10, 0.03, 0.02),
    "uniform": (1 / 6,) * 6,
    "bimodal": (0.30, 0.15, 0.05, 0.05, 0.15, 0.30),
}
LOADS = (0.8, 1.0)
N_GPUS = 8
ARRIVALS = 20_000
WARM_UP = 2_000
SEEDS = tuple(range(5))
DECISION_GPUS = (1, 8, 64)
DECISIONS = 400

Receipt = Any  # what a policy wants back at release; only that policy looks into it
Option = tuple[float, int]  # what a placement scores (least wins), and its memory slices as bits
Choose = Callable[[int, str], Option | None]


# -- the policies: requests in, accepted or not out ------------------------------------------------


class Policy(Protocol):
    """Decides arrival by arrival; it never learns how long a lease will last."""

    def take(self, profile: str) -> Receipt | None:
        """Take room for one slice, or None if the policy has none."""

    def give_back(self, receipt: Receipt) -> None:
        """Take back what `take` returned."""


class MiglabPacking:
    """The pool's decision over live and warm slices: a slice given back stays warm."""

    def __init__(self, geometry: Geometry, n_gpus: int) -> None:
        self._gpus = [GpuOccupancy(str(index), geometry) for index in range(n_gpus)]

    def take(self, profile: str) -> tuple[int, ProfilePlacement] | None:
        """As `Policy.take`."""
        choices = place([profile], self._gpus)
        if choices is None:
            return None
        index, placed_slice = (
            int(choices[0].gpu),
            ProfilePlacement(choices[0].profile, choices[0].placement),
        )
        self._gpus[index] = _with_lease(self._gpus[index], placed_slice, choices[0])
        return index, placed_slice

    def give_back(self, receipt: tuple[int, ProfilePlacement]) -> None:
        """As `Policy.give_back`."""
        index, slice_ = receipt
        gpu = self._gpus[index]
        live = tuple(s for s in gpu.live if s is not slice_)
        self._gpus[index] = GpuOccupancy(gpu.gpu, gpu.geometry, live, (*gpu.warm, slice_))


def _with_lease(gpu: GpuOccupancy, placed_slice: ProfilePlacement, choice: Choice) -> GpuOccupancy:
    replaced = {s.placement for s in choice.destroy} | {placed_slice.placement}
    warm = tuple(s for s in gpu.warm if s.placement not in replaced)
    return GpuOccupancy(gpu.gpu, gpu.geometry, (*gpu.live, placed_slice), warm)


class LowestScorePolicy:
    """Take the placement of the lowest score; the first GPU wins ties."""

    def __init__(self, n_gpus: int, choose: Choose) -> None:
        self._masks = [0] * n_gpus
        self._choose = choose

    def take(self, profile: str) -> tuple[int, int] | None:
        """As `Policy.take`."""
        options = ((self._choose(mask, profile), gpu) for gpu, mask in enumerate(self._masks))
        scored = [(option[0], gpu, option[1]) for option, gpu in options if option]
        if not scored:
            return None
        _, gpu, bits = min(scored)
        self._masks[gpu] |= bits
        return gpu, bits

    def give_back(self, receipt: tuple[int, int]) -> None:
        """As `Policy.give_back`."""
        gpu, bits = receipt
        self._masks[gpu] &= ~bits


def packs(counts: Mapping[str, int], n_gpus: int, geometry: Geometry) -> bool:
    """Return whether slices fit on empty GPUs if each may lie anywhere; a closed form, no search.

    Largest profiles first, among equals those with the fewest starts, each at the highest start
    that is left: the upper end of a GPU hosts least (no 2g at 6, no 1g at 7).  So 7g take a GPU
    each, 4g and then 3g fill halves, then come 2g, double-memory 1g and 1g.

    Args:
        counts: how many of each profile, by name.
        n_gpus: how many GPUs of this geometry.
        geometry: their geometry; its placements must be aligned runs of 1, 2, 4 … memory slices.

    Raises:
        ValueError: for a ``+me`` profile, which the closed form does not cover.
    """
    profiles = [geometry.by_name[name] for name, count in counts.items() if count]
    if not all(profile.is_plain for profile in profiles):
        raise ValueError("packs() has no closed form for +me profiles; ask place() instead")
    profiles.sort(key=lambda profile: (-profile.size, len(profile.starts)))
    size, free = geometry.memory_slices, {0: n_gpus}
    for profile in profiles:
        while size > profile.size:
            size //= 2
            free = {start + half: n for start, n in free.items() for half in (0, size)}
        if not _fill(free, profile.starts, counts[profile.name]):
            return False
    return True


def _fill(free: dict[int, int], starts: Iterable[int], count: int) -> bool:
    for start in sorted(starts, reverse=True):
        gpus = min(count, free.get(start, 0))
        count -= gpus
        if gpus:
            free[start] -= gpus
    return count == 0


class Repack:
    """The reference: any live slice may move, so a slice fits if the whole multiset packs."""

    def __init__(self, geometry: Geometry, n_gpus: int) -> None:
        self._counts = dict.fromkeys(geometry.by_name, 0)
        self._geometry = geometry
        self._n_gpus = n_gpus

    def take(self, profile: str) -> str | None:
        """As `Policy.take`."""
        self._counts[profile] += 1
        if packs(self._counts, self._n_gpus, self._geometry):
            return profile
        self._counts[profile] -= 1
        return None

    def give_back(self, receipt: str) -> None:
        """As `Policy.give_back`."""
        self._counts[receipt] -= 1


def scored(score: Callable[[int, int], float]) -> Callable[[Geometry, int], Policy]:
    """A policy by what a placement scores, from the memory slices taken before and by it.

    The least score wins, then the first GPU, then the lowest start.
    """
    return lambda geometry, n_gpus: LowestScorePolicy(n_gpus, _choose(geometry, score))


def mfi_like(geometry: Geometry, n_gpus: int) -> Policy:
    """The least rise of the fragmentation score, after MFI (arXiv 2511.18906).

    A GPU's score is the sum, over the placements of every profile small enough for the free memory
    slices in sum, of the profile's size where something is in the way.
    """
    placements = [p for q in geometry.profiles if q.is_plain for p in q.placements]

    def fragmentation(mask: int) -> int:
        free = geometry.memory_slices - mask.bit_count()
        return sum(p.size for p in placements if p.size <= free and p.mask & mask)

    def rise(before: int, bits: int) -> float:
        return fragmentation(before | bits) - fragmentation(before)

    return LowestScorePolicy(n_gpus, _choose(geometry, rise))


def _choose(geometry: Geometry, score: Callable[[int, int], float]) -> Choose:
    @cache
    def choose(mask: int, profile: str) -> Option | None:
        options = [p.mask for p in geometry.by_name[profile].placements if not p.mask & mask]
        return min(((score(mask, bits), bits) for bits in options), default=None)

    return choose


POLICIES: dict[str, Callable[[Geometry, int], Policy]] = {
    "miglab": MiglabPacking,
    "first-fit": scored(lambda before, bits: 0),
    "best-fit": scored(lambda before, bits: -before.bit_count()),  # the fullest GPU with room
    "mfi-like": mfi_like,
    # The emptiest GPU, at its highest start: spreads.
    "worst-fit": scored(lambda before, bits: before.bit_count() - bits / 1000),
    "repack": Repack,
}


# -- what is measured ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrival:
    """A student who asks for one slice; times in mean lifetimes."""

    at: float
    profile: str
    lifetime: float


@dataclass(frozen=True)
class PolicyMeans:
    """One policy at one load: means over the seeds.

    Attributes:
        accepted: fraction of the requests accepted.
        accepted_weighted: the same, each request counting its memory slices.
    """

    policy: str
    mix: str
    rho: float
    accepted: float
    accepted_weighted: float


def arrivals(
    geometry: Geometry, mix: str, rho: float, seed: int, count: int = ARRIVALS
) -> list[Arrival]:
    """Draw the arrivals at one load, the same for every policy."""
    rng = random.Random(seed)  # noqa: S311 -- a simulation, not a secret
    weights = MIXES[mix]
    mean_size = sum(w * geometry.by_name[p].size for w, p in zip(weights, PROFILES, strict=True))
    rate = rho * geometry.memory_slices * N_GPUS / mean_size
    at = itertools.accumulate(rng.expovariate(rate) for _ in range(count))
    profiles = rng.choices(PROFILES, weights, k=count)
    return [Arrival(t, p, rng.expovariate(1.0)) for t, p in zip(at, profiles, strict=True)]


def simulate(
    geometry: Geometry, policy_name: str, requests: Sequence[Arrival], warm_up: int = WARM_UP
) -> tuple[float, float]:
    """Accepted fraction, plain and weighted by memory slices, after the first ``warm_up``."""
    policy = POLICIES[policy_name](geometry, N_GPUS)
    ends: list[tuple[float, int, object]] = []
    counts = {True: [0, 0], False: [0, 0]}
    for number, arrival in enumerate(requests):
        while ends and ends[0][0] <= arrival.at:
            policy.give_back(heapq.heappop(ends)[2])
        receipt = policy.take(arrival.profile)
        if receipt is not None:
            heapq.heappush(ends, (arrival.at + arrival.lifetime, number, receipt))
        if number >= warm_up:
            counts[receipt is not None][0] += 1
            counts[receipt is not None][1] += geometry.by_name[arrival.profile].size
    plain, weighted = (
        yes / (yes + no) for yes, no in zip(counts[True], counts[False], strict=True)
    )
    return plain, weighted


def compare(
    geometry: Geometry,
    policies: Iterable[str] = tuple(POLICIES),
    loads: Iterable[tuple[str, float]] = tuple(itertools.product(MIXES, LOADS)),
    seeds: Sequence[int] = SEEDS,
    count: int = ARRIVALS,
    jobs: int = 1,
) -> list[PolicyMeans]:
    """Every policy at every load, on the same arrivals; ``jobs`` of them at a time."""
    cases = [(policy, mix, rho) for mix, rho in loads for policy in policies]
    measure = partial(_means, geometry=geometry, seeds=seeds, count=count)
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(measure, cases))


def _means(
    case: tuple[str, str, float], *, geometry: Geometry, seeds: Sequence[int], count: int
) -> PolicyMeans:
    policy, mix, rho = case
    requests = (arrivals(geometry, mix, rho, seed, count) for seed in seeds)
    accepted = [simulate(geometry, policy, r, count * WARM_UP // ARRIVALS) for r in requests]
    return PolicyMeans(policy, mix, rho, *map(statistics.fmean, zip(*accepted, strict=True)))


def decision_us(geometry: Geometry, n_gpus: int, decisions: int = DECISIONS) -> float:
    """Median time of one decision over ``n_gpus`` part-filled GPUs, in microseconds.

    Each is made over fresh states, as the pool's are, so that nothing of a GPU is remembered.
    """
    rng = random.Random(n_gpus)  # noqa: S311 -- a simulation, not a secret
    contents = [_part_filled(rng, geometry) for _ in range(n_gpus)]
    times = []
    for profile in rng.choices(PROFILES, MIXES["teach"], k=decisions):
        gpus = [GpuOccupancy(str(i), geometry, *content) for i, content in enumerate(contents)]
        start = time.perf_counter()
        place([profile], gpus)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def _part_filled(
    rng: random.Random, geometry: Geometry
) -> tuple[tuple[ProfilePlacement, ...], tuple[ProfilePlacement, ...]]:
    """Live and warm slices such as a teaching day leaves them."""
    live: list[ProfilePlacement] = []
    warm: list[ProfilePlacement] = []
    for name in rng.choices(PROFILES, MIXES["teach"], k=5):
        options = legal_placements(geometry.by_name[name], [*live, *warm])
        if options:
            into = live if rng.random() < 0.7 else warm
            into.append(ProfilePlacement(geometry.by_name[name], rng.choice(options)))
    return tuple(live), tuple(warm)


def bench_placement(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Placement: what each packing policy accepts on the same arrivals; time of a decision."""
    geometry = model_geometry(MODEL)
    jobs = len(os.sched_getaffinity(0))
    started_at = time.perf_counter()
    decisions = {str(n): round(decision_us(geometry, n), 1) for n in DECISION_GPUS}
    rows = compare(geometry, jobs=jobs)
    took_s = time.perf_counter() - started_at
    method = (
        f"how: one run, {N_GPUS} simulated {MODEL} geometries, {ARRIVALS} Poisson arrivals (the "
        f"first {WARM_UP} dropped), exponential lifetimes, {len(SEEDS)} seeds, no queue, the same "
        f"arrivals for every policy; decisions: median of {DECISIONS} on part-filled GPUs, "
        f"perf_counter, Python {sys.version.split()[0]}; {jobs} processes, {took_s:.0f} s"
    )
    if as_json:
        typer.echo(method, err=True)
    by_policy: dict[str, dict[str, str]] = {name: {"policy": name} for name in POLICIES}
    for row in rows:
        cell = f"{row.accepted:.3f} ({row.accepted_weighted:.3f})"
        by_policy[row.policy][f"{row.mix} ρ={row.rho}"] = cell
    title = "accepted fraction (weighted by memory slices)"
    times = ", ".join(f"{n} GPUs {us:.0f} µs" for n, us in decisions.items())
    renderables = table_of(list(by_policy.values()), title), f"decision, median: {times}", method
    figures = {"rows": [asdict(row) for row in rows], "decision_us": decisions}
    say(figures, *renderables, as_json=as_json)
