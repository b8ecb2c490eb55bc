"""An exact check of a timer, on a make-believe device whose clock can be seen.

Nothing is really timed: the device draws how long each call takes, and says what a right timer must
find, to the last digit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from labkit.exercises.code_checks import CodeVerdict, verdict_of

LAUNCH_S, FIRST_S, EARLIER_S = 0.001, 0.5, 0.2
CALL_MS = (4.0, 6.0)
CLOSE_S = 1e-9


class MakeBelieveDevice:
    """Work is queued in 1 ms and takes 4 to 6 ms, the first call 500 ms; earlier work still runs.

    Attributes:
        true_s: how long each call took, from its launch in an empty queue to its end.
    """

    def __init__(self) -> None:
        self.now, self._busy_until = 0.0, EARLIER_S
        self._luck = random.SystemRandom()
        self.true_s: list[float] = []

    def work(self) -> None:
        """Queue one call and return at once, as a GPU does."""
        self.now += LAUNCH_S
        took_s = self._luck.uniform(*CALL_MS) / 1e3 if self.true_s else FIRST_S
        self._busy_until = max(self._busy_until, self.now) + took_s
        self.true_s.append(LAUNCH_S + took_s)

    def wait(self) -> None:
        """Wait until the queue is empty."""
        self.now = max(self.now, self._busy_until)

    def clock(self) -> float:
        return self.now


def check_timer(timer: Callable[..., Any], rounds: int = 20) -> CodeVerdict:
    """Whether a timer waits, leaves the first call out and returns every sample.

    Args:
        timer: `timer(work, wait, clock, rounds)` returning seconds per call.
        rounds: how many samples it is asked for first; then it is asked for fewer.
    """
    right = "every sample is what its call took"
    counts = (rounds, 1, 7)
    return verdict_of(right, *(("", partial(_fault, timer, count)) for count in counts))


def _fault(timer: Callable[..., Any], rounds: int) -> str:
    device = MakeBelieveDevice()
    samples = timer(device.work, device.wait, device.clock, rounds)
    if not samples:
        return "write my_timer first: it returned no samples"
    if not isinstance(samples, list | tuple) or len(samples) != rounds:
        return f"asked for {rounds} samples, it must return a list of that many"
    if len(device.true_s) < rounds:
        return f"asked for {rounds} samples, it called work {len(device.true_s)} times"
    return _fault_of_samples([float(sample) for sample in samples], device.true_s)


def _fault_of_samples(samples: Sequence[float], true_s: Sequence[float]) -> str:
    """Describe what is wrong with samples of the last calls; empty where each is exact."""
    right = true_s[-len(samples) :]
    errors_s = [sample - took for sample, took in zip(samples, right, strict=True)]
    off = [number for number, error_s in enumerate(errors_s) if not abs(error_s) < CLOSE_S]
    if not off and right[0] < FIRST_S:
        return ""
    if off in ([], [0]) and samples[0] > CALL_MS[1] / 1e3 + 2 * LAUNCH_S:
        return (
            f"the first sample is {samples[0] * 1e3:g} ms: "
            "call once before you count, and wait before you start the clock"
        )
    if sorted(samples) == sorted(right):
        return "return the samples in the order of the calls"
    if min(errors_s) < -CLOSE_S:
        worst = errors_s.index(min(errors_s))
        advice = "wait for the device before you read the clock the second time"
    else:
        worst = off[0]
        advice = "time one call for each sample, from an empty queue to an empty queue"
    reading_ms, true_ms = samples[worst] * 1e3, right[worst] * 1e3
    return f"it reads {reading_ms:.3g} ms where a call takes {true_ms:.3g} ms: {advice}"
