"""The plot of an experiment's evidence: own points by series, published rows, curves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from labkit.errors import NotMeasured
from labkit.evidence import published as published_room
from labkit.evidence.evidence import Evidence, Point
from labkit.evidence.prediction import with_unit
from labkit.panel.experiment import Experiment, Look, PublishedRow, reader
from labkit.panel.plot import Mark, Plot, Series, SeriesKind
from labkit.records import Measurement, median_interval

NEAR = 4.0  # what is more times as high as all of the other would flatten it


def plot_of(experiment: Experiment, evidence: Evidence, beside: Sequence[Evidence] = ()) -> Plot:
    """The plot of what has been measured so far, with prediction, published row and curves.

    Args:
        experiment: whose axes and words are taken.
        evidence: what was measured.
        beside: what others measured, drawn in the same plot.
    """
    series = tuple(_all_series(experiment, evidence, beside))
    answer = experiment.answer(evidence.points, is_whole=bool(evidence.ended))
    return Plot(
        title=f"{experiment.key}: {evidence.title if evidence.replayed_from else experiment.title}",
        x_label=experiment.x_label,
        y_label=experiment.y_label,
        series=series,
        caption=evidence.place,
        prediction=_height(experiment, evidence),
        prediction_at=experiment.place_of(answer, evidence.points) if answer else None,
        prediction_text=_said(evidence),
        categories=_categories(experiment, series) if Look.BARS in experiment.look else (),
        log_x=Look.LOG_X in experiment.look,
        log_y=Look.LOG_Y in experiment.look,
        is_zoomed=Look.ZOOMED in experiment.look,
        is_stacked=Look.STACKED in experiment.look,
    )


def is_comparable(experiment: Experiment, own: Evidence, other: Evidence) -> bool:
    """Whether two runs can be drawn on the same axes and both be read."""
    both = [[point.value for point in one.points] for one in (own, other)]
    if not all(both):
        return True
    (low, high), (least, most) = ((min(values), max(values)) for values in both)
    is_near = high <= NEAR * most and most <= NEAR * high
    return is_near and (Look.LOG_Y not in experiment.look or (low > 0) is (least > 0))


def _height(experiment: Experiment, evidence: Evidence) -> float | None:
    """How high the prediction is drawn, if it is a number and has a height."""
    number = evidence.prediction.number if evidence.prediction else None
    return None if number is None else experiment.height(evidence.points, number)


def _all_series(
    experiment: Experiment, evidence: Evidence, beside: Sequence[Evidence]
) -> Iterator[Series]:
    points = evidence.points
    yield from _own(experiment, evidence)
    for words, value in experiment.also.items() if points else ():
        if value is not None:
            yield Series(words, tuple(_other(points, reader(value))), SeriesKind.MEASURED)
    for other in beside:
        for one in _own(experiment, other):
            yield replace(one, kind=SeriesKind.BESIDE)
    if experiment.published is not None:
        yield from _published_series(experiment.published)
    if experiment.curves and points:
        for words, places in experiment.curves(points).items():
            yield Series(words, tuple(Mark(x, y) for x, y in places), SeriesKind.CURVE)


def _own(experiment: Experiment, evidence: Evidence) -> Iterator[Series]:
    """The series that were measured or computed; those of another machine bear its name."""
    points = evidence.points
    points_are = next((name for name, value in experiment.also.items() if value is None), "")
    for group in dict.fromkeys(point.series for point in points):
        marks = tuple(_mark(point) for point in points if point.series == group)
        is_measured = any(point.records for point in points if point.series == group)
        kind = SeriesKind.MEASURED if is_measured else SeriesKind.COMPUTED
        said, name = group or points_are, _name_of(evidence)
        words = f"{name}: {said}" if said and evidence.replayed_from else said or name
        yield Series(words, marks, kind, Look.UNJOINED not in experiment.look)


def _other(points: tuple[Point, ...], value: Callable[[Measurement], float]) -> Iterator[Mark]:
    """Another value of the same records; points that were recorded without it are left out."""
    for point in points:
        try:
            record = point.records[0]
            computed = _is_computed(record)
            yield Mark(point.x, value(record), point.label, is_computed=computed)
        except NotMeasured:
            continue


def _categories(experiment: Experiment, series: tuple[Series, ...]) -> tuple[str, ...]:
    """What is measured, in order; before anything is, what will be."""
    marks = [mark for one in series if one.kind is not SeriesKind.CURVE for mark in one.marks]
    return tuple(dict.fromkeys(mark.label for mark in marks)) or tuple(
        step.label for step in experiment.steps
    )


def _name_of(evidence: Evidence) -> str:
    if evidence.replayed_from:
        where = evidence.replayed_from.split(",")[0]  # all is in the caption
        return where if where.startswith("the class") else f"recorded on {where}, not yours"
    done = "measured" if any(point.records for point in evidence.points) else "computed"
    return f"{done} here"


def _said(evidence: Evidence) -> str:
    prediction = evidence.prediction
    if prediction is None:
        return ""
    if prediction.number is not None:
        return with_unit(prediction.number, prediction.unit)
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
    is_computed = bool(point.records) and _is_computed(point.records[0])
    low, high = (point.low, point.high) if point.low is not None else median_interval(dots)
    return Mark(point.x, point.value, point.label, low, high, dots, is_computed)


def _is_computed(record: Measurement) -> bool:
    """Whether a formula gave a record's facts: a prediction that stands beside what was counted."""
    return bool(record.setting.get("computed"))


def _published_series(row: PublishedRow) -> Iterator[Series]:
    figures = [published_room.figure(name) for name in row.places]
    base = published_room.figure(row.base) if row.base else None
    heights = {item.id: item.height(base) for item in figures}
    drawn = {key: height for key, height in heights.items() if height is not None}
    wrong = sorted({item.error for item in figures if item.error})
    name = f"published: {row.name}" + (f" (known error {', '.join(wrong)})" if wrong else "")
    placed = {key: place for key in drawn if (place := row.places[key]) is not None}
    if placed:
        marks = tuple(_published_mark(place, drawn[key]) for key, place in placed.items())
        yield Series(name, marks, SeriesKind.PUBLISHED)
    for key in (key for key in drawn if key not in placed):
        level = (Mark(0.0, drawn[key]),)
        yield Series(f"{name}: {drawn[key]:g}", level, SeriesKind.CURVE)


def _published_mark(place: float | str, value: float) -> Mark:
    return Mark(0.0, value, place) if isinstance(place, str) else Mark(place, value)
