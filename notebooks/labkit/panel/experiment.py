"""An experiment as data: its question, its measuring steps, its plot, and the check that judges it.

A step is a coroutine that measures one point and reports while it does. The same experiment runs in
a panel, in a cell and headless; `comparison` says what became of its prediction.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Flag, auto

from labkit.errors import NotMeasured
from labkit.evidence.check import Check
from labkit.evidence.checks import CHECKS
from labkit.evidence.evidence import Evidence, Judgement, Point, Trend, with_unit
from labkit.evidence.relations import Data
from labkit.records import Measurement, Tier
from labkit.run.jobs import BUDGET_S
from labkit.shown import number

Report = Callable[[Point], None]
Points = Sequence[Point]
Curves = Mapping[str, Sequence[tuple[float, float]]]
Value = Callable[[Measurement], float] | str | None
FLAT = 0.05  # a change of less counts as none
NEAR = 0.1  # of a prediction


def reader(value: Value) -> Callable[[Measurement], float]:
    """Return the function that reads a step's value from a record: a fact, or milliseconds."""
    if isinstance(value, str):
        return functools.partial(_read_fact, value)
    return value or (lambda record: record.median_s * 1e3)


def _read_fact(name: str, record: Measurement) -> float:
    if name not in record.setting:
        returned_names = ", ".join(record.setting) or "none"
        raise NotMeasured(
            f"`{record.name}` returned no fact `{name}`; it returned {returned_names}."
        )
    return float(record.setting[name])


@dataclass(frozen=True)
class MeasuringStep:
    """One point to measure; `run` reports unfinished points while it measures."""

    label: str
    run: Callable[[Report], Awaitable[Point]]
    seconds: float = BUDGET_S


@dataclass(frozen=True)
class PublishedRow:
    """Published figures drawn beside the measured points.

    Attributes:
        places: where each figure is drawn, by its id: an x, a category's label, or None for a level
            across the plot, where the source names no place on this axis.
        base: what they are ratios over.
    """

    name: str
    places: Mapping[str, float | str | None]
    base: str | None = None


class Look(Flag):
    """How points are drawn, and whether an experiment belongs to the core."""

    BARS = auto()  # the points have names in place of numbers
    STACKED = auto()  # the series of a name stand on one another, as parts of a whole
    UNJOINED = auto()  # no line joins the points: more lies between them
    ZOOMED = auto()  # the axis of the values need not begin at zero
    LOG_X = auto()
    LOG_Y = auto()
    BINARY = auto()  # the values are powers of two, and curves go from one to the next in steps
    OPTIONAL = auto()  # a headless run leaves it out unless LAB_OPTIONAL asks for it


PLAIN = Look(0)


@dataclass(frozen=True)
class AskedPoint:
    """The quantity that a prediction is about, where it is not a value of the y axis.

    Attributes:
        find: the point that shows it, by its value; it may look for one that is not measured yet.
        scale: how high on the y axis the number 0 lies, and how much higher the number 1.
        points_unit: of the points' values, where the number has another.
    """

    find: Callable[[Points], Point | None]
    scale: Callable[[Points], tuple[float, float]]
    points_unit: str | None = None


@dataclass(frozen=True)
class Experiment:
    """The definition of an experiment: question, steps, axes, check and look.

    Attributes:
        key: short and unique; names the evidence file and the check.
        unit: of the predicted number, empty where it has none; None asks for rises, flat or falls.
        asked: the point that the predicted number is compared with; the last one by default.
        data: turns the points into the series the check reads; None when nothing is judged.
        also: more series out of the same records, by name: what is drawn of each, as for a step;
            None names the points themselves.
        curves: lines without points, by name: a bound, an ideal, a trace.
        ends: of the value axis, where what matters would be flat beside the other points.
        are_samples_concurrent: whether several samples run at once, as requests that wait together.
    """

    key: str
    title: str
    question: str
    x_label: str
    y_label: str
    steps: tuple[MeasuringStep, ...] = ()
    unit: str | None = None
    asked: AskedPoint | Callable[[Points], Point | None] | None = None
    published: PublishedRow | None = None
    data: Callable[[Points], Data] | None = None
    also: Mapping[str, Value] = field(default_factory=dict)
    curves: Callable[[Points], Curves] | None = None
    ends: Callable[[Points], tuple[float, float] | None] | None = None
    look: Look = PLAIN
    are_samples_concurrent: bool = False

    @property
    def is_optional(self) -> bool:
        """Whether it is no part of the core."""
        return Look.OPTIONAL in self.look

    @property
    def check(self) -> Check | None:
        """The check that judges it; None where nothing is judged."""
        return CHECKS.get(self.key) if self.data is not None else None

    def judge(self, evidence: Evidence) -> Judgement | None:
        """Judge the evidence by its own points; None where nothing is judged."""
        if self.check is None or self.data is None:
            return None
        return self.check.judge(
            self.data(evidence.points),
            Tier(evidence.tier),
            emulated=evidence.emulated,
            is_denied=evidence.is_denied,
        )

    def claim(self, evidence: Evidence) -> str:
        """The claim in the wording that the evidence is about; empty where nothing is judged."""
        return self.check.wording(is_denied=evidence.is_denied) if self.check else ""

    def height(self, points: Points, predicted: float) -> float | None:
        """The height of a predicted number in the plot; None until its base has been measured."""
        if not isinstance(self.asked, AskedPoint):
            return predicted
        if self.answer(points, is_whole=True) is None:
            return None
        zero, unit_height = self.asked.scale(points)
        return zero + unit_height * predicted

    @property
    def unit_of_points(self) -> str:
        """The unit of the measured values; empty where they have none."""
        points_unit = self.asked.points_unit if isinstance(self.asked, AskedPoint) else None
        possible_units = (points_unit, self.unit, self.y_label)
        return next(unit for unit in possible_units if unit is not None)

    def answer(self, points: Points, *, is_whole: bool) -> Point | None:
        """The point that a predicted number is compared with, if it has been measured."""
        if not points or self.unit is None:
            return None
        if self.asked is None:
            return points[-1] if is_whole else None
        try:
            if not isinstance(self.asked, AskedPoint):
                return self.asked(points)
            point, (zero, unit_height) = self.asked.find(points), self.asked.scale(points)
            return point and replace(point, value=(point.value - zero) / unit_height)
        except (LookupError, StopIteration):
            return None  # it is not measured yet

    def place_of(self, answer: Point, points: Points) -> float | str:
        """The place of an answer in the plot: its x, or the category of its point."""
        if Look.BARS not in self.look:
            return answer.x
        labels = (
            point.label for point in points if (point.x, point.series) == (answer.x, answer.series)
        )
        return next(labels, answer.label)


def comparison(experiment: Experiment, evidence: Evidence) -> str:
    """A sentence that compares prediction and result; empty where one of them is missing."""
    prediction = evidence.prediction
    if prediction is None or not evidence.points:
        return ""
    if prediction.trend is not None:
        return _trend_comparison(prediction.trend, evidence.points)
    answer = experiment.answer(evidence.points, is_whole=True)
    if answer is None or prediction.number is None:
        return ""
    prediction_text = with_unit(prediction.number, prediction.unit)
    result_text = f"{number(answer.value)} {prediction.unit or ''}".rstrip()
    difference = _difference_in_words(prediction.number, answer.value)
    return f"You said {prediction_text}; it is {result_text}. At {answer.label}: {difference}."


def _difference_in_words(predicted: float, measured: float) -> str:
    """How far the measured value lies from the predicted one, in words."""
    if predicted == measured:
        return "exactly as predicted"
    if predicted <= 0 or measured <= 0:
        direction = "more" if measured > predicted else "less"
        return f"{number(abs(measured - predicted))} {direction} than predicted"
    ratio = measured / predicted
    if abs(ratio - 1) <= NEAR:
        return "within 10 % of the prediction"
    return f"{number(ratio)} times the prediction"


def _trend_comparison(predicted: Trend, points: tuple[Point, ...]) -> str:
    """Compare the trend of the first series with the predicted one, in words."""
    line = [point for point in points if point.series == points[0].series]
    if len(line) < 2 or not line[0].value:
        return ""
    change = line[-1].value / line[0].value - 1
    measured = Trend.FLAT if abs(change) < FLAT else Trend.RISES if change > 0 else Trend.FALLS
    ends = " to ".join(f"{number(point.value)} ({point.label})" for point in (line[0], line[-1]))
    outcome = (
        f"it {measured.verb}, as you said"
        if measured is predicted
        else f"you said it {predicted.verb}; it {measured.verb}"
    )
    return f"{outcome[0].upper()}{outcome[1:]}. From {ends}."
