"""The exact check of a percentile: the smallest sample that so many percent do not exceed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from labkit.exercises.code_checks import CodeVerdict
from labkit.run.source import describe_error, error_sentence

SAMPLES = (7.0, 1.0, 9.0, 3.0, 5.0, 2.0, 8.0, 4.0, 40.0, 6.0)
CASES = ((50.0, 5.0), (90.0, 9.0), (99.0, 40.0), (100.0, 40.0), (10.0, 1.0), (15.0, 2.0))


def check_percentile(function: Callable[[Sequence[float], float], Any]) -> CodeVerdict:
    """Whether a function finds the smallest sample that `percent` of all do not exceed.

    Args:
        function: `percentile(samples, percent)`; samples come in the order of the requests.
    """
    for percent, truth in CASES:
        try:
            said = function(list(SAMPLES), percent)
        except Exception as error:  # outermost frame around the student's function
            return CodeVerdict(False, error_sentence(describe_error(error), f"at {percent:g} %"))
        if said is None:
            return CodeVerdict(False, "write percentile first")
        if not isinstance(said, int | float):
            return CodeVerdict(False, f"at {percent:g} %: return one of the samples, a number")
        if not abs(said - truth) <= 1e-9:  # NaN is no right answer
            return CodeVerdict(False, f"at {percent:g} %: {_mistake(said, percent, truth)}")
    return CodeVerdict(
        True, "it is the wait of a real request, and the right share waited no longer"
    )


def _mistake(said: float, percent: float, truth: float) -> str:
    """What gives this answer."""
    rank = math.ceil(percent / 100 * len(SAMPLES))
    ordered = sorted(SAMPLES)
    known = (
        (SAMPLES[rank - 1], "sort the samples first"),
        (statistics.mean(SAMPLES), "that is the mean, which one slow request moves"),
        (ordered[min(rank, len(ordered) - 1)], "one too far: the first sample has index 0"),
        (
            ordered[max(0, rank - 2)],
            f"less than {percent:g} % waited no longer than this: round up",
        ),
    )
    named = next((words for wrong, words in known if abs(said - wrong) <= 1e-9), "")
    if not named and said not in SAMPLES:
        named = "no request took that long: take a sample, and do not interpolate"
    return named or f"you say {said:g}, but it is {truth:g}"
