"""An exact check of a timer, on a make-believe device whose clock can be seen.

Nothing is really timed: the device says what a right timer must find, to the last digit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from labkit.exercises.code_checks import CodeVerdict, failed_by
from labkit.run.source import describe_error, error_sentence

LAUNCH_S, CALL_S, FIRST_S, EARLIER_S = 0.001, 0.005, 0.5, 0.2


class MakeBelieveDevice:
    """Work is queued in 1 ms and takes 5 ms, the first call 500 ms; earlier work still runs."""

    def __init__(self) -> None:
        self.now, self._busy_until, self._calls = 0.0, EARLIER_S, 0

    def work(self) -> None:
        """Queue one call and return at once, as a GPU does."""
        self.now += LAUNCH_S
        took = CALL_S if self._calls else FIRST_S
        self._busy_until = max(self._busy_until, self.now) + took
        self._calls += 1

    def wait(self) -> None:
        """Wait until the queue is empty."""
        self.now = max(self.now, self._busy_until)

    def clock(self) -> float:
        return self.now


def check_timer(timer: Callable[..., Any], rounds: int = 20) -> CodeVerdict:
    """Whether a timer waits, leaves the first call out and returns every sample.

    Args:
        timer: `timer(work, wait, clock, rounds)` returning seconds per call.
        rounds: how many samples it is asked for.
    """
    device = MakeBelieveDevice()
    try:
        found = timer(device.work, device.wait, device.clock, rounds)
    except Exception as error:  # outermost frame around the student's function
        return failed_by(error)
    if not found:
        return CodeVerdict(False, "write my_timer first: it returned no samples")
    if not isinstance(found, list | tuple) or len(found) != rounds:
        return CodeVerdict(False, f"asked for {rounds} samples, it must return a list of that many")
    return _judge([float(sample) for sample in found])


def _judge(samples: list[float]) -> CodeVerdict:
    true_s = LAUNCH_S + CALL_S
    if all(abs(sample - true_s) < 1e-9 for sample in samples):
        return CodeVerdict(True, f"every sample is {true_s * 1e3:g} ms, which is right")
    if min(samples) < true_s - 1e-9:
        return CodeVerdict(
            False,
            f"it reads {min(samples) * 1e3:g} ms where a call takes {true_s * 1e3:g} ms: "
            "wait for the device before you read the clock the second time",
        )
    if samples[0] > true_s + 1e-9 and all(abs(s - true_s) < 1e-9 for s in samples[1:]):
        return CodeVerdict(
            False,
            f"the first sample is {samples[0] * 1e3:g} ms: "
            "call once before you count, and wait before you start the clock",
        )
    return CodeVerdict(
        False,
        f"it reads {max(samples) * 1e3:g} ms where a call takes {true_s * 1e3:g} ms: "
        "time one call for each sample, from an empty queue to an empty queue",
    )


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
