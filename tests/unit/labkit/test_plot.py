"""Plots say in words what they show, and are drawn so that everything on them can be read."""

import itertools
import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import vl_convert

from labkit.evidence import evidence as store
from labkit.notebook.catalogue import EXPERIMENTS
from labkit.panel import labels, theme, vega
from labkit.panel.plot import (
    Mark,
    Plot,
    Series,
    SeriesKind,
    describe,
    plot_of,
    rows,
    table,
    text_table,
)
from labkit.shown import number
from labkit_grading import figures

OWN = Series("measured here", (Mark(1, 10, "1", 9, 11, (9.5, 10, 10.5)), Mark(2, 6, "2")))
PUBLISHED = Series("published: CERN & co", (Mark(1, 12), Mark(2, 7)), SeriesKind.PUBLISHED)
PLOT = Plot(
    "DP-3: <scaling>",
    "ranks",
    "time (ms)",
    (OWN, PUBLISHED),
    caption="Xeon, tier cpu",
    prediction=5.0,
    prediction_at=2,
    prediction_text="5 ms",
)
BARS = Plot(
    "T-2: timers",
    "timer",
    "ms",
    (
        Series("measured here", (Mark(0, 2, "naive"), Mark(1, 9, "a label of many words"))),
        Series("published", (Mark(0, 7, "honest"),), SeriesKind.PUBLISHED),
        Series("limit", (Mark(0, 8),), SeriesKind.CURVE),
    ),
    prediction=4.0,
    prediction_at="honest",
    prediction_text="4 ms",
    categories=("naive", "a label of many words", "honest"),
)


def layers(plot, kind):
    """The layers of a specification that draw this kind of mark."""
    return [layer for layer in vega.spec(plot)["layer"] if layer["mark"]["type"] == kind]


def values(layer):
    return layer["data"]["values"]


def domain(plot, axis="y"):
    """Where an axis ends; the same in every layer."""
    ends = {
        tuple(layer["encoding"][axis]["scale"]["domain"])
        for layer in vega.spec(plot)["layer"]
        if axis in layer["encoding"]
    }
    assert len(ends) == 1
    return ends.pop()


def test_the_table_says_the_same():
    """Each mark is a row, in HTML and as text."""
    assert len(rows(PLOT)) == 4
    assert ElementTree.fromstring(table(PLOT)).find(".//tbody/tr/th").text == "measured here"
    assert "9 – 11" in text_table(PLOT)
    assert "measured here: 1 10, 2 6" in describe(PLOT)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234.5, "1234"),
        (0.04567, "0.0457"),
        (1e9, "10⁹"),
        (2.5e-7, "2.5 · 10⁻⁷"),
        (100, "100"),
        (float("nan"), "–"),
    ],
)
def test_numbers_have_three_figures(value, text):
    """Readable numbers, also at the ends."""
    assert number(value) == text


EMPTY = replace(PLOT, series=(), prediction_at=None)


@pytest.mark.parametrize("plot", [PLOT, BARS, replace(PLOT, log_x=True), EMPTY])
def test_it_is_drawn_and_described(plot):
    """Vega-Lite takes it, with a title and a description; before the first sample it is a frame.

    It has a width before it stands in the page: the signal that the patch replaces is the width.
    The legend's symbols are not as faint as the samples, whose colours one could not tell apart.
    A published series has one colour in every plot.
    """
    compiled = vl_convert.vegalite_to_vega(vega.spec(plot), vl_version="5.8")
    assert compiled["signals"][0]["name"] == theme.EMBED["patch"][0]["value"]
    symbols = [legend["encode"]["symbols"]["update"] for legend in compiled.get("legends", ())]
    assert not any("opacity" in update for update in symbols)
    svg_root = ElementTree.fromstring(figures.svg(plot))
    assert svg_root.tag.endswith("}svg")
    assert plot.title in "".join(svg_root.itertext())
    assert "Prediction: " in vega.spec(plot)["description"]
    if plot.series:
        scale = vega.spec(plot)["layer"][-1]["encoding"]["color"]["scale"]
        colours = dict(zip(scale["domain"], scale["range"], strict=True))
        assert {colours[name] for name in colours if "published" in name} == {vega.PUBLISHED}


def test_an_interval_is_drawn_over_its_point_and_broader_than_it():
    """Its ends are seen where it is shorter than the dot, too; pointing says what the table says:
    name, value, interval and number of samples.
    """
    kinds = [layer["mark"]["type"] for layer in vega.spec(PLOT)["layer"]]
    caps, points = layers(PLOT, "tick")[-1], layers(PLOT, "point")[0]
    dots = values(points)
    assert kinds.index("rule") > kinds.index("point")
    assert caps["mark"]["size"] > max(dot["size"] for dot in dots) ** 0.5
    assert {row["value"] for row in values(caps)} == {9, 11}
    assert caps["encoding"]["tooltip"] == points["encoding"]["tooltip"]
    tooltip = [dots[0][channel["field"]] for channel in points["encoding"]["tooltip"]]
    assert tooltip == ["1", "10", "9 – 11", "3", "measured here"]


@pytest.mark.parametrize("is_zoomed", [True, False])
def test_outliers_set_no_axis(is_zoomed):
    """One sample of a hundred times the others is left to the table."""
    marks = (Mark(1, 1.0, "a", 0.98, 1.02, (*[0.99, 1.0, 1.01] * 8, 100.0)),)
    plot = replace(PLOT, series=(Series("a", marks),), prediction=None, is_zoomed=is_zoomed)
    assert domain(plot)[1] < 1.3
    assert len(values(layers(plot, "tick")[0])) == 24


@pytest.mark.parametrize(("predicted", "shape"), [(1e9, "triangle"), (5.0, None)])
def test_a_prediction_far_off_is_an_arrow_at_the_rim(predicted, shape):
    """It does not flatten what was measured; a near one is a cross at its place."""
    plot = replace(PLOT, prediction=predicted, prediction_text="a lot")
    predictions = layers(plot, "point")[-1]
    assert domain(plot)[1] < 50
    assert predictions["mark"].get("shape") == shape
    assert values(predictions)[0]["place"] == 2
    assert "you predicted a lot" in json.dumps(vega.spec(plot))


def test_categories_are_bars_below_each_other_with_their_values():
    """A name has no place between numbers; side by side where several series have it."""
    (bars,) = layers(BARS, "bar")
    assert [row["place"] for row in values(bars)] == ["naive", "a label of many words", "honest"]
    assert bars["encoding"]["y"]["type"] == "nominal"
    assert "yOffset" in bars["encoding"]
    assert [row["text"] for row in values(layers(BARS, "text")[0])] == ["2", "9", "7"]
    assert domain(BARS, "x")[0] == 0


def test_what_is_computed_is_not_drawn_as_measured():
    """Measured marks are filled, all others outlines."""
    for kind in set(SeriesKind) - {SeriesKind.CURVE}:
        plot = Plot("t", "x", "y", (Series("a", (Mark(1, 1), Mark(2, 2)), kind),))
        solid = {row["solid"] for row in values(layers(plot, "point")[0])}
        assert solid == {int(kind is SeriesKind.MEASURED)}


def test_a_curve_is_a_line_without_points():
    """A bound is drawn through, and is no row of the data table."""
    curve = Series("ideal", (Mark(1, 1), Mark(2, 0.5)), SeriesKind.CURVE)
    plot = Plot("t", "x", "y", (Series("measured here", (Mark(1, 1), Mark(2, 0.8))), curve))
    assert len(layers(plot, "line")) == 2
    assert len(values(layers(plot, "point")[0])) == 2
    assert len(rows(plot)) == 2
    assert "ideal" in describe(plot)


@pytest.mark.parametrize(
    ("labels", "tick_labels"),
    [(("64 SMs", "32 SMs"), ["32 SMs", "64 SMs"]), (("copy", "matmul"), []), (("", ""), [])],
)
def test_ticks_are_of_one_kind_and_points_have_their_names(labels, tick_labels):
    """Names of places are ticks; names of work stand at the points, and the ticks are numbers."""
    marks = tuple(Mark(x, 1.0, label) for x, label in zip((3.0, 7.0), labels, strict=True))
    plot = Plot("t", "x", "y", (Series("a", marks), replace(PUBLISHED, marks=(Mark(5, 1),))))
    axis = layers(plot, "point")[0]["encoding"]["x"]["axis"]
    assert all(label in axis.get("labelExpr", "") for label in tick_labels)
    assert ("labelExpr" in axis) is bool(tick_labels)
    point_labels = {row["text"] for layer in layers(plot, "text") for row in values(layer)}
    assert point_labels == ({"copy", "matmul"} if "copy" in labels else set())


@pytest.mark.parametrize(("low", "high"), [(1, 1000), (64, 128), (1e-6, 2e-6), (3, 3.1)])
def test_a_scale_of_powers_has_two_to_ten_ticks(low, high):
    """All of them inside."""
    ticks = theme.log_ticks(low, high)
    assert 2 <= len(ticks) <= 10
    assert all(low * 0.99 <= tick <= high * 1.01 for tick in ticks)


def test_no_legend_is_cut_off():
    """A long name goes on in the next line, whole."""
    long = "published: a very long name of a row, with its source, its tool, its size and its year"
    plot = replace(PLOT, series=(OWN, replace(PUBLISHED, name=long)))
    svg_text = " ".join("".join(ElementTree.fromstring(figures.svg(plot)).itertext()).split())
    assert long.replace(" ", "") in svg_text.replace(" ", "")


def test_stacked_bars_stand_on_one_another():
    """Parts of a whole: each begins where the one below ends."""
    parts = (
        Series("parameters", (Mark(0, 2, "plain", is_computed=True), Mark(1, 2, "shared"))),
        Series("gradients", (Mark(0, 3, "plain", is_computed=True), Mark(1, 1, "shared"))),
    )
    stack = replace(
        BARS, series=parts, prediction=None, categories=("plain", "shared"), is_stacked=True
    )
    spans = [(row["from"], row["value"]) for row in values(layers(stack, "bar")[0])]
    assert spans == [(0, 2), (0, 2), (2, 5), (2, 3)]
    assert "yOffset" not in layers(stack, "bar")[0]["encoding"]


def names_on(drawing):
    """The boxes of a plot's names, on the page that they are placed for."""
    for layer in drawing.layers():
        mark = layer["mark"]
        if mark["type"] != "text":
            continue
        for row in layer["data"]["values"]:
            x, y = drawing._pixels(row["place"], row["value"], vega.WIDE)
            spot = labels.LabelPosition(mark["align"], mark["dx"], mark["dy"])
            yield row["text"], labels._box(row["text"], (x, y), spot)


def test_no_name_lies_on_a_mark_or_on_another_name():
    """T-4, whose recorded products lie close to three roofs."""
    drawing = vega._Drawing(plot_of(EXPERIMENTS["T-4"], store.recorded("T-4")))
    named = dict(names_on(drawing))
    assert {"axpy", "matmul", "matmul, TF32", "matmul, bf16"} <= named.keys()
    points = [
        drawing._pixels(mark.x, mark.y, vega.WIDE)
        for series in drawing.pointed
        for mark in series.marks
    ]
    for name, (left, top, right, bottom) in named.items():
        assert not [(x, y) for x, y in points if left < x < right and top < y < bottom], name
        assert left >= 0, name
        assert right <= vega.WIDE, name
    for (name, box), (other, other_box) in itertools.combinations(named.items(), 2):
        is_apart = box[2] <= other_box[0] or other_box[2] <= box[0]
        assert is_apart or box[3] <= other_box[1] or other_box[3] <= box[1], (name, other)


def test_the_saw_tooth_of_a_scale_is_high_enough_to_be_seen():
    """One step of two takes at least a tenth of the plot; both scales are told apart."""
    drawing = vega._Drawing(plot_of(EXPERIMENTS["MX-7"], store.recorded("MX-7")))
    low, high = (drawing._pixels(0, scale)[1] for scale in (2.0**30, 2.0**31))
    assert low - high > vega.HIGH / 10
    own, torchs = (layer["mark"] for layer in drawing.layers() if layer["mark"]["type"] == "line")
    assert own["interpolate"] == torchs["interpolate"] == "step-after"
    assert own["strokeWidth"] > torchs["strokeWidth"]
    ticks = drawing._value_axis()["axis"]["labelExpr"]
    assert "2³⁰" in ticks


def test_the_law_is_drawn_through_the_smallest_part_and_all():
    """And not where all is no faster, as on a busy CPU."""
    evidence = store.recorded("CH-1")
    ((name, line),) = EXPERIMENTS["CH-1"].curves(evidence.points).items()
    graphs = [point for point in evidence.points if not point.series]
    assert "a + b / s" in name
    assert line[0] == pytest.approx((graphs[0].x, graphs[0].value))
    assert line[-1] == pytest.approx((graphs[-1].x, graphs[-1].value))
    slower = [replace(point, value=100.0) for point in graphs]
    assert EXPERIMENTS["CH-1"].curves(slower) == {}
