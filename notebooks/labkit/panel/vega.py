"""A plot as a Vega-Lite specification, which JupyterLab draws without a network.

Categories stand below each other, so that their names fit into 270 pixels; numbers lie from left to
right.
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from labkit.panel.labels import pixels_between, place_names
from labkit.panel.plot import Mark, Plot, Series, SeriesKind, describe, interval_words
from labkit.panel.theme import (
    INK,
    domain,
    frame,
    label_expression,
    log_ticks,
    named_ticks,
    number_axis,
    output,
    share,
    value_domain,
)
from labkit.shown import SUPERSCRIPT, number

OWN = ("#0b84c4", "#009e73", "#b0629c", "#8a8a00", "#7d6be0", "#a8652e")
# each at least 3:1 on white and on #111
PUBLISHED, BESIDE, LINE = "#d55e00", "#b0629c", "#808080"
CROSS = "M-1,-1L1,1M1,-1L-1,1"
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "triangle-right")
DASHES = {SeriesKind.PUBLISHED: [7, 5], SeriesKind.COMPUTED: [3, 3], SeriesKind.BESIDE: [9, 3]}
CURVE_DASHES: tuple[list[int], ...] = ([], [8, 3], [2, 3], [8, 3, 2, 3])
MOST_DOTS = 80
ROW, HIGH = 40, 300
NARROW, WIDE = 170, 620  # pixels that a telephone leaves for the axis, and JupyterLab usually
EVERY = 8  # pixels between the places at which a line is looked at
SAME = 6.0  # pixels within which a point lies under another
LEGEND = 28  # characters of a line, so that it fits
NO_NUMBERS = {"labels": False, "ticks": False, "grid": False}
SOLID = {"field": "solid", "type": "quantitative", "scale": None}
IS_PLACE = re.compile(r"(^|[ =])\d")


def bundle(plot: Plot, *, titled: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """The data and the metadata with which a notebook's output draws a plot."""
    return output(spec(plot, titled=titled), describe(plot))


def spec(plot: Plot, width: int | str = "container", *, titled: bool = False) -> dict[str, Any]:
    """The specification of a plot.

    Args:
        plot: what is shown.
        width: in pixels, or as wide as the page leaves room.
        titled: whether title and caption are part of the picture.
    """
    drawing = _Drawing(plot)
    description = f"{plot.title}. {describe(plot)}"
    specification = frame(description, drawing.height, list(drawing.layers()), width)
    if titled:
        below = textwrap.wrap(plot.caption, 90)
        specification["title"] = {
            "text": textwrap.wrap(plot.title, 70),
            "subtitle": below,
            "offset": 12,
        }
    return specification


def pixels(plot: Plot) -> int:
    """The approximate height of a drawn plot, which reserves its room while it is redrawn."""
    drawing = _Drawing(plot)
    body = drawing.height
    rows = len(plot.categories) * body["step"] if isinstance(body, dict) else body
    return int(rows) + 60 + 18 * len(drawing.shown)


def _covers(cover: Series, series: Series) -> bool:
    """Whether one curve lies on nearly all of another."""
    places = {(mark.x, mark.y) for mark in cover.marks}
    return sum((mark.x, mark.y) in places for mark in series.marks) > 0.9 * len(series.marks)


class _Drawing:
    """One plot: where its places and values lie, and its layers from the lowest up."""

    def __init__(self, plot: Plot) -> None:
        self.plot = plot
        self.is_flat = bool(plot.categories)  # categories below each other, values to the right
        self.place, self.value = ("y", "x") if self.is_flat else ("x", "y")
        self.shown = [series for series in plot.series if series.marks]
        self.pointed = [series for series in self.shown if series.kind is not SeriesKind.CURVE]
        self.low, self.high = value_domain(plot)
        if self.is_flat and plot.log_y:  # room for the number beside the farthest point
            self.high *= (self.high / self.low) ** 0.12
        self.has_bars = self.is_flat and not plot.log_y and not plot.is_zoomed
        self.is_beside = len(self.pointed) > 1 and not plot.is_stacked

    @property
    def prediction_place(self) -> float | str | None:
        """Where the prediction stands among the points; None where there is no such place."""
        at = self.plot.prediction_at
        is_there = at in self.plot.categories if self.is_flat else isinstance(at, float | int)
        return at if self.shown and self.plot.prediction is not None and is_there else None

    @property
    def height(self) -> dict[str, Any] | int:
        """A row for each category, high enough for the series beside each other in it."""
        if not self.is_flat:
            return HIGH if self.shown else HIGH // 2
        beside = 22 * len(self.pointed) if self.is_beside else 0
        return {"step": max(ROW, beside), "for": "position"}

    def layers(self) -> Iterator[dict[str, Any]]:
        """Levels and curves, bars, samples, points, intervals, names, the prediction."""
        if not self.shown:
            yield self._frame()
            yield from self._prediction()
            return
        curves = [series for series in self.shown if series.kind is SeriesKind.CURVE]
        yield from map(self._curve, curves, itertools.cycle(CURVE_DASHES))
        rows = [row for series in self.pointed for row in self._rows(series)]
        if self.has_bars:
            yield self._bars(rows)
        else:
            yield from (
                self._line(series)
                for series in self.pointed
                if series.is_joined and not self.is_flat
            )
        if not self.plot.is_stacked:
            yield self._samples()
        if not self.has_bars:
            yield self._points(rows)
        if not self.plot.is_stacked:
            yield from self._intervals(rows)
        yield from self._names(rows)
        yield from self._prediction()

    def _layer(
        self, values: Sequence[Any], mark: dict[str, Any], *, apart: bool = True, **encoding: Any
    ) -> dict[str, Any]:
        """A layer on the common axes; `apart` puts the series of a category side by side."""
        common: dict[str, Any] = {self.value: self._value_axis()}
        if any("place" in row for row in values) or not values:
            common[self.place] = self._place_axis()
        if apart and self.is_flat and self.is_beside:
            order = [series.name for series in self.pointed]
            common["yOffset"] = {"field": "series", "scale": {"domain": order}}
        return {"data": {"values": values}, "mark": mark, "encoding": common | encoding}

    def _value_axis(self) -> dict[str, Any]:
        if not (self.shown or self.plot.range_before or self.plot.prediction is not None):
            axis: dict[str, Any] = {"title": textwrap.wrap(self.plot.y_label, 44), **NO_NUMBERS}
            return number_axis("value", (self.low, self.high), axis, log=self.plot.log_y)
        if self.plot.is_binary:
            powers = range(math.ceil(math.log2(self.low)), math.floor(math.log2(self.high)) + 1)
            names = [f"2{str(power).translate(SUPERSCRIPT)}" for power in powers]
            axis = {"title": self.plot.y_label, **named_ticks([2.0**p for p in powers], names)}
            return number_axis("value", (self.low, self.high), axis, log=True)
        ticks = log_ticks(self.low, self.high) if self.plot.log_y else []
        axis = {"title": textwrap.wrap(self.plot.y_label, 44), "tickCount": 5, "labelOverlap": True}
        axis |= named_ticks(ticks, [number(tick) for tick in ticks])
        return number_axis("value", (self.low, self.high), axis, log=self.plot.log_y)

    def _place_axis(self) -> dict[str, Any]:
        if self.is_flat:
            names = list(self.plot.categories)
            lines = [textwrap.wrap(name, 16)[:3] or [""] for name in names]
            axis: dict[str, Any] = {
                "title": None,
                "labelLimit": 0,
                "labelExpr": label_expression(names, lines),
            }
            axis |= {"grid": False, "domain": False, "ticks": False}
            scale = {"domain": names, "paddingInner": 0.25, "paddingOuter": 0.2}
            return {"field": "place", "type": "nominal", "axis": axis, "scale": scale}
        axis = {
            "title": textwrap.wrap(self.plot.x_label, 60),
            "grid": False,
            "labelOverlap": "greedy",
        }
        axis |= {"labelSeparation": 8} | named_ticks(*self._place_ticks())
        if not self.shown:
            axis |= NO_NUMBERS
        return number_axis("place", self._place_domain(), axis, log=self.plot.log_x)

    def _place_ticks(self) -> tuple[list[float], list[str]]:
        """The names of the places measured where each has one, else numbers; never both."""
        label_at = {
            mark.x: mark.label
            for series in reversed(self.pointed)
            for mark in series.marks
            if series.kind is SeriesKind.MEASURED or series is self.pointed[0]
        }
        label_at = {x: label for x, label in label_at.items() if IS_PLACE.search(label)}
        if 0 < len(label_at) <= 8 and all(len(label) <= 12 for label in label_at.values()):
            return list(label_at), list(label_at.values())
        ticks = log_ticks(*self._place_domain()) if self.plot.log_x else []
        return ticks, [number(tick) for tick in ticks]

    def _place_of(self, mark: Mark) -> float | str:
        return mark.label if self.is_flat else mark.x

    def _is_drawn(self, mark: Mark) -> bool:
        is_placed = not self.is_flat or mark.label in self.plot.categories
        return is_placed and math.isfinite(mark.y) and (mark.y > 0 or not self.plot.log_y)

    def _rows(self, series: Series) -> Iterator[dict[str, Any]]:
        """The data rows of a series' points, for the axes and the tooltips."""
        index, covered = self.pointed.index(series), self._covering_count(series)
        inside = (0.4, 0.05) if self.has_bars else (1, 0)
        for mark in filter(self._is_drawn, series.marks):
            below = self._stack_base(mark, index)
            yield {
                "place": self._place_of(mark),
                "value": min(max(below + mark.y, self.low), self.high),
                "from": below,
                "low": mark.low,
                "high": mark.high,
                "series": series.name,
                "name": mark.place,
                "said": number(mark.y),
                "interval": interval_words(mark),
                "n": mark.samples,
                "size": 80 + 160 * covered,
                "solid": inside[series.is_hollow or mark.is_computed],
            }

    def _stack_base(self, mark: Mark, index: int) -> float:
        """The height at which a stacked bar begins: the sum of the series below it."""
        if not self.plot.is_stacked:
            return 0.0
        stacked_below = (
            other_mark for series in self.pointed[:index] for other_mark in series.marks
        )
        return sum(other_mark.y for other_mark in stacked_below if other_mark.label == mark.label)

    def _prediction_name(self) -> str:
        """The prediction's name in the legend; empty where none is drawn."""
        return (
            f"you predicted {self.plot.prediction_text}"
            if self.prediction_place is not None
            else ""
        )

    def _colour(self) -> dict[str, Any]:
        """The colour encoding: one colour for each series, the same for a kind in every plot."""
        names, colours = [series.name for series in self.shown], list(self._colours())
        if self._prediction_name():
            names, colours = [*names, self._prediction_name()], [*colours, INK]
        lines = [textwrap.wrap(name, LEGEND) for name in names]
        is_needed = len(names) > 1 or self.shown[0].kind is not SeriesKind.MEASURED
        return {
            "field": "series",
            "type": "nominal",
            "scale": {"domain": names, "range": colours},
            "legend": {"labelExpr": label_expression(names, lines)} if is_needed else None,
        }

    def _shape(self) -> dict[str, Any]:
        """One shape for each series, a cross or an arrow for the prediction."""
        pointed = itertools.cycle(("square",) if self.has_bars else SHAPES)
        shapes = [
            "stroke" if series.kind is SeriesKind.CURVE else next(pointed) for series in self.shown
        ]
        scale = {**self._colour()["scale"], "range": [*shapes, CROSS]}
        return {**self._colour(), "scale": scale}

    def _colours(self) -> Iterator[str]:
        """A colour for each series; published and others' series have the same in every plot."""
        measured_colours, curves = itertools.cycle(OWN), itertools.cycle((LINE, *reversed(OWN)))
        for series in self.shown:
            if series.name.startswith("published"):
                yield PUBLISHED
            elif series.kind is SeriesKind.BESIDE:
                yield BESIDE
            else:
                yield next(curves if series.kind is SeriesKind.CURVE else measured_colours)

    def _curve(self, series: Series, dash: list[int]) -> dict[str, Any]:
        """A bound, an ideal, a trace; a level where it has one height only."""
        curves = [other for other in self.shown if other.kind is SeriesKind.CURVE]
        later = curves[curves.index(series) + 1 :]
        width = 2 + 4 * sum(_covers(other, series) for other in later)
        line_style: dict[str, Any] = {"strokeWidth": width, "clip": True, "strokeDash": dash}
        line_style |= {"interpolate": "step-after"} if self.plot.is_binary else {}
        if series.is_level:
            level = series.marks[0].y
            values = [{"value": level, "series": series.name}] * (self.low <= level <= self.high)
            mark = line_style | {"type": "rule", "tooltip": series.name}
            layer = self._layer(values, mark, apart=False, color=self._colour())
            layer["encoding"].pop(self.place, None)
            return layer
        values = [
            {"place": mark.x, "value": mark.y, "series": series.name}
            for mark in series.marks
            if math.isfinite(mark.y) and (mark.y > 0 or not self.plot.log_y)
        ]
        return self._layer(values, line_style | {"type": "line"}, color=self._colour())

    def _line(self, series: Series) -> dict[str, Any]:
        width = 1.5 + 5 * self._covering_count(series)
        mark = {"type": "line", "strokeWidth": width, "clip": True, "aria": False}
        mark["strokeDash"] = DASHES.get(series.kind, [])
        return self._layer(list(self._rows(series)), mark, color=self._colour())

    def _covering_count(self, series: Series) -> int:
        """How many later series cover this one, which is drawn that much broader."""
        own_pixels = [self._pixels(mark.x, mark.y) for mark in series.marks if self._is_drawn(mark)]
        later = (
            self.pointed[self.pointed.index(series) + 1 :]
            if own_pixels and not self.is_flat
            else []
        )

        def is_hidden(cover: Series) -> bool:
            cover_pixels = [self._pixels(mark.x, mark.y) for mark in cover.marks]
            return all(
                any(math.dist(pixel, cover_pixel) < SAME for cover_pixel in cover_pixels)
                for pixel in own_pixels
            )

        return sum(map(is_hidden, later))

    def _tooltip(self) -> list[dict[str, str]]:
        titles = {"name": self.plot.x_label, "said": self.plot.y_label}
        titles |= {"interval": "interval", "n": "samples", "series": "series"}
        return [{"field": field, "title": title} for field, title in titles.items()]

    def _frame(self) -> dict[str, Any]:
        """The axes of a plot in which nothing is yet."""
        place = self.plot.categories[0] if self.is_flat else 1.0
        rows = [{"place": place, "value": self.high}]
        return self._layer(rows, {"type": "point", "opacity": 0, "aria": False})

    def _bars(self, rows: Sequence[Any]) -> dict[str, Any]:
        mark = {"type": "bar", "strokeWidth": 2, "filled": True, "cornerRadiusEnd": 2}
        return self._layer(
            rows,
            mark,
            x2={"field": "from"},
            color=self._colour(),
            stroke=self._colour(),
            fillOpacity=SOLID,
            tooltip=self._tooltip(),
        )

    def _points(self, rows: Sequence[Any]) -> dict[str, Any]:
        """What was measured is filled; what was computed or published is an outline."""
        colour = self._colour()
        return self._layer(
            rows,
            {"type": "point", "strokeWidth": 2, "opacity": 1},
            size={"field": "size", "type": "quantitative", "scale": None},
            color=colour,
            fill=colour,
            fillOpacity=SOLID,
            shape=self._shape(),
            tooltip=self._tooltip(),
        )

    def _samples(self) -> dict[str, Any]:
        """The samples as short lines; the few that lie off the axis are left to the table."""
        rows = [
            {"place": self._place_of(mark), "value": value, "series": series.name}
            for series in self.pointed
            for mark in filter(self._is_drawn, series.marks)
            for value in mark.dots[-MOST_DOTS:]
            if self.low <= value <= self.high
        ]
        mark = {"type": "tick", "thickness": 1, "size": 16, "opacity": 0.3, "aria": False}
        mark["orient"] = "vertical" if self.is_flat else "horizontal"
        return self._layer(rows, mark, color=self._colour())

    def _intervals(self, rows: Sequence[Any]) -> Iterator[dict[str, Any]]:
        """Over the point, in the page's colour, with ends broader than it: it is never hidden.

        It says what the point under it says.
        """
        rows_with_interval = [
            row | {"value": max(row["low"], self.low), "end": min(row["high"], self.high)}
            for row in rows
            if row["low"] is not None and row["high"] is not None
        ]
        bar = {"type": "rule", "strokeWidth": 2, "color": INK, "aria": False}
        end: dict[str, Any] = {f"{self.value}2": {"field": "end"}}
        yield self._layer(rows_with_interval, bar, tooltip=self._tooltip(), **end)
        cap = {"type": "tick", "thickness": 2, "size": 18, "color": INK, "aria": False}
        cap["orient"] = "vertical" if self.is_flat else "horizontal"
        ends = [row | {"value": row[at]} for row in rows_with_interval for at in ("value", "end")]
        yield self._layer(ends, cap, tooltip=self._tooltip())

    def _names(self, rows: Sequence[Any]) -> Iterator[dict[str, Any]]:
        """Label bars with their values, and points with the names that no tick shows."""
        if self.is_flat:
            labels = [
                row | {"text": row["said"], "value": max(row["value"], row["high"] or self.low)}
                for row in rows
            ]
            at = {"align": "left", "dx": 7, "baseline": "middle"}
            if self.plot.is_stacked:
                labels = [
                    row | {"value": (row["from"] + row["value"]) / 2}
                    for row in labels
                    if (row["value"] - row["from"]) / (self.high - self.low) > 0.07
                ]
                at = {"align": "center", "baseline": "middle"}
            yield self._text(labels, at)
            return
        first = self.pointed[0].name if self.pointed else ""
        named_rows = [row | {"text": row["name"]} for row in rows if row["series"] == first]
        named_rows = [row for row in named_rows if not IS_PLACE.search(row["text"])]
        spots = place_names(
            [(row["text"], self._pixels(row["place"], row["value"], WIDE)) for row in named_rows],
            list(self._pixels_of_marks()),
            (WIDE, HIGH),
        )
        for spot in dict.fromkeys(spots):
            rows_there = [row for row, its in zip(named_rows, spots, strict=True) if its == spot]
            at = {"align": spot.align, "dx": spot.dx, "dy": spot.dy, "baseline": "middle"}
            yield self._text(rows_there, at)

    def _pixels_of_marks(self) -> Iterator[tuple[float, float]]:
        """Where points, their intervals and lines are drawn on a usual page, every few pixels."""
        for series in self.shown:
            marks = list(filter(self._is_drawn, series.marks))
            pixels = [self._pixels(mark.x, mark.y, WIDE) for mark in marks]
            if series.is_level:
                pixels = [(x, y) for _, y in pixels for x in (0.0, WIDE)]
            if series.kind is not SeriesKind.CURVE:
                yield from pixels
            if series.is_joined or series.kind is SeriesKind.CURVE:
                for ends in itertools.pairwise(pixels):
                    yield from pixels_between(*ends, EVERY)
            for mark in marks:
                if mark.low is not None and mark.high is not None:
                    low, high = max(self.low, mark.low), min(mark.high, self.high)
                    lowest, highest = (self._pixels(mark.x, y, WIDE) for y in (low, high))
                    yield from pixels_between(lowest, highest, EVERY)

    def _place_domain(self) -> tuple[float, float]:
        """The range of the place axis where places are numbers."""
        return domain([mark.x for series in self.shown for mark in series.marks], self.plot.log_x)

    def _pixels(self, x: float, y: float, width: float = NARROW) -> tuple[float, float]:
        """The position of a point on a page on which the axis is so wide, in pixels."""
        low, high = self._place_domain()
        down = 1 - share(y, self.low, self.high, self.plot.log_y)
        return share(x, low, high, self.plot.log_x) * width, down * HIGH

    def _text(self, rows: Sequence[Any], at: dict[str, Any]) -> dict[str, Any]:
        mark = {"type": "text", "fontSize": 11, "aria": False, **at}
        return self._layer(rows, mark, text={"field": "text"})

    def _prediction(self) -> Iterator[dict[str, Any]]:
        """A cross at the place asked about, a line before there is one; at the rim an arrow."""
        predicted = self.plot.prediction
        if predicted is None:
            return
        drawn_at = min(max(predicted, self.low), self.high)
        row = {"value": drawn_at, "series": self._prediction_name()}
        if not self.shown:
            rule = {"type": "rule", "strokeWidth": 3, "color": INK, "tooltip": number(predicted)}
            yield {**self._layer([row], rule), "encoding": {self.value: self._value_axis()}}
        elif self.prediction_place is not None:
            placed_rows = [row | {"place": self.prediction_place}]
            mark: dict[str, Any] = {"type": "point", "size": 150, "strokeWidth": 3, "opacity": 1}
            mark |= {"tooltip": self._prediction_name()}
            if drawn_at != predicted:
                mark |= {"filled": True, "size": 300, "shape": "triangle"}
                mark |= {"angle": self._arrow_angle(predicted), "color": INK}
                yield self._layer(placed_rows, mark, apart=False)
                return
            yield self._layer(
                placed_rows, mark, apart=False, color=self._colour(), shape=self._shape()
            )

    def _arrow_angle(self, predicted: float) -> int:
        """The angle of the arrow at the rim that points to a prediction beyond it."""
        up, down = (90, -90) if self.is_flat else (0, 180)
        return up if predicted > self.high else down
