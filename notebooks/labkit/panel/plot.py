"""What a plot shows, as data and in words: for those who do not see it, and for a terminal.

`plot_svg` draws it. Nothing here knows of pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Mark:
    """One point: where, how high, its interval and the samples behind it."""

    x: float
    y: float
    label: str = ""
    low: float | None = None
    high: float | None = None
    dots: tuple[float, ...] = ()


@dataclass(frozen=True)
class Series:
    """Points that belong together; `published` ones are dashed and hollow."""

    name: str
    marks: tuple[Mark, ...]
    published: bool = False


@dataclass(frozen=True)
class Plot:
    """Everything drawn: measured and published series, the prediction, and the caption under it."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    caption: str = ""
    prediction: float | None = None
    prediction_text: str = ""
    log_x: bool = False
    log_y: bool = False


def describe(plot: Plot) -> str:
    """The plot in a sentence or two, for those who do not see it."""
    parts = [
        f"{series.name}: "
        + ", ".join(f"{mark.label or number(mark.x)} {number(mark.y)}" for mark in series.marks)
        for series in plot.series
        if series.marks
    ]
    said = f"Prediction: {plot.prediction_text}. " if plot.prediction_text else ""
    return f"{plot.y_label} against {plot.x_label}. {said}" + "; ".join(parts)


def number(value: float) -> str:
    """A number with three figures, without needless zeros or exponents."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    if 1e-3 <= abs(value) < 1e5:
        digits = max(0, 2 - math.floor(math.log10(abs(value))))
        text = f"{value:.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.2e}"


def rows(plot: Plot) -> list[tuple[str, str, str, str, str]]:
    """The plot's data: series, place, value, interval, samples."""
    found = []
    for series in plot.series:
        for mark in series.marks:
            interval = (
                ""
                if mark.low is None or mark.high is None
                else f"{number(mark.low)} – {number(mark.high)}"
            )
            found.append(
                (
                    series.name,
                    mark.label or number(mark.x),
                    number(mark.y),
                    interval,
                    str(len(mark.dots) or ""),
                )
            )
    return found


def table(plot: Plot) -> str:
    """The data behind a plot as an HTML table."""
    heads = ("series", plot.x_label, plot.y_label, "interval", "samples")
    head = "".join(f'<th scope="col">{escape(word)}</th>' for word in heads)
    body = "".join(
        "<tr>"
        + f'<th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows(plot)
    )
    caption = f"<caption>{escape(plot.title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def text_table(plot: Plot) -> str:
    """The same as plain text, for a terminal or an executed notebook."""
    lines = [plot.title, f"{plot.y_label} against {plot.x_label}"]
    lines += ["  ".join(cell for cell in row if cell) for row in rows(plot)]
    return "\n".join([*lines, plot.caption])
