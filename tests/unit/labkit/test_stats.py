"""labkit's statistics against distributions whose truth is known."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from labkit import stats
from labkit.evidence.relations import MARGIN
from labkit.records import Verdict

TRIALS = 200
ROUNDS = stats.LOOKS[-1]


def noise(kind: str, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two series of times with the same truth, as noisy machines give them."""
    shape = (TRIALS, ROUNDS)
    if kind == "bursts":
        return tuple(
            1
            + 0.01 * generator.normal(size=shape)
            + (generator.random(shape) < 0.1) * generator.exponential(1, shape)
            for _ in range(2)
        )
    if kind == "drift":
        drift = np.exp(np.cumsum(0.01 * generator.normal(size=shape), axis=1))
        return tuple(drift * np.exp(0.02 * generator.normal(size=shape)) for _ in range(2))
    return tuple(np.exp(0.3 * generator.normal(size=shape)) for _ in range(2))


@pytest.mark.parametrize("kind", ["skewed", "bursts", "drift"])
def test_no_more_than_one_in_twenty_identical_pairs_is_called_different(kind):
    """A/A with all three looks counted: at most 5 % false decisions (and 2.2 points of chance)."""
    a, b = noise(kind, np.random.default_rng(3))
    wrong = np.zeros(TRIALS, dtype=bool)
    for rounds in stats.LOOKS:
        low, high = stats.interval(a[:, :rounds], b[:, :rounds])
        wrong |= (low > 1) | (high < 1)
    assert wrong.mean() <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / TRIALS)


def lasting_noise(generator, rounds, size, memory=0.8):
    """Noise that stays for some rounds, as a clock or a neighbour makes it."""
    steps = generator.normal(size=(TRIALS, rounds)) * size * np.sqrt(1 - memory**2)
    noise = np.zeros((TRIALS, rounds))
    noise[:, 0] = size * generator.normal(size=TRIALS)
    for place in range(1, rounds):
        noise[:, place] = memory * noise[:, place - 1] + steps[:, place]
    return noise


def one_sided(kind, generator):
    """Two series of the same truth of which only one is disturbed."""
    a, b = (np.exp(0.01 * generator.normal(size=(TRIALS, ROUNDS))) for _ in range(2))
    if kind == "lasting":
        return a * np.exp(lasting_noise(generator, ROUNDS, 0.05)), b
    return a * np.exp(0.03 * generator.choice((-1, 1), size=(TRIALS, 1))), b


@cache
def intervals(kind):
    """The intervals of all pairs, at each of the three looks."""
    a, b = one_sided(kind, np.random.default_rng(17))
    return [
        list(zip(*stats.interval(a[:, :rounds], b[:, :rounds]), strict=True))
        for rounds in stats.LOOKS
    ]


def decided_share(kind, margin):
    """The share of pairs about which any of the three looks decides."""
    is_decided = np.zeros(TRIALS, dtype=bool)
    for ends in intervals(kind):
        verdicts = [stats.verdict(*interval, (1.0, float("inf")), margin) for interval in ends]
        is_decided |= [verdict is not Verdict.UNDECIDED for verdict in verdicts]
    return is_decided.mean()


@pytest.mark.parametrize("kind", ["lasting", "luck of a process"])
def test_a_claim_of_more_is_not_decided_by_lasting_noise_on_one_side(kind):
    """Greater than 1 where the truth is 1: at most 5 % decide, in all looks; without the margin
    the same noise would.
    """
    assert decided_share(kind, MARGIN) <= 0.05
    assert decided_share(kind, 0.0) > 0.3


def test_an_effect_of_the_order_does_not_look_like_a_difference():
    """Whoever goes second is 20 % faster, and the ratio still comes out as one."""
    generator = np.random.default_rng(5)
    a, b = (np.exp(0.01 * generator.normal(size=ROUNDS)) for _ in range(2))
    b[0::2] *= 0.8
    a[1::2] *= 0.8
    assert stats.ratio(a, b) == pytest.approx(1.0, abs=0.01)
    low, high = stats.interval(a, b)
    assert low < 1 < high


def test_the_interval_holds_the_true_ratio_as_often_as_it_says():
    """98.3 % intervals of a true ratio of 1.25 hold it in at least 96 % of 200 trials."""
    generator = np.random.default_rng(11)
    a, b = (np.exp(0.2 * generator.normal(size=(TRIALS, 40))) for _ in range(2))
    low, high = stats.interval(1.25 * a, b)
    assert np.mean((low <= 1.25) & (high >= 1.25)) >= 0.96


@pytest.mark.parametrize(
    ("slower", "spread", "band", "looks", "verdict"),
    [
        (1.3, 0.05, (0.95, 1.05), [20], Verdict.CONTRADICTED),
        (1.0, 0.5, (0.999, 1.001), [20, 40, 80], Verdict.UNDECIDED),
    ],
)
def test_a_true_difference_is_found_at_once_and_no_more_than_three_looks_are_taken(
    slower, spread, band, looks, verdict
):
    """Three in ten slower is outside a band of 5 %; undecided it ends, whatever rounds are left."""
    generator = np.random.default_rng(7)
    a, b = (np.exp(spread * generator.normal(size=500)) for _ in range(2))
    verdict_by_look = stats.judge(list(slower * a), list(b), band)
    assert [look.rounds for look in verdict_by_look] == looks
    assert verdict_by_look[-1].verdict is verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.96, 1.04, Verdict.SUPPORTED),
        (1.06, 1.2, Verdict.CONTRADICTED),
        (0.8, 0.94, Verdict.CONTRADICTED),
        (0.9, 1.0, Verdict.UNDECIDED),
        (float("nan"), 1.0, Verdict.UNDECIDED),
    ],
)
def test_verdicts_follow_from_interval_and_band(low, high, verdict):
    """Inside is supported, outside contradicted, anything else undecided."""
    assert stats.verdict(low, high, (0.95, 1.05)) is verdict


def test_too_few_rounds_decide_nothing_and_say_so():
    """Nineteen rounds are one short of the first look."""
    looks = stats.judge([1.0] * 19, [2.0] * 19, (0.95, 1.05))
    assert looks == ()
    assert "fewer than 20 rounds" in stats.explain(looks, (0.95, 1.05))


def test_a_line_shows_whether_it_fits():
    """CERN's 3g row follows a + b/n to 10 %, the whole-GPU row does not."""
    inverse = [1 / 4, 1 / 8, 1 / 16, 1 / 32]
    assert stats.line_fit(inverse, [317, 206, 139, 114])[2] < 0.05
    assert stats.line_fit(inverse, [210, 160, 120, 78])[2] > 0.1


TRUTH = 2.0, 120.0  # ms that never shrink, and ms times SMs
HELD = {"a 1g.5gb": (4, 6, 14), "a whole GPU": (16, 32, 64, 132)}


def noisy_times(sizes, generator, lasting):
    """Times by a + b / s, each off by an error that its samples do not show."""
    exact = TRUTH[0] + TRUTH[1] / np.asarray(sizes, dtype=float)
    return exact * (1 + lasting * generator.standard_normal(len(sizes)))


def by_size(sizes, times, size, noise):
    """The range of the time at a size, by T = a + b / size."""
    return stats.line_interval([1 / each_size for each_size in sizes], times, 1 / size, noise=noise)


@pytest.mark.parametrize("sizes_measured", HELD)
@pytest.mark.parametrize(("lasting", "noise"), [(0.02, 0.02), (0.02, 0.002), (0.002, 0.02)])
@pytest.mark.parametrize("times_as_many", [0.15, 0.5, 2, 7])
def test_an_extrapolation_holds_the_truth(sizes_measured, lasting, noise, times_as_many):
    """On smaller and larger shapes, whether or not the samples show the errors of the times."""
    sizes, generator = HELD[sizes_measured], np.random.default_rng(5)
    size = max(sizes) * times_as_many
    truth, trials = TRUTH[0] + TRUTH[1] / size, 400
    ranges = [
        by_size(sizes, noisy_times(sizes, generator, lasting), size, noise) for _ in range(trials)
    ]
    assert sum(low <= truth <= high for low, high in ranges) >= 0.93 * trials


@pytest.mark.parametrize("sizes_measured", HELD)
def test_a_range_widens_with_the_distance(sizes_measured):
    """Relative to the middle, on either side of what was measured."""
    sizes = HELD[sizes_measured]
    times = noisy_times(sizes, np.random.default_rng(1), 0.01)
    for away in ((1, 2, 4, 7), (0.25, 0.12, 0.06)):
        ranges = [by_size(sizes, times, max(sizes) * factor, 0.01) for factor in away]
        widths = [(high - low) / (high + low) for low, high in ranges]
        assert widths == sorted(widths)


RECORDED = sorted(Path(__file__).parents[3].glob("docs/gallery/*-[124]gpu/CH-1.json"))


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.parent.name)
@pytest.mark.parametrize("left_out", [0, -1])
def test_recorded_times_lie_in_the_range_that_the_others_give(file, left_out):
    """A step on the fewest and on all SMs of an H200 or H100, predicted from the other sizes."""
    points = [point for point in json.loads(file.read_text())["points"] if not point["series"]]
    truth = points.pop(left_out)
    samples = points[-1]["records"][0]["samples_s"]
    sizes, times = [p["x"] for p in points], [p["value"] for p in points]
    low, high = np.percentile(samples, [25, 75])
    noise = (high - low) / stats.median(samples)
    low, high = by_size(sizes, times, truth["x"], noise)
    assert low <= truth["value"] <= high
