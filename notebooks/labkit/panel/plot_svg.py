"""Plots as inline SVG: records in, text out, in about a millisecond, without a library.

Every series has its own marker besides its colour; text takes the page's own colour, so dark themes
work; every plot has a title, a description and a table that says the same. `plot_scales` maps
values to pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from labkit.panel import plot_layout
from labkit.panel.plot import Mark, Plot, Series, SeriesKind, describe, number
from labkit.panel.plot_scales import BOTTOM, HEIGHT, RIGHT, TOP, WIDTH, Scales, scales

LEGEND_ROW, CAPTION_ROW, COLUMN, TICK_ROW = 20, 15, 330, 17
COLOURS = (
    "#0b84c4",
    "#d55e00",
    "#009e73",
    "#b0629c",
    "#8a8a00",
)  # at least 3:1 on white and on #111
MOST_DOTS = 80
CROSS = 9  # half the width of the prediction's cross, in pixels
LOWEST_WITH_TEXT = 16  # pixels of a stacked bar
SMALL = ' font-size="13"'
ITALIC = ' font-style="italic"'
ARROWS = {"rises": "↗", "flat": "→", "falls": "↘"}
STYLE = (
    "width:100%;max-width:54rem;height:auto;color:var(--jp-content-font-color0,CanvasText);"
    "font:15px system-ui,sans-serif"
)
DASHES = {
    SeriesKind.PUBLISHED: ' stroke-dasharray="7 5"',
    SeriesKind.COMPUTED: ' stroke-dasharray="3 3"',
}


def render(plot: Plot) -> str:
    """The plot as one SVG element."""
    space = scales(plot)
    body = [_frame(plot, space)]
    body += [_series(one, index, space) for index, one in enumerate(plot.series)]
    body += [_prediction(plot, space), _legend(plot, space), _caption(plot, space)]
    return (
        f'<svg role="img" viewBox="0 0 {WIDTH} {_height(plot, space)}" style="{STYLE}" '
        'fill="currentColor" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(plot.title)}</title><desc>{escape(describe(plot))}</desc>{''.join(body)}</svg>"
    )


def _text(x: float, y: float, words: str, anchor: str = "middle", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def _frame(plot: Plot, space: Scales) -> str:
    base = 'stroke="currentColor" stroke-opacity="0.7"'
    size = 17 if len(plot.title) <= plot_layout.TITLE_CHARACTERS else 14
    left, right, bottom = space.left, WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [_text(left, 24, plot.title, "start", f' font-weight="600" font-size="{size}"')]
    if any(series.marks for series in plot.series):  # else the axes have no numbers yet
        parts += [*_y_ticks(space), *_x_ticks(space)]
    parts.append(_line(left, bottom, right, bottom, base))
    below = bottom + 42 + TICK_ROW * (space.tick_rows - 1)
    parts.append(_text((left + right) / 2, below, plot.x_label))
    middle = (TOP + bottom) / 2
    parts.append(
        _text(20, middle, plot.y_label, "middle", f' transform="rotate(-90 20 {middle:.1f})"')
    )
    return "".join(parts)


def _y_ticks(space: Scales) -> Iterator[str]:
    grid = 'stroke="currentColor" stroke-opacity="0.16"'
    for value in space.y.ticks():
        yield _line(space.left, space.y.at(value), WIDTH - RIGHT, space.y.at(value), grid)
        yield _text(space.left - 8, space.y.at(value) + 5, number(value), "end")


def _x_ticks(space: Scales) -> Iterator[str]:
    set_as = SMALL if space.are_ticks_tight else ""
    for pixel, lines in space.x_ticks():
        for row, words in enumerate(lines):
            yield _text(pixel, HEIGHT - BOTTOM + 20 + TICK_ROW * row, words, "middle", set_as)


def _prediction(plot: Plot, space: Scales) -> str:
    """A number as a cross at the place that was asked about; a trend as an arrow above the plot."""
    if plot.prediction is None or plot.prediction_at is None:
        if not plot.prediction_text:
            return ""
        said = f"you predicted: {ARROWS.get(plot.prediction_text, '')} {plot.prediction_text}"
        return _text(WIDTH - RIGHT - 4, TOP - 8, said, "end", ITALIC)
    here = space.of(plot.prediction_at)
    return "" if here is None else _prediction_marker(space, here, space.y.at(plot.prediction))


def _prediction_marker(space: Scales, x: float, y: float) -> str:
    """A cross; at the edge of the plot an arrow to where the prediction lies."""
    if not (beyond := space.beyond):
        return _cross(x, y)
    wing = 9 if beyond == "above" else -9
    style = 'stroke="currentColor" stroke-width="3"'
    arms = ((x - 8, y + wing), (x + 8, y + wing), (x, y + 2 * wing))
    return "".join(_line(x, y, *end, style) for end in arms)


def _cross(x: float, y: float) -> str:
    style = 'stroke="currentColor" stroke-width="3"'
    arms = ((-CROSS, -CROSS, CROSS, CROSS), (-CROSS, CROSS, CROSS, -CROSS))
    return "".join(_line(x + a, y + b, x + c, y + d, style) for a, b, c, d in arms)


def _series(series: Series, index: int, space: Scales) -> str:
    colour = COLOURS[index % len(COLOURS)]
    marks = [mark for mark in series.marks if math.isfinite(mark.y) and space.shows(mark)]
    if series.is_level:
        height = space.y.at(series.marks[0].y)
        return _line(
            space.left, height, WIDTH - RIGHT, height, f'stroke="{colour}" stroke-width="2"'
        )
    if space.has_bars:
        return "".join(_bar(mark, series, index, space) for mark in marks)
    is_line = series.is_joined and not space.is_categorical
    parts = [_polyline(series, marks, colour, space)] if is_line else []
    if series.kind is not SeriesKind.CURVE:
        parts += [_point(mark, series, index, space) for mark in marks]
    return "".join(parts)


def _polyline(series: Series, marks: list[Mark], colour: str, space: Scales) -> str:
    """A line; the first curve is the broadest, so that a later one does not hide it."""
    points = " ".join(f"{space.x.at(mark.x):.1f},{space.y.at(mark.y):.1f}" for mark in marks)
    dash = DASHES.get(series.kind, "")
    curves = [one for one in space.plot.series if one.kind is SeriesKind.CURVE]
    width = 1.5 + 2 * (len(curves) - 1 - curves.index(series)) if series in curves else 2.0
    return (
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"{dash}/>'
    )


def _point(mark: Mark, series: Series, index: int, space: Scales) -> str:
    colour, x = COLOURS[index % len(COLOURS)], space.place(mark, index)
    parts = [_spread(mark, x, colour, space), _interval(mark, x, colour, space)]
    parts.append(_marker(x, space.y.at(mark.y), index, colour, hollow=series.is_hollow))
    if space.is_categorical and not index and not space.plot.is_zoomed:
        said = number(mark.y)
        parts.append(_text(x + 14, space.y.at(mark.y) - 6, said, "start", ' font-size="13"'))
    return "".join(parts)


def _bar(mark: Mark, series: Series, index: int, space: Scales) -> str:
    """A bar from zero, or from the one below it, with its value."""
    colour, x, width = COLOURS[index % len(COLOURS)], space.place(mark, index), space.bar_width
    base = space.base(mark, index)
    top, bottom = sorted((space.y.at(base + mark.y), space.y.at(base)))
    is_hollow = series.is_hollow or mark.is_computed
    dash = DASHES.get(SeriesKind.COMPUTED if mark.is_computed else series.kind, "")
    box = (
        f'<rect x="{x - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" '
        f'height="{bottom - top:.1f}" fill="{colour}" fill-opacity="{0 if is_hollow else 0.35}" '
        f'stroke="{colour}" stroke-width="2"{dash}/>'
    )
    if space.plot.is_stacked:
        return box + _stacked_value(mark, index, x, (top, bottom), space)
    highest = max(value for value in (mark.y, mark.high, *mark.dots) if value is not None)
    over = _above(x, space.y.at(highest), number(mark.y), space)
    return box + _spread(mark, x, colour, space) + _interval(mark, x, colour, space) + over


def _stacked_value(
    mark: Mark, index: int, x: float, ends: tuple[float, float], space: Scales
) -> str:
    """A part's value inside it where there is room; the whole's above the last part."""
    top, bottom = ends
    inside = bottom - top >= LOWEST_WITH_TEXT
    value, middle = number(mark.y), (top + bottom) / 2
    aside = x - CROSS - 4 - 4 * len(value) if _crossed(x, middle, value, space) else x
    words = _text(aside, middle + 5, value, "middle", SMALL) if inside else ""
    if index != max(space.slots):
        return words
    total = number(space.base(mark, index) + mark.y)
    return words + _above(x, top, total, space, ' font-weight="600"')


def _above(x: float, y: float, words: str, space: Scales, style: str = "") -> str:
    """A value above its bar; clear of the prediction's cross, above it or else inside the bar."""
    base = y - 8
    if _crossed(x, base - 5, words, space) and space.plot.prediction is not None:
        cross = space.y.at(space.plot.prediction)
        over = min(base, cross - CROSS - 5)
        base = over if over > TOP else cross + CROSS + 14
    return _text(x, base, words, "middle", SMALL + style)


def _crossed(x: float, y: float, words: str, space: Scales) -> bool:
    """Whether the prediction's cross lies over words whose middle is there."""
    plot = space.plot
    here = None if plot.prediction_at is None else space.of(plot.prediction_at)
    if here is None or plot.prediction is None:
        return False
    is_over = abs(y - space.y.at(plot.prediction)) < CROSS + 9
    return is_over and abs(x - here) < CROSS + 4 * len(words)


def _spread(mark: Mark, x: float, colour: str, space: Scales) -> str:
    """The samples, side by side, so that equal ones do not hide each other."""
    return "".join(
        _dot(x + turn * 5 % 17 - 8, space.y.at(value), colour)
        for turn, value in enumerate(mark.dots[-MOST_DOTS:])
    )


def _interval(mark: Mark, x: float, colour: str, space: Scales) -> str:
    if mark.low is None or mark.high is None:
        return ""
    style = f'stroke="{colour}" stroke-width="2"'
    return _line(x, space.y.at(mark.low), x, space.y.at(mark.high), style)


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


def _legend_names(plot: Plot, space: Scales) -> list[str]:
    is_marked = plot.prediction is not None and plot.prediction_at is not None
    beyond = f" ({space.beyond} this scale)" if space.beyond else ""
    said = [f"you predicted {plot.prediction_text}{beyond}"] if is_marked else []
    return [series.name for series in plot.series] + said


def _legend(plot: Plot, space: Scales) -> str:
    parts = []
    for index, entry in enumerate(plot_layout.legend(_legend_names(plot, space))):
        left, height = space.left + entry.column * COLUMN, _legend_top(space) + entry.row * 20
        parts.append(_legend_marker(space, index, left, height - 5))
        for line, words in enumerate(entry.lines):
            below = height + line * LEGEND_ROW
            parts.append(_text(left + 16, below, words, "start", ' font-size="14"'))
    return "".join(parts)


def _legend_marker(space: Scales, index: int, x: float, y: float) -> str:
    series = space.plot.series
    if index >= len(series):
        place = f"translate({x:.1f} {y:.1f}) scale(.7)"
        return f'<g transform="{place}">{_prediction_marker(space, 0, 0)}</g>'
    one, colour = series[index], COLOURS[index % len(COLOURS)]
    if one.kind is SeriesKind.CURVE:
        return _line(x - 9, y, x + 9, y, f'stroke="{colour}" stroke-width="2"')
    return _marker(x, y, index, colour, hollow=one.is_hollow)


def _legend_top(space: Scales) -> int:
    return HEIGHT - 58 + TICK_ROW * (space.tick_rows - 1)


def _caption(plot: Plot, space: Scales) -> str:
    lines, last = plot_layout.caption(plot.caption), _height(plot, space) - 6
    style = ' font-size="12" fill-opacity="0.85"'
    heights = [last - CAPTION_ROW * (len(lines) - 1 - index) for index in range(len(lines))]
    return "".join(
        _text(space.left, height, words, "start", style)
        for height, words in zip(heights, lines, strict=True)
    )


def _height(plot: Plot, space: Scales) -> int:
    """The picture's height; usual ones, of one row and two lines, are all the same."""
    rows_taken = plot_layout.legend_rows(plot_layout.legend(_legend_names(plot, space)))
    lines = len(plot_layout.caption(plot.caption))
    needed = _legend_top(space) + LEGEND_ROW * rows_taken + CAPTION_ROW * lines + 2
    return max(HEIGHT, needed)
