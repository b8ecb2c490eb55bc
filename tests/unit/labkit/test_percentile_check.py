"""A percentile: the right one, and typical wrong ones told by name."""

import math
import statistics

import numpy as np
import pytest

from labkit.exercises.timer_check import check_percentile
from labkit.notebook.catalogue.mig import waited
from labkit.records import Device, Measurement, Tier


def rank(samples, percent):
    return math.ceil(percent / 100 * len(samples))


def test_the_nearest_rank_is_right():
    """A sample, counted from the smallest."""
    assert check_percentile(lambda samples, p: sorted(samples)[rank(samples, p) - 1]).right


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda samples, p: None, "write percentile first"),
        (lambda samples, p: math.nan, "at 50 %"),
        (lambda samples, p: samples[rank(samples, p) - 1], "sort the samples"),
        (lambda samples, p: statistics.mean(samples), "the mean"),
        (lambda samples, p: sorted(samples)[min(rank(samples, p), 9)], "one too far"),
        (lambda samples, p: sorted(samples)[int(p / 100 * len(samples))], "has index 0"),
        (lambda samples, p: sorted(samples)[max(0, rank(samples, p) - 2)], "round up"),
        (lambda samples, p: float(np.percentile(samples, p)), "do not interpolate"),
        (lambda samples, p: sorted(samples)[1000], "index out of range"),
    ],
)
def test_a_wrong_percentile_is_told_by_its_mistake(wrong, says):
    """Each has its sentence."""
    verdict = check_percentile(wrong)
    assert not verdict.right
    assert says in verdict.why


def test_what_is_drawn_is_the_same_percentile():
    """In milliseconds, of the seconds that were measured."""
    cpu = (Device("cpu", "a CPU", 1024),)
    seconds = tuple(number / 1e3 for number in range(1, 101))
    record = Measurement("waits", seconds, Tier.CPU, cpu, "host", False)
    assert [waited(percent)(record) for percent in (50, 90, 99)] == pytest.approx([50, 90, 99])
