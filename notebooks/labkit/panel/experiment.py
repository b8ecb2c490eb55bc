"""An experiment as data: what is asked, which steps measure, what is drawn, which check judges.

A step is a coroutine that measures one point and reports while it does. The same experiment runs in
a panel, in a cell and headless.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Any

from labkit.arguments import (
    name_of,
    public,
    refuse_arguments,
    refuse_band,
    refuse_options,
)
from labkit.errors import NotMeasured
from labkit.evidence.checks import CHECKS, Check
from labkit.evidence.evidence import Evidence, Judgement, Point
from labkit.evidence.relations import Data
from labkit.machine.readings import Readings
from labkit.measuring.measure import compare_async, measure_async
from labkit.records import Comparison, Measurement, Tier
from labkit.run.jobs import BUDGET_S

Report = Callable[[Point], None]
Points = Sequence[Point]
Curves = Mapping[str, Sequence[tuple[float, float]]]


Value = Callable[[Measurement], float] | str | None


def milliseconds(record: Measurement) -> float:
    """The median time."""
    return record.median_s * 1e3


def reader(value: Value) -> Callable[[Measurement], float]:
    """What is drawn of a record: a fact by its name, what a function reads, else milliseconds."""
    if isinstance(value, str):
        return functools.partial(_fact, value)
    return value or milliseconds


def _fact(name: str, record: Measurement) -> float:
    if name not in record.setting:
        known = ", ".join(record.setting) or "none"
        raise NotMeasured(f"`{record.name}` returned no fact `{name}`; it returned {known}.")
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
    OPTIONAL = auto()  # a headless run leaves it out unless LAB_OPTIONAL asks for it


PLAIN = Look(0)


@dataclass(frozen=True)
class AskedPoint:
    """What a predicted number is about.

    Attributes:
        find: the point that it is compared with; it may look for one that is not measured yet.
        height: how high a number is drawn where it is no value of the y axis.
        points_unit: of the points' values, where the number has another.
    """

    find: Callable[[Points], Point | None]
    height: Callable[[Points, float], float] | None = None
    points_unit: str | None = None


@dataclass(frozen=True)
class Experiment:
    """Everything a panel needs to know.

    Attributes:
        key: short and unique; names the evidence file and the check.
        unit: of the predicted number, empty where it has none; None asks for rises, flat or falls.
        asked: the point that the predicted number is compared with; the last one by default.
        data: turns the points into the series the check reads; None when nothing is judged.
        also: more series out of the same records, by name: what is drawn of each, as for a step;
            None names the points themselves.
        curves: lines without points, by name: a bound, an ideal, a trace.
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
    look: Look = PLAIN

    @property
    def is_optional(self) -> bool:
        """Whether it is no part of the core."""
        return Look.OPTIONAL in self.look

    @property
    def check(self) -> Check | None:
        """What judges it, if anything does."""
        return CHECKS.get(self.key) if self.data is not None else None

    def judge(self, evidence: Evidence) -> Judgement | None:
        """What the evidence's own points say; None where nothing is judged."""
        if self.check is None or self.data is None:
            return None
        tier = Tier(evidence.tier)
        return self.check.judge(self.data(evidence.points), tier, emulated=evidence.emulated)

    def height(self, points: Points, said: float) -> float | None:
        """How high a predicted number is drawn; nowhere until what it is a share of is measured."""
        if not isinstance(self.asked, AskedPoint) or self.asked.height is None:
            return said
        return self.asked.height(points, said) if self.answer(points, is_whole=True) else None

    @property
    def unit_of_points(self) -> str:
        """Of the values that are measured, empty where they have none."""
        other = self.asked.points_unit if isinstance(self.asked, AskedPoint) else None
        given = (other, self.unit, self.y_label)
        return next(unit for unit in given if unit is not None)

    def answer(self, points: Points, *, is_whole: bool) -> Point | None:
        """The point that a predicted number is compared with, if it has been measured."""
        if not points or self.unit is None:
            return None
        if self.asked is None:
            return points[-1] if is_whole else None
        try:
            return (self.asked.find if isinstance(self.asked, AskedPoint) else self.asked)(points)
        except (LookupError, StopIteration):
            return None  # it is not measured yet

    def place_of(self, answer: Point, points: Points) -> float | str:
        """Where an answer is drawn: at its x, or in the category of the point that it is about."""
        if Look.BARS not in self.look:
            return answer.x
        there = (one.label for one in points if (one.x, one.series) == (answer.x, answer.series))
        return next(there, answer.label)


@public
def timed_step(
    label: str,
    x: float,
    function: Callable[..., Any],
    *,
    value: Value = None,
    seconds: float = BUDGET_S,
    options: Mapping[str, Any] | None = None,
    series: str = "",
    **arguments: Any,
) -> MeasuringStep:
    """A step that times one function.

    Args:
        label: the point's name on the axis.
        x: where it is drawn.
        function: as for `labkit.measure`.
        value: what is drawn of the record; milliseconds by default.
        seconds: the time budget.
        options: passed to `measure_async` (ranks, dtype, flops ...).
        series: which series of the plot the point belongs to.
        arguments: passed to the function.
    """
    given = dict(options or {})
    refuse_options("timed_step", measure_async, given)
    refuse_arguments("timed_step", function, arguments)
    drawn = reader(value)
    counted = {name: given.get(name) for name in ("dtype", "flops", "moved_bytes")}

    async def run(report: Report) -> Point:
        readings = Readings(given.get("ranks", 1))

        def point(record: Measurement) -> Point:
            return Point(x, label, drawn(record), (record,), series=series)

        def update(seen: Readings) -> None:
            if seen.count():
                report(point(seen.measurement(name_of(function), "not finished", **counted)))

        known = {**given, "budget_s": seconds, "arguments": arguments}
        return point(await measure_async(function, on_update=update, readings=readings, **known))

    return MeasuringStep(label, run, seconds)


@public
def compared_step(
    label: str,
    x: float,
    a: Callable[..., Any],
    b: Callable[..., Any],
    *,
    band: tuple[float, float] = (0.0, float("inf")),
    seconds: float = 2 * BUDGET_S,
    options: Mapping[str, Any] | None = None,
    series: str = "",
    **arguments: Any,
) -> MeasuringStep:
    """A step that compares two functions in turns and draws the ratio of their times."""
    refuse_band(band)
    refuse_options("compared_step", compare_async, options or {})
    for function in (a, b):
        refuse_arguments("compared_step", function, arguments)

    async def run(report: Report) -> Point:
        def point(record: Comparison) -> Point:
            last = record.looks[-1] if record.looks else None
            low, high = (last.low, last.high) if last else (None, None)
            pair = (record.a, record.b)
            return Point(x, label, record.ratio, pair, record, low, high, series)

        def update(seen: Readings) -> None:
            names = list(seen.ranks[0].turns)
            if len(names) == 2 and all(seen.rounds(name) for name in names):
                first, second = (seen.measurement(name, "not finished") for name in names)
                ratio = first.median_s / second.median_s
                report(Point(x, label, ratio, (first, second), series=series))

        known = {**(options or {}), "budget_s": seconds, "arguments": arguments}
        return point(await compare_async(a, b, band=band, on_update=update, **known))

    return MeasuringStep(label, run, seconds)
