"""An exact check of a timer, on a make-believe device whose clock can be seen.

Nothing is really timed: the device says what a right timer must find, to the last digit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.exercises.code_checks import CodeVerdict, verdict_of

LAUNCH_S, CALL_S, FIRST_S, EARLIER_S = 0.001, 0.005, 0.5, 0.2
TRUE_S = LAUNCH_S + CALL_S


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
    right = f"every sample is {TRUE_S * 1e3:g} ms, which is right"
    return verdict_of(right, ("", lambda: _fault(timer, rounds)))


def _fault(timer: Callable[..., Any], rounds: int) -> str:
    device = MakeBelieveDevice()
    samples = timer(device.work, device.wait, device.clock, rounds)
    if not samples:
        return "write my_timer first: it returned no samples"
    if not isinstance(samples, list | tuple) or len(samples) != rounds:
        return f"asked for {rounds} samples, it must return a list of that many"
    errors_s = [float(sample) - TRUE_S for sample in samples]
    if all(abs(error_s) < 1e-9 for error_s in errors_s):
        return ""
    if min(errors_s) < -1e-9:
        reading_s, advice = (
            min(samples),
            "wait for the device before you read the clock the second time",
        )
    elif all(abs(error_s) < 1e-9 for error_s in errors_s[1:]):
        return (
            f"the first sample is {samples[0] * 1e3:g} ms: "
            "call once before you count, and wait before you start the clock"
        )
    else:
        reading_s = max(samples)
        advice = "time one call for each sample, from an empty queue to an empty queue"
    return f"it reads {reading_s * 1e3:g} ms where a call takes {TRUE_S * 1e3:g} ms: {advice}"
