"""The statistics of noisy timings: median, spread, interval of a ratio, three honest looks.

Pure functions over arrays; the last axis is always the round. Evidence for the rules is in the docs
page on measuring: looking again and again until something shows gives false decisions in a fifth
of the cases, so there are at most three looks, each at 98.3 % (Bonferroni over three at 5 %).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.errors import WrongArgument
from labkit.records import NORMAL_95, InterimLook, Verdict

LOOKS = (20, 40, 80)
LEVEL = 0.983
TAILS = (50.0 * (1 - LEVEL), 50.0 * (1 + LEVEL))
RESAMPLES = 2000
AT_ONCE = 20
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Two-sided 95 % points of Student's t, 1 to 10 degrees of freedom; for more, the last serves."""
Floats = NDArray[np.float64]


def _numbers(values: ArrayLike) -> Floats:
    """Samples as an array.

    Raises:
        WrongArgument: there are none, or they are no numbers.
    """
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError) as error:
        raise WrongArgument(f"Samples must be a list of numbers, not {values!r:.60}.") from error
    if not array.size:
        raise WrongArgument("Samples must be numbers, at least one of them, and there are none.")
    return array


def _points(x: ArrayLike, y: ArrayLike) -> tuple[Floats, Floats]:
    """The points of a line: as many of x as of y, two or more.

    Raises:
        WrongArgument: they are not.
    """
    xs, ys = _numbers(x), _numbers(y)
    if xs.shape != ys.shape or xs.size < 2 or not np.isfinite([xs, ys]).all():
        raise WrongArgument(
            f"A line needs two points or more, not x = {x!r:.40} and y = {y!r:.40}."
        )
    return xs, ys


def median(values: ArrayLike) -> float:
    """The middle of the samples; unlike the mean it shrugs off a few disturbed ones."""
    return float(np.median(_numbers(values)))


def ratio(a: ArrayLike, b: ArrayLike) -> Floats:
    """Time of a over time of b, with the order of the turns cancelled.

    Even rounds ran a first and odd rounds b first. The median of each half is taken apart and the
    two are averaged (in logarithms), so that an advantage of going second cancels.

    Args:
        a: seconds, shape (..., rounds).
        b: seconds, same shape.
    """
    logs = np.log(_numbers(a)) - np.log(_numbers(b))
    if logs.shape[-1] < 2:
        return np.asarray(np.exp(logs[..., 0]))
    halves = np.median(logs[..., 0::2], axis=-1), np.median(logs[..., 1::2], axis=-1)
    return np.asarray(np.exp((halves[0] + halves[1]) / 2))


def interval(a: ArrayLike, b: ArrayLike) -> tuple[Floats, Floats]:
    """Bootstrap interval of `ratio`: rounds are resampled, each half by itself.

    Args:
        a: seconds, shape (..., rounds).
        b: seconds, same shape.

    Returns:
        The lower and the upper end, each of shape (...).
    """
    logs = np.log(_numbers(a)) - np.log(_numbers(b))
    generator = np.random.default_rng(0)  # the same interval for the same samples
    middle = (_resampled(logs[..., 0::2], generator) + _resampled(logs[..., 1::2], generator)) / 2
    low, high = np.percentile(middle, TAILS, axis=0)
    return np.exp(low), np.exp(high)


def _resampled(logs: Floats, generator: np.random.Generator) -> Floats:
    """Medians of RESAMPLES redraws of the rounds, shape (RESAMPLES, ...)."""
    rounds = logs.shape[-1]
    picks = generator.integers(0, rounds, size=(RESAMPLES, rounds))
    some = np.array_split(picks, RESAMPLES // AT_ONCE)  # all at once would be much memory
    medians = [np.median(logs[..., pick], axis=-1) for pick in some]
    return np.moveaxis(np.concatenate(medians, axis=-1), -1, 0)


def saved_share(slow: ArrayLike, fast: ArrayLike, base: ArrayLike) -> tuple[float, float, float]:
    """The share of what `slow` takes longer than `base` that `fast` saves.

    Args:
        slow: seconds, a value a round.
        fast: seconds of the same rounds.
        base: seconds of the same rounds.

    Returns:
        The share of medians, and the bootstrap interval over rounds that are redrawn together.
    """
    saved, cost = _numbers(slow) - _numbers(fast), _numbers(slow) - _numbers(base)
    generator = np.random.default_rng(0)
    picks = generator.integers(0, len(cost), size=(RESAMPLES, len(cost)))
    shares = np.median(saved[picks], axis=-1) / np.median(cost[picks], axis=-1)
    low, high = np.percentile(shares, TAILS)
    return float(np.median(saved) / np.median(cost)), float(low), float(high)


def verdict(low: float, high: float, band: tuple[float, float], margin: float = 0.0) -> Verdict:
    """Supported: the interval lies inside the band; contradicted: outside; else undecided.

    Args:
        low: the interval's lower end.
        high: its upper end.
        band: what is claimed.
        margin: how far, as a fraction, the interval must lie from an end of the band to decide
            anything. What one process has by chance over another (a few per cent, for as long as
            it lives) then decides nothing.
    """
    if math.isnan(low) or math.isnan(high):
        return Verdict.UNDECIDED
    wide = 1.0 + margin
    if band[0] * wide <= low and high <= band[1] / wide:
        return Verdict.SUPPORTED
    if high < band[0] / wide or low > band[1] * wide:
        return Verdict.CONTRADICTED
    return Verdict.UNDECIDED


def look(
    a: Sequence[float], b: Sequence[float], band: tuple[float, float], margin: float = 0.0
) -> InterimLook:
    """Judge the rounds measured so far, once."""
    low, high = (float(end) for end in interval(a, b))
    return InterimLook(len(a), float(ratio(a, b)), low, high, verdict(low, high, band, margin))


def judge(
    a: Sequence[float],
    b: Sequence[float],
    band: tuple[float, float],
    looks: Sequence[int] = LOOKS,
    margin: float = 0.0,
) -> tuple[InterimLook, ...]:
    """The looks a comparison was allowed, at fixed rounds, ending at the first decision."""
    interim_looks: list[InterimLook] = []
    for rounds in looks:
        if min(len(a), len(b)) < rounds:
            break
        interim_looks.append(look(a[:rounds], b[:rounds], band, margin))
        if interim_looks[-1].verdict is not Verdict.UNDECIDED:
            break
    return tuple(interim_looks)


def explain(looks: Sequence[InterimLook], band: tuple[float, float], margin: float = 0.0) -> str:
    """Explain the verdict of the last look."""
    if not looks:
        return f"fewer than {LOOKS[0]} rounds were measured"
    last_look = looks[-1]
    bounds = f"{last_look.low:.3f}-{last_look.high:.3f}"
    observed = f"after {last_look.rounds} rounds the ratio lies in {bounds}"
    allowed = in_words(band) + (f", by a margin of {margin:.0%}" if margin else "")
    endings = {
        Verdict.SUPPORTED: f"all inside the band ({allowed})",
        Verdict.CONTRADICTED: f"all outside the band ({allowed})",
        Verdict.UNDECIDED: f"which does not decide the claim (band: {allowed})",
    }
    return f"{observed}, {endings[last_look.verdict]}"


def in_words(band: tuple[float, float]) -> str:
    """A band as text, the way a claim states it."""
    low, high = band
    if math.isinf(high):
        return f"more than {low:g}"
    return f"less than {high:g}" if low == 0 else f"{low:g} to {high:g}"


def line_fit(x: ArrayLike, y: ArrayLike) -> tuple[float, float, float]:
    """Least squares y = a + b x.

    Returns:
        a, b, and the largest relative residual, which shows whether a line is the right shape at
        all.
    """
    xs, ys = _points(x, y)
    slope, start = np.polyfit(xs, ys, 1)
    residual = np.max(np.abs((start + slope * xs - ys) / ys))
    return float(start), float(slope), float(residual)


def line_interval(x: ArrayLike, y: ArrayLike, at: float, *, noise: float) -> tuple[float, float]:
    """The 95 % prediction interval of y = a + b x at another x; the farther away, the wider.

    The errors of y are taken to be relative ones, and as large as the points' distances from the
    line say (with Student's t for points less two), but not smaller than `noise`.

    Args:
        x: of the points, two or more.
        y: of the points, all above zero.
        at: where y is predicted.
        noise: relative standard deviation of a y, known from its own samples.
    """
    xs, ys = _points(x, y)
    design = np.stack([1 / ys, xs / ys], axis=1)
    spread = np.linalg.inv(design.T @ design)
    line = spread @ design.T @ np.ones_like(ys)
    degrees_of_freedom, misses = len(ys) - 2, design @ line - 1
    by_misses = 0.0
    if degrees_of_freedom > 0:
        by_misses = T_95[min(degrees_of_freedom, len(T_95)) - 1] * math.sqrt(
            float(misses @ misses) / degrees_of_freedom
        )
    target = np.array([1.0, at])
    middle = float(target @ line)
    error = math.sqrt(middle**2 + float(target @ spread @ target))
    half = max(by_misses, NORMAL_95 * noise) * error
    return middle - half, middle + half
