"""The student decides first: prediction beside result, then a claim, then the verdict."""

import asyncio
import json
from dataclasses import replace

import pytest

from labkit.evidence import evidence as store
from labkit.evidence.check import Check, on_every_tier
from labkit.evidence.checks import CHECKS, is_denied_for
from labkit.evidence.evidence import Evidence, Point, Prediction, Trend, predict
from labkit.evidence.relations import values_in
from labkit.notebook.catalogue import EXPERIMENTS
from labkit.notebook.steps import computed_step
from labkit.notebook.summary import summary
from labkit.panel.experiment import Experiment, comparison
from labkit.panel.panel import Panel
from labkit.panel.plot import plot_of
from labkit.panel.runner import Runner
from labkit.panel.theme import MIME
from labkit.panel.vega import spec
from labkit.panel.widgets import Widgets
from labkit.records import Verdict
from labkit_grading.grading import experiment_rows
from labkit_grading.submissions import Submission

USED = "SMs used by the best packing"
KEYS = ("MIG-12", "MX-5", "MX-2")
PACKED = Check(
    "No packing of one GPU strands fewer SMs than seven 1g.5gb",
    "Some packing of one GPU strands fewer SMs than seven 1g.5gb",
    values_in(USED, 98, 99),
    "the profiles that were counted",
    on_every_tier(Verdict.SUPPORTED),
)
"""A claim about points that are computed, so that no child is started."""
TOLD, DENIED = (
    next(
        f"s{n}" for n in range(99) if all(is_denied_for(key, f"s{n}") is is_denied for key in KEYS)
    )
    for is_denied in (False, True)
)
"""Students who get the relations as claims, and their opposites."""
LINE = Experiment("X-1", "t", "q", "x", "ms", unit="ms")
POINTS = (Point(1, "one", 10.0), Point(2, "two", 20.0))


@pytest.fixture(autouse=True)
def _somebody_is_there(monkeypatch, tmp_path):
    for name in ("LAB_QUICK", "LAB_HEADLESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(CHECKS, "MIG-12", PACKED)
    monkeypatch.setenv("JUPYTERHUB_USER", TOLD)


def evidence_with(prediction, points=POINTS):
    return Evidence("X-1", "t", "ms", "here", "cpu", "", points, prediction, ended="now")


@pytest.mark.parametrize(
    ("predicted", "sentence"),
    [
        (20.0, "it is 20 ms. At two: exactly as predicted"),
        (19.0, "within 10 % of the prediction"),
        (5.0, "4 times the prediction"),
        (100.0, "0.2 times the prediction"),
        (-5.0, "25 more than predicted"),
        (Trend.RISES, "It rises, as you said. From 10 (one) to 20 (two)."),
        (Trend.FLAT, "You said it stays flat; it rises. From 10 (one) to 20 (two)."),
    ],
)
def test_what_was_predicted_is_compared_with_the_result(predicted, sentence):
    """A number with a point's, a trend with both ends; in one sentence, whatever was said."""
    if isinstance(predicted, Trend):
        prediction, unit = Prediction("why", "", trend=predicted), None
    else:
        prediction, unit = Prediction("why", "", predicted, "ms"), "ms"
    assert sentence in comparison(replace(LINE, unit=unit), evidence_with(prediction))


def test_a_cross_is_drawn_for_an_end_of_an_interval():
    """What is asked of T-1 is no point's value; its cross stands over the point all the same."""
    point = Point(1.0, "itself", 1.0, low=0.97, high=1.02)
    evidence = evidence_with(Prediction("why", "", 1.1, "x"), (point,))
    crosses = spec(plot_of(EXPERIMENTS["T-1"], evidence))["layer"][-1]["data"]["values"]
    assert "it is 1.02 x. At the interval" in comparison(EXPERIMENTS["T-1"], evidence)
    assert [row["place"] for row in crosses] == ["itself"]


def packing_runner(folder, best=98.0):
    """MIG-12, whose points are computed: no child is started."""
    steps = (
        computed_step("3x2g.10gb", 0, lambda: 84.0),
        computed_step("the best", 1, lambda: best),
    )
    packing_experiment = replace(EXPERIMENTS["MIG-12"], steps=steps)
    return Runner(
        replace(packing_experiment, data=lambda points: {USED: [points[-1].value]}), folder
    )


def run_by_hand(runner):
    asyncio.run(runner.run(predict("84", "I counted", "SMs"), headless=False))


def test_no_verdict_before_a_claim_and_the_first_claim_counts(tmp_path):
    """Prediction, result and the question; then one's own verdict; then the data's.

    Words alone are kept, and the question stays.
    """
    runner = packing_runner(tmp_path / "evidence")
    runner.explain("too early", None)
    assert runner.message.startswith("Measure first, then explain")
    run_by_hand(runner)
    assert "You said 84 SMs; it is 98 SMs. At the best" in runner.message
    assert "What do the data say of it?" in runner.message
    assert "supported" not in runner.message
    assert "make your claim" in str(summary("MIG-12"))
    runner.explain("because", None)
    assert "What do the data say of it?" in runner.message
    assert "supported" not in runner.message
    runner.explain("one slice is left over", Verdict.CONTRADICTED)
    assert "You say: contradicted." in runner.message
    assert "supported, as expected here" in runner.message
    runner.explain("on second thoughts", Verdict.SUPPORTED)
    assert "Your later answer: supported." in runner.message
    evidence = store.load(tmp_path / "evidence" / "MIG-12.json")
    assert (evidence.verdict_read, evidence.explanation) == (
        Verdict.CONTRADICTED,
        "on second thoughts",
    )
    assert "you: contradicted; data: supported" in str(summary("MIG-12"))


def test_a_second_answer_is_kept_as_one_and_the_first_counts(tmp_path):
    """Each with its time: a claim changed after the verdict, and a prediction for another run."""
    runner = packing_runner(tmp_path)
    run_by_hand(runner)
    runner.explain("", Verdict.CONTRADICTED)
    runner.explain("", Verdict.CONTRADICTED)  # pressed twice
    assert store.load(tmp_path / "MIG-12.json").later_answers == ()
    runner.explain("", Verdict.SUPPORTED)
    assert "You say: contradicted. Your later answer: supported." in runner.message
    asyncio.run(runner.run(predict("98", "I have seen it", "SMs"), headless=False))
    assert "You said 84 SMs; it is 98 SMs." in runner.message
    assert "Your later prediction: You said 98 SMs" in runner.message
    kept = store.load(tmp_path / "MIG-12.json")
    assert (kept.prediction.number, kept.verdict_read) == (84, Verdict.CONTRADICTED)
    claim, prediction = kept.later_answers
    assert (claim.claim, prediction.prediction.number) == (Verdict.SUPPORTED, 98)
    assert kept.claimed <= claim.at <= prediction.at
    assert "Later answers, which do not count: " in str(summary("MIG-12", folder=tmp_path))
    assert f"{claim.at[:16]}: you say supported" in str(summary("MIG-12", folder=tmp_path))
    (row,) = experiment_rows(Submission("ada", "ada.zip"), kept, ())
    assert f"later: {claim.at[:16]}: you say supported; later: " in row.look_at


def test_a_run_that_says_something_else_is_asked_about_anew(tmp_path):
    """What was said of the earlier one stays in the record, as a claim about an earlier run."""
    first = packing_runner(tmp_path, best=98.0)
    run_by_hand(first)
    first.explain("", Verdict.SUPPORTED)
    second = packing_runner(tmp_path, best=108.0)
    run_by_hand(second)
    assert "What do the data say of it?" in second.message
    kept = store.load(tmp_path / "MIG-12.json")
    assert kept.verdict_read is None
    assert [(a.claim, a.is_of_earlier_run) for a in kept.later_answers if a.claim] == [
        (Verdict.SUPPORTED, True)
    ]


def test_a_student_with_the_opposite_claim_is_asked_and_answered_about_that(tmp_path, monkeypatch):
    """In the question, in the verdict and in the record; of a recorded run, too."""
    monkeypatch.setenv("JUPYTERHUB_USER", DENIED)
    runner = packing_runner(tmp_path)
    run_by_hand(runner)
    assert f"The claim: “{PACKED.denies}”." in runner.message
    runner.explain("", Verdict.CONTRADICTED)
    assert f"“{PACKED.denies}”: contradicted, as expected here." in runner.message
    kept = store.load(tmp_path / "MIG-12.json")
    assert (kept.is_denied, kept.judgement.verdict) == (True, kept.verdict_read)
    assert EXPERIMENTS["MX-5"].claim(kept) == CHECKS["MX-5"].denies
    recorded = Runner(EXPERIMENTS["MX-5"], tmp_path / "of others")
    recorded.show_recorded(store.recorded("MX-5"), predict("5", "it is safe", "%"))
    assert f"The claim: “{CHECKS['MX-5'].denies}”." in recorded.message
    recorded.explain("", Verdict.SUPPORTED)
    assert "supported, as expected here" in recorded.message


def test_a_second_run_and_another_day_keep_the_words(tmp_path):
    """They are the student's until the student writes others.

    What was saved is shown, and on what it was measured; an edited file is refused in a sentence.
    """
    first = packing_runner(tmp_path)
    run_by_hand(first)
    first.explain("one slice is left over", None)
    another_day = packing_runner(tmp_path)
    assert another_day.message.startswith("Saved 20")
    assert "on computed, not measured." in another_day.message
    field = Widgets(Panel(another_day.experiment, tmp_path)).explanation
    assert field.value == "one slice is left over"
    run_by_hand(another_day)
    assert store.load(tmp_path / "MIG-12.json").explanation == "one slice is left over"
    another_day.show_recorded(another_day.evidence, predict("84", "I counted", "SMs"))
    run_by_hand(another_day)
    file = tmp_path / "MIG-12.json"
    assert store.load(file).explanation == "one slice is left over"
    file.write_text(file.read_text().replace('"value": ', '"value": 1'))
    assert "changed after it was measured" in packing_runner(tmp_path).message


def test_nobody_at_the_panel_gets_the_verdict_at_once(tmp_path):
    """A headless run has no one to ask."""
    runner = packing_runner(tmp_path, best=108.0)
    asyncio.run(runner.run(None, headless=True))
    assert "this is not what the title says: supported was expected here" in runner.message
    assert "Look at the profiles that were counted." in runner.message


def series_drawn(widgets):
    """The names in the legends of the plots that are shown."""
    plots = [output["data"] for plot in widgets.plots for output in plot.outputs]
    return " ".join(json.dumps(data[MIME], ensure_ascii=False) for data in plots)


def test_what_others_measured_is_shown_beside_ones_own_after_a_prediction(tmp_path, monkeypatch):
    """Its button is locked before, and says so; switched on, sentence and evidence stay."""
    monkeypatch.setattr(store, "CLASS", tmp_path)
    recorded = store.recorded("MX-5")
    store.save(replace(recorded, replayed_from="the class, median of 9"), tmp_path)
    panel = Panel(EXPERIMENTS["MX-5"], tmp_path / "evidence")
    panel._repr_mimebundle_()
    widgets = panel._widgets
    of_class = replace(recorded, title="<b>Mine</b>", replayed_from="the class, median of 9")
    assert plot_of(panel.experiment, of_class).title == f"MX-5: {panel.experiment.title}"
    assert [layer.description for layer in widgets.layers] == [
        "Show recorded run",
        "Show the class",
    ]
    assert all(layer.disabled for layer in widgets.layers)
    panel.switch("the class", is_on=True)
    assert "Predict first" in panel.runner.message
    panel.lock_in("5", "it is safe")
    assert not any(layer.disabled for layer in widgets.layers)
    students_run = replace(recorded, replayed_from=None, prediction=predict("5", "it is safe", "%"))
    panel.runner.evidence, panel.runner.message = students_run, "You said 5 %; it is 10 %."
    for layer, name in zip(widgets.layers, ("not yours", "the class: "), strict=True):
        assert name not in series_drawn(widgets)
        layer.value = True
        assert (panel.evidence, panel.runner.message) == (students_run, "You said 5 %; it is 10 %.")
        assert name in series_drawn(widgets)
        assert name not in widgets.status.value
        layer.value = False
        assert name not in series_drawn(widgets)


@pytest.mark.parametrize(
    ("key", "predicted", "has_numbers", "is_drawn"),
    [
        ("KN-1", None, True, False),
        ("KN-1", 50.0, True, True),
        ("WL-2", 50.0, False, False),
        ("T-4", None, False, False),
        ("MX-7", None, False, False),
        ("MX-7", 2.0**20, True, True),
    ],
)
def test_an_empty_axis_has_numbers_only_if_the_predicted_one_belongs_there(
    key, predicted, has_numbers, is_drawn, tmp_path
):
    """A ratio has no place on an axis of bits or GFLOP/s before its base is measured.

    Powers of two are those around the predicted one.
    """
    (plot,) = Panel(EXPERIMENTS[key], tmp_path).plots(predicted)
    (frame, *prediction) = spec(plot)["layer"]
    assert frame["encoding"]["y"]["axis"].get("labels", True) is has_numbers
    assert bool(prediction) is is_drawn


def test_an_empty_plot_has_a_row_for_each_label(tmp_path):
    """Steps of several series have the same labels: twice in the axis, they cut the plot short."""
    labels = ("plain", "ZeRO-3")
    measured_steps = tuple(computed_step(label, 0.0, float) for label in labels * 2)
    experiment = replace(EXPERIMENTS["SH-1"], steps=measured_steps)
    (plot,) = Panel(experiment, tmp_path).plots()
    assert plot.categories == labels


def test_the_next_step_is_open_and_its_button_is_the_strong_one(tmp_path):
    """Predict, then measure, then explain; what is said first is one sentence.

    A refused prediction is answered beside its button, where the folded steps hide the line below.
    """
    panel = Panel(packing_runner(tmp_path).experiment, tmp_path)
    panel._repr_mimebundle_()
    widgets = panel._widgets

    def strong():
        buttons = (widgets.lock, widgets.run, widgets.keep)
        return [button.description for button in buttons if button.button_style]

    def is_open():
        return [body.layout.display is None for body in widgets.bodies]

    assert (strong(), is_open()) == (["Lock in prediction"], [True, False, False])
    widgets.lock.click()
    assert panel.runner.message in widgets.refused.value
    assert widgets.status.layout.display == "none"
    widgets.slider.value = 84.0
    assert widgets.said.value == "84"
    (empty,) = widgets.plots[0].outputs
    assert '"value": 84' in json.dumps(empty["data"][MIME])
    widgets.said.value = "84.4"
    widgets.slider.value = 84.0  # a page rounds what it is sent to the slider's steps
    assert widgets.said.value == "84.4"
    widgets.slider.value = 90.0
    widgets.slider.value = 84.0
    assert widgets.said.value == "84"
    widgets.because.value = "I counted"
    widgets.lock.click()
    assert widgets.refused.value == "" and widgets.status.layout.display is None
    assert "You predict" in widgets.status.value
    assert (strong(), is_open()) == (["Run"], [False, True, False])
    asyncio.run(panel._run_by_hand())
    assert (strong(), is_open()) == (["Keep"], [False, True, True])
    assert "<b>You said 84 SMs; it is 98 SMs.</b><details>" in widgets.status.value


def test_a_recorded_run_is_judged_by_the_student_first_and_never_kept(tmp_path):
    """As with one's own: prediction, claim, verdict; nothing is saved."""
    runner = Runner(EXPERIMENTS["MX-5"], tmp_path)
    runner.show_recorded(store.recorded("MX-5"), predict("5", "it is safe", "%"))
    assert "not yours" in runner.message
    assert "You said 5 %; it is 89.7 %. At 2^-10" in runner.message
    assert "as expected" not in runner.message
    runner.explain("small scales lose all", Verdict.SUPPORTED)
    assert "as expected" in runner.message
    assert not list(tmp_path.iterdir())


def test_a_device_that_cannot_be_asked_says_so_and_asks_no_claim(tmp_path):
    """Not applicable, why, and where it can be seen."""
    data = {"fp32 time": (1.0,), "bf16 time": (1.0,)}
    asks_sms = replace(EXPERIMENTS["MX-2"], unit="SMs", data=lambda _: data)
    runner = Runner(replace(asks_sms, steps=(computed_step("a", 0, lambda: 1.0),)), tmp_path)
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
