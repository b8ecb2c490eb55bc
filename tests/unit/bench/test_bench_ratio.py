"""The ratio of two things measured in turns: its middle, its interval, its refusals."""

import random
from collections.abc import Sequence

import pytest

from miglab_bench.harness.results import p95, ratio_of


@pytest.mark.parametrize(
    ("ours_s", "theirs_s", "median", "low", "high"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], 1.0, 1.0, 1.0),  # no doubt about it
        ([1.1, 4.4, 2.2, 9.9], [1.0, 4.0, 2.0, 9.0], 1.1, 1.1, 1.1),  # a round slowed both alike
        ([1.0, 1.0, 50.0, 1.0, 1.0], [1.0] * 5, 1.0, 1.0, 50.0),  # a median, not a mean
    ],
)
def test_disturbances_do_not_show(
    ours_s: list[float], theirs_s: list[float], median: float, low: float, high: float
):
    """Neither those of a whole round, nor of one round; the samples are redrawn by one seed."""
    ratio = ratio_of(ours_s, theirs_s)
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((median, low, high))
    assert ratio_of(ours_s, theirs_s) == ratio


def test_the_interval_holds_the_truth_and_shrinks():
    """Around noisy samples of a known ratio; four times the rounds, about half as wide."""
    rng = random.Random(1)

    def measured(rounds: int):
        ours_s = [1.05 * rng.gauss(1, 0.1) for _ in range(rounds)]
        return ratio_of(ours_s, [1.0] * rounds)

    few, many = measured(25), measured(400)
    assert few.low < 1.05 < few.high
    assert many.low < 1.05 < many.high
    assert (many.high - many.low) < 0.5 * (few.high - few.low)


@pytest.mark.parametrize(("ours_s", "theirs_s"), [([], []), ([1.0], [1.0]), ([1.0, 2.0], [1.0])])
def test_too_few_or_unequal_rounds_are_refused(ours_s: list[float], theirs_s: list[float]):
    """No interval from one round, and no rounds without a partner."""
    with pytest.raises(ValueError, match=r"two|shorter"):
        ratio_of(ours_s, theirs_s)


@pytest.mark.parametrize(
    ("samples", "is_"), [([], 0.0), ([3.0], 3.0), ([1.0, 2.0], 1.95), (range(101), 95.0)]
)
def test_the_95th_percentile_lies_among_the_samples(samples: Sequence[float], is_: float):
    """Few samples do not make it larger than the largest of them."""
    assert p95(samples) == pytest.approx(is_)
