"""The ipywidgets of one panel: a card in three steps that fold: predict, measure, explain.

Imported with the panel; ipywidgets itself only when a panel is shown. The button to press next is
the coloured one. Controls are never made anew, so that the focus stays where it is.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from typing import Any

from labkit.errors import NotAPrediction
from labkit.evidence.evidence import Trend, parse_number
from labkit.panel import vega
from labkit.panel.experiment import Experiment
from labkit.panel.plot import Plot, table
from labkit.records import Verdict
from labkit.shown import number

Panel = Any  # `labkit.panel.panel.Panel`, which imports this module
HIDDEN = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)"
SHORT = "16rem"
STEPS = ("Predict", "Measure", "Explain")
SENTENCE_END = re.compile(r"(?<=[.?!]) +(?=[A-Z“])")
CSS = """
.labkit-card{border:1px solid var(--jp-border-color1,#bbb);border-radius:8px;padding:8px 16px 12px;
 max-width:60rem;margin:4px 0;box-sizing:border-box;overflow:visible}
.labkit-card h3{margin:4px 0}
.labkit-card .widget-inline-hbox{flex-flow:row wrap;height:auto;max-width:100%}
.labkit-card .widget-inline-hbox .widget-label{flex:1 0 100%;text-align:left;max-width:none;
 width:auto;white-space:normal}
.labkit-card .labkit-step{width:100%;text-align:left;font-weight:600;font-size:1.05em;
 background:none;border:0;border-top:1px solid var(--jp-border-color2,#ddd);border-radius:0;
 box-shadow:none;margin:6px 0 0;padding:4px 0;height:auto;white-space:normal;line-height:1.5;
 color:var(--jp-content-font-color1,inherit)}
.labkit-card .labkit-said{border-left:4px solid var(--jp-brand-color1,#1976d2);padding-left:10px;
 margin:8px 0;line-height:1.4}
.labkit-card .progress{flex:1 1 100%;height:8px}
.labkit-card table{font-size:.9em}
.labkit-card .widget-html-content{line-height:1.4}
"""


def span_of(unit: str | None) -> tuple[float, float]:
    """The range of the slider for a predicted number; the field takes any number."""
    if unit == "%":
        return 0.0, 100.0
    return (0.01, 100.0) if unit in ("x", "") else (0.01, 10_000.0)


class Widgets:
    """The ipywidgets of one panel; imported only when a panel is shown."""

    def __init__(self, panel: Panel) -> None:
        import ipywidgets

        self._w, experiment = ipywidgets, panel.experiment
        self._live_id = f"labkit-live-{experiment.key}-{id(panel):x}"
        self._stage = -1
        self._make_fields(experiment)
        self._make_buttons(panel)
        self._make_outputs()
        self._connect(panel)
        self.root = ipywidgets.VBox(self._in_order(experiment))
        self.root.add_class("labkit-card")

    def _make_fields(self, experiment: Experiment) -> None:
        """What the student writes and chooses."""
        w = self._w
        wide = w.Layout(width="100%", max_width="44rem")
        # A text goes to the kernel when its field is left: ipywidgets 8 holds keystrokes back while
        # the kernel is busy, and a press of a button would overtake them.
        text = {"continuous_update": False}
        self.slider: Any = None
        if experiment.unit is None:
            options = [("choose", ""), *((trend.value, trend.value) for trend in Trend)]
            self.said: Any = w.Dropdown(
                options=options, description="Your prediction", layout=w.Layout(width=SHORT)
            )
        else:
            name = f"Your prediction ({experiment.unit})" if experiment.unit else "Your prediction"
            self.said = w.Text(
                description=name, placeholder="a number", layout=w.Layout(width=SHORT), **text
            )
            self.slider = self._slider(experiment.unit)
        self.because = w.Text(description="because", layout=wide, **text)
        verdicts = [("choose", ""), *((verdict.value, verdict.value) for verdict in Verdict)]
        self.verdict = w.Dropdown(
            options=verdicts, description="The claim is", layout=w.Layout(width=SHORT)
        )
        self.claim = w.HTML()
        self.explanation = w.Textarea(description="Your explanation", layout=wide, **text)

    def _slider(self, unit: str) -> Any:
        """The slider that sets the field beside it; logarithmic where nothing bounds the number."""
        low, high = span_of(unit)
        layout = self._w.Layout(width="18rem", max_width="100%")
        common_options = {"description": "Slide", "readout": False, "layout": layout}
        if low > 0:
            ends = {"min": math.log10(low), "max": math.log10(high), "step": 0.02}
            return self._w.FloatLogSlider(value=math.sqrt(low * high), **ends, **common_options)
        return self._w.FloatSlider(
            value=(low + high) / 2, min=low, max=high, step=1.0, **common_options
        )

    def _make_buttons(self, panel: Panel) -> None:
        w, auto = self._w, self._w.Layout(width="auto")
        self.lock = w.Button(description="Lock in prediction", layout=auto)
        self.run = w.Button(description="Run", disabled=True)
        self.stop = w.Button(description="Stop", disabled=True)
        self.layers = [
            w.ToggleButton(description=f"Show {name}", layout=auto) for name in panel.layers
        ]
        self.keep = w.Button(description="Keep", layout=auto)
        self.show_table = w.ToggleButton(description="Data table", layout=auto)
        self.heads = [w.Button(description=name) for name in STEPS]
        for head in self.heads:
            head.add_class("labkit-step")

    def _make_outputs(self) -> None:
        """What the panel says: the status in a live region outside the plot that is redrawn."""
        w, wide = self._w, self._w.Layout(width="100%", max_width="44rem")
        self.bar = w.FloatProgress(max=1.0, description="Progress", layout=wide)
        self.plots = [w.Output(layout=w.Layout(width="100%")) for _ in range(3)]
        self.table, self.status, self.refused = w.HTML(), w.HTML(), w.HTML()
        self.live = w.HTML(
            f'<div id="{self._live_id}" role="status" aria-live="polite" style="{HIDDEN}"></div>'
        )

    def _in_order(self, experiment: Experiment) -> list[Any]:
        """The panel from top to bottom."""
        w = self._w
        title, question = html.escape(experiment.title), html.escape(experiment.question)
        row = w.Layout(flex_flow="row wrap", align_items="flex-end")
        prediction_fields = [self.said] if self.slider is None else [self.said, self.slider]
        claim_fields = [self.claim, self.verdict] if experiment.check else []
        lock = w.HBox([self.lock, self.refused])
        measure = [self.run, self.stop, self.show_table, *self.layers]
        self.bodies = [
            w.VBox([w.HBox(prediction_fields, layout=row), self.plots[0], self.because, lock]),
            w.VBox([w.HBox(measure, layout=row), self.bar, *self.plots[1:], self.table]),
            w.VBox([*claim_fields, self.explanation, w.HBox([self.keep])]),
        ]
        first, second, third = zip(self.heads, self.bodies, strict=True)
        return [
            w.HTML(f"<style>{CSS}</style><h3>{title}</h3><p>{question}</p>"),
            *first,
            *second,
            self.status,
            self.live,
            *third,
        ]

    def _connect(self, panel: Panel) -> None:
        self.lock.on_click(lambda _: self._lock(panel))
        self.run.on_click(lambda _: panel.start())
        self.stop.on_click(lambda _: panel.stop())
        for name, button in zip(panel.layers, self.layers, strict=True):
            button.observe(lambda change, name=name: panel.switch(name, is_on=change.new), "value")
        self.explanation.value = panel.runner.evidence.explanation
        self.keep.on_click(lambda _: panel.explain(self.explanation.value, self.verdict.value))
        self.show_table.observe(lambda _: self._fill_table(panel), "value")
        for number_of, head in enumerate(self.heads):
            head.on_click(lambda _, at=number_of: self._fold(at, is_open=not self._is_open(at)))
        if self.slider is not None:
            unit = panel.experiment.unit or ""
            self.slider.observe(lambda change: self._on_slide(change.new, unit), "value")
            self.said.observe(lambda _: self._on_typing(panel, unit), "value")

    def _lock(self, panel: Panel) -> None:
        if not panel.lock_in(self.said.value, self.because.value):
            # Beside the button: below the folded steps it may be out of sight.
            self.refused.value = _folded_html(panel.runner.message)
            self.status.layout.display = "none"
        elif panel.can_run:
            self.run.focus()  # the button that had the focus has just been folded away

    def _typed_number(self, unit: str) -> float:
        """The number in the prediction field; NaN, which lies in no range, for other text."""
        try:
            return parse_number(self.said.value, unit)
        except NotAPrediction:
            return math.nan

    def _on_slide(self, value: float, unit: str) -> None:
        """Copy the slider's value to the field, unless it only rounds the typed number."""
        (low, high), predicted = span_of(unit), self._typed_number(unit)
        scale = math.log10 if low > 0 else float
        is_in = low <= predicted <= high
        if not is_in or abs(scale(value) - scale(predicted)) > self.slider.step / 2:
            self.said.value = number(value)

    def _on_typing(self, panel: Panel, unit: str) -> None:
        """Move slider and mark to the typed number; other text moves nothing."""
        predicted = self._typed_number(unit)
        if math.isnan(predicted):
            return
        low, high = span_of(unit)
        if low <= predicted <= high and number(self.slider.value) != number(predicted):
            self.slider.value = predicted
        if not panel.runner.shown.points:
            self._draw(0, panel.plots(predicted)[:1])

    def _is_open(self, at: int) -> bool:
        return bool(self.bodies[at].layout.display != "none")

    def _fold(self, at: int, *, is_open: bool) -> None:
        self.bodies[at].layout.display = None if is_open else "none"
        self.heads[at].description = f"{'▾' if is_open else '▸'} {at + 1}  {STEPS[at]}"

    def _follow(self, panel: Panel) -> None:
        """Open the step that is next and fold the others, once, when it becomes the next."""
        has_points = bool(panel.runner.shown.points)
        stage = 1 if panel.can_run or panel.runner.is_running else 2 if has_points else 0
        if stage == self._stage:
            return
        self._stage = stage
        for at in range(3):
            self._fold(at, is_open=at == stage or (at == 1 and has_points))
        for button, at in ((self.lock, 0), (self.run, 1), (self.keep, 2)):
            button.button_style = "primary" if at == stage else ""

    def update(self, panel: Panel, *, with_plot: bool = True) -> None:
        """Bring every widget up to date; controls are never rebuilt, so the focus stays."""
        runner, running = panel.runner, panel.runner.is_running
        self._follow(panel)
        self.run.disabled, self.stop.disabled = not panel.can_run, not running
        self.bar.layout.display = None if running else "none"
        self.bar.value = runner.progress
        remaining = "Waiting" if runner.is_waiting else f"{runner.seconds_left:.0f} s left"
        self.bar.description = remaining if running else "Progress"
        judgement = runner.evidence.judgement
        claim = html.escape(panel.experiment.claim(runner.evidence)) if judgement else ""
        self.claim.value = f"<p><b>The claim:</b> {claim}.</p>" if claim else ""
        self.verdict.disabled = running or not runner.evidence.has_question
        self.verdict.layout.display = None if judgement else "none"
        for button in self.layers:
            button.disabled = not panel.has_predicted
        self._announce(runner.message)
        if with_plot:
            self._draw_all(panel)

    def _draw_all(self, panel: Panel) -> None:
        plots = panel.plots()
        if panel.runner.shown.points:
            self._draw(0, ())
            self._draw(1, plots[:1])
            self._draw(2, plots[1:])
        elif panel.experiment.unit is not None:
            self._draw(0, plots)
        self._fill_table(panel)

    def _draw(self, at: int, plots: Sequence[Plot]) -> None:
        """Put plots into an output, unless they are there already."""
        bundles = [vega.bundle(plot) for plot in plots]
        outputs = tuple(
            {"output_type": "display_data", "data": data, "metadata": metadata}
            for data, metadata in bundles
        )
        if outputs != self.plots[at].outputs:
            pixels = sum(vega.pixels(plot) for plot in plots)
            self.plots[at].layout.min_height = f"{pixels}px" if pixels else None
            self.plots[at].outputs = outputs

    def _fill_table(self, panel: Panel) -> None:
        plots = panel.plots() if self.show_table.value and panel.runner.shown.points else ()
        place = html.escape(panel.runner.shown.place)
        caption = f"<p>{place}</p>" if plots else ""
        self.table.value = "".join(table(plot) for plot in plots) + caption

    def _announce(self, message: str) -> None:
        """Show the first sentence, fold the rest, and copy all into the live region.

        A widget can only replace its whole content, and a replaced live region is not read out. The
        broken image's handler copies the text into the persistent one; where a page forbids such
        handlers the visible text remains.
        """
        escaped_message = html.escape(message, quote=True)
        copy = f"var e=document.getElementById('{self._live_id}');if(e)e.textContent=this.alt"
        image = f'<img src="data:," alt="{escaped_message}" style="display:none" onerror="{copy}">'
        value = f"{_folded_html(message)}{image}"
        if value != self.status.value:
            self.status.value, self.refused.value = value, ""
            self.status.layout.display = None


def _folded_html(message: str) -> str:
    """The first sentence as HTML, with the others folded away."""
    first, *later_sentences = (
        html.escape(sentence) for sentence in SENTENCE_END.split(message, maxsplit=1)
    )
    folded = (
        f"<details><summary>More</summary>{later_sentences[0]}</details>" if later_sentences else ""
    )
    return f'<div class="labkit-said"><b>{first}</b>{folded}</div>'
