"""The ipywidgets of one panel: what the student writes, the buttons, the plot, the spoken status.

Imported with the panel; ipywidgets itself only when a panel is shown.
"""

from __future__ import annotations

import html
from typing import Any, Protocol

from labkit.evidence import replay
from labkit.evidence.checks import CHECKS
from labkit.evidence.prediction import Trend
from labkit.panel.experiment import Experiment
from labkit.panel.picture import plot_of
from labkit.panel.plot import table
from labkit.panel.runner import Runner, RunnerState
from labkit.records import Verdict

HIDDEN = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)"
STYLE = {"description_width": "12rem"}
SHORT = "22rem"  # the longest choice, "contradicted", is read whole
WIDE = {"width": "calc(100% - 8px)", "max_width": "64rem"}


class Controlled(Protocol):
    """What the widgets show and drive: a panel."""

    experiment: Experiment
    runner: Runner

    @property
    def can_run(self) -> bool: ...
    def svg(self) -> str: ...
    def beside(self) -> str: ...
    def lock_in(self, said: str, because: str) -> bool: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def replay(self) -> None: ...
    def explain(self, text: str, read_as: str = "") -> None: ...


class Widgets:
    """The ipywidgets of one panel; imported only when a panel is shown."""

    def __init__(self, panel: Controlled) -> None:
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
        w, wide, short = self._w, self._w.Layout(**WIDE), self._w.Layout(width=SHORT)
        # A text goes to the kernel when its field is left: ipywidgets 8 holds keystrokes back while
        # the kernel is busy, and a press of a button would overtake them.
        text = {"style": STYLE, "continuous_update": False}
        if experiment.unit is None:
            options = [("choose", ""), *((trend.value, trend.value) for trend in Trend)]
            named = {"description": "Your prediction", "style": STYLE, "layout": short}
            self.said: Any = w.Dropdown(options=options, **named)
        else:
            name = f"Your prediction ({experiment.unit})" if experiment.unit else "Your prediction"
            self.said = w.Text(description=name, placeholder="a number", layout=short, **text)
        self.because = w.Text(description="because", layout=wide, **text)
        verdicts = [("choose", ""), *((verdict.value, verdict.value) for verdict in Verdict)]
        asked = {"description": "The claim is", "style": STYLE, "layout": short}
        self.verdict = w.Dropdown(options=verdicts, **asked)
        self.claim = w.HTML()
        self.explanation = w.Textarea(description="Your explanation", layout=wide, **text)

    def _make_buttons(self) -> None:
        w, auto = self._w, self._w.Layout(width="auto")
        self.lock = w.Button(description="Lock in prediction", layout=auto)
        self.run = w.Button(description="Run", button_style="primary", disabled=True)
        self.stop = w.Button(description="Stop", disabled=True)
        self.recorded = w.Button(description="Show recorded run", layout=auto)
        self.keep = w.Button(description="Keep", layout=auto)
        self.show_table = w.ToggleButton(description="Data table")

    def _make_outputs(self) -> None:
        """What the panel says: the status in a live region outside the plot that is redrawn."""
        w, wide = self._w, self._w.Layout(**WIDE)
        self.bar = w.FloatProgress(max=1.0, description="Progress", style=STYLE, layout=wide)
        self.plot, self.table, self.status, self.beside = w.HTML(), w.HTML(), w.HTML(), w.HTML()
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
            self.beside,
            *([self.claim, self.verdict] if experiment.check else []),
            self.explanation,
            w.HBox([self.keep]),
        ]

    def _connect(self, panel: Controlled) -> None:
        self.lock.on_click(lambda _: panel.lock_in(self.said.value, self.because.value))
        self.run.on_click(lambda _: panel.start())
        self.stop.on_click(lambda _: panel.stop())
        self.recorded.on_click(lambda _: panel.replay())
        self.explanation.value = panel.runner.evidence.explanation
        self.keep.on_click(lambda _: panel.explain(self.explanation.value, self.verdict.value))
        self.show_table.observe(lambda _: self._fill_table(panel), "value")

    def update(self, panel: Controlled) -> None:
        """Bring every widget up to date; controls are never rebuilt, so the focus stays."""
        runner = panel.runner
        running = runner.state is RunnerState.RUNNING
        self.run.disabled, self.stop.disabled = not panel.can_run, not running
        self.bar.value = 1.0 if runner.state is RunnerState.DONE else runner.progress
        left = "Waiting" if runner.is_waiting else f"{runner.seconds_left:.0f} s left"
        self.bar.description = left if running else "Progress"
        asks = runner.evidence.is_open_to_claims and not running
        self.claim.value = _claim(panel.experiment) if runner.evidence.judgement else ""
        self.verdict.disabled = not asks
        self._announce(runner.message)
        self.plot.value = panel.svg() if runner.shown.points else ""
        self.beside.value = panel.beside()
        self._fill_table(panel)

    def _fill_table(self, panel: Controlled) -> None:
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


def _claim(experiment: Experiment) -> str:
    """The claim that the student is to judge; it is no secret once there is something to judge."""
    check = CHECKS.get(experiment.check or "")
    return f"<p><b>The claim:</b> {html.escape(check.says)}.</p>" if check else ""
