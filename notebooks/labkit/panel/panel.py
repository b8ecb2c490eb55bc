"""The panel: a prediction that unlocks Run, a live plot, Stop, a data table, a spoken status.

Only wires widgets to a `Runner`, and says in the cells under it what was found. The measurement
runs in child processes and the kernel's own loop only reads, so that Stop takes effect at once;
callbacks may come from another thread (ipykernel 7.0-7.3) and therefore only hand work to the
captured loop. Works headless, and without ipywidgets as text.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import textwrap
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from labkit.errors import LabError, NotAPrediction, WrongArgument
from labkit.evidence import evidence as store
from labkit.evidence.evidence import Evidence, Prediction, predict
from labkit.panel import vega
from labkit.panel.experiment import Experiment, Points
from labkit.panel.plot import Plot, is_comparable, plot_of, text_table
from labkit.panel.runner import PREDICT_FIRST, Runner, is_wanted
from labkit.panel.widgets import Widgets, span_of
from labkit.records import Verdict
from labkit.run.jobs import nobody_is_there

WIDE = 110  # characters of a cell's output, which the notebook would break within a word
RETELL_S = 0.2  # at most five times a second
REDRAW_S = 1.0  # the plot of a run that lasts longer; the last one is always drawn
A_PICTURE = (
    "This is only a picture of the panel. Run the cells from the top to use it; "
    "what was measured is kept."
)
RECORDED, CLASS = "recorded run", "the class"


class Panel:
    """One experiment with its controls; show it by making it a cell's last expression.

    Args:
        experiment: what to measure.
        folder: where evidence is kept.
    """

    def __init__(self, experiment: Experiment, folder: Path = store.FOLDER) -> None:
        self.experiment = experiment
        self.runner = Runner(experiment, folder, self._on_change)
        self._folder = folder
        self._prediction: Prediction | None = None
        self._task: asyncio.Task[Any] | None = None
        self._reports: dict[str, _CellReport] = {}
        self._updated_at, self._drawn_at, self._last_message = 0.0, 0.0, ""
        self._widgets: Widgets | None = None
        self._layers_on: dict[str, Evidence] = {}
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None

    async def run(self, predicted: str | None = None, because: str = "") -> Evidence:
        """Measure from code, without a person: the evidence is marked headless.

        Args:
            predicted: a prediction, if one shall be drawn.
            because: its reason.
        """
        prediction = (
            predict(predicted, because, self.experiment.unit) if predicted is not None else None
        )
        await self.runner.run(prediction, headless=True)
        self._draw(force=True)
        return self.runner.evidence

    async def settle(self) -> Evidence:
        """Wait until a run that was started by a button is over; returns at once if none is.

        Where nobody is there to press it (LAB_HEADLESS=1 or LAB_QUICK=1) the experiment is run
        here, so that a notebook executed from end to end has measured.
        """
        if self._task is not None:
            await asyncio.wait({self._task})
        elif nobody_is_there() and is_wanted(self.experiment):
            await self.run()
            self._show_twin()
        return self.runner.evidence

    async def report(
        self, show: Callable[[Points], None] | None = None, *, needs: object = True
    ) -> None:
        """Show the panel's result in this cell, and update it whenever a run is over.

        Args:
            show: prints more about the points; called once there are any.
            needs: what a headless run waits for, for example an exercise's verdict; as long as it
                is not right nothing is measured, and its own words say what is missing.

        Raises:
            WrongArgument: `show` cannot be called.
        """
        name = getattr(show, "__name__", "")
        is_first = name == next(iter(self._reports), name)
        cell_report = _CellReport(self.runner, show, needs, with_message=is_first)
        if is_right(needs):
            await self.settle()
        self._reports[name] = cell_report
        cell_report.display()

    def show(self) -> None:
        """Show the controls in this cell; nothing where there is no notebook."""
        publish = _publisher()
        if publish is not None:
            publish(*self._repr_mimebundle_())

    def _show_twin(self) -> None:
        """Put a static picture into the executed notebook, where no kernel will draw it again."""
        publish = _publisher()
        if publish is None:
            print(self)
        else:
            publish(*self._static_picture())

    @property
    def evidence(self) -> Evidence:
        """What has been measured so far."""
        return self.runner.shown

    def lock_in(self, predicted: str, because: str) -> bool:
        """Take a prediction and unlock Run; a bad one is answered with a sentence."""
        try:
            self._prediction = predict(predicted, because, self.experiment.unit)
        except NotAPrediction as error:
            self._say(str(error))
            return False
        then = "Now run it." if self.experiment.steps else "Now see the recorded run."
        self._say(f"You predict: {self._prediction}. {then}")
        return True

    def start(self) -> None:
        """Run with the prediction that was locked in; from any thread."""
        if self._prediction is None:
            self._say(PREDICT_FIRST)
        elif self._loop is None:
            self._say("This notebook has no running loop; use `await panel.run(...)`.")
        else:
            self._loop.call_soon_threadsafe(self._launch)

    def stop(self) -> None:
        """Stop and keep the samples; from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.runner.stop)

    @property
    def layers(self) -> list[str]:
        """The runs that can be drawn beside the student's: a recorded run, the class's."""
        key = self.experiment.key
        has_layer = {RECORDED: store.is_recorded(key), CLASS: store.is_of_class(key)}
        return [name for name, is_there in has_layer.items() if is_there]

    @property
    def has_predicted(self) -> bool:
        """Whether a prediction has been made, so that other runs may be seen."""
        return self._prediction is not None or self.runner.evidence.prediction is not None

    def switch(self, layer: str, *, is_on: bool) -> None:
        """Switch a layer on or off; runs of others are drawn only after a prediction.

        Where there is none a recorded run is shown in its place, marked as not the student's.
        """
        own_evidence = self.runner.evidence
        prediction = self._prediction or own_evidence.prediction
        if not is_on:
            self._layers_on.pop(layer, None)
        elif prediction is None:
            self._say("Predict first; then the recorded run may be seen.")
            return
        else:
            find = store.recorded if layer == RECORDED else store.of_class
            try:
                others_evidence = find(self.experiment.key)
            except LabError as error:
                self._say(str(error))
                return
            if layer == RECORDED and not own_evidence.points and not self.runner.is_running:
                self.runner.show_recorded(others_evidence, prediction)
                self._refresh()
            elif own_evidence.replayed_from != others_evidence.replayed_from:
                self._layers_on[layer] = others_evidence
        self._draw(force=True)

    def plots(self, predicted: float | None = None) -> list[Plot]:
        """The student's plot with its layers, then a plot for each layer that needs its own axes.

        Args:
            predicted: a number that is about to be predicted, on axes that are still empty.
        """
        evidence = self.runner.shown
        if predicted is not None:
            evidence = replace(
                evidence, prediction=Prediction("", "", predicted, self.experiment.unit)
            )
        elif evidence.prediction is None:
            evidence = replace(evidence, prediction=self._prediction)
        layers = self._layers_on.values()
        near = [run for run in layers if is_comparable(self.experiment, evidence, run)]
        far = [run for run in layers if run not in near]
        main = plot_of(self.experiment, evidence, near)
        if not evidence.points and not near and self.experiment.unit is not None:
            main = self._before_it_is_measured(main)
        return [main, *(plot_of(self.experiment, run) for run in far)]

    def _before_it_is_measured(self, plot: Plot) -> Plot:
        """An empty plot; its axis has numbers if the one that is predicted has its place there."""
        span = span_of(self.experiment.unit)
        if plot.is_binary or self.experiment.height((), span[1]) is None:
            return replace(plot, series=())
        return replace(plot, series=(), range_before=span, log_y=span[0] > 0)

    def explain(self, text: str, read_as: str = "") -> None:
        """Keep the student's explanation, and the verdict they read, with the evidence.

        Args:
            text: in their own words.
            read_as: supported, contradicted or undecided; empty when they did not say.
        """
        self.runner.explain(text, Verdict(read_as) if read_as else None)
        self._draw(force=True)
        self._refresh()

    def _launch(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run_by_hand())

    async def _run_by_hand(self) -> None:
        prediction, self._prediction = self._prediction, None
        try:
            await self.runner.run(prediction, headless=False)
        finally:
            if not self.runner.evidence.points:
                self._prediction = prediction  # nothing has been seen that would spoil it
            self._draw(force=True)
            self._refresh()

    def _refresh(self) -> None:
        """Bring the cells under the panel up to date."""
        for report in self._reports.values():
            report.update()

    def _say(self, message: str) -> None:
        self.runner.message = message
        self._draw(force=True)

    def _on_change(self) -> None:
        # A message that was set once must not be lost between draws.
        is_news = self.runner.message != self._last_message
        self._draw(force=is_news or not self.runner.is_running)

    def _draw(self, *, force: bool) -> None:
        """Update the widgets at most five times a second, and the plot at most once a second."""
        now = time.monotonic()
        if self._widgets is None or (not force and now - self._updated_at < RETELL_S):
            return
        self._updated_at, self._last_message = now, self.runner.message
        is_due = not self.runner.is_running or now - self._drawn_at >= REDRAW_S
        if is_due:
            self._drawn_at = now
        self._widgets.update(self, with_plot=is_due)

    @property
    def can_run(self) -> bool:
        """Whether Run is unlocked."""
        is_ready = self._prediction is not None and bool(self.experiment.steps)
        return is_ready and not self.runner.is_running

    def _repr_mimebundle_(self, **_: Any) -> Any:
        """Widgets where there are any, with a static twin for a notebook without a kernel.

        Marked in the metadata, by which outputs.js of @miglab/jupyterlab finds a panel again.
        """
        twin, metadata = self._static_picture()
        try:
            self._widgets = self._widgets or Widgets(self)
        except ImportError:
            return twin, metadata
        self._widgets.update(self)
        bundle = self._widgets.root._repr_mimebundle_()
        widget_data = bundle[0] if isinstance(bundle, tuple) else bundle
        return {**(widget_data or {}), **twin}, {"labkit_panel": True, **metadata}

    def _static_picture(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """A static picture of the results, labelled as such; without results only the label."""
        if not self.runner.shown.points:
            return {"text/plain": repr(self), "text/html": f"<p><b>{A_PICTURE}</b></p>"}, {}
        plot = self.plots()[0]
        captioned_plot = replace(plot, caption=f"{A_PICTURE} {self.runner.message} {plot.caption}")
        data, metadata = vega.bundle(captioned_plot, titled=True)
        return data | {"text/plain": repr(self)}, metadata

    def __repr__(self) -> str:
        if not self.runner.shown.points:
            return f"{self.experiment.key}: {self.experiment.title}: measure first"
        tables = "\n".join(text_table(plot) for plot in self.plots())
        return f"{tables}\n{self.runner.message}"


@dataclass
class _CellReport:
    """One output: the panel's message and whatever `show` prints about the points.

    Attributes:
        runner: of the panel that it is about.
        show: prints about the points.
        needs: an exercise's verdict that stands before the panel.
        with_message: whether the panel's message is said here, too.
    """

    runner: Runner
    show: Callable[[Points], None] | None
    needs: object
    with_message: bool
    _id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        if self.show is not None and not callable(self.show):
            raise WrongArgument(
                f"`report` takes a function that prints about the points, not {self.show!r}."
            )

    def text(self) -> str:
        """The report's current text."""
        evidence = self.runner.shown
        if not evidence.points:
            missing = "" if is_right(self.needs) else str(self.needs)
            hint = f"{self.runner.experiment.key}: measure first"
            return "\n".join(line for line in (missing, evidence.stopped, hint) if line)
        message = textwrap.fill(self.runner.message, WIDE) if self.with_message else ""
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            if self.show is not None:
                self.show(evidence.points)
        return "\n".join(
            paragraph for paragraph in (message, printed.getvalue().rstrip()) if paragraph
        )

    def display(self) -> None:
        """Show it in this cell; as plain text where there is no notebook."""
        publish = _publisher()
        if publish is None:
            print(self.text())
        else:
            publish({"text/plain": self.text()}, **self._marks)

    def update(self) -> None:
        """Replace the displayed text; an error is shown in its place."""
        publish = _publisher()
        if publish is None:
            return
        try:
            text = self.text()
        except Exception as error:  # outermost frame around the notebook's own words
            text = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
        publish({"text/plain": text}, **self._marks, update=True)

    @property
    def _marks(self) -> dict[str, Any]:
        """Where it is shown; JupyterLab forgets the display id when its page is loaded anew.

        The metadata are saved with the notebook: outputs.js of @miglab/jupyterlab finds it by them.
        """
        return {"transient": {"display_id": self._id}, "metadata": {"labkit_report": self._id}}


def is_right(verdict: object) -> bool:
    """Whether an exercise is right, by its verdict's `right` or the beginning of its text."""
    if isinstance(verdict, str):
        return verdict.startswith("right")
    return bool(getattr(verdict, "right", verdict))


def _publisher() -> Callable[..., Any] | None:
    """The function that shows data in a notebook's cell; None outside a notebook."""
    try:
        from IPython import get_ipython
        from IPython.display import publish_display_data
    except ImportError:
        return None
    return publish_display_data if get_ipython() is not None else None
