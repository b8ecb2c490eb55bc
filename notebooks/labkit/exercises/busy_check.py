"""The exact check of what reads a timeline: the share of a step in which a lane is busy.

The timelines are made up, so the answer is known, and typical mistakes are told by what they give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from labkit.exercises.code_checks import CodeVerdict
from labkit.machine.spans import KERNELS, LAUNCHES, OPERATORS, Span, busy_ms
from labkit.run.source import describe_error, error_sentence

APART = [
    (OPERATORS, "aten::linear", 0.0, 2.0),
    (LAUNCHES, "cudaLaunchKernel", 1.0, 1.5),
    (KERNELS, "gemm", 2.0, 5.0),
    (OPERATORS, "aten::add", 4.0, 6.0),
    (KERNELS, "add", 7.0, 8.0),
    (LAUNCHES, "cudaLaunchKernel", 9.0, 10.0),
]
INSIDE = [
    (OPERATORS, "aten::linear", 0.0, 6.0),
    (KERNELS, "gemm", 1.0, 2.0),
    (OPERATORS, "aten::addmm", 1.0, 3.0),
    (OPERATORS, "aten::t", 2.0, 2.5),
    (OPERATORS, "aten::relu", 5.0, 7.0),
    (OPERATORS, "aten::sum", 9.0, 12.0),
    (KERNELS, "sum", 14.0, 16.0),
]
CASES: tuple[tuple[str, list[Span], str], ...] = (
    ("operations apart", APART, KERNELS),
    ("operations inside others", INSIDE, OPERATORS),
    ("a lane in which nothing ran", APART, "messages"),
)
Read = Callable[[Sequence[Span], str], Any]


def check_busy_share(function: Read) -> CodeVerdict:
    """Whether a function finds in which share of a step at least one operation of a lane ran.

    Args:
        function: `busy_share(spans, lane)` returning a number from 0 to 1. A span is a lane, a
            name, and begin and end in ms; the step begins at 0 and ends with its last span.
    """
    for name, spans, lane in CASES:
        try:
            fault = _fault(function(list(spans), lane), spans, lane)
        except Exception as error:  # outermost frame around the student's function
            return CodeVerdict(False, error_sentence(describe_error(error), f"with {name}"))
        if fault:
            return CodeVerdict(False, f"with {name}: {fault}")
    return CodeVerdict(True, "what overlaps counts once, and gaps do not count")


def _fault(said: Any, spans: Sequence[Span], lane: str) -> str:
    """Which mistake gives this answer; empty when it is right."""
    if said is None:
        return "write busy_share first"
    whole = max(ended for *_, ended in spans)
    truth = busy_ms(spans, lane) / whole
    if abs(said - truth) <= 1e-9:
        return ""
    for wrong, words in _mistakes(spans, lane, whole):
        if abs(said - wrong) <= 1e-9:
            return words
    return f"you say {said:g}, the lane is busy for {truth:g} of the step"


def _mistakes(spans: Sequence[Span], lane: str, whole: float) -> list[tuple[float, str]]:
    own = sorted((span for span in spans if span[0] == lane), key=lambda span: span[2])
    lasted = sum(ended - begun for *_, begun, ended in own)
    ends = max((ended for *_, ended in own), default=0.0)
    extent = ends - min((begun for *_, begun, _ in own), default=0.0)
    busy, lanes = busy_ms(spans, lane), {span[0] for span in spans}
    return [
        (100 * busy / whole, "a share lies between 0 and 1; this is in percent"),
        (busy, "divide by the time of the whole step"),
        (busy_ms(spans, *lanes) / whole, "other lanes are counted too"),
        (extent / whole, "the gaps between the operations are counted as busy"),
        (busy / (extent or 1), "divide by the time of the whole step, not of the lane's own part"),
        (busy / (ends or 1), "divide by the time of the whole step, not of the lane's own part"),
        (lasted / whole, "an operation that runs inside another one is counted twice"),
        (_from_last_end(own) / whole, "remember the latest end so far, not the last one's"),
    ]


def _from_last_end(own: Sequence[Span]) -> float:
    """What comes out if a short operation inside a long one makes forget the long one's end."""
    total = covered = 0.0
    for *_, begun, ended in own:
        total += max(0.0, ended - max(begun, covered))
        covered = ended
    return total
