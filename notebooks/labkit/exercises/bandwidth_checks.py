"""The exact check of the student's bandwidths of a collective, in the terms of nccl-tests.

Its conventions (doc/PERFORMANCE.md): GB are 10⁹ bytes; a message's size is that of the whole array,
so that of the result for an all-gather; the bus bandwidth multiplies the algorithm bandwidth by
what a rank must send at least, over that size.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from labkit.exercises.formula_checks import ExactFormula

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "broadcast")
Bandwidths = Callable[[str, int, int, float], tuple[float, float]]


def bus_factor(collective: str, ranks: int) -> float:
    """What a rank must send at least, over the size of the whole array."""
    share = (ranks - 1) / ranks
    factors = {"all-reduce": 2 * share, "all-gather": share, "reduce-scatter": share}
    return {**factors, "broadcast": 1.0}[collective]


def bandwidths(
    collective: str, input_bytes: int, ranks: int, seconds: float
) -> tuple[float, float]:
    """The algorithm bandwidth and the bus bandwidth of a collective.

    Args:
        collective: one of `COLLECTIVES`.
        input_bytes: what each rank gives.
        ranks: how many there are.
        seconds: how long it takes.

    Returns:
        Both in GB/s.
    """
    size = input_bytes * ranks if collective == "all-gather" else input_bytes
    algorithm_gb_per_s = size / seconds / 1e9
    return algorithm_gb_per_s, algorithm_gb_per_s * bus_factor(collective, ranks)


def _scaled(algorithm: float, bus: float) -> Bandwidths:
    """The bandwidths, each times a number."""

    def scaled(*arguments: object) -> tuple[float, float]:
        pair = bandwidths(*arguments)  # type: ignore[arg-type]
        return algorithm * pair[0], bus * pair[1]

    return scaled


def _of_inputs(
    collective: str, input_bytes: int, ranks: int, seconds: float
) -> tuple[float, float]:
    algorithm_gb_per_s = input_bytes / seconds / 1e9
    return algorithm_gb_per_s, algorithm_gb_per_s * bus_factor(collective, ranks)


def _reduced_once(
    collective: str, input_bytes: int, ranks: int, seconds: float
) -> tuple[float, float]:
    algorithm, bus = bandwidths(collective, input_bytes, ranks, seconds)
    return algorithm, bus / 2 if collective == "all-reduce" else bus


def _with_one_factor(
    collective: str, input_bytes: int, ranks: int, seconds: float
) -> tuple[float, float]:
    algorithm, _ = bandwidths(collective, input_bytes, ranks, seconds)
    return algorithm, algorithm * bus_factor("all-reduce", ranks)


def _shared_broadcast(
    collective: str, input_bytes: int, ranks: int, seconds: float
) -> tuple[float, float]:
    algorithm, bus = bandwidths(collective, input_bytes, ranks, seconds)
    return algorithm, bus * (ranks - 1) / ranks if collective == "broadcast" else bus


def _drawn_case(luck: random.Random) -> tuple[str, int, int, float]:
    size = 4 * luck.randrange(1_000, 10_000_000)
    return luck.choice(COLLECTIVES), size, luck.randrange(2, 65), luck.uniform(1e-5, 1.0)


# Whether `bandwidths(collective, input_bytes, ranks, seconds)` returns both, as nccl-tests does.
check_bandwidths = ExactFormula(
    "bandwidths",
    bandwidths,
    tuple(
        (name, 4_000_000, ranks, seconds)
        for name in COLLECTIVES
        for ranks, seconds in ((2, 0.004), (8, 0.0001))
    ),
    {
        "the size of an all-gather is that of its result: every rank's input counts": _of_inputs,
        "an all-reduce is a reduce-scatter and an all-gather: each number travels twice": (
            _reduced_once
        ),
        "only an all-reduce sends each number twice": _with_one_factor,
        "in a broadcast one rank has all of the data, and all of it must leave that rank": (
            _shared_broadcast
        ),
        "these are gigabits: nccl-tests counts bytes": _scaled(8.0, 8.0),
        "these are MB/s: a GB has 10⁹ bytes": _scaled(1e3, 1e3),
        "these are bytes/s: a GB has 10⁹ bytes": _scaled(1e9, 1e9),
        "these are GiB/s: a GB has 10⁹ bytes": _scaled(1e9 / 2**30, 1e9 / 2**30),
    },
    draw=_drawn_case,
)
