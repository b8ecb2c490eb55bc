"""Plots are well-formed, say in words what they show, and escape what students type."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from labkit.panel import plot_layout
from labkit.panel.plot import (
    Mark,
    Plot,
    Series,
    SeriesKind,
    describe,
    number,
    rows,
    table,
    text_table,
)
from labkit.panel.plot_scales import Axis, scales
from labkit.panel.plot_svg import render

PLOT = Plot(
    "DP-3: <scaling>",
    "ranks",
    "time (ms)",
    (
        Series("measured here", (Mark(1, 10, "1", 9, 11, (9.5, 10, 10.5)), Mark(2, 6, "2"))),
        Series("published: CERN & co", (Mark(1, 12), Mark(2, 7)), SeriesKind.PUBLISHED),
    ),
    caption="Xeon, tier cpu",
    prediction=5.0,
    prediction_at=2,
    prediction_text="5 ms",
)


def test_it_is_xml_with_title_and_description():
    """A screen reader gets the title and the figures; markup in texts is escaped."""
    root = ElementTree.fromstring(render(PLOT))
    title, description = root[0].text, root[1].text
    assert root.get("role") == "img"
    assert title == "DP-3: <scaling>"
    assert "Prediction: 5 ms" in description
    assert "2 6" in description


def test_prediction_and_published_row_are_drawn_in():
    """The student's cross is in the legend, the published series dashed and hollow."""
    drawn = render(PLOT)
    assert "you predicted 5 ms" in drawn
    assert 'stroke-dasharray="7 5"' in drawn
    assert "published: CERN &amp; co" in drawn


def test_everything_lies_inside_the_picture():
    """No point, dot or interval is drawn outside the frame."""
    root = ElementTree.fromstring(render(PLOT))
    circles = [item for item in root.iter() if item.tag.endswith("circle")]
    assert len(circles) >= 5
    assert all(
        0 <= float(item.get("cx")) <= 760 and 0 <= float(item.get("cy")) <= 432 for item in circles
    )


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


@pytest.mark.parametrize(
    ("low", "high", "log"), [(0, 1, False), (1, 1000, True), (64, 128, True), (1e-6, 2e-6, False)]
)
def test_ticks_are_few_and_inside(low, high, log):
    """Two to ten ticks on any axis."""
    ticks = Axis(low, high, 0, 100, log).ticks()
    assert 2 <= len(ticks) <= 10
    assert all(low * 0.99 - 1e-12 <= tick <= high * 1.01 for tick in ticks)


def test_an_empty_plot_is_still_a_picture():
    """Before the first sample there is a frame, whose axes have names and no numbers yet."""
    empty = Plot("t", "x", "y", (Series("measured here", ()),))
    assert ElementTree.fromstring(render(empty)).tag.endswith("}svg")
    assert not [words for *_, words in lines_of(empty) if words[0].isdigit()]


LONG = "published: a very long name of a row, with its source, its tool, its size, and its year"


def lines_of(plot):
    """Every text drawn: where it begins, its height, its words."""
    found = (item for item in ElementTree.fromstring(render(plot)).iter() if item.text)
    texts = (item for item in found if item.tag.endswith("}text"))
    return [(float(item.get("x")), float(item.get("y")), item.text) for item in texts]


def test_no_legend_is_cut_off():
    """A long name goes on in the next line, whole, and nothing is written over it."""
    names = ("measured here", LONG, "published: short", "published: another")
    plot = Plot("t", "x", "y", tuple(Series(name, (Mark(1, 1),)) for name in names), "caption")
    texts = [text for text in lines_of(plot) if text[1] > 370]
    assert " ".join(words for _, _, words in texts) == " ".join([*names, "caption"])
    assert all(len(words) <= plot_layout.LINE_CHARACTERS for _, _, words in texts)
    assert len({(x, y) for x, y, _ in texts}) == len(texts)
    box = ElementTree.fromstring(render(plot)).get("viewBox").split()
    assert all(y < float(box[3]) for _, y, _ in texts)


def test_a_caption_is_whole():
    """However long it is, no line of it is left out."""
    caption = "one rank " * 60
    plot = Plot("t", "x", "y", (Series("a", (Mark(1, 1),)),), caption)
    assert " ".join(words for _, y, words in lines_of(plot) if y > 380).count("rank") == 60


def test_ticks_do_not_overlap_and_measured_ones_come_first():
    """Where a published place is beside a measured one, the measured one keeps its label."""
    plot = Plot(
        "t",
        "x",
        "y",
        (
            Series("published", (Mark(2, 2), Mark(3, 4), Mark(7, 8)), SeriesKind.PUBLISHED),
            Series(
                "measured", (Mark(2.06, 1, "64 SMs"), Mark(4.1, 2, "32 SMs"), Mark(8, 3, "16 SMs"))
            ),
        ),
    )
    words = [words for _, y, words in lines_of(plot) if y == 330]
    assert words == ["64 SMs", "3", "32 SMs", "7", "16 SMs"]


def test_labels_at_one_place_are_one():
    """Two labels of the same pixel: the first stays."""
    ticks = [(100.0, "first"), (100.0, "second"), (300.0, "far")]
    assert plot_layout.clear_of_each_other(ticks) == [(100.0, "first"), (300.0, "far")]


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


def test_categories_are_bars_with_names_and_no_numbers():
    """A name has no place between numbers: a bar each, from zero, its value above it."""
    drawn = render(BARS)
    root = ElementTree.fromstring(drawn)
    bars = [item for item in root.iter() if item.get("fill-opacity") in ("0.35", "0")]
    words = {words for _, _, words in lines_of(BARS)}
    assert len(bars) == 3
    assert "polyline" not in drawn
    assert {"naive", "honest", "2", "9", "7"} <= words
    assert "0.5" not in words


@pytest.mark.parametrize(
    ("predicted", "category", "value"),
    [(2.3, "naive", "2"), (9.3, "a label of many words", "9")],
)
def test_a_bars_value_is_clear_of_the_predictions_cross(predicted, category, value):
    """Above it, or inside the bar where there is no room above."""
    said = replace(BARS, series=BARS.series[:1], prediction=predicted, prediction_at=category)
    space = scales(said)
    column = space.of(category)
    (height,) = (y for x, y, words in lines_of(said) if words == value and abs(x - column) < 80)
    assert abs(height - 5 - space.y.at(predicted)) >= 14


@pytest.mark.parametrize(("count", "is_tight"), [(4, False), (8, True)])
def test_labels_that_could_touch_are_set_smaller(count, is_tight):
    """Eight words of nine characters would run into one another where the font is wide."""
    labels = tuple(f"{letter}ecompute" for letter in "abcdefgh"[:count])
    marks = tuple(Mark(0.0, 1.0, label) for label in labels)
    series = (Series("measured here", marks),)
    plot = replace(BARS, series=series, categories=labels, prediction_at=labels[0])
    assert scales(plot).are_ticks_tight is is_tight
    assert ('font-size="13">hecompute' in render(plot)) is is_tight


def test_a_prediction_stands_at_the_place_it_is_about():
    """A cross at its x or category, not a line over the whole plot."""
    for plot, place in ((PLOT, 2.0), (BARS, "honest")):
        here = scales(plot).of(place)
        lines = [item for item in ElementTree.fromstring(render(plot)).iter()]
        arms = [item for item in lines if item.get("stroke-width") == "3"]
        middles = {(float(item.get("x1")) + float(item.get("x2"))) / 2 for item in arms}
        assert any(middle == pytest.approx(here, abs=0.1) for middle in middles)
        assert "you predicted" in render(plot)


def test_a_prediction_far_off_does_not_flatten_what_was_measured():
    """It is drawn at the edge."""
    far = replace(PLOT, prediction=1e9, prediction_text="a lot")
    assert scales(far).y.high < 50
    assert "you predicted a lot (above this scale)" in render(far)
    assert "this scale" not in render(PLOT)


def test_what_is_computed_is_not_drawn_as_measured():
    """Measured marks are filled, computed and published ones outlines."""
    for kind, filled in (
        (SeriesKind.MEASURED, True),
        (SeriesKind.COMPUTED, False),
        (SeriesKind.PUBLISHED, False),
    ):
        drawn = render(Plot("t", "x", "y", (Series("a", (Mark(1, 1), Mark(2, 2)), kind),)))
        circles = [i for i in ElementTree.fromstring(drawn).iter() if i.tag.endswith("circle")]
        assert circles
        assert all((item.get("fill") != "none") is filled for item in circles)


def test_a_curve_is_a_line_without_points():
    """A bound is drawn through, and is no row of the data table."""
    curve = Series("ideal", (Mark(1, 1), Mark(2, 0.5)), SeriesKind.CURVE)
    plot = Plot("t", "x", "y", (Series("measured here", (Mark(1, 1), Mark(2, 0.8))), curve))
    assert render(plot).count("<polyline") == 2
    assert len(rows(plot)) == 2
    assert "ideal" in describe(plot)


@pytest.mark.parametrize("log_y", [False, True])
def test_no_label_of_the_y_axis_lies_over_its_ticks(log_y):
    """However long the numbers, they end right of the label."""
    marks = (Mark(1, 1.7e13), Mark(2, 3.3e38 if log_y else 2.9e13))
    plot = Plot("t", "x", "loss scale", (Series("a", marks),), log_y=log_y)
    left = scales(plot).left - 8
    ticks = [words for x, _, words in lines_of(plot) if abs(x - left) < 0.1]
    assert ticks
    assert all(left - plot_layout.TICK_CHARACTER * len(words) >= 28 for words in ticks)


STACK = replace(
    BARS,
    series=(
        Series("parameters", (Mark(0, 2, "plain", is_computed=True), Mark(1, 2, "shared"))),
        Series("gradients", (Mark(0, 3, "plain", is_computed=True), Mark(1, 1, "shared"))),
    ),
    prediction=None,
    categories=("plain", "shared"),
    is_stacked=True,
)


def test_stacked_bars_stand_on_one_another_with_their_sum_on_top():
    """Parts of a whole: each begins where the one below ends, and what was computed is hollow."""
    root = ElementTree.fromstring(render(STACK))
    bars = [item for item in root.iter() if item.get("fill-opacity") in ("0.35", "0")]
    first, _, second, _ = bars
    assert float(first.get("y")) == pytest.approx(
        float(second.get("y")) + float(second.get("height"))
    )
    assert first.get("x") == second.get("x")
    assert [bar.get("fill-opacity") for bar in bars] == ["0", "0.35", "0", "0.35"]
    assert {"5", "3"} <= {words for _, _, words in lines_of(STACK)}
