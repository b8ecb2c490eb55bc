"""The ratio of two things measured in turns: its middle, its interval, its refusals."""

import random
from collections.abc import Sequence

import pytest

from miglab_bench.measures.ratio import p95, ratio_of


def test_equal_times_have_the_ratio_one():
    """The same samples twice: one, and no doubt about it."""
    ratio = ratio_of([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (ratio.median, ratio.low, ratio.high) == (1.0, 1.0, 1.0)


def test_a_slow_machine_does_not_show():
    """What slows both of a round alike leaves the ratio as it is."""
    slowness = [1.0, 4.0, 2.0, 9.0]
    ratio = ratio_of([1.1 * s for s in slowness], slowness)
    assert ratio.low == pytest.approx(1.1)
    assert ratio.high == pytest.approx(1.1)


def test_one_disturbed_round_does_not_show():
    """A median, not a mean."""
    assert ratio_of([1.0, 1.0, 50.0, 1.0, 1.0], [1.0] * 5).median == 1.0


def test_the_interval_holds_the_truth_and_shrinks():
    """Around noisy samples of a known ratio; four times the rounds, about half as wide."""
    rng = random.Random(1)

    def measured(rounds: int):
        ours = [1.05 * rng.gauss(1, 0.1) for _ in range(rounds)]
        return ratio_of(ours, [1.0] * rounds)

    few, many = measured(25), measured(400)
    assert few.low < 1.05 < few.high
    assert many.low < 1.05 < many.high
    assert (many.high - many.low) < 0.5 * (few.high - few.low)


def test_the_same_samples_have_the_same_interval():
    """The redraws are seeded, so that a reader can repeat them."""
    samples = [1.0, 1.2, 0.9, 1.1], [1.0, 1.0, 1.0, 1.1]
    assert ratio_of(*samples) == ratio_of(*samples)


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0], [1.0]), ([1.0, 2.0], [1.0])])
def test_too_few_or_unequal_rounds_are_refused(ours: list[float], theirs: list[float]):
    """No interval from one round, and no rounds without a partner."""
    with pytest.raises(ValueError, match=r"two|shorter"):
        ratio_of(ours, theirs)


@pytest.mark.parametrize(
    ("samples", "is_"), [([], 0.0), ([3.0], 3.0), ([1.0, 2.0], 1.95), (range(101), 95.0)]
)
def test_the_95th_percentile_lies_among_the_samples(samples: Sequence[float], is_: float):
    """Few samples do not make it larger than the largest of them."""
    assert p95(samples) == pytest.approx(is_)
