"""Exact checks of the student's formulas: a table of cases, and wrong answers told by name.

A typical mistake is written down as the function that makes it: what a student's function returns
is compared with what is right and then with what each mistake would have returned.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.exercises.code_checks import CodeVerdict, verdict_of
from labkit.exercises.packing import A100, PackingProfile, packings, share_of, truly_fits
from labkit.machine.profiling import KERNELS, LAUNCHES, MESSAGES, OPERATORS, Span, busy_ms

STEPS = 400_000
DRAWN = 12  # cases of each check, besides those that are always tried
Row = Mapping[str, Any]


@dataclass(frozen=True)
class ExactFormula:
    """A check that a function returns the exact value for each case.

    Attributes:
        name: the student's function.
        right: what it must return.
        cases: its arguments, case by case.
        mistakes: by the sentence that names it, the function that makes it.
        case_names: what each case is called, where its arguments are too long to be said.
        spare: by how much a number may be off.
        draw: makes the arguments of one more case; `DRAWN` are drawn anew for each check, so that
            no table of answers passes for the formula.
    """

    name: str
    right: Callable[..., Any]
    cases: Sequence[tuple[Any, ...]]
    mistakes: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    case_names: Sequence[str] = ()
    spare: float = 1e-9
    draw: Callable[[random.Random], tuple[Any, ...]] | None = None

    def __call__(self, function: Callable[..., Any]) -> CodeVerdict:
        """Check that a function returns the right value in every case."""
        luck = random.SystemRandom()
        drawn_cases = [self.draw(luck) for _ in range(DRAWN)] if self.draw else []
        cases = [*self.cases, *drawn_cases]

        def check() -> str:
            for arguments in cases:
                answer = function(*arguments)
                fault = (
                    f"write {self.name} first" if answer is None else self._fault(answer, arguments)
                )
                if fault:
                    return fault
            return ""

        return verdict_of(f"it agrees in all {len(cases)} cases", ("", check))

    def _fault(self, answer: Any, arguments: tuple[Any, ...]) -> str:
        """Describe the mistake in an answer; empty where nothing is wrong."""
        expected, answered = self.right(*arguments), _parts(answer)
        right = _parts(expected)
        if isinstance(expected, Mapping) and right.keys() - answered.keys():
            return f"return a dict with {', '.join(right)}"
        if isinstance(expected, tuple) and len(answered) != len(right):
            return f"return {len(right)} values"
        off = [key for key, value in right.items() if not self._agrees(answered.get(key), value)]
        if not off:
            return ""
        first_off = off[0]
        mistakes = {text: _parts(mistake(*arguments)) for text, mistake in self.mistakes.items()}
        # A mistake that explains the whole answer comes before one that explains a part of it.
        for keys in (list(right), [first_off]):
            for description, wrong in mistakes.items():
                is_wrong = not self._agrees(wrong[first_off], right[first_off])
                if is_wrong and all(self._agrees(answered.get(key), wrong[key]) for key in keys):
                    return description
        part_name = f"{first_off} of " if first_off else ""
        call = f"{self.name}({', '.join(map(_value_in_words, arguments))})"
        if self.case_names and arguments in self.cases:
            call = f"{self.name} of {self.case_names[self.cases.index(arguments)]}"
        answer_text = _value_in_words(answered.get(first_off, answer))
        return f"{part_name}{call} is {_value_in_words(right[first_off])}, you say {answer_text}"

    def _agrees(self, answer: Any, right: Any) -> bool:
        if isinstance(right, str) or isinstance(answer, str):
            return isinstance(answer, str) and answer == right
        try:
            return math.isclose(answer, right, rel_tol=1e-9, abs_tol=self.spare)
        except (TypeError, ValueError, OverflowError):
            return False


def _parts(value: Any) -> dict[Any, Any]:
    """A result by the names of its parts; one number or word has the name ""."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | list):
        return {f"[{place}]": part for place, part in enumerate(value)}
    return {"": value}


def _value_in_words(value: Any) -> str:
    """A value as short text."""
    if isinstance(value, PackingProfile):
        return value.name
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value_in_words, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_value_in_words(part)}' for key, part in value.items())}}}"
    return repr(value) if isinstance(value, str | int | bool | None) else type(value).__name__


# Whether `attainable(intensity, flops_per_s, bytes_per_s)` is the smaller of both limits.
check_attainable = ExactFormula(
    "attainable",
    lambda intensity, flops_per_s, bytes_per_s: min(flops_per_s, intensity * bytes_per_s),
    ((0.25, 1e12, 1e11), (10.0, 1e12, 1e11), (500.0, 1e12, 1e11), (4.0, 1e12, 1e12)),
    {
        "right of the ridge, arithmetic is the limit: flops_per_s is the most": (
            lambda intensity, flops_per_s, bytes_per_s: intensity * bytes_per_s
        ),
        "left of the ridge, memory is the limit: intensity * bytes_per_s is the most": (
            lambda intensity, flops_per_s, bytes_per_s: max(flops_per_s, intensity * bytes_per_s)
        ),
    },
    draw=lambda luck: (
        luck.uniform(0.05, 200),
        10 ** luck.uniform(11, 14),
        10 ** luck.uniform(10, 13),
    ),
)

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
UNORDERED = [
    (KERNELS, "add", 4.0, 8.0),
    (OPERATORS, "aten::linear", 1.0, 9.0),
    (KERNELS, "gemm", 2.0, 6.0),
]


def _busy_share(spans: Sequence[Span], lane: str) -> float:
    return busy_ms(spans, lane) / _step_ms(spans)


def _step_ms(spans: Sequence[Span]) -> float:
    return max(ended for *_, ended in spans)


def _draw_spans(luck: random.Random) -> tuple[list[Span], str]:
    """Operations of three lanes, in no order; quarters of a millisecond add up exactly."""
    lanes = (OPERATORS, LAUNCHES, KERNELS)
    begins = [luck.randrange(40) / 4 for _ in range(luck.randrange(3, 10))]
    spans = [
        (luck.choice(lanes), "work", begin, begin + luck.randrange(1, 13) / 4) for begin in begins
    ]
    return spans, luck.choice(lanes)


# Whether `busy_share(spans, lane)` finds in which share of a step, from 0 to 1, at least one
# operation of a lane ran. A span is a lane, a name, and begin and end in ms; the step begins at 0
# and ends with its last span.
check_busy_share = ExactFormula(
    "busy_share",
    _busy_share,
    ((APART, KERNELS), (INSIDE, OPERATORS), (APART, MESSAGES), (UNORDERED, KERNELS)),
    {
        "divide by the time of the whole step": busy_ms,
        "an operation that runs inside another one is counted twice": (
            lambda spans, lane: sum(b - a for of, _, a, b in spans if of == lane) / _step_ms(spans)
        ),
    },
    (
        "operations apart",
        "operations inside others",
        "a lane in which nothing ran",
        "operations in no order, and none at 0",
    ),
    draw=_draw_spans,
)

WAITS = [7.0, 1.0, 9.0, 3.0, 5.0, 2.0, 8.0, 4.0, 40.0, 6.0]


def _rank(samples: Sequence[float], percent: float) -> int:
    return math.ceil(percent / 100 * len(samples))


# Whether `percentile(samples, percent)` finds the smallest sample that `percent` of all do not
# exceed; samples come in the order of the requests.
check_percentile = ExactFormula(
    "percentile",
    lambda samples, percent: sorted(samples)[_rank(samples, percent) - 1],
    tuple((WAITS, percent) for percent in (50.0, 90.0, 99.0, 100.0, 10.0, 15.0, 12.0)),
    {
        "sort the samples first": lambda samples, percent: samples[_rank(samples, percent) - 1],
        "one too far: the first sample has index 0": (
            lambda samples, percent: sorted(samples)[min(_rank(samples, percent), 9)]
        ),
    },
    draw=lambda luck: (
        [luck.uniform(1, 50) for _ in range(luck.randrange(1, 30))],
        luck.randrange(1, 9) * 12.5,  # eighths, so that no rounding decides
    ),
)

# Whether `per_sm_ratio(big_rate, big_sms, small_rate, small_sms)` compares rates per SM.
check_per_sm_ratio = ExactFormula(
    "per_sm_ratio",
    lambda big, big_sms, small, small_sms: (big / big_sms) / (small / small_sms),
    ((200.0, 100, 20.0, 10), (98.0, 98, 28.0, 14), (30.0, 10, 1.0, 2), (100.0, 98, 13.0, 14)),
    {
        "that is the ratio of the rates: divide each by its own SMs first": (
            lambda big, big_sms, small, small_sms: big / small
        ),
    },
    draw=lambda luck: (
        luck.uniform(50, 400),
        luck.randrange(40, 120),
        luck.uniform(5, 40),
        luck.randrange(2, 30),
    ),
)


def _split_time(small: float, time_small: float, big: float, time_big: float) -> Any:
    b = (time_small - time_big) / (1 / small - 1 / big)
    return time_big - b / big, b


# Whether `split_time(small, time_small, big, time_big)` finds a and b of a + b / s.
check_split_time = ExactFormula(
    "split_time",
    _split_time,
    ((1, 12.0, 4, 6.0), (14, 3.0, 98, 3.0), (2, 5.0, 10, 1.0)),
    {
        "a and b are exchanged: return a, which does not shrink, first": (
            lambda *arguments: _split_time(*arguments)[::-1]
        ),
        "b is shared out among the SMs: divide the difference by 1 / small - 1 / big": (
            lambda small, time_small, big, time_big: (time_big, time_small - time_big)
        ),
    },
    draw=lambda luck: (
        luck.randrange(1, 20),
        luck.uniform(5, 20),
        luck.randrange(28, 99),
        luck.uniform(1, 5),
    ),
)


def _fitting_in_time(rows: Sequence[Row], due_h: float) -> list[Row]:
    return [row for row in rows if row["fits"] and row["hours"] <= due_h]


def _shape_of_least(rows: Sequence[Row], name: str) -> Any:
    return min(rows, key=lambda row: row[name])["shape"] if rows else "none"


def _rows(*rows: tuple[str, float, float, bool]) -> list[dict[str, Any]]:
    names = ("shape", "hours", "price", "fits")
    return [dict(zip(names, row, strict=True)) for row in rows]


def _draw_choice(luck: random.Random) -> tuple[list[dict[str, Any]], float]:
    """Rows of shapes with no price twice, in no order, and when they are due."""
    count = luck.randrange(1, 7)
    hours, prices = (luck.sample(range(1, 30), count) for _ in range(2))
    fits = [luck.random() < 0.7 for _ in range(count)]
    names = [f"shape {number}" for number in range(count)]
    rows = _rows(*zip(names, map(float, hours), map(float, prices), fits, strict=True))
    return rows, float(luck.choice([*hours, 15]))


# Whether `choose(rows, due_h)` takes the cheapest row that fits and is ready in time.
check_choose = ExactFormula(
    "choose",
    lambda rows, due_h: _shape_of_least(_fitting_in_time(rows, due_h), "price"),
    (
        (_rows(("small", 9, 9, True), ("big", 2, 14, True)), 10),
        (_rows(("small", 9, 9, True), ("big", 2, 14, True)), 8),
        (_rows(("small", 1, 1, False), ("middle", 3, 6, True), ("big", 2, 14, True)), 8),
        (_rows(("big", 2, 14, True), ("small", 4, 9, True), ("middle", 3, 12, True)), 8),
        (_rows(("small", 9, 9, True)), 8),
        (_rows(("small", 8, 9, True)), 8),
    ),
    {
        "that one is not ready in time": (
            lambda rows, due_h: _shape_of_least([row for row in rows if row["fits"]], "price")
        ),
        "that one does not fit in memory": (
            lambda rows, due_h: _shape_of_least([r for r in rows if r["hours"] <= due_h], "price")
        ),
    },
    draw=_draw_choice,
)


def _row(hours: float, slice_hours: float) -> dict[str, float]:
    return {"hours": hours, "slice_hours": slice_hours}


# Whether `on_ranks(row, ranks, speed_up)` gives hours and slice-hours on so many slices.
check_on_ranks = ExactFormula(
    "on_ranks",
    lambda row, ranks, gain: (row["hours"] / gain, row["slice_hours"] * ranks / gain),
    ((_row(6.0, 3.0), 2, 1.5), (_row(8.0, 8.0), 4, 2.0), (_row(5.0, 1.0), 1, 1.0)),
    {
        "ranks alone are no speed-up: divide by the speed-up that they gave": (
            lambda row, ranks, gain: (row["hours"] / ranks, row["slice_hours"])
        ),
        "every rank takes a slice of its own: slice-hours count them all": (
            lambda row, ranks, gain: (row["hours"] / gain, row["slice_hours"] / gain)
        ),
    },
    draw=lambda luck: (
        _row(luck.uniform(1, 20), luck.uniform(1, 40)),
        luck.randrange(1, 8),
        luck.uniform(1, 6),
    ),
)


def job_hours(
    profile: PackingProfile, measured_profile: PackingProfile, law: Mapping[str, float], steps: int
) -> float:
    """The hours of a job on a shape, computed from the three terms of the measured step.

    Args:
        profile: the shape.
        measured_profile: the shape that was measured.
        law: `fixed`, `sm` and `memory`: ms of a step there that nothing shortens, that the SMs
            share and that the memory slices share; `python`: ms that launching a step takes on
            every shape.
        steps: of the job.
    """
    shared = (
        law["sm"] * measured_profile.sms / profile.sms
        + law["memory"] * measured_profile.memory / profile.memory
    )
    return max(law["fixed"] + shared, law["python"]) * steps / 3.6e6


def _law_with(law: Mapping[str, float], **other: float) -> dict[str, float]:
    return {**law, **other}


_LAW = {"fixed": 2.0, "sm": 6.0, "memory": 4.0, "python": 0.0}
# Whether `job_hours(profile, held, law, steps)` puts the law of three terms on a shape.
check_job_hours = ExactFormula(
    "job_hours",
    job_hours,
    tuple(
        (A100[name], A100[measured_name], law, STEPS)
        for measured_name in ("7g.40gb", "1g.5gb")
        for law in (_LAW, _law_with(_LAW, python=15.0))
        for name in ("1g.5gb", "3g.20gb", "4g.20gb", "7g.40gb")
    ),
    {
        "the memory's part follows the memory slices, not the SMs": (
            lambda profile, measured_profile, law, steps: job_hours(
                profile,
                measured_profile,
                _law_with(law, sm=law["sm"] + law["memory"], memory=0.0),
                steps,
            )
        ),
        "no shape is faster than Python can launch the step: that time is the minimum": (
            lambda profile, measured_profile, law, steps: job_hours(
                profile, measured_profile, _law_with(law, python=0.0), steps
            )
        ),
    },
    draw=lambda luck: (
        luck.choice(list(A100.values())),
        luck.choice(list(A100.values())),
        {name: luck.uniform(0.5, 12) for name in _LAW},
        luck.randrange(1_000, 1_000_000),
    ),
)

# Whether `price(hours, slices, wait_h, an_hour)` counts the slices and the waiting.
check_price = ExactFormula(
    "price",
    lambda hours, slices, wait_h, an_hour: hours * slices + an_hour * (wait_h + hours),
    ((2.0, 1, 0.5, 3.0), (0.5, 8, 1.0, 0.25), (1.0, 4, 0.0, 0.0)),
    {
        "waiting in the queue is time, too: you are done after wait and hours": (
            lambda hours, slices, wait_h, an_hour: hours * slices + an_hour * hours
        ),
        "you hold no slice while you wait: only the hours count for the slices": (
            lambda hours, slices, wait_h, an_hour: (hours + wait_h) * (slices + an_hour)
        ),
    },
    draw=lambda luck: (
        luck.uniform(0.2, 9),
        luck.randrange(1, 9),
        luck.uniform(0.1, 4),
        luck.uniform(0.1, 4),
    ),
)


def step_price(
    fixed_ms: float, sms_ms: float, memory_ms: float, profile: PackingProfile, unit: str
) -> float:
    """What a step costs on a shape: ms times memory slices, or sevenths of the larger share."""
    step_ms = fixed_ms + sms_ms / profile.sms + memory_ms / profile.memory
    return step_ms * (profile.memory if unit == "memory slices" else 7 * share_of(profile))


# Whether `step_price(fixed, sms_ms, memory_ms, profile, unit)` is a step's price in a unit.
check_step_price = ExactFormula(
    "step_price",
    step_price,
    tuple(
        (fixed_ms, 140.0, 8.0, A100[name], unit)
        for fixed_ms in (0.0, 3.0)
        for unit in ("memory slices", "sevenths")
        for name in ("1g.5gb", "3g.20gb", "7g.40gb")
    ),
    {
        "that is the time of the step: times what the shape takes of the GPU": (
            lambda a, b, c, profile, _: a + b / profile.sms + c / profile.memory
        ),
    },
    draw=lambda luck: (
        *(luck.uniform(*limits) for limits in ((0.1, 5), (20, 300), (1, 20))),
        luck.choice(list(A100.values())),
        luck.choice(("memory slices", "sevenths")),
    ),
)


# Whether a rule says for every choice of slices, such as {"1g.5gb": 2, "3g.20gb": 1}, what trying
# the placements says.
check_fits = ExactFormula("fits", truly_fits, tuple((packing,) for packing in packings()))
