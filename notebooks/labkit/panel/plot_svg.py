"""Plots as inline SVG: records in, text out, in well under a millisecond, without a library.

Every series has its own marker besides its colour; text takes the page's own colour, so dark themes
work; every plot has a title, a description and a table that says the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from labkit.panel import plot_layout
from labkit.panel.plot import Plot, Series, describe, number

WIDTH, HEIGHT = 760, 432  # it grows downwards where legend or caption need more lines
LEFT, RIGHT, TOP, BOTTOM = 84, 24, 44, 122
LEGEND_TOP, LEGEND_ROW, CAPTION_ROW, COLUMN = HEIGHT - 58, 20, 15, 330
COLOURS = (
    "#0b84c4",
    "#d55e00",
    "#009e73",
    "#b0629c",
    "#8a8a00",
)  # at least 3:1 on white and on #111
MOST_DOTS = 80
ITALIC = ' font-style="italic"'
ARROWS = {"rises": "↗", "flat": "→", "falls": "↘"}
STYLE = (
    "width:100%;max-width:64rem;height:auto;color:var(--jp-content-font-color0,CanvasText);"
    "font:15px system-ui,sans-serif"
)


@dataclass(frozen=True)
class Axis:
    """Maps values to pixels."""

    low: float
    high: float
    first: float
    last: float
    log: bool

    def at(self, value: float) -> float:
        """The pixel of a value."""
        low, high, here = (self._scaled(item) for item in (self.low, self.high, value))
        return self.first + (self.last - self.first) * (here - low) / (high - low)

    def _scaled(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.log else value

    def ticks(self) -> list[float]:
        """About five round values inside the axis."""
        if self.log:
            found = _log_ticks(self.low, self.high)
            if len(found) >= 2:
                return found
        step = _round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 3 else (1,)
    values = [step * 10.0**power for power in decades for step in steps]
    return [value for value in values if low * 0.999 <= value <= high * 1.001]


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)


def _axis(values: Sequence[float], first: float, last: float, log: bool, from_zero: bool) -> Axis:
    usable = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = (min(usable), max(usable)) if usable else (1.0, 2.0)
    if log:
        return Axis(low / 1.2, high * 1.2, first, last, True)
    if from_zero and low >= 0:
        return Axis(0.0, high * 1.08 or 1.0, first, last, False)
    pad = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return Axis(low - pad, high + pad, first, last, False)


def axes(plot: Plot) -> tuple[Axis, Axis]:
    """Axes that hold every point, dot, interval and the prediction; a linear y begins at zero."""
    marks = [mark for series in plot.series for mark in series.marks]
    ys = [value for mark in marks for value in (mark.y, mark.low, mark.high, *mark.dots)]
    drawn = [value for value in [*ys, plot.prediction] if value is not None]
    x = _axis([mark.x for mark in marks], LEFT, WIDTH - RIGHT, plot.log_x, from_zero=False)
    return x, _axis(drawn, HEIGHT - BOTTOM, TOP, plot.log_y, from_zero=True)


def render(plot: Plot) -> str:
    """The plot as one SVG element."""
    x, y = axes(plot)
    body = [_frame(plot, x, y), _prediction(plot, y)]
    body += [_series(series, index, x, y) for index, series in enumerate(plot.series)]
    body += [_legend(plot), _caption(plot)]
    return (
        f'<svg role="img" viewBox="0 0 {WIDTH} {_height(plot)}" style="{STYLE}" '
        'fill="currentColor" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(plot.title)}</title><desc>{escape(describe(plot))}</desc>{''.join(body)}</svg>"
    )


def _text(x: float, y: float, words: str, anchor: str = "middle", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def _frame(plot: Plot, x: Axis, y: Axis) -> str:
    grid = 'stroke="currentColor" stroke-opacity="0.16"'
    base = 'stroke="currentColor" stroke-opacity="0.7"'
    size = 17 if len(plot.title) <= plot_layout.TITLE_CHARACTERS else 14
    parts = [_text(LEFT, 24, plot.title, "start", f' font-weight="600" font-size="{size}"')]
    for value in y.ticks():
        parts.append(_line(LEFT, y.at(value), WIDTH - RIGHT, y.at(value), grid))
        parts.append(_text(LEFT - 8, y.at(value) + 5, number(value), "end"))
    for pixel, words in _x_ticks(plot, x):
        parts.append(_text(pixel, HEIGHT - BOTTOM + 20, words))
    parts.append(_line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, base))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 42, plot.x_label))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        _text(20, middle, plot.y_label, "middle", f' transform="rotate(-90 20 {middle:.1f})"')
    )
    return "".join(parts)


def _x_ticks(plot: Plot, x: Axis) -> list[tuple[float, str]]:
    """Pixels and words: the marks' places where they are few, measured first, else round values."""
    ordered = sorted(plot.series, key=lambda series: series.published)
    marks = [mark for series in ordered for mark in series.marks]
    places = {mark.x: mark.label or number(mark.x) for mark in reversed(marks)}
    ticks = [(place, places[place]) for place in dict.fromkeys(mark.x for mark in marks)]
    if not 0 < len(ticks) <= 8 or any(len(words) > 12 for _, words in ticks):
        ticks = [(value, number(value)) for value in x.ticks()]
    return plot_layout.clear_of_each_other((x.at(value), words) for value, words in ticks)


def _prediction(plot: Plot, y: Axis) -> str:
    if plot.prediction is None:
        said = f"you predicted: {ARROWS.get(plot.prediction_text, '')} {plot.prediction_text}"
        place = (WIDTH - RIGHT - 4, TOP - 8)
        return _text(*place, said, "end", ITALIC) if plot.prediction_text else ""
    height = y.at(plot.prediction)
    style = 'stroke="currentColor" stroke-width="2" stroke-dasharray="2 5"'
    label = _text(
        WIDTH - RIGHT - 4,
        height - 6,
        f"you predicted {plot.prediction_text}",
        "end",
        ITALIC,
    )
    return _line(LEFT, height, WIDTH - RIGHT, height, style) + label


def _series(series: Series, index: int, x: Axis, y: Axis) -> str:
    colour = COLOURS[index % len(COLOURS)]
    marks = [mark for mark in series.marks if math.isfinite(mark.y)]
    points = " ".join(f"{x.at(mark.x):.1f},{y.at(mark.y):.1f}" for mark in marks)
    dash = ' stroke-dasharray="7 5"' if series.published else ""
    parts = [f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>']
    for mark in marks:
        for turn, value in enumerate(mark.dots[-MOST_DOTS:]):
            spread = (
                turn * 5 % 17
            ) - 8  # side by side, so that equal samples do not hide each other
            parts.append(_dot(x.at(mark.x) + spread, y.at(value), colour))
        if mark.low is not None and mark.high is not None:
            style = f'stroke="{colour}" stroke-width="2"'
            parts.append(_line(x.at(mark.x), y.at(mark.low), x.at(mark.x), y.at(mark.high), style))
        parts.append(_marker(x.at(mark.x), y.at(mark.y), index, colour, hollow=series.published))
    return "".join(parts)


def _dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{colour}" fill-opacity="0.3"/>'


def _marker(x: float, y: float, index: int, colour: str, *, hollow: bool) -> str:
    """Circle, square, triangle, diamond, in turn: series differ without colour."""
    fill = "none" if hollow else colour
    style = f'fill="{fill}" stroke="{colour}" stroke-width="2"'
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" {style}/>',
        f'<rect x="{x - 5.5:.1f}" y="{y - 5.5:.1f}" width="11" height="11" {style}/>',
        f'<path d="M{x:.1f} {y - 7:.1f}l7 12h-14z" {style}/>',
        f'<path d="M{x:.1f} {y - 8:.1f}l7 8l-7 8l-7 -8z" {style}/>',
    )
    return shapes[index % len(shapes)]


def _legend(plot: Plot) -> str:
    parts = []
    entries = plot_layout.legend([series.name for series in plot.series])
    for index, (series, entry) in enumerate(zip(plot.series, entries, strict=True)):
        left, height = LEFT + entry.column * COLUMN, LEGEND_TOP + entry.row * LEGEND_ROW
        colour = COLOURS[index % len(COLOURS)]
        parts.append(_marker(left, height - 5, index, colour, hollow=series.published))
        for line, words in enumerate(entry.lines):
            below = height + line * LEGEND_ROW
            parts.append(_text(left + 14, below, words, "start", ' font-size="14"'))
    return "".join(parts)


def _caption(plot: Plot) -> str:
    lines, last = plot_layout.caption(plot.caption), _height(plot) - 6
    style = ' font-size="12" fill-opacity="0.85"'
    heights = [last - CAPTION_ROW * (len(lines) - 1 - index) for index in range(len(lines))]
    return "".join(
        _text(LEFT, height, words, "start", style)
        for height, words in zip(heights, lines, strict=True)
    )


def _height(plot: Plot) -> int:
    """The picture's height; usual ones, of one row and two lines, are all the same."""
    rows_taken = plot_layout.legend_rows(plot_layout.legend([one.name for one in plot.series]))
    lines = len(plot_layout.caption(plot.caption))
    return max(HEIGHT, LEGEND_TOP + LEGEND_ROW * rows_taken + CAPTION_ROW * lines + 2)
