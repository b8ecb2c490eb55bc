"""The student decides first: prediction beside result, then a claim, then the verdict."""

import asyncio
from dataclasses import replace

import pytest

from labkit.evidence import evidence as store
from labkit.evidence import replay
from labkit.evidence.check import Check, everywhere
from labkit.evidence.checks import CHECKS
from labkit.evidence.evidence import Evidence, Point
from labkit.evidence.prediction import Prediction, Trend, predict
from labkit.evidence.relations import Exactly
from labkit.notebook.catalogue import EXPERIMENTS, reading
from labkit.notebook.experiments import experiment
from labkit.notebook.steps import computed_step
from labkit.notebook.summary import summary
from labkit.panel.answers import comparison
from labkit.panel.experiment import Experiment
from labkit.panel.panel import Panel
from labkit.panel.picture import plot_of
from labkit.panel.plot_svg import render
from labkit.panel.runner import Runner
from labkit.panel.widgets import Widgets
from labkit.records import Verdict

PACKED = Check(
    "MIG-12",
    "No packing of one GPU strands fewer SMs than seven 1g.5gb",
    Exactly("SMs used by the best packing", "98", lambda value: value == 98),
    "profile table: 7 x 14 of 98 SMs",
    everywhere(Verdict.SUPPORTED),
)
"""A claim about points that are computed, so that no child is started."""
LINE = Experiment("X-1", "t", "q", (), "x", "ms", unit="ms")
POINTS = (Point(1, "one", 10.0), Point(2, "two", 20.0))


@pytest.fixture(autouse=True)
def _somebody_is_there(monkeypatch, tmp_path):
    for name in ("LAB_QUICK", "LAB_HEADLESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(CHECKS, "MIG-12", PACKED)


def seen(prediction, points=POINTS):
    return Evidence("X-1", "t", "ms", "here", "cpu", "", points, prediction, ended="now")


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (20.0, "it is 20 ms at two: exactly as predicted"),
        (19.0, "within 10 % of the prediction"),
        (5.0, "4 times the prediction"),
        (100.0, "0.2 times the prediction"),
        (-5.0, "25 more than predicted"),
    ],
)
def test_a_number_is_compared_with_the_result(said, says):
    """In one sentence, whatever was said."""
    assert says in comparison(LINE, seen(Prediction("why", "", said, "ms")))


@pytest.mark.parametrize(
    ("trend", "says"),
    [
        (Trend.RISES, "it rises, as you predicted"),
        (Trend.FLAT, "it rises; you predicted that it stays flat"),
    ],
)
def test_a_trend_is_compared_with_both_ends(trend, says):
    """From the first point to the last."""
    said = comparison(replace(LINE, unit=None), seen(Prediction("why", "", trend=trend)))
    assert said.startswith("From 10 (one) to 20 (two): ")
    assert says in said


def test_a_cross_is_drawn_for_an_end_of_an_interval():
    """What is asked of T-1 is no point's value; its cross stands over the point all the same."""
    point = Point(1.0, "itself", 1.0, low=0.97, high=1.02)
    shown = seen(Prediction("why", "", 1.1, "x"), (point,))
    drawn = render(plot_of(EXPERIMENTS["T-1"], shown))
    assert "it is 1.02 x at the interval" in comparison(EXPERIMENTS["T-1"], shown)
    assert drawn.count('stroke-width="3"') == 4  # two arms in the plot, two in the legend


def packing_runner(folder, best=98.0):
    """MIG-12, whose points are computed: no child is started."""
    steps = (
        computed_step("3x2g.10gb", 0, lambda: 84.0),
        computed_step("the best", 1, lambda: best),
    )
    read = reading.values("SMs used by the best packing", "the best")
    return Runner(replace(EXPERIMENTS["MIG-12"], steps=steps, check="MIG-12", data=read), folder)


def run_by_hand(runner):
    asyncio.run(runner.run(predict("84", "I counted", "SMs"), headless=False))


def test_no_verdict_before_a_claim_and_the_first_claim_counts(tmp_path):
    """Prediction, result and the question; then one's own verdict; then the data's."""
    runner = packing_runner(tmp_path / "evidence")
    run_by_hand(runner)
    assert "You predicted 84 SMs; it is 98 SMs at the best" in runner.message
    assert "What do the data say of it?" in runner.message
    assert "supported" not in runner.message
    assert "make your claim" in str(summary("MIG-12"))
    runner.explain("one slice is left over", Verdict.CONTRADICTED)
    assert "You say: contradicted." in runner.message
    assert "supported, as expected here" in runner.message
    runner.explain("on second thoughts", Verdict.SUPPORTED)
    kept = store.load(tmp_path / "evidence" / "MIG-12.json")
    assert (kept.verdict_read, kept.explanation) == (Verdict.CONTRADICTED, "on second thoughts")
    assert "you: contradicted; data: supported" in str(summary("MIG-12"))


def test_an_explanation_without_a_claim_shows_no_verdict(tmp_path):
    """Keep alone keeps the words and asks again."""
    runner = packing_runner(tmp_path)
    run_by_hand(runner)
    runner.explain("because", None)
    assert "What do the data say of it?" in runner.message
    assert "supported" not in runner.message


def test_a_second_run_and_another_day_keep_the_words(tmp_path):
    """They are the student's until the student writes others."""
    first = packing_runner(tmp_path)
    run_by_hand(first)
    first.explain("one slice is left over", None)
    another_day = packing_runner(tmp_path)
    field = Widgets(Panel(another_day.experiment, tmp_path)).explanation
    assert field.value == "one slice is left over"
    run_by_hand(another_day)
    assert store.load(tmp_path / "MIG-12.json").explanation == "one slice is left over"
    another_day.show_recorded(another_day.evidence, predict("84", "I counted", "SMs"))
    run_by_hand(another_day)
    assert store.load(tmp_path / "MIG-12.json").explanation == "one slice is left over"


def test_nobody_at_the_panel_gets_the_verdict_at_once(tmp_path):
    """A headless run has no one to ask."""
    runner = packing_runner(tmp_path, best=108.0)
    asyncio.run(runner.run(None, headless=True))
    assert "contradicted, although supported was expected here" in runner.message


def test_a_recorded_run_stands_beside_ones_own(tmp_path):
    """After a run the button shows it as a second plot; sentence, verdict and evidence stay."""
    panel = Panel(EXPERIMENTS["MX-5"], tmp_path)
    said = predict("5", "it is safe", "%")
    own = replace(replay.recorded("MX-5"), replayed_from=None, prediction=said)
    panel.runner.evidence, panel.runner.message = own, "You predicted 5 %; it is 10 %."
    widgets = Widgets(panel)
    widgets.update(panel)
    assert widgets.beside.value == ""
    panel.replay()
    widgets.update(panel)
    assert (panel.evidence, panel.runner.message) == (own, "You predicted 5 %; it is 10 %.")
    assert "not yours" in widgets.beside.value and "<svg" in widgets.beside.value
    assert "not yours" not in widgets.plot.value and "not yours" not in widgets.status.value
    assert "not yours" in panel._repr_mimebundle_()[0]["text/html"]


def test_a_recorded_run_is_judged_by_the_student_first_and_never_kept(tmp_path):
    """As with one's own: prediction, claim, verdict; nothing is saved."""
    runner = Runner(EXPERIMENTS["MX-5"], tmp_path)
    runner.show_recorded(replay.recorded("MX-5"), predict("5", "it is safe", "%"))
    assert "not yours" in runner.message
    assert "You predicted 5 %; it is 100 % at 2^-10" in runner.message
    assert "as expected" not in runner.message
    runner.explain("small scales lose all", Verdict.SUPPORTED)
    assert "as expected" in runner.message
    assert not list(tmp_path.iterdir())


def test_a_device_that_cannot_be_asked_says_so_and_asks_no_claim(tmp_path):
    """Not applicable, why, and where it can be seen."""
    data = {"fp32 time": (1.0,), "bf16 time": (1.0,)}
    known = replace(EXPERIMENTS["MX-2"], unit="SMs", data=lambda _: data)
    runner = Runner(replace(known, steps=(computed_step("a", 0, lambda: 1.0),)), tmp_path)
    run_by_hand(runner)
    assert "not a question for this device, because" in runner.message
    assert "The recorded run of a GPU can show it." in runner.message
    assert "What do the data say" not in runner.message


def test_a_panel_without_steps_offers_no_run(tmp_path):
    """What this device cannot measure is said before anybody predicts."""
    panel = Panel(replace(LINE, steps=()), tmp_path)
    assert "cannot measure that" in panel.runner.message
    panel.lock_in("3", "a guess")
    assert not panel.can_run


def test_an_experiment_of_ones_own_needs_only_words():
    """A key that no notebook has, with its texts."""
    words = {"title": "Mine", "question": "How many?", "x_label": "x", "y_label": "ms"}
    made = experiment("MY-1", computed_step("a", 1, lambda: 1.0), **words, unit="ms")
    assert made.experiment.unit == "ms"
