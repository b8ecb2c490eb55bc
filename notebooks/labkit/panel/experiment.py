"""An experiment as data: what is asked, which steps measure, what is drawn, which check judges.

A step is a coroutine that measures one point and reports while it does. The same experiment runs in
a panel, in a cell and headless.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.evidence import published as published_room
from labkit.evidence.evidence import Evidence, Point
from labkit.evidence.relations import Data
from labkit.machine.readings import Readings
from labkit.measuring.measure import compare_async, measure_async
from labkit.panel.plot import Mark, Plot, Series
from labkit.records import Comparison, Measurement, Tier
from labkit.run.jobs import BUDGET_S

Report = Callable[[Point], None]


@dataclass(frozen=True)
class MeasuringStep:
    """One point to measure; `run` reports unfinished points while it measures."""

    label: str
    run: Callable[[Report], Awaitable[Point]]
    seconds: float = BUDGET_S


@dataclass(frozen=True)
class PublishedRow:
    """Published figures drawn beside the measured points: their ids and where each is drawn."""

    name: str
    places: Mapping[str, float]
    base: str | None = None


@dataclass(frozen=True)
class Experiment:
    """Everything a panel needs to know.

    Attributes:
        key: short and unique; names the evidence file and the check.
        unit: of the predicted number; None asks for rises, flat or falls.
        data: turns the points into the series the check reads; None when nothing is judged.
        gpu_x_label: of evidence from a GPU, own or replayed, where a CPU's axis has another name.
        gpu_y_label: the same of the other axis.
    """

    key: str
    title: str
    question: str
    steps: tuple[MeasuringStep, ...]
    x_label: str
    y_label: str
    unit: str | None = None
    published: PublishedRow | None = None
    check: str | None = None
    data: Callable[[Sequence[Point]], Data] | None = None
    log_x: bool = False
    log_y: bool = False
    gpu_x_label: str | None = None
    gpu_y_label: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)


def timed_step(
    label: str,
    x: float,
    function: Callable[..., Any],
    *,
    value: Callable[[Measurement], float],
    seconds: float = BUDGET_S,
    options: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> MeasuringStep:
    """A step that times one function.

    Args:
        label: the point's name on the axis.
        x: where it is drawn.
        function: as for `labkit.measure`.
        value: what is drawn of the record, for example its median in milliseconds.
        seconds: the time budget.
        options: passed to `measure_async` (ranks, dtype, flops ...).
        arguments: passed to the function.
    """
    given = dict(options or {})
    counted = {name: given.get(name) for name in ("dtype", "flops", "moved_bytes")}

    async def run(report: Report) -> Point:
        readings = Readings(given.get("ranks", 1))

        def point(record: Measurement) -> Point:
            return Point(x, label, value(record), (record,))

        def update(seen: Readings) -> None:
            if seen.count():
                report(point(seen.measurement(function.__name__, "not finished", **counted)))

        known = {**given, "budget_s": seconds, "arguments": arguments}
        return point(await measure_async(function, on_update=update, readings=readings, **known))

    return MeasuringStep(label, run, seconds)


def compared_step(
    label: str,
    x: float,
    a: Callable[..., Any],
    b: Callable[..., Any],
    *,
    band: tuple[float, float],
    seconds: float = 2 * BUDGET_S,
    options: Mapping[str, Any] | None = None,
    series: str = "",
    **arguments: Any,
) -> MeasuringStep:
    """A step that compares two functions in turns and draws the ratio of their times."""

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


def plot_of(experiment: Experiment, evidence: Evidence) -> Plot:
    """The plot of what has been measured so far, with prediction and published row."""
    measured = Series(_measured_name(evidence), tuple(_mark(point) for point in evidence.points))
    row = experiment.published
    series = (measured,) if row is None else (measured, _published_series(row))
    prediction = evidence.prediction
    number = prediction.number if prediction else None
    on_gpu = bool(evidence.points) and evidence.tier != Tier.CPU.value
    return Plot(
        title=f"{experiment.key}: {evidence.title if evidence.replayed_from else experiment.title}",
        x_label=(on_gpu and experiment.gpu_x_label) or experiment.x_label,
        y_label=(on_gpu and experiment.gpu_y_label) or experiment.y_label,
        series=series,
        caption=evidence.place,
        prediction=number,
        prediction_text=_said(evidence),
        log_x=experiment.log_x,
        log_y=experiment.log_y,
    )


def _measured_name(evidence: Evidence) -> str:
    if evidence.replayed_from:
        return f"recorded on {evidence.replayed_from}, not yours"
    return "measured here" + (" (headless)" if evidence.headless else "")


def _said(evidence: Evidence) -> str:
    prediction = evidence.prediction
    if prediction is None:
        return ""
    if prediction.number is not None:
        return f"{prediction.number:g} {prediction.unit}"
    return str(prediction.trend)


def _mark(point: Point) -> Mark:
    """A point with its samples as dots, scaled to what is drawn of the record."""
    dots: tuple[float, ...] = ()
    if point.comparison is not None or len(point.records) == 2:
        a, b = (record.samples_s for record in point.records)
        dots = tuple(first / second for first, second in zip(a, b, strict=False))
    elif point.records and point.records[0].samples_s:
        record = point.records[0]
        per_second = point.value / record.median_s
        is_rate = record.flops is not None or record.moved_bytes is not None
        dots = tuple(
            point.value * record.median_s / sample if is_rate else sample * per_second
            for sample in record.samples_s
        )
    return Mark(point.x, point.value, point.label, point.low, point.high, dots)


def _published_series(row: PublishedRow) -> Series:
    figures = [published_room.figure(name) for name in row.places]
    base = published_room.figure(row.base) if row.base else None
    drawn = published_room.overlay_values(figures, base)
    wrong = sorted({item.error for item in figures if item.error})
    name = f"published: {row.name}" + (f" (known error {', '.join(wrong)})" if wrong else "")
    return Series(name, tuple(Mark(row.places[key], value) for key, value in drawn.items()), True)
