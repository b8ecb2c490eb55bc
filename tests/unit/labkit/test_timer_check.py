"""Timers of students: one that waits is right, and typical mistakes are told by name."""

from collections.abc import Callable
from typing import Any

import pytest

from labkit.exercises import check_timer

Call = Callable[[], Any]


def honest(work: Call, wait: Call, clock: Call, rounds: int) -> list[float]:
    """The notebook's own solution."""
    work()
    return [one_call(work, wait, clock) for _ in range(rounds)]


def one_call(work: Call, wait: Call, clock: Call) -> float:
    wait()
    begun: float = clock()
    work()
    wait()
    return float(clock() - begun)


def unwaited(work: Call, wait: Call, clock: Call, rounds: int) -> list[float]:
    """Never waits for what it timed."""
    work(), wait()
    return [one_call(work, lambda: None, clock) for _ in range(rounds)]


def with_the_first(work: Call, wait: Call, clock: Call, rounds: int) -> list[float]:
    """Counts the call that wakes the device."""
    return [one_call(work, wait, clock) for _ in range(rounds)]


def all_as_one(work: Call, wait: Call, clock: Call, rounds: int) -> list[float]:
    """One time for all calls."""
    work()
    return [one_call(lambda: [work() for _ in range(rounds)], wait, clock)]


def test_a_timer_that_waits_is_right() -> None:
    """Each sample is one call, from an empty queue to an empty queue."""
    assert check_timer(honest).right


@pytest.mark.parametrize(
    ("timer", "says"),
    [
        (lambda *_: [], "write my_timer first"),
        (unwaited, "wait for the device"),
        (with_the_first, "before you count"),
        (all_as_one, "list of that many"),
    ],
)
def test_a_typical_mistake_is_called_by_its_name(timer: Callable[..., Any], says: str) -> None:
    """Not written, not waited for, the first call counted, one time for all calls."""
    verdict = check_timer(timer)
    assert not verdict.right
    assert says in verdict.why
