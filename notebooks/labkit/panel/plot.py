"""What a plot shows, as data and in words, and the plot of an experiment's evidence.

Words are for those who do not see it, and for a terminal; `vega` makes the drawing. Nothing here
knows of pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from labkit import shown
from labkit.errors import NotMeasured
from labkit.evidence import published
from labkit.evidence.evidence import Evidence, Point, with_unit
from labkit.panel.experiment import Experiment, Look, PublishedRow, reader
from labkit.records import Measurement, median_interval
from labkit.shown import number

NEAR = 4.0  # a run that is more times as high as all of another would flatten it


@dataclass(frozen=True)
class Mark:
    """One point: where, how high, its interval and the samples behind it.

    Attributes:
        is_computed: drawn hollow among measured ones, because a formula gave it.
    """

    x: float
    y: float
    label: str = ""
    low: float | None = None
    high: float | None = None
    dots: tuple[float, ...] = ()
    is_computed: bool = False

    @property
    def samples(self) -> str:
        """The number of its samples as text; empty where there are none."""
        return str(len(self.dots) or "")

    @property
    def place(self) -> str:
        """Its place as text: its label or its x."""
        return self.label or number(self.x)


class SeriesKind(StrEnum):
    """The kind of a series; each kind is drawn differently."""

    MEASURED = "measured"
    COMPUTED = "computed"
    PUBLISHED = "published"
    CURVE = "curve"
    BESIDE = "beside"  # measured, but not here: the recorded run, the class


@dataclass(frozen=True)
class Series:
    """Points that belong together.

    What was measured is filled and has its samples; what was computed or published is hollow; a
    curve (a bound, an ideal, a trace) is a line without points, and with one place only a level
    across the plot.
    """

    name: str
    marks: tuple[Mark, ...]
    kind: SeriesKind = SeriesKind.MEASURED
    is_joined: bool = True

    @property
    def is_hollow(self) -> bool:
        """Whether its marks are outlines: nothing here was measured on this machine."""
        return self.kind not in (SeriesKind.MEASURED, SeriesKind.CURVE)

    @property
    def is_level(self) -> bool:
        """Whether it is drawn as one horizontal line across the plot."""
        return self.kind is SeriesKind.CURVE and len(self.marks) == 1


@dataclass(frozen=True)
class Plot:
    """Everything drawn: series, the prediction at its place, and the caption under it.

    Attributes:
        categories: the labels of the x axis where it has no numbers; every mark's label is one.
        prediction: the number that was predicted; None for a trend.
        prediction_at: where it is drawn: an x, or a category.
        prediction_text: the same in words, or the trend.
        is_zoomed: whether the y axis need not begin at zero; then there are no bars.
        is_stacked: whether the series of one category stand on one another: parts of a whole.
        is_binary: whether the value axis has powers of two, and curves go up and down in steps.
        ends: of the value axis, where not all marks decide; those beyond it stand at the rim.
        range_before: of the value axis as long as nothing has been measured.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    caption: str = ""
    prediction: float | None = None
    prediction_at: float | str | None = None
    prediction_text: str = ""
    categories: tuple[str, ...] = ()
    is_zoomed: bool = False
    is_stacked: bool = False
    log_x: bool = False
    log_y: bool = False
    is_binary: bool = False
    ends: tuple[float, float] | None = None
    range_before: tuple[float, float] | None = None


def describe(plot: Plot) -> str:
    """The plot in a sentence or two, for those who do not see it."""
    parts = [
        f"{series.name}: " + ", ".join(f"{mark.place} {number(mark.y)}" for mark in series.marks)
        for series in plot.series
        if series.marks and series.kind is not SeriesKind.CURVE
    ]
    parts += [series.name for series in plot.series if series.kind is SeriesKind.CURVE]
    prediction = f"Prediction: {plot.prediction_text}. " if plot.prediction_text else ""
    return f"{plot.y_label} against {plot.x_label}. {prediction}" + "; ".join(parts)


def interval_words(mark: Mark) -> str:
    """An interval in words; empty where there is none."""
    if mark.low is None or mark.high is None:
        return ""
    return f"{number(mark.low)} – {number(mark.high)}"


def rows(plot: Plot) -> list[tuple[str, str, str, str, str]]:
    """The plot's data: series, place, value, interval, samples."""
    return [
        (series.name, mark.place, number(mark.y), interval_words(mark), mark.samples)
        for series in plot.series
        if series.kind is not SeriesKind.CURVE
        for mark in series.marks
    ]


def table(plot: Plot) -> str:
    """The data behind a plot as an HTML table."""
    heads = ("series", plot.x_label, plot.y_label, "interval", "samples")
    return shown.table(rows(plot), plot.title, heads)


def text_table(plot: Plot) -> str:
    """The same as plain text, for a terminal or an executed notebook."""
    lines = [plot.title, f"{plot.y_label} against {plot.x_label}"]
    lines += ["  ".join(cell for cell in row if cell) for row in rows(plot)]
    return "\n".join([*lines, plot.caption])


def plot_of(experiment: Experiment, evidence: Evidence, beside: Sequence[Evidence] = ()) -> Plot:
    """The plot of what has been measured so far, with prediction, published row and curves.

    Args:
        experiment: whose axes and words are taken.
        evidence: what was measured.
        beside: what others measured, drawn in the same plot.
    """
    series = tuple(_all_series(experiment, evidence, beside))
    answer = experiment.answer(evidence.points, is_whole=bool(evidence.ended))
    predicted = evidence.prediction.number if evidence.prediction else None
    return Plot(
        title=f"{experiment.key}: {_title_of(experiment, evidence)}",
        x_label=experiment.x_label,
        y_label=experiment.y_label,
        series=series,
        caption=evidence.place,
        prediction=None if predicted is None else experiment.height(evidence.points, predicted),
        prediction_at=experiment.place_of(answer, evidence.points) if answer else None,
        prediction_text=_prediction_text(evidence),
        categories=_categories(experiment, series) if Look.BARS in experiment.look else (),
        log_x=Look.LOG_X in experiment.look,
        log_y=Look.LOG_Y in experiment.look,
        is_zoomed=Look.ZOOMED in experiment.look,
        is_stacked=Look.STACKED in experiment.look,
        is_binary=Look.BINARY in experiment.look,
        ends=experiment.ends(evidence.points) if experiment.ends and evidence.points else None,
    )


def is_comparable(
    experiment: Experiment, own_evidence: Evidence, others_evidence: Evidence
) -> bool:
    """Whether two runs can be drawn readably on the same axes."""
    values_of_both = [
        [point.value for point in evidence.points] for evidence in (own_evidence, others_evidence)
    ]
    if not all(values_of_both):
        return True
    (low, high), (least, greatest) = ((min(values), max(values)) for values in values_of_both)
    is_near = high <= NEAR * greatest and greatest <= NEAR * high
    return is_near and (Look.LOG_Y not in experiment.look or (low > 0) is (least > 0))


def _all_series(
    experiment: Experiment, evidence: Evidence, beside: Sequence[Evidence]
) -> Iterator[Series]:
    points = evidence.points
    yield from _series_of_run(experiment, evidence)
    for series_name, value in experiment.also.items() if points else ():
        if value is not None:
            marks = tuple(_marks_of_value(points, reader(value)))
            yield Series(series_name, marks, SeriesKind.MEASURED, _is_joined(experiment))
    for others_evidence in beside:
        for series_of_others in _series_of_run(experiment, others_evidence):
            yield replace(series_of_others, kind=SeriesKind.BESIDE)
    if experiment.published is not None:
        yield from _published_series(experiment.published)
    if experiment.curves and points:
        for series_name, places in experiment.curves(points).items():
            yield Series(series_name, tuple(Mark(x, y) for x, y in places), SeriesKind.CURVE)


def _series_of_run(experiment: Experiment, evidence: Evidence) -> Iterator[Series]:
    """The series of one run; those of another machine bear its name."""
    points = evidence.points
    points_are = next((name for name, value in experiment.also.items() if value is None), "")
    for group in dict.fromkeys(point.series for point in points):
        marks = tuple(_mark(point) for point in points if point.series == group)
        is_measured = any(point.records for point in points if point.series == group)
        kind = SeriesKind.MEASURED if is_measured else SeriesKind.COMPUTED
        label, name = group or points_are, _origin_of(evidence)
        series_name = f"{name}: {label}" if label and evidence.replayed_from else label or name
        yield Series(series_name, marks, kind, _is_joined(experiment))


def _is_joined(experiment: Experiment) -> bool:
    return Look.UNJOINED not in experiment.look


def _marks_of_value(
    points: tuple[Point, ...], value: Callable[[Measurement], float]
) -> Iterator[Mark]:
    """Marks of a further value of the same records; points recorded without it are left out."""
    for point in points:
        try:
            record = point.records[0]
            computed = _is_computed(record)
            yield Mark(point.x, value(record), point.label, is_computed=computed)
        except NotMeasured:
            continue


def _categories(experiment: Experiment, series: tuple[Series, ...]) -> tuple[str, ...]:
    """The labels of the points measured so far; before the first, the labels of the steps."""
    marks = [mark for s in series if s.kind is not SeriesKind.CURVE for mark in s.marks]
    return tuple(dict.fromkeys(labelled.label for labelled in marks or experiment.steps))


def _title_of(experiment: Experiment, evidence: Evidence) -> str:
    """The course's title, but for a recording, which may be of an older experiment."""
    is_recorded = evidence.replayed_from and not evidence.replayed_from.startswith("the class")
    return evidence.title if is_recorded else experiment.title


def _origin_of(evidence: Evidence) -> str:
    if evidence.replayed_from:
        origin = evidence.replayed_from.split(",")[0]  # all is in the caption
        return origin if origin.startswith("the class") else f"recorded on {origin}, not yours"
    how_obtained = "measured" if any(point.records for point in evidence.points) else "computed"
    return f"{how_obtained} here"


def _prediction_text(evidence: Evidence) -> str:
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
    figures = [published.figure(name) for name in row.places]
    base = published.figure(row.base) if row.base else None
    heights = {figure.id: figure.height(base) for figure in figures}
    known_heights = {key: height for key, height in heights.items() if height is not None}
    known_errors = sorted({figure.error for figure in figures if figure.error})
    name = f"published: {row.name}" + (
        f" (known error {', '.join(known_errors)})" if known_errors else ""
    )
    place_of_figure = {
        key: place for key in known_heights if (place := row.places[key]) is not None
    }
    if place_of_figure:
        marks = tuple(
            Mark(0.0, known_heights[key], place)
            if isinstance(place, str)
            else Mark(place, known_heights[key])
            for key, place in place_of_figure.items()
        )
        yield Series(name, marks, SeriesKind.PUBLISHED)
    for key in (key for key in known_heights if key not in place_of_figure):
        level = (Mark(0.0, known_heights[key]),)
        yield Series(f"{name}: {known_heights[key]:g}", level, SeriesKind.CURVE)
