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
from pathlib import Path
from typing import Any

from labkit.errors import EvidenceDamaged, LabError, NotAPrediction
from labkit.evidence import evidence as store
from labkit.evidence import replay
from labkit.evidence.evidence import Evidence, Point
from labkit.evidence.prediction import Prediction, Trend, predict
from labkit.panel.experiment import Experiment, plot_of
from labkit.panel.plot import table, text_table
from labkit.panel.plot_svg import render
from labkit.panel.runner import Runner, RunnerState, nobody_is_there
from labkit.records import Verdict

REDRAW_S = 0.2  # at most five redraws a second
HIDDEN = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)"
STYLE = {"description_width": "12rem"}
WIDE = {"width": "calc(100% - 8px)", "max_width": "64rem"}


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
        self._drawn = 0.0
        self._widgets: _Widgets | None = None
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
        elif nobody_is_there():
            await self.run()
            self._show_twin()
        return self.runner.evidence

    def _show_twin(self) -> None:
        """Leave the picture in the executed notebook, where no kernel will draw it again."""
        try:
            from IPython import get_ipython
            from IPython.display import publish_display_data
        except ImportError:
            print(self)
            return
        if get_ipython() is None:
            print(self)
            return
        publish_display_data(self._twin())  # type: ignore[no-untyped-call]

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
        self._say(f"You predicted {self._prediction}. Now run it.")
        return True

    def start(self) -> None:
        """Run with the prediction that was locked in; from any thread."""
        if self._prediction is None:
            self._say("Predict first: that unlocks Run.")
        elif self._loop is None:
            self._say("This notebook has no running loop; use `await panel.run(...)`.")
        else:
            self._loop.call_soon_threadsafe(self._launch)

    def stop(self) -> None:
        """Stop and keep the samples; from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.runner.stop)

    def replay(self) -> None:
        """Show evidence recorded elsewhere, after the same prediction, marked as not theirs."""
        if self._prediction is None:
            self._say("Predict first; then the recorded run may be seen.")
            return
        try:
            self.runner.show_recorded(replay.recorded(self.experiment.key), self._prediction)
        except LabError as error:
            self._say(str(error))

    def show_live(self, point: Point) -> None:
        """Draw a point that is still being measured, as a run does while it reads."""
        self.runner.show_live(point)

    def explain(self, text: str, read_as: str = "") -> None:
        """Keep the student's explanation, and the verdict they read, with the evidence.

        Args:
            text: in their own words.
            read_as: supported, contradicted or undecided; empty when they did not say.
        """
        if not self.runner.evidence.points or self.runner.evidence.replayed_from:
            self._say("Measure first, then explain: this keeps your words with your own evidence.")
            return
        verdict = Verdict(read_as) if read_as else None
        self.runner.evidence = store.explain(self.runner.evidence, text, self._folder, verdict)
        self._say("Your explanation is kept with the evidence.")

    def _launch(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run_by_hand())

    async def _run_by_hand(self) -> None:
        prediction, self._prediction = self._prediction, None
        try:
            await self.runner.run(prediction, headless=False)
        finally:
            self._draw(force=True)

    def _say(self, message: str) -> None:
        self.runner.message = message
        self._draw(force=True)

    def _changed(self) -> None:
        self._draw(force=self.runner.state is not RunnerState.RUNNING)

    def _draw(self, *, force: bool) -> None:
        """Redraw, at most five times a second unless something ended."""
        now = time.monotonic()
        if self._widgets is None or (not force and now - self._drawn < REDRAW_S):
            return
        self._drawn = now
        self._widgets.update(self)

    @property
    def can_run(self) -> bool:
        """Whether Run is unlocked."""
        return self._prediction is not None and self.runner.state is not RunnerState.RUNNING

    def svg(self) -> str:
        """The plot as it stands."""
        return render(plot_of(self.experiment, self.runner.shown))

    def _repr_mimebundle_(self, **_: Any) -> Any:
        """Widgets where there are any, with a static twin for a notebook without a kernel."""
        twin = self._twin()
        try:
            self._widgets = self._widgets or _Widgets(self)
        except ImportError:
            return twin
        self._widgets.update(self)
        bundle = self._widgets.root._repr_mimebundle_()
        found = bundle[0] if isinstance(bundle, tuple) else bundle
        return {**(found or {}), **twin}

    def _twin(self) -> dict[str, str]:
        said = f"<p>{html.escape(self.runner.message)}</p>"
        return {"text/plain": repr(self), "text/html": self.svg() + said}

    def __repr__(self) -> str:
        if not self.runner.shown.points:
            return f"{self.experiment.key}: {self.experiment.title}: measure first"
        plot = plot_of(self.experiment, self.runner.shown)
        return f"{text_table(plot)}\n{self.runner.message}"


class _Widgets:
    """The ipywidgets of one panel; imported only when a panel is shown."""

    def __init__(self, panel: Panel) -> None:
        import ipywidgets

        self._w, experiment = ipywidgets, panel.experiment
        self._live_id = f"labkit-live-{experiment.key}-{id(panel):x}"
        self._make_fields(experiment)
        self._make_buttons()
        self._make_outputs()
        self._connect(panel)
        self.root = ipywidgets.VBox(self._in_order(experiment))

    def _make_fields(self, experiment: Experiment) -> None:
        """What the student writes and chooses."""
        w, wide = self._w, self._w.Layout(**WIDE)
        # A text goes to the kernel when its field is left: ipywidgets 8 holds keystrokes back while
        # the kernel is busy, and a press of a button would overtake them.
        text = {"style": STYLE, "continuous_update": False}
        if experiment.unit is None:
            options = [("choose", ""), *((trend.value, trend.value) for trend in Trend)]
            self.said: Any = w.Dropdown(options=options, description="Your prediction", style=STYLE)
        else:
            name = f"Your prediction ({experiment.unit})"
            self.said = w.Text(description=name, placeholder="a number", **text)
        self.because = w.Text(description="because", layout=wide, **text)
        verdicts = [("choose", ""), *((verdict.value, verdict.value) for verdict in Verdict)]
        self.verdict = w.Dropdown(options=verdicts, description="The claim is", style=STYLE)
        self.explanation = w.Textarea(description="Your explanation", layout=wide, **text)

    def _make_buttons(self) -> None:
        w, auto = self._w, self._w.Layout(width="auto")
        self.lock = w.Button(description="Lock in prediction", layout=auto)
        self.run = w.Button(description="Run", button_style="primary", disabled=True)
        self.stop = w.Button(description="Stop", disabled=True)
        self.recorded = w.Button(description="Show recorded run", layout=auto)
        self.keep = w.Button(description="Keep explanation", layout=auto)
        self.show_table = w.ToggleButton(description="Data table")

    def _make_outputs(self) -> None:
        """What the panel says: the status in a live region outside the plot that is redrawn."""
        w, wide = self._w, self._w.Layout(**WIDE)
        self.bar = w.FloatProgress(max=1.0, description="Progress", style=STYLE, layout=wide)
        self.plot, self.table, self.status = w.HTML(), w.HTML(), w.HTML()
        self.live = w.HTML(
            f'<div id="{self._live_id}" role="status" aria-live="polite" style="{HIDDEN}"></div>'
        )

    def _in_order(self, experiment: Experiment) -> list[Any]:
        """The panel from top to bottom."""
        w, recorded = self._w, [self.recorded] if replay.exists(experiment.key) else []
        title, question = html.escape(experiment.title), html.escape(experiment.question)
        controls = [self.lock, self.run, self.stop, self.show_table, *recorded]
        return [
            w.HTML(f"<h3>{title}</h3><p>{question}</p>"),
            self.said,
            self.because,
            w.HBox(controls, layout=w.Layout(flex_flow="row wrap")),
            self.bar,
            self.status,
            self.live,
            self.plot,
            self.table,
            *([self.verdict] if experiment.check else []),
            self.explanation,
            self.keep,
        ]

    def _connect(self, panel: Panel) -> None:
        self.lock.on_click(lambda _: panel.lock_in(self.said.value, self.because.value))
        self.run.on_click(lambda _: panel.start())
        self.stop.on_click(lambda _: panel.stop())
        self.recorded.on_click(lambda _: panel.replay())
        self.keep.on_click(lambda _: panel.explain(self.explanation.value, self.verdict.value))
        self.show_table.observe(lambda _: self._fill_table(panel), "value")

    def update(self, panel: Panel) -> None:
        """Bring every widget up to date; controls are never rebuilt, so the focus stays."""
        runner = panel.runner
        running = runner.state is RunnerState.RUNNING
        self.run.disabled, self.stop.disabled = not panel.can_run, not running
        self.bar.value = 1.0 if runner.state is RunnerState.DONE else runner.progress
        self.bar.description = f"{runner.seconds_left:.0f} s left" if running else "Progress"
        self.plot.value = panel.svg() if runner.shown.points else ""
        self._announce(runner.message)
        self._fill_table(panel)

    def _fill_table(self, panel: Panel) -> None:
        plot = plot_of(panel.experiment, panel.runner.shown)
        self.table.value = table(plot) if self.show_table.value else ""

    def _announce(self, message: str) -> None:
        """Show the message, and copy it into the live region that is never redrawn.

        A widget can only replace its whole content, and a replaced live region is not read out. The
        broken image's handler copies the text into the persistent one; where a page forbids such
        handlers the visible text remains.
        """
        said = html.escape(message, quote=True)
        copy = f"var e=document.getElementById('{self._live_id}');if(e)e.textContent=this.alt"
        image = f'<img src="data:," alt="{said}" style="display:none" onerror="{copy}">'
        value = f'<p aria-hidden="true">{said}</p>{image}'
        if value != self.status.value:
            self.status.value = value


def evidence_or_hint(key: str, folder: Path = store.FOLDER) -> Evidence | str:
    """An experiment's evidence, or the sentence to show instead of a traceback."""
    try:
        return store.load(folder / f"{key}.json")
    except EvidenceDamaged as error:
        return str(error)
