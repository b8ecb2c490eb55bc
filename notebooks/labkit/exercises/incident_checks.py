"""Exact checks of the two rules that read a table of workers: an outlier, and who disagrees."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit.exercises.code_checks import CodeVerdict, verdict_of

Outlier = Callable[[Sequence[float]], Any]
Disagreeing = Callable[[Mapping[str, Sequence[str]]], Any]
TIMES, SHARE = 8, 0.5  # of the median distance, and of the median: further away stands out
OUTLIERS: Sequence[tuple[str, tuple[float, ...]]] = (
    ("one is four times as high", (10.1, 9.8, 10.3, 40.2, 10.0, 9.9, 10.2, 9.7)),
    ("one is far too low", (50.0, 52.0, 51.0, 49.0, 48.0, 50.5, 51.5, 7.0)),
    ("the first one stands out", (8.0, 1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98)),
    ("all but one are equal", (0.0, 0.0, 0.0, 0.0, 0.0, 100.0, 0.0, 0.0)),
    ("all are equal", (3.0,) * 8),
    ("nobody stands out", (10.0, 20.0, 5.0, 14.0, 30.0, 8.0, 2.0, 17.0)),
    ("half of them are higher", (10.0, 20.0, 10.1, 20.1, 9.9, 19.9, 10.05, 20.05)),
    ("one is a hair away from very even ones", (100.0,) * 6 + (100.2, 100.0)),
    (
        "one is a quarter above very even ones",
        (100.0, 101.0, 99.0, 100.5, 125.0, 100.0, 99.5, 100.2),
    ),
    ("there are five workers", (5.0, 5.1, 4.9, 5.05, 30.0)),
)
AGREEING: Sequence[tuple[str, Mapping[str, tuple[str, ...]]]] = (
    ("one differs in one layer", {"a": ("x", "x", "y", "x"), "b": ("u", "u", "u", "u")}),
    ("one differs in both layers", {"a": ("x", "x", "x", "z"), "b": ("u", "u", "u", "v")}),
    ("the first one differs", {"a": ("z", "x", "x", "x"), "b": ("u", "u", "u", "u")}),
    ("all agree", {"a": ("x",) * 4, "b": ("u",) * 4}),
    ("two against two", {"a": ("x", "y", "x", "y"), "b": ("u",) * 4}),
    ("everybody has another one", {"a": ("w", "x", "y", "z"), "b": ("u",) * 4}),
    ("a pair agrees among others", {"a": ("p", "q", "q", "r"), "b": ("u",) * 4}),
    ("one is alone beside two pairs", {"a": ("p", "q", "p", "q", "r")}),
    ("there are eight workers", {"c": ("k",) * 6 + ("m", "k")}),
)


def check_stands_out(stands_out: Outlier) -> CodeVerdict:
    """Judge a rule that finds the worker whose number stands out, or None."""

    def case(numbers: Sequence[float]) -> Callable[[], str]:
        return lambda: _outlier_fault(stands_out, numbers)

    cases = [(label, case(numbers)) for label, numbers in OUTLIERS]
    right = "it finds the worker that stands out, by any scale, and nobody where nobody does"
    return verdict_of(right, ("", lambda: _unwritten(stands_out)), *cases)


def _unwritten(stands_out: Outlier) -> str:
    culprit = stands_out([1.0, 1.0, 9.0, 1.0])
    return "write stands_out first" if culprit is None else ""


def _outlier_fault(stands_out: Outlier, numbers: Sequence[float]) -> str:
    passed, answer = list(numbers), right_outlier(numbers)
    culprit = stands_out(passed)
    if passed != list(numbers):
        return "it changed the list that it was given"
    if _is_same_worker(culprit, answer):
        return ""
    return f"of {list(numbers)} it says {culprit!r:.40}, and the rule says {answer}"


def _is_same_worker(culprit: Any, answer: int | None) -> bool:
    """Whether it is the same number of a worker, numpy's included; False is no worker 0."""
    is_number = hasattr(culprit, "__index__") and not isinstance(culprit, bool)
    return culprit is answer or (is_number and culprit == answer)


def right_outlier(numbers: Sequence[float]) -> int | None:
    """The worker that is further from the median than the rule allows."""
    middle = statistics.median(numbers)
    distances = [abs(value - middle) for value in numbers]
    worst = max(distances)
    stands_out = worst > TIMES * statistics.median(distances) and worst > SHARE * abs(middle)
    return distances.index(worst) if stands_out else None


def check_disagreeing(disagreeing: Disagreeing) -> CodeVerdict:
    """Judge a rule that finds, by layer, the one worker whose checksum differs from all others."""

    def case(rows: Mapping[str, Sequence[str]]) -> Callable[[], str]:
        return lambda: _disagreeing_fault(disagreeing, rows)

    cases = [(label, case(rows)) for label, rows in AGREEING]
    right = "it names the one worker that differs from all others, layer by layer"
    return verdict_of(right, *cases)


def _disagreeing_fault(disagreeing: Disagreeing, rows: Mapping[str, Sequence[str]]) -> str:
    culprit = disagreeing({layer: list(sums) for layer, sums in rows.items()})
    if culprit is None:
        return "write disagreeing first"
    answer = right_disagreeing(rows)
    if isinstance(culprit, dict) and culprit == answer:
        return ""
    return f"of {rows!r} it says {culprit!r:.60}, and it is {answer}"


def right_disagreeing(rows: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """By layer, the worker whose checksum is another than that of all others."""
    lonely = {
        layer: [worker for worker, digits in enumerate(sums) if sums.count(digits) == 1]
        for layer, sums in rows.items()
    }
    return {
        layer: workers[0]
        for layer, workers in lonely.items()
        if len(workers) == 1 and len(set(rows[layer])) == 2
    }
