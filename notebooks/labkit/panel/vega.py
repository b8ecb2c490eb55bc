"""A plot as a Vega-Lite specification, which JupyterLab draws without a network.

Only what Vega-Lite 5.6 knows, JupyterLab's own. Words and axes take the page's colour, so that a
change of theme needs no new drawing. Categories stand below each other, so that their names fit
into 270 pixels; numbers lie from left to right.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from labkit.panel.plot import Mark, Plot, Series, SeriesKind, describe, number

MIME = "application/vnd.vegalite.v5+json"
# JupyterLab 4.6 draws a plot before it stands in the page, where it would be 0 pixels wide, and
# draws it again and again for as long as its picture is empty: no other code runs any more.  The
# width is read anew twice a second, which also follows a sidebar that opens.
WIDTH = {
    "name": "width",
    "init": "containerSize()[0] || 200",
    "on": [
        {
            "events": [{"source": "window", "type": "resize"}, {"type": "timer", "throttle": 500}],
            "update": "containerSize()[0] || width",
        }
    ],
}
EMBED = {
    "actions": False,
    "renderer": "svg",
    "defaultStyle": ".vega-embed{display:block;width:100%}",
    "patch": [
        {"op": "test", "path": "/signals/0/name", "value": "width"},
        {"op": "replace", "path": "/signals/0", "value": WIDTH},
    ],
}
INK = "currentColor"
OWN = ("#0b84c4", "#009e73", "#b0629c", "#8a8a00")  # at least 3:1 on white and on #111
PUBLISHED, BESIDE, LINE = "#d55e00", "#b0629c", "#808080"
CROSS = "M-1,-1L1,1M1,-1L-1,1"
SHAPES = ("circle", "square", "triangle-up", "diamond")
DASHES = {SeriesKind.PUBLISHED: [7, 5], SeriesKind.COMPUTED: [3, 3], SeriesKind.BESIDE: [9, 3]}
CURVE_DASHES: tuple[list[int], ...] = ([], [8, 3], [2, 3], [8, 3, 2, 3])
MOST_DOTS = 80
NEAR = 3.0  # a bound, an ideal or a prediction sets the axis if it is as near as the axis is long
FENCE = 2.0  # quartile distances beyond which a sample is an outlier
ROW, HIGH = 40, 300
NARROW = 170  # pixels that a telephone leaves for the axis; names are laid out for it
LEGEND = 28  # characters of a line, so that it fits
TICK_PIXELS, NAME_PIXELS = 7.0, 6.5  # of a character
IS_PLACE = re.compile(r"(^|[ =])\d")
STYLE: dict[str, Any] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK,
        "titleColor": INK,
        "domainColor": INK,
        "tickColor": INK,
        "gridColor": INK,
        "gridOpacity": 0.15,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {
        "labelColor": INK,
        "labelFontSize": 12,
        "labelLimit": 0,
        "symbolSize": 70,
        "layout": {"bottom": {"anchor": "start", "bounds": "full"}},
    },
    "title": {"color": INK, "subtitleColor": INK, "anchor": "start", "fontSize": 14},
    "text": {"color": INK, "fontSize": 12},
}


def bundle(plot: Plot, *, titled: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a notebook's output holds of a plot, and how it is to be drawn."""
    return {MIME: spec(plot, titled=titled), "text/plain": describe(plot)}, {
        MIME: {"embed_options": EMBED}
    }


def spec(plot: Plot, width: int | str = "container", *, titled: bool = False) -> dict[str, Any]:
    """The specification of a plot.

    Args:
        plot: what is shown.
        width: in pixels, or as wide as the page leaves room.
        titled: whether title and caption are part of the picture.
    """
    drawing = _Drawing(plot)
    made: dict[str, Any] = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "description": f"{plot.title}. {describe(plot)}",
        "width": width,
        "height": drawing.height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": STYLE,
        "layer": list(drawing.layers()),
    }
    if titled:
        below = textwrap.wrap(plot.caption, 90)
        made["title"] = {"text": textwrap.wrap(plot.title, 70), "subtitle": below, "offset": 12}
    return made


def pixels(plot: Plot) -> int:
    """About as high as a plot is drawn, so that its place is kept while it is drawn anew."""
    drawing = _Drawing(plot)
    body = drawing.height
    rows = len(plot.categories) * body["step"] if isinstance(body, dict) else body
    return int(rows) + 60 + 18 * len(drawing.shown)


class _Drawing:
    """One plot: where its places and values lie, and its layers from the lowest up."""

    def __init__(self, plot: Plot) -> None:
        self.plot = plot
        self.is_flat = bool(plot.categories)  # categories below each other, values to the right
        self.place, self.value = ("y", "x") if self.is_flat else ("x", "y")
        self.shown = [one for one in plot.series if one.marks]
        self.pointed = [one for one in self.shown if one.kind is not SeriesKind.CURVE]
        self.low, self.high = _value_domain(plot)
        self.has_bars = self.is_flat and not plot.log_y and not plot.is_zoomed
        self.is_beside = len(self.pointed) > 1 and not plot.is_stacked

    @property
    def place_said(self) -> float | str | None:
        """Where the prediction stands among the points; None where there is no such place."""
        at = self.plot.prediction_at
        is_there = at in self.plot.categories if self.is_flat else isinstance(at, float | int)
        return at if self.shown and self.plot.prediction is not None and is_there else None

    @property
    def height(self) -> dict[str, Any] | int:
        """A row for each category, high enough for the series beside each other in it."""
        beside = 22 * len(self.pointed) if self.is_beside else 0
        return (
            {"step": max(ROW, beside), "for": "position"}
            if self.is_flat
            else HIGH
            if self.shown
            else HIGH // 2
        )

    def layers(self) -> Iterator[dict[str, Any]]:
        """Levels and curves, bars, samples, points, intervals, names, the prediction."""
        if not self.shown:
            yield self._frame()
            yield from self._prediction()
            return
        yield from (self._curve(one) for one in self.shown if one.kind is SeriesKind.CURVE)
        rows = [row for one in self.pointed for row in self._rows(one)]
        if self.has_bars:
            yield self._bars(rows)
        else:
            yield from (self._line(one) for one in self.pointed if one.is_joined)
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
            order = [one.name for one in self.pointed]
            common["yOffset"] = {"field": "series", "scale": {"domain": order}}
        return {"data": {"values": values}, "mark": mark, "encoding": common | encoding}

    def _value_axis(self) -> dict[str, Any]:
        ticks = _log_ticks(self.low, self.high) if self.plot.log_y else []
        axis: dict[str, Any] = {"tickCount": 5, "labelOverlap": True}
        axis["title"] = textwrap.wrap(self.plot.y_label, 44)
        scale = {
            "type": "log" if self.plot.log_y else "linear",
            "domain": [self.low, self.high],
            "nice": False,
            "zero": False,
        }
        return {
            "field": "value",
            "type": "quantitative",
            "scale": scale,
            "axis": axis | _named_ticks(ticks, [number(tick) for tick in ticks]),
        }

    def _place_axis(self) -> dict[str, Any]:
        if self.is_flat:
            names = list(self.plot.categories)
            lines = [textwrap.wrap(name, 16)[:3] or [""] for name in names]
            axis: dict[str, Any] = {"title": None, "labelLimit": 0}
            axis |= {"grid": False, "domain": False, "ticks": False}
            scale = {"domain": names, "paddingInner": 0.25, "paddingOuter": 0.2}
            named = {"labelExpr": f"{_js(lines)}[indexof({_js(names)}, datum.value)]"}
            return {"field": "place", "type": "nominal", "axis": axis | named, "scale": scale}
        low, high = _domain([mark.x for one in self.shown for mark in one.marks], self.plot.log_x)
        scale = {"domain": [low, high], "nice": False, "zero": False}
        scale["type"] = "log" if self.plot.log_x else "linear"
        axis = {"title": textwrap.wrap(self.plot.x_label, 60), "grid": False, "labelOverlap": True}
        axis |= _named_ticks(*self._place_ticks(low, high))
        if not self.shown:
            axis |= {"labels": False, "ticks": False}
        return {"field": "place", "type": "quantitative", "axis": axis, "scale": scale}

    def _place_ticks(self, low: float, high: float) -> tuple[list[float], list[str]]:
        """The names of the places measured where each has one, else numbers; never both."""
        named = {mark.x: mark.label for one in self.pointed[:1] for mark in one.marks}
        named |= {mark.x: mark.label for mark in self._labelled() if mark.x not in named}
        named = {x: label for x, label in named.items() if IS_PLACE.search(label)}
        is_short = all(len(label) <= 12 for label in named.values())
        if 0 < len(named) <= 8 and is_short and self._are_clear(named, low, high):
            return list(named), list(named.values())
        ticks = _log_ticks(low, high) if self.plot.log_x else []
        return ticks, [number(tick) for tick in ticks]

    def _labelled(self) -> list[Mark]:
        return [
            mark
            for one in self.pointed
            if one.kind is SeriesKind.MEASURED
            for mark in one.marks
            if mark.label
        ]

    def _are_clear(self, named: dict[float, str], low: float, high: float) -> bool:
        """Whether the names of neighbours leave room for each other on a usual page."""
        placed = sorted(
            (_share(x, low, high, self.plot.log_x) * NARROW, label) for x, label in named.items()
        )
        pairs = itertools.pairwise(placed)
        return all(
            3 * (there - here) > (len(a) + len(b)) / 2 * TICK_PIXELS
            for (here, a), (there, b) in pairs
        )

    def _place_of(self, mark: Mark) -> float | str:
        return mark.label if self.is_flat else mark.x

    def _is_drawn(self, mark: Mark) -> bool:
        is_placed = not self.is_flat or mark.label in self.plot.categories
        return is_placed and math.isfinite(mark.y) and (mark.y > 0 or not self.plot.log_y)

    def _rows(self, series: Series) -> Iterator[dict[str, Any]]:
        """What the points of a series say, on the axes and when pointed at."""
        index = self.pointed.index(series)
        for mark in filter(self._is_drawn, series.marks):
            below = self._below(mark, index)
            yield {
                "place": self._place_of(mark),
                "value": min(max(below + mark.y, self.low), self.high),
                "from": below,
                "low": mark.low,
                "high": mark.high,
                "series": series.name,
                "name": mark.label or number(mark.x),
                "said": number(mark.y),
                "interval": interval_words(mark),
                "n": str(mark.n or ""),
                "solid": 0 if series.is_hollow or mark.is_computed else 1,
            }

    def _below(self, mark: Mark, index: int) -> float:
        """Where a stacked bar begins: on the bars of the series before it."""
        if not self.plot.is_stacked:
            return 0.0
        same = (one for series in self.pointed[:index] for one in series.marks)
        return sum(one.y for one in same if one.label == mark.label)

    def _said(self) -> str:
        """The prediction as the legend has it; empty where none is drawn."""
        return f"you predicted {self.plot.prediction_text}" if self.place_said is not None else ""

    def _colour(self) -> dict[str, Any]:
        """One colour for each series, and each kind's the same in every plot."""
        names = [series.name for series in self.shown]
        colours = [self._colour_of(one) for one in self.shown]
        if self._said():
            names, colours = [*names, self._said()], [*colours, INK]
        lines = [textwrap.wrap(name, LEGEND) for name in names]
        legend = {
            "title": None,
            "orient": "bottom",
            "direction": "vertical",
            "columns": 1,
            "labelExpr": f"{_js(lines)}[indexof({_js(names)}, datum.value)]",
        }
        is_needed = len(names) > 1 or self.shown[0].kind is not SeriesKind.MEASURED
        return {
            "field": "series",
            "type": "nominal",
            "scale": {"domain": names, "range": colours},
            "legend": legend if is_needed else None,
        }

    def _shape(self) -> dict[str, Any]:
        """One shape for each series, a cross or an arrow for the prediction."""
        shapes = [
            "stroke" if one.kind is SeriesKind.CURVE else self._shape_of(one) for one in self.shown
        ]
        scale = {**self._colour()["scale"], "range": [*shapes, CROSS]}
        return {**self._colour(), "scale": scale}

    def _shape_of(self, series: Series) -> str:
        return "square" if self.has_bars else SHAPES[self.pointed.index(series) % 4]

    def _colour_of(self, series: Series) -> str:
        fixed = {SeriesKind.PUBLISHED: PUBLISHED, SeriesKind.BESIDE: BESIDE}
        if series.kind in fixed:
            return fixed[series.kind]
        curves = [one for one in self.shown if one.kind is SeriesKind.CURVE]
        if series.name.startswith("published"):
            return PUBLISHED
        if series in curves:
            return (LINE, *reversed(OWN))[curves.index(series) % 5]
        own = [one for one in self.pointed if one.kind not in fixed]
        return OWN[own.index(series) % len(OWN)]

    def _curve(self, series: Series) -> dict[str, Any]:
        """A bound, an ideal, a trace; a level where it has one height only."""
        dash = CURVE_DASHES[
            [one for one in self.shown if one.kind is SeriesKind.CURVE].index(series) % 4
        ]
        if series.is_level:
            values: list[Any] = [{"value": series.marks[0].y, "series": series.name}]
            values = [row for row in values if self.low <= row["value"] <= self.high]
            mark = {"type": "rule", "strokeWidth": 2, "clip": True, "strokeDash": dash}
            mark |= {"tooltip": series.name}
            layer = self._layer(values, mark, apart=False, color=self._colour())
            layer["encoding"].pop(self.place, None)
            return layer
        values = [
            {"place": mark.x, "value": mark.y, "series": series.name}
            for mark in series.marks
            if math.isfinite(mark.y) and (mark.y > 0 or not self.plot.log_y)
        ]
        mark = {"type": "line", "strokeWidth": 2, "clip": True, "strokeDash": dash}
        return self._layer(values, mark, color=self._colour())

    def _line(self, series: Series) -> dict[str, Any]:
        mark = {"type": "line", "strokeWidth": 1.5, "clip": True, "aria": False}
        mark["strokeDash"] = DASHES.get(series.kind, [])
        values = [] if self.is_flat else list(self._rows(series))
        return self._layer(values, mark, color=self._colour())

    def _tooltip(self) -> list[dict[str, str]]:
        said = {"name": self.plot.x_label, "said": self.plot.y_label}
        said |= {"interval": "interval", "n": "samples", "series": "series"}
        return [{"field": field, "title": title} for field, title in said.items()]

    def _frame(self) -> dict[str, Any]:
        """The axes of a plot in which nothing is yet."""
        place = self.plot.categories[0] if self.is_flat else 1.0
        rows = [{"place": place, "value": self.high}]
        return self._layer(rows, {"type": "point", "opacity": 0, "aria": False})

    def _bars(self, rows: Sequence[Any]) -> dict[str, Any]:
        mark = {"type": "bar", "strokeWidth": 2, "filled": True, "cornerRadiusEnd": 2}
        inside: dict[str, Any] = {"field": "solid", "type": "quantitative", "legend": None}
        inside["scale"] = {"domain": [0, 1], "range": [0.05, 0.4]}
        return self._layer(
            rows,
            mark,
            x2={"field": "from"},
            color=self._colour(),
            stroke=self._colour(),
            fillOpacity=inside,
            tooltip=self._tooltip(),
        )

    def _points(self, rows: Sequence[Any]) -> dict[str, Any]:
        """What was measured is filled; what was computed or published is an outline."""
        inside: dict[str, Any] = {"field": "solid", "type": "quantitative", "legend": None}
        inside["scale"] = {"domain": [0, 1], "range": [0, 1]}
        colour = self._colour()
        return self._layer(
            rows,
            {"type": "point", "size": 80, "strokeWidth": 2, "opacity": 1},
            color=colour,
            fill=colour,
            fillOpacity=inside,
            shape=self._shape(),
            tooltip=self._tooltip(),
        )

    def _samples(self) -> dict[str, Any]:
        """The samples as short lines; the few that lie off the axis are left to the table."""
        rows = [
            {"place": self._place_of(mark), "value": value, "series": one.name}
            for one in self.pointed
            for mark in filter(self._is_drawn, one.marks)
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
        found = [
            row | {"value": max(row["low"], self.low), "end": min(row["high"], self.high)}
            for row in rows
            if row["low"] is not None and row["high"] is not None
        ]
        bar = {"type": "rule", "strokeWidth": 2, "color": INK, "aria": False}
        end: dict[str, Any] = {f"{self.value}2": {"field": "end"}}
        yield self._layer(found, bar, tooltip=self._tooltip(), **end)
        cap = {"type": "tick", "thickness": 2, "size": 18, "color": INK, "aria": False}
        cap["orient"] = "vertical" if self.is_flat else "horizontal"
        ends = [row | {"value": row[at]} for row in found for at in ("value", "end")]
        yield self._layer(ends, cap, tooltip=self._tooltip())

    def _names(self, rows: Sequence[Any]) -> Iterator[dict[str, Any]]:
        """Values at the bars; at the points of a plot the names that no tick says."""
        if self.is_flat:
            said = [
                row | {"text": row["said"], "value": max(row["value"], row["high"] or self.low)}
                for row in rows
            ]
            at = {"align": "left", "dx": 7, "baseline": "middle"}
            if self.plot.is_stacked:
                said = [
                    row | {"value": (row["from"] + row["value"]) / 2}
                    for row in said
                    if (row["value"] - row["from"]) / (self.high - self.low) > 0.07
                ]
                at = {"align": "center", "baseline": "middle"}
            yield self._text(said, at)
            return
        placed: dict[str, list[Any]] = {}
        taken: list[tuple[float, float, float, float]] = []
        first = self.pointed[0].name if self.pointed else ""
        named = [row for row in rows if row["series"] == first]
        for row in (row for row in named if not IS_PLACE.search(row["name"])):
            side = self._free_side(row, taken)
            placed.setdefault(side, []).append(row | {"text": row["name"]})
        sides = {
            "right": {"align": "left", "dx": 10, "baseline": "middle"},
            "left": {"align": "right", "dx": -10, "baseline": "middle"},
            "above": {"align": "center", "dy": -14},
            "below": {"align": "center", "dy": 16, "baseline": "middle"},
        }
        yield from (self._text(placed[side], at) for side, at in sides.items() if side in placed)

    def _free_side(self, row: Any, taken: list[tuple[float, float, float, float]]) -> str:
        """The side of a point on which its name covers no other; on a narrow page."""
        xs = [mark.x for one in self.shown for mark in one.marks]
        low, high = _domain(xs, self.plot.log_x)
        x = _share(row["place"], low, high, self.plot.log_x) * NARROW
        y = (1 - _share(row["value"], self.low, self.high, self.plot.log_y)) * HIGH
        long = len(row["name"]) * NAME_PIXELS
        boxes = {
            "right": (x + 8, y - 8, x + 10 + long, y + 8),
            "left": (x - 10 - long, y - 8, x - 8, y + 8),
            "above": (x - long / 2, y - 24, x + long / 2, y - 8),
            "below": (x - long / 2, y + 8, x + long / 2, y + 24),
        }
        inside = [side for side, box in boxes.items() if box[0] > -10 and box[2] < NARROW]
        free = [side for side in inside if not any(_overlap(boxes[side], one) for one in taken)]
        side = next(iter([*free, *inside, "above"]))
        taken.extend((boxes[side], (x - 6, y - 6, x + 6, y + 6)))
        return side

    def _text(self, rows: Sequence[Any], at: dict[str, Any]) -> dict[str, Any]:
        mark = {"type": "text", "fontSize": 11, "aria": False, **at}
        return self._layer(rows, mark, text={"field": "text"})

    def _prediction(self) -> Iterator[dict[str, Any]]:
        """A cross at the place asked about, a line before there is one; at the rim an arrow."""
        said = self.plot.prediction
        if said is None:
            return
        here = min(max(said, self.low), self.high)
        row = {"value": here, "series": self._said()}
        if not self.shown:
            rule = {"type": "rule", "strokeWidth": 3, "color": INK, "tooltip": number(said)}
            yield {**self._layer([row], rule), "encoding": {self.value: self._value_axis()}}
        elif self.place_said is not None:
            placed = [row | {"place": self.place_said}]
            mark: dict[str, Any] = {"type": "point", "size": 150, "strokeWidth": 3, "opacity": 1}
            mark |= {"tooltip": self._said()}
            if here != said:
                mark |= {"filled": True, "size": 300, "shape": "triangle"}
                mark |= {"angle": self._outwards(said), "color": INK}
                yield self._layer(placed, mark, apart=False)
                return
            yield self._layer(placed, mark, apart=False, color=self._colour(), shape=self._shape())

    def _outwards(self, said: float) -> int:
        """Which way an arrow points from the rim to a prediction that lies beyond it."""
        up, down = (90, -90) if self.is_flat else (0, 180)
        return up if said > self.high else down


def interval_words(mark: Mark) -> str:
    """An interval in words; empty where there is none."""
    if mark.low is None or mark.high is None:
        return ""
    return f"{number(mark.low)} – {number(mark.high)}"


def _value_domain(plot: Plot) -> tuple[float, float]:
    """What must be seen: points, intervals, most samples; lines and the prediction if near."""
    must = [value for one in plot.series for value in _musts(one)]
    if plot.is_stacked:
        whole: dict[str, float] = {}
        for mark in (mark for one in plot.series for mark in one.marks):
            whole[mark.label] = whole.get(mark.label, 0.0) + mark.y
        must = list(whole.values())
    guests = [m.y for one in plot.series if one.kind is SeriesKind.CURVE for m in one.marks]
    guests += [] if plot.prediction is None else [plot.prediction]
    if not must:
        must = [*(plot.range_before or ()), *guests]
    is_from_zero = not plot.log_y and not plot.is_zoomed and min(must, default=0.0) >= 0
    low, high = _domain(must, plot.log_y, from_zero=is_from_zero)
    near = [guest for guest in guests if _is_near(guest, low, high, plot.log_y)]
    return _domain([*must, *near], plot.log_y, from_zero=is_from_zero)


def _musts(series: Series) -> Iterator[float]:
    """A series' values, the ends of its intervals, and the samples that are no outliers."""
    for mark in series.marks if series.kind is not SeriesKind.CURVE else ():
        yield mark.y
        yield from (end for end in (mark.low, mark.high) if end is not None)
        ordered = sorted(mark.dots)
        first, third = (ordered[len(ordered) * at // 4] for at in (1, 3)) if ordered else (0, 0)
        reach = FENCE * (third - first)
        yield from (dot for dot in ordered if first - reach <= dot <= third + reach)


def _is_near(value: float, low: float, high: float, log: bool) -> bool:
    if not math.isfinite(value) or (log and value <= 0):
        return False
    return -NEAR <= _share(value, low, high, log) <= 1 + NEAR


def _domain(values: Iterable[float], log: bool, *, from_zero: bool = False) -> tuple[float, float]:
    """An axis that holds these values with some room around them."""
    usable = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = (min(usable), max(usable)) if usable else (1.0, 2.0)
    if log:
        room = max(1.3, (high / low) ** 0.08)
        return low / room, high * room
    if from_zero:
        return 0.0, high * 1.15 or 1.0
    room = (high - low) * 0.1 or abs(high) * 0.1 or 1.0
    return low - room, high + room


def _share(value: float, low: float, high: float, log: bool) -> float:
    """How far along an axis a value lies, 0 to 1."""
    if log:
        low, high, value = (math.log(max(one, 1e-300)) for one in (low, high, value))
    return (value - low) / (high - low)


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade, or fewer where there are many; at least two."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    every = max(1, len(decades) // 7)
    values = [step * 10.0**power for power in decades[::every] for step in steps]
    found = [value for value in values if low <= value <= high]
    return found if len(found) > 1 else [low * (high / low) ** share for share in (0.1, 0.5, 0.9)]


def _named_ticks(values: list[float], names: list[str]) -> dict[str, Any]:
    if not values:
        return {}
    return {"values": values, "labelExpr": f"{_js(names)}[indexof({_js(values)}, datum.value)]"}


def _js(value: Any) -> str:
    """A list as an expression of Vega."""
    return json.dumps(value, ensure_ascii=False)
