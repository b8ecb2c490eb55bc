"""What a plot shows, as data and in words: for those who do not see it, and for a terminal.

`vega` makes the drawing of it. Nothing here knows of pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from labkit import shown

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


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
        """How many are behind it, in words; empty where there are none."""
        return str(len(self.dots) or "")

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return self.label or number(self.x)


class SeriesKind(StrEnum):
    """What a series is; each kind is drawn in a way of its own, and never as another."""

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
        """Whether it is one height across the whole plot."""
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
    range_before: tuple[float, float] | None = None


def describe(plot: Plot) -> str:
    """The plot in a sentence or two, for those who do not see it."""
    parts = [
        f"{series.name}: " + ", ".join(f"{mark.place} {number(mark.y)}" for mark in series.marks)
        for series in plot.series
        if series.marks and series.kind is not SeriesKind.CURVE
    ]
    parts += [series.name for series in plot.series if series.kind is SeriesKind.CURVE]
    said = f"Prediction: {plot.prediction_text}. " if plot.prediction_text else ""
    return f"{plot.y_label} against {plot.x_label}. {said}" + "; ".join(parts)


def number(value: float) -> str:
    """A number with three figures, without needless zeros or exponents."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    if 1e-3 <= abs(value) < 1e6:
        digits = max(0, 2 - math.floor(math.log10(abs(value))))
        text = f"{value:.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, power = f"{value:.2e}".split("e")
    raised = f"10{str(int(power)).translate(SUPERSCRIPT)}"
    return raised if float(mantissa) == 1 else f"{float(mantissa):g} · {raised}"


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
