"""What all drawings share: their look, their axes, and how JupyterLab is told to draw them.

Only what Vega-Lite 5.6 knows, JupyterLab's own. Words and axes take the page's colour, so that a
change of theme needs no new drawing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from labkit.panel.plot import Plot, Series, SeriesKind

NEAR = 3.0  # a bound, an ideal or a prediction sets the axis if it is as near as the axis is long
FENCE = 2.0  # quartile distances beyond which a sample is an outlier
MIME = "application/vnd.vegalite.v5+json"
INK = "currentColor"
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
STYLE: dict[str, Any] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        **{f"{part}Color": INK for part in ("label", "title", "domain", "tick", "grid")},
        "gridOpacity": 0.15,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {
        "title": None,
        "orient": "bottom",
        "direction": "vertical",
        "columns": 1,
        "labelColor": INK,
        "labelFontSize": 12,
        "labelLimit": 0,
        "symbolSize": 70,
        "symbolOpacity": 1,  # else as faint as the samples
        "layout": {"bottom": {"anchor": "start", "bounds": "full"}},
    },
    "title": {"color": INK, "subtitleColor": INK, "anchor": "start", "fontSize": 14},
    "text": {"color": INK, "fontSize": 12},
}


def output(
    specification: dict[str, Any], description: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The data and the metadata with which a notebook's output draws a specification."""
    return {MIME: specification, "text/plain": description}, {MIME: {"embed_options": EMBED}}


def frame(
    description: str, height: Any, layers: list[Any], width: int | str = "container"
) -> dict[str, Any]:
    """A Vega-Lite specification of these layers in the common style."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "description": description,
        "width": width,
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": STYLE,
        "layer": layers,
    }


def value_domain(plot: Plot) -> tuple[float, float]:
    """The range of the value axis: all points and intervals; lines and the prediction if near."""
    if plot.ends is not None:
        return plot.ends
    must = [value for series in plot.series for value in _values_to_show(series)]
    if plot.is_stacked:
        stack_heights: dict[str, float] = {}
        for mark in (mark for series in plot.series for mark in series.marks):
            stack_heights[mark.label] = stack_heights.get(mark.label, 0.0) + mark.y
        must = list(stack_heights.values())
    guests = [
        m.y for series in plot.series if series.kind is SeriesKind.CURVE for m in series.marks
    ]
    guests += [] if plot.prediction is None else [plot.prediction]
    if not must:
        must = [*(plot.range_before or ()), *guests]
    is_from_zero = not plot.log_y and not plot.is_zoomed and min(must, default=0.0) >= 0
    low, high = domain(must, plot.log_y, from_zero=is_from_zero)
    near = [guest for guest in guests if _is_near(guest, low, high, plot.log_y)]
    return domain([*must, *near], plot.log_y, from_zero=is_from_zero)


def _values_to_show(series: Series) -> Iterator[float]:
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
    return -NEAR <= share(value, low, high, log) <= 1 + NEAR


def domain(values: Iterable[float], log: bool, *, from_zero: bool = False) -> tuple[float, float]:
    """The range of an axis that holds these values, with some room around them."""
    usable = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = (min(usable), max(usable)) if usable else (1.0, 2.0)
    if log:
        room = max(1.3, (high / low) ** 0.08)
        return low / room, high * room
    if from_zero:
        return 0.0, high * 1.15 or 1.0
    room = (high - low) * 0.1 or abs(high) * 0.1 or 1.0
    return low - room, high + room


def share(value: float, low: float, high: float, log: bool) -> float:
    """How far along an axis a value lies, 0 to 1."""
    if log:
        low, high, value = (math.log(max(number, 1e-300)) for number in (low, high, value))
    return (value - low) / (high - low)


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade, or fewer where there are many; at least two."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    every = max(1, len(decades) // 7)
    values = [step * 10.0**power for power in decades[::every] for step in steps]
    ticks = [value for value in values if low <= value <= high]
    return ticks if len(ticks) > 1 else [low * (high / low) ** share for share in (0.1, 0.5, 0.9)]


def number_axis(
    field: str, ends: tuple[float, float], axis: Mapping[str, Any], *, log: bool
) -> dict[str, Any]:
    """An axis of numbers, as an encoding of Vega-Lite."""
    scale = {"type": "log" if log else "linear", "domain": ends, "nice": False, "zero": False}
    return {"field": field, "type": "quantitative", "scale": scale, "axis": axis}


def named_ticks(values: list[float], names: list[str]) -> dict[str, Any]:
    """The axis options for these ticks and names; without ticks empty, so that Vega chooses."""
    return {"values": values, "labelExpr": label_expression(values, names)} if values else {}


def label_expression(values: Sequence[Any], names: Sequence[Any]) -> str:
    """The Vega expression that maps each value to its label, a text or several lines."""
    names_json, values_json = (json.dumps(some, ensure_ascii=False) for some in (names, values))
    return f"{names_json}[indexof({values_json}, datum.value)]"
