"""The panel: a prediction that unlocks Run, a live plot, Stop, a data table, a spoken status.

Only wires widgets to a `Runner`. The measurement runs in child processes and the kernel's own loop
only reads, so that Stop takes effect at once; callbacks may come from another thread (ipykernel
7.0-7.3) and therefore only hand work to the captured loop. Works headless, and without ipywidgets
as text.
"""

from __future__ import annotations

import asyncio
import html
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.errors import LabError, NotAPrediction
from labkit.evidence import evidence as store
from labkit.evidence import replay
from labkit.evidence.evidence import Evidence, Point
from labkit.evidence.prediction import Prediction, predict
from labkit.panel.experiment import Experiment, Points
from labkit.panel.picture import plot_of
from labkit.panel.plot import text_table
from labkit.panel.plot_svg import render
from labkit.panel.reports import CellReport, is_right, publisher
from labkit.panel.runner import PREDICT_FIRST, Runner, RunnerState, is_wanted, nobody_is_there
from labkit.panel.widgets import Widgets
from labkit.records import Verdict

REDRAW_S = 0.2  # at most five redraws a second


class Panel:
    """One experiment with its controls; show it by making it a cell's last expression.

    Args:
        experiment: what to measure.
        folder: where evidence is kept.
    """

    def __init__(self, experiment: Experiment, folder: Path = store.FOLDER) -> None:
        self.experiment = experiment
        self.runner = Runner(experiment, folder, self._changed)
        self._folder = folder
        self._prediction: Prediction | None = None
        self._task: asyncio.Task[Any] | None = None
        self._reports: dict[str, CellReport] = {}
        self._drawn, self._said = 0.0, ""
        self._widgets: Widgets | None = None
        self._beside: Evidence | None = None
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None

    async def run(self, said: str | None = None, because: str = "") -> Evidence:
        """Measure from code, without a person: the evidence is marked headless.

        Args:
            said: a prediction, if one shall be drawn.
            because: its reason.
        """
        prediction = predict(said, because, self.experiment.unit) if said is not None else None
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
        """Say under the panel what it found, now and again whenever it has settled.

        Args:
            show: prints more about the points; called once there are any.
            needs: what a headless run waits for, for example an exercise's verdict; as long as it
                is not right nothing is measured, and its own words say what is missing.

        Raises:
            WrongArgument: `show` cannot be called.
        """
        name = getattr(show, "__name__", "")
        is_first = name == next(iter(self._reports), name)
        made = CellReport(self, show, needs, with_message=is_first)
        if is_right(needs):
            await self.settle()
        self._reports[name] = made
        made.display()

    def show(self) -> None:
        """Show the controls in this cell; nothing where there is no notebook."""
        publish = publisher()
        if publish is not None:
            publish(*self._repr_mimebundle_())

    def _show_twin(self) -> None:
        """Leave the picture in the executed notebook, where no kernel will draw it again."""
        publish = publisher()
        if publish is None:
            print(self)
        else:
            publish(self._twin())

    @property
    def evidence(self) -> Evidence:
        """What has been measured so far."""
        return self.runner.shown

    def lock_in(self, said: str, because: str) -> bool:
        """Take a prediction and unlock Run; a bad one is answered with a sentence."""
        try:
            self._prediction = predict(said, because, self.experiment.unit)
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

    def replay(self) -> None:
        """Show evidence recorded elsewhere, after a prediction, marked as not theirs.

        Beside a run of their own, which stays as it is with what was said of it; else in its place.
        """
        own = self.runner.evidence
        has_run = bool(own.points) and own.replayed_from is None
        prediction = (own.prediction if has_run else None) or self._prediction
        if prediction is None:
            self._say("Predict first; then the recorded run may be seen.")
            return
        try:
            recorded = replay.recorded(self.experiment.key)
        except LabError as error:
            self._say(str(error))
            return
        if has_run:
            self._beside = replace(recorded, prediction=prediction, verdict_read=None)
            self._draw(force=True)
        else:
            self.runner.show_recorded(recorded, prediction)
            self._refresh()

    def beside(self) -> str:
        """The recorded run that is shown beside an own one; empty for none."""
        if self._beside is None:
            return ""
        said = f"Recorded on {self._beside.replayed_from}, not yours."
        return f"<p>{html.escape(said)}</p>{render(plot_of(self.experiment, self._beside))}"

    def show_live(self, point: Point) -> None:
        """Draw a point that is still being measured, as a run does while it reads."""
        self.runner.show_live(point)

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

    def _changed(self) -> None:
        is_news = self.runner.message != self._said  # said once, it must not be lost between draws
        self._draw(force=is_news or self.runner.state is not RunnerState.RUNNING)

    def _draw(self, *, force: bool) -> None:
        """Redraw, at most five times a second unless something ended."""
        now = time.monotonic()
        if self._widgets is None or (not force and now - self._drawn < REDRAW_S):
            return
        self._drawn, self._said = now, self.runner.message
        self._widgets.update(self)

    @property
    def can_run(self) -> bool:
        """Whether Run is unlocked."""
        is_ready = self._prediction is not None and bool(self.experiment.steps)
        return is_ready and self.runner.state is not RunnerState.RUNNING

    def svg(self) -> str:
        """The plot as it stands."""
        return render(plot_of(self.experiment, self.runner.shown))

    def _repr_mimebundle_(self, **_: Any) -> Any:
        """Widgets where there are any, with a static twin for a notebook without a kernel.

        Marked in the metadata, by which outputs.js of @miglab/jupyterlab finds a panel again.
        """
        twin = self._twin()
        try:
            self._widgets = self._widgets or Widgets(self)
        except ImportError:
            return twin, {}
        self._widgets.update(self)
        bundle = self._widgets.root._repr_mimebundle_()
        found = bundle[0] if isinstance(bundle, tuple) else bundle
        return {**(found or {}), **twin}, {"labkit_panel": True}

    def _twin(self) -> dict[str, str]:
        said = f"<p>{html.escape(self.runner.message)}</p>"
        return {"text/plain": repr(self), "text/html": self.svg() + said + self.beside()}

    def __repr__(self) -> str:
        if not self.runner.shown.points:
            return f"{self.experiment.key}: {self.experiment.title}: measure first"
        plot = plot_of(self.experiment, self.runner.shown)
        return f"{text_table(plot)}\n{self.runner.message}"
