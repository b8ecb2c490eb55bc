"""Exact checks of the student's formulas: a table of cases, and wrong answers told by name.

A typical mistake is written down as the function that makes it: what a student's function returns
is compared with what is right and then with what each mistake would have returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.exercises.code_checks import CodeVerdict, failed_by
from labkit.exercises.packing import A100, PackingProfile, share_of

STEPS = 400_000
Row = Mapping[str, Any]


@dataclass(frozen=True)
class ExactFormula:
    """What a function must return for each case.

    Attributes:
        name: the student's function.
        right: what it must return.
        cases: its arguments, case by case.
        mistakes: by the sentence that names it, the function that makes it.
    """

    name: str
    right: Callable[..., Any]
    cases: Sequence[tuple[Any, ...]]
    mistakes: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def check(self, function: Callable[..., Any]) -> CodeVerdict:
        """Whether a function returns what is right, in every case."""
        for given in self.cases:
            try:
                said = function(*given)
            except Exception as error:  # outermost frame around the student's function
                return failed_by(error)
            if said is None:
                return CodeVerdict(False, f"write {self.name} first")
            fault = self._fault(said, given)
            if fault:
                return CodeVerdict(False, fault)
        return CodeVerdict(True, f"it agrees in all {len(self.cases)} cases")

    def _fault(self, said: Any, given: tuple[Any, ...]) -> str:
        """Which mistake this is; empty where nothing is wrong."""
        right, got = _parts(self.right(*given)), _parts(said)
        off = [key for key, value in right.items() if not _same(got.get(key), value)]
        if not off:
            return ""
        made = {words: _parts(mistake(*given)) for words, mistake in self.mistakes.items()}
        for parts in (list(right), off[:1]):  # what explains all of it comes before a part of it
            for words, wrong in made.items():
                is_wrong = not _same(wrong[off[0]], right[off[0]])
                if is_wrong and all(_same(got.get(key), wrong[key]) for key in parts):
                    return words
        what = f"{off[0]} of " if off[0] else ""
        call = f"{self.name}({', '.join(map(_words, given))})"
        return f"{what}{call} is {_words(right[off[0]])}, you say {_words(got.get(off[0], said))}"


def _parts(value: Any) -> dict[Any, Any]:
    """A result by the names of its parts; one number or word has the name ""."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | list):
        return {f"[{place}]": part for place, part in enumerate(value)}
    return {"": value}


def _same(said: Any, right: Any) -> bool:
    if isinstance(right, str) or isinstance(said, str):
        return isinstance(said, str) and said == right
    try:
        return math.isclose(said, right, rel_tol=1e-9, abs_tol=1e-9)
    except (TypeError, ValueError, OverflowError):
        return False


def _words(value: Any) -> str:
    """A value of a case, as short as it can be said."""
    if isinstance(value, PackingProfile):
        return value.name
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return f"[{', '.join(map(_words, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_words(part)}' for key, part in value.items())}}}"
    return repr(value) if isinstance(value, str | int | bool | None) else type(value).__name__


ATTAINABLE = ExactFormula(
    "attainable",
    lambda intensity, flops_per_s, bytes_per_s: min(flops_per_s, intensity * bytes_per_s),
    ((0.25, 1e12, 1e11), (10.0, 1e12, 1e11), (500.0, 1e12, 1e11)),
    {
        "right of the ridge, arithmetic is the limit: flops_per_s is the most": (
            lambda intensity, flops_per_s, bytes_per_s: intensity * bytes_per_s
        ),
        "left of the ridge, memory is the limit: intensity * bytes_per_s is the most": (
            lambda intensity, flops_per_s, bytes_per_s: max(flops_per_s, intensity * bytes_per_s)
        ),
        "upside down: operations per byte, times bytes per second, are operations per second": (
            lambda intensity, flops_per_s, bytes_per_s: min(flops_per_s, bytes_per_s / intensity)
        ),
    },
)

PER_SM_RATIO = ExactFormula(
    "per_sm_ratio",
    lambda big, big_sms, small, small_sms: (big / big_sms) / (small / small_sms),
    ((200.0, 100, 20.0, 10), (98.0, 98, 28.0, 14), (30.0, 10, 1.0, 2)),
    {
        "that is the ratio of the rates: divide each by its own SMs first": (
            lambda big, big_sms, small, small_sms: big / small
        ),
        "upside down: divide the big part's rate per SM by the small one's": (
            lambda big, big_sms, small, small_sms: (small / small_sms) / (big / big_sms)
        ),
    },
)


def _split_time(small: float, time_small: float, big: float, time_big: float) -> Any:
    b = (time_small - time_big) / (1 / small - 1 / big)
    return time_big - b / big, b


SPLIT_TIME = ExactFormula(
    "split_time",
    _split_time,
    ((1, 12.0, 4, 6.0), (14, 3.0, 98, 3.0), (2, 5.0, 10, 1.0)),
    {
        "a and b are exchanged: return a, which does not shrink, first": (
            lambda *given: _split_time(*given)[::-1]
        ),
        "b is shared out among the SMs: divide the difference by 1 / small - 1 / big": (
            lambda small, time_small, big, time_big: (time_big, time_small - time_big)
        ),
    },
)


def _able(rows: Sequence[Row], due_h: float) -> list[Row]:
    return [row for row in rows if row["fits"] and row["hours"] <= due_h]


def _least(rows: Sequence[Row], name: str) -> Any:
    return min(rows, key=lambda row: row[name])["shape"] if rows else "none"


def _rows(*rows: tuple[str, float, float, bool]) -> list[dict[str, Any]]:
    names = ("shape", "hours", "slice_hours", "fits")
    return [dict(zip(names, row, strict=True)) for row in rows]


CHOOSE = ExactFormula(
    "choose",
    lambda rows, due_h: _least(_able(rows, due_h), "slice_hours"),
    (
        (_rows(("small", 9, 9, True), ("big", 2, 14, True)), 10),
        (_rows(("small", 9, 9, True), ("big", 2, 14, True)), 8),
        (_rows(("small", 1, 1, False), ("middle", 3, 6, True), ("big", 2, 14, True)), 8),
        (_rows(("small", 9, 9, True)), 8),
        (_rows(("small", 8, 9, True)), 8),
    ),
    {
        "that one is not ready in time": (
            lambda rows, due_h: _least([row for row in rows if row["fits"]], "slice_hours")
        ),
        "that one does not fit in memory": (
            lambda rows, due_h: _least([r for r in rows if r["hours"] <= due_h], "slice_hours")
        ),
        "that is the fastest: choose the one that costs the fewest slice-hours": (
            lambda rows, due_h: _least(_able(rows, due_h), "hours")
        ),
    },
)


def _row(hours: float, slice_hours: float) -> dict[str, float]:
    return {"hours": hours, "slice_hours": slice_hours}


ON_RANKS = ExactFormula(
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
        "slice-hours are hours times slices, divided by the speed-up": (
            lambda row, ranks, gain: (row["hours"] / gain, row["slice_hours"])
        ),
        "a speed-up makes the time shorter": (
            lambda row, ranks, gain: (row["hours"] * gain, row["slice_hours"] * ranks * gain)
        ),
    },
)


def shape_costs(
    profile: PackingProfile, held: PackingProfile, law: Mapping[str, float], steps: int
) -> dict[str, float]:
    """What a job costs on a shape, by the two terms of the profile of what was measured.

    Args:
        profile: the shape.
        held: the shape that was measured.
        law: `sm` and `memory` (ms of a step that each limits there), `python` (ms that a step
            takes to launch, on every shape), `scatter` (relative, of the measured times).
        steps: of the job.

    Returns:
        The hours, the two ends of their range, and the slice-hours.
    """
    by_sms, by_memory = held.sms / profile.sms, held.memory / profile.memory
    likely = law["sm"] * by_sms + law["memory"] * by_memory
    other, noise = (law["sm"] + law["memory"]) * by_sms, 1 + law["scatter"]
    ends = likely, min(likely, other) / noise, max(likely, other) * noise
    hours, low, high = (max(ms, law["python"]) * steps / 3.6e6 for ms in ends)
    return {"hours": hours, "low": low, "high": high, "slice_hours": hours * 7 * share_of(profile)}


def _with(law: Mapping[str, float], **other: float) -> dict[str, float]:
    return {**law, **other}


def _compute_only(profile: PackingProfile, *rest: Any) -> dict[str, float]:
    right = shape_costs(profile, *rest)
    return {**right, "slice_hours": right["hours"] * profile.compute}


def _one_term(profile: Any, held: Any, law: Mapping[str, float], steps: int) -> dict[str, float]:
    return shape_costs(profile, held, _with(law, sm=law["sm"] + law["memory"], memory=0), steps)


def _likely_ends(*given: Any) -> dict[str, float]:
    right = shape_costs(*given)
    noise = 1 + given[2]["scatter"]
    return {**right, "low": right["hours"] / noise, "high": right["hours"] * noise}


def _ends_exchanged(*given: Any) -> dict[str, float]:
    right = shape_costs(*given)
    return {**right, "low": right["high"], "high": right["low"]}


_LAW = {"sm": 6.0, "memory": 4.0, "python": 0.0, "scatter": 0.1}
SHAPE_COSTS = ExactFormula(
    "shape_costs",
    shape_costs,
    tuple(
        (A100[name], A100[held], law, STEPS)
        for held in ("7g.40gb", "1g.5gb")
        for law in (_LAW, _with(_LAW, python=15.0, scatter=0.02))
        for name in ("1g.5gb", "3g.20gb", "4g.20gb", "7g.40gb")
    ),
    {
        "the memory's part follows the memory slices, not the SMs": _one_term,
        "upside down: with fewer SMs than you hold, the SMs' part takes longer": (
            lambda profile, held, law, steps: shape_costs(held, profile, law, steps)
        ),
        "no shape is faster than Python can launch the step: that time is the minimum": (
            lambda profile, held, law, steps: shape_costs(
                profile, held, _with(law, python=0.0), steps
            )
        ),
        "the scatter is missing: it widens the range at both ends": (
            lambda profile, held, law, steps: shape_costs(
                profile, held, _with(law, scatter=0.0), steps
            )
        ),
        "at the other end, the memory's part follows the SMs too": _likely_ends,
        "the ends are exchanged: low is the smaller one": _ends_exchanged,
        "a shape costs whichever share is larger, of the compute or of the memory slices": (
            _compute_only
        ),
    },
)


def check_attainable(function: Callable[..., Any]) -> CodeVerdict:
    """Whether `attainable(intensity, flops_per_s, bytes_per_s)` is the smaller of both limits."""
    return ATTAINABLE.check(function)


def check_per_sm_ratio(function: Callable[..., Any]) -> CodeVerdict:
    """Whether `per_sm_ratio(big_rate, big_sms, small_rate, small_sms)` compares rates per SM."""
    return PER_SM_RATIO.check(function)


def check_split_time(function: Callable[..., Any]) -> CodeVerdict:
    """Whether `split_time(small, time_small, big, time_big)` finds a and b of a + b / s."""
    return SPLIT_TIME.check(function)


def check_shape_costs(function: Callable[..., Any]) -> CodeVerdict:
    """Whether `shape_costs(profile, held, law, steps)` puts the law of two terms on a shape."""
    return SHAPE_COSTS.check(function)


def check_choose(function: Callable[..., Any]) -> CodeVerdict:
    """Whether `choose(rows, due_h)` takes the cheapest row that fits and is ready in time."""
    return CHOOSE.check(function)


def check_on_ranks(function: Callable[..., Any]) -> CodeVerdict:
    """Whether `on_ranks(row, ranks, speed_up)` gives hours and slice-hours on so many slices."""
    return ON_RANKS.check(function)
