"""`./lab bench placement`: how much our placement accepts beside other policies, and how fast.

Every policy meets the same arrivals: Poisson, with exponential lifetimes of mean 1, one slice each.
The load is ρ = arrivals per lifetime × mean memory slices asked / memory slices there are.
What is refused is gone: no queue, so that packing alone is compared.
"""

import heapq
import itertools
import os
import random
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated

import typer

from miglab_bench.harness.tables import say, table_of
from miglab_bench.measures.packing import POLICIES
from miglab_pool.gpu.geometry import Geometry, Placed, legal_placements
from miglab_pool.gpu.simulated.models import models
from miglab_pool.state.placement import GpuOccupancy, place

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
    """The arrivals at one load: the same for every policy."""
    rng = random.Random(seed)  # noqa: S311 -- a simulation, not a secret
    weights = MIXES[mix]
    mean_size = sum(w * geometry.by_name[p].size for w, p in zip(weights, PROFILES, strict=True))
    rate = rho * geometry.memory_slices * N_GPUS / mean_size
    at = itertools.accumulate(rng.expovariate(rate) for _ in range(count))
    asked = rng.choices(PROFILES, weights, k=count)
    return [Arrival(t, p, rng.expovariate(1.0)) for t, p in zip(at, asked, strict=True)]


def simulate(
    geometry: Geometry, policy_name: str, came: Sequence[Arrival], warm_up: int = WARM_UP
) -> tuple[float, float]:
    """Accepted fraction, plain and weighted by memory slices, after the first ``warm_up``."""
    policy = POLICIES[policy_name](geometry, N_GPUS)
    ends: list[tuple[float, int, object]] = []
    asked = {True: [0, 0], False: [0, 0]}
    for number, arrival in enumerate(came):
        while ends and ends[0][0] <= arrival.at:
            policy.give_back(heapq.heappop(ends)[2])
        held = policy.take(arrival.profile)
        if held is not None:
            heapq.heappush(ends, (arrival.at + arrival.lifetime, number, held))
        if number >= warm_up:
            asked[held is not None][0] += 1
            asked[held is not None][1] += geometry.by_name[arrival.profile].size
    plain, weighted = (yes / (yes + no) for yes, no in zip(asked[True], asked[False], strict=True))
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
    came = (arrivals(geometry, mix, rho, seed, count) for seed in seeds)
    accepted = [simulate(geometry, policy, each, count * WARM_UP // ARRIVALS) for each in came]
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
) -> tuple[tuple[Placed, ...], tuple[Placed, ...]]:
    """Live and warm slices such as a teaching day leaves them."""
    live: list[Placed] = []
    warm: list[Placed] = []
    for name in rng.choices(PROFILES, MIXES["teach"], k=5):
        options = legal_placements(geometry, geometry.by_name[name], [*live, *warm])
        if options:
            into = live if rng.random() < 0.7 else warm
            into.append(Placed(geometry.by_name[name], rng.choice(options)))
    return tuple(live), tuple(warm)


def bench_placement(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Placement: what each packing policy accepts on the same arrivals; time of a decision."""
    geometry = models()[MODEL].geometry
    jobs = len(os.sched_getaffinity(0))
    began = time.perf_counter()
    decisions = {str(n): round(decision_us(geometry, n), 1) for n in DECISION_GPUS}
    rows = compare(geometry, jobs=jobs)
    took_s = time.perf_counter() - began
    how = (
        f"how: one run, {N_GPUS} simulated {MODEL} geometries, {ARRIVALS} Poisson arrivals (the "
        f"first {WARM_UP} dropped), exponential lifetimes, {len(SEEDS)} seeds, no queue, the same "
        f"arrivals for every policy; decisions: median of {DECISIONS} on part-filled GPUs, "
        f"perf_counter, Python {sys.version.split()[0]}; {jobs} processes, {took_s:.0f} s"
    )
    if as_json:
        typer.echo(how, err=True)
    by_policy: dict[str, dict[str, str]] = {name: {"policy": name} for name in POLICIES}
    for row in rows:
        cell = f"{row.accepted:.3f} ({row.accepted_weighted:.3f})"
        by_policy[row.policy][f"{row.mix} ρ={row.rho}"] = cell
    title = "accepted fraction (weighted by memory slices)"
    times = ", ".join(f"{n} GPUs {us:.0f} µs" for n, us in decisions.items())
    shown = table_of(list(by_policy.values()), title), f"decision, median: {times}", how
    found = {"rows": [asdict(row) for row in rows], "decision_us": decisions}
    say(found, *shown, as_json=as_json)
