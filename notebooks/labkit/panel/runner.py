"""Runs an experiment's steps, keeps what was measured whatever happens, and saves the evidence.

Knows nothing of widgets: a panel watches through `on_change`, and a headless run needs nobody.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from labkit.arguments import public
from labkit.errors import EvidenceDamaged, LabError
from labkit.evidence import evidence as store
from labkit.evidence.check import denied
from labkit.evidence.checks import is_denied_for
from labkit.evidence.evidence import Evidence, Judgement, Point, Prediction
from labkit.panel.answers import (
    LATER,
    about_these_data,
    after,
    claims_in_words,
    sentence,
    with_claim,
)
from labkit.panel.experiment import Experiment, comparison
from labkit.records import Comparison, Measurement, Tier, Verdict, now_text
from labkit.run.borrowed import waits
from labkit.run.jobs import nobody_is_there
from labkit.student import student_here

PREDICT_FIRST = "Predict first: that unlocks Run."
NOTHING_MEASURED = "Nothing was measured, and your prediction stands: press Run to try again."
FAULT = "This is a fault of labkit, not yours: please tell your instructor."
NOTHING_HERE = "This device cannot measure that; a recorded run shows it where one is shipped."


class Runner:
    """One experiment and what it has shown so far.

    Args:
        experiment: what to measure.
        folder: where evidence is kept.
        on_change: called after every change, at most as often as readings come in.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: Path = store.FOLDER,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.experiment = experiment
        self.is_running = False
        self.message = PREDICT_FIRST if experiment.steps else NOTHING_HERE
        self.evidence = self._empty(None, headless=True)
        self._folder, self._on_change = folder, on_change
        self._task: asyncio.Task[None] | None = None
        self._live: Point | None = None
        self._step, self._step_began_at = 0, 0.0
        self._is_waiting = False
        self._explanation = ""
        self._earlier_judgement: Judgement | None = None
        self._load_saved()

    def _empty(self, prediction: Prediction | None, *, headless: bool) -> Evidence:
        return Evidence(
            experiment=self.experiment.key,
            title=self.experiment.title,
            unit=self.experiment.unit_of_points,
            place="nothing measured yet",
            tier=Tier.CPU.value,
            started=now_text(),
            prediction=prediction,
            headless=headless,
        )

    def _load_saved(self) -> None:
        """Load and show the evidence of an earlier run, with the slice it came from."""
        file = self._folder / f"{self.experiment.key}.json"
        if not file.exists():
            return
        try:
            self.evidence = store.load(file)
        except EvidenceDamaged as error:
            self.message = str(error)
            return
        self._explanation = self.evidence.explanation
        place, ended = self.evidence.place, self.evidence.ended[:16]
        asks = self.verdict_or_question() if self.evidence.is_open_to_claims else ""
        self.message = f"Saved {ended} on {place}. Predict to repeat it. {asks}".rstrip()

    @property
    def shown(self) -> Evidence:
        """The evidence with the point that is being measured."""
        if self._live is None:
            return self.evidence
        return replace(
            self.evidence, points=(*self.evidence.points, self._live), place=_caption_of(self._live)
        )

    @property
    def progress(self) -> float:
        """The share of finished steps, between 0 and 1."""
        return self._step / max(1, len(self.experiment.steps))

    @property
    def is_waiting(self) -> bool:
        """Whether the step still waits for a slice, while its time does not count."""
        return self._is_waiting and self.is_running

    @property
    def seconds_left(self) -> float:
        """The seconds that remain at most, by the steps' budgets."""
        budget_s = sum(step.seconds for step in self.experiment.steps[self._step :])
        spent_s = time.monotonic() - self._step_began_at if self.is_running else 0.0
        return max(0.0, budget_s - spent_s)

    async def run(self, prediction: Prediction | None, *, headless: bool) -> Evidence:
        """Measure every step; whatever ends the run, keep and save what was measured.

        Args:
            prediction: what the student expects; a headless run may go without.
            headless: whether no person started it; such evidence never counts as a student's.

        Returns:
            The evidence, complete or with the reason why not.
        """
        if self.is_running:
            return self.evidence
        earlier = self.evidence
        self._earlier_judgement = earlier.judgement
        empty = self._empty(prediction, headless=headless or nobody_is_there())
        self.evidence = replace(empty, explanation=self._explanation)
        if not self.evidence.headless:
            is_denied = is_denied_for(self.experiment.key, student_here())
            self.evidence = replace(after(earlier, self.evidence), is_denied=is_denied)
        self.is_running, self._step = True, 0
        self._task = asyncio.ensure_future(self._run_steps())
        try:
            await asyncio.wait({self._task})
        finally:
            self._task.cancel()
        self._finish()
        return self.evidence

    def stop(self) -> None:
        """End the run now and keep the samples; call it from the loop that runs it."""
        if self._task is not None:
            self._task.cancel()

    def show_recorded(self, recorded: Evidence, prediction: Prediction) -> None:
        """Show a run recorded elsewhere with the student's prediction; it is never saved."""
        self.evidence = replace(recorded, prediction=prediction, verdict_read=None)
        if recorded.judgement and is_denied_for(self.experiment.key, student_here()):
            self.evidence = replace(
                self.evidence, judgement=denied(recorded.judgement), is_denied=True
            )
        origin = f"Recorded on {recorded.replayed_from}, not yours."
        self._say(" ".join([*self._outcome(), origin]))

    async def _run_steps(self) -> None:
        waits.set(self._begin_waiting)
        for number, step in enumerate(self.experiment.steps):
            self._step = number
            self._begin_step()
            self._add_point(await step.run(self.show_live))
        self._step = len(self.experiment.steps)

    def _begin_step(self) -> None:
        """Begin a step whose slice is there; its seconds count from now."""
        self._is_waiting, self._step_began_at = False, time.monotonic()
        steps = self.experiment.steps
        self._say(f"Measuring {steps[self._step].label}, step {self._step + 1} of {len(steps)}.")

    def _begin_waiting(self, wait_message: str) -> None:
        """Note that the step waits for a borrowed slice, or for its runner to start."""
        self._is_waiting = True
        self._say(wait_message)

    def show_live(self, point: Point) -> None:
        """Take a point that is still being measured."""
        self._live = point
        if self.is_waiting:
            self._begin_step()
        self._on_change()

    def _add_point(self, point: Point) -> None:
        self._live = None
        self.evidence = replace(
            self.evidence,
            points=(*self.evidence.points, point),
            place=_caption_of(point),
            tier=point.records[0].tier.value if point.records else Tier.CPU.value,
            emulated=self.evidence.emulated or any(record.is_emulated for record in point.records),
        )
        self._on_change()

    def _say(self, message: str) -> None:
        self.message = message
        self._on_change()

    def _finish(self) -> None:
        """Judge the run, or note why it ended early, and save it."""
        task, unfinished_point = self._task, self._live
        self._live, self.is_running = None, False
        if task is None or task.cancelled():
            self._stop_early("stopped by hand", unfinished_point)
        elif (error := task.exception()) is None:
            self._judge()
        elif isinstance(error, LabError):
            self._stop_early(str(error), self._rebuilt_point(error, unfinished_point))
        else:
            self.message = f"{FAULT} {error!r}"
            raise error
        self.evidence = replace(self.evidence, ended=now_text())
        if self.evidence.points:
            store.save(self.evidence, self._folder)
        self._on_change()

    def _rebuilt_point(self, error: LabError, live: Point | None) -> Point | None:
        """The unfinished point, rebuilt from the record that the error carries."""
        step = self.experiment.steps[self._step].label
        if isinstance(error.kept, Measurement) and live is not None:
            return replace(live, records=(error.kept,))
        if isinstance(error.kept, Comparison):
            records = (error.kept.a, error.kept.b)
            return Point(live.x if live else 0.0, step, error.kept.ratio, records, error.kept)
        return live

    def _stop_early(self, reason: str, unfinished_point: Point | None) -> None:
        if unfinished_point is not None:
            self._add_point(unfinished_point)
        self.evidence = replace(self.evidence, stopped=reason)
        samples = self.evidence.samples
        outcome = f"{samples} samples are kept." if samples else NOTHING_MEASURED
        self.message = f"{reason[0].upper()}{reason[1:]}. {outcome}"

    def _judge(self) -> None:
        judgement = self.experiment.judge(self.evidence)
        if judgement is not None:
            judgement = self._with_budget(judgement)
            self.evidence = about_these_data(self.evidence, judgement, self._earlier_judgement)
        samples_text = f"{self.evidence.samples} samples on " if self.evidence.samples else ""
        done_text = f"Done: {samples_text}{self.evidence.place}."
        if judgement is None or self.evidence.is_open_to_claims:
            self.message = " ".join([*self._outcome(), done_text])
        else:
            self.message = " ".join(self._outcome())

    def _with_budget(self, judgement: Judgement) -> Judgement:
        """Add to an undecided verdict that a record was cut short, where one was."""
        records = [record for point in self.evidence.points for record in point.records]
        cut = next((record.stopped for record in records if record.stopped), None)
        is_question = judgement.expected != store.NOT_APPLICABLE
        if cut is None or not is_question or judgement.verdict is not Verdict.UNDECIDED:
            return judgement
        return replace(judgement, reason=f"{judgement.reason} ({cut})")

    def _outcome(self) -> list[str]:
        """The comparison with the prediction, then the verdict or, before a claim, the question.

        What was predicted later, having seen a result, is compared too, as what it is.
        """
        compared = comparison(self.experiment, self.evidence)
        predictions = [a.prediction for a in self.evidence.later_answers if a.prediction]
        if compared and predictions:
            later = replace(self.evidence, prediction=predictions[-1])
            compared += f" That was your first prediction, which counts. {LATER} prediction: "
            compared += comparison(self.experiment, later)
        return [part for part in (compared, self.verdict_or_question()) if part]

    def verdict_or_question(self) -> str:
        """The verdict if the student has made a claim, or nobody ran it; otherwise the question."""
        judgement, claim = self.evidence.judgement, self.experiment.claim(self.evidence)
        if judgement is None or not claim:
            return ""
        if self.evidence.is_open_to_claims:
            return f"The claim: “{claim}”. What do the data say of it? Choose, then press Keep."
        verdict = sentence(judgement, claim)
        cannot_be_asked = judgement.expected == store.NOT_APPLICABLE
        is_elsewhere = cannot_be_asked and store.is_recorded(self.experiment.key)
        if is_elsewhere and not self.evidence.replayed_from:
            return f"{verdict} The recorded run of a GPU can show it."
        return verdict

    def explain(self, text: str, claim: Verdict | None) -> None:
        """Keep the student's explanation and their claim; the verdict follows the claim.

        Args:
            text: their explanation.
            claim: what they say the data show; None when they did not say. The first one counts; a
                later one, given when the verdict has been seen, is kept as such.
        """
        if not self.evidence.points:
            self._say("Measure first, then explain: this keeps your words with your own evidence.")
            return
        notice = "Your explanation is kept with the evidence."
        self.evidence = with_claim(self.evidence, claim)
        if self.evidence.replayed_from:
            notice = "This run is not yours: nothing is kept of it."
        else:
            self._explanation = text.strip()
            self.evidence = replace(self.evidence, explanation=self._explanation)
            store.save(self.evidence, self._folder)
        sentences = (notice, claims_in_words(self.evidence), self.verdict_or_question())
        self._say(" ".join(part for part in sentences if part))


def wants_optional() -> bool:
    """Whether LAB_OPTIONAL=1 asks a headless run for the optional sections, too."""
    return os.environ.get("LAB_OPTIONAL") == "1"


@public
def is_measured_here(*, optional: bool = True) -> bool:
    """Whether this run measures: a person's always, a headless one optional parts only if asked."""
    return not (optional and nobody_is_there() and not wants_optional())


def is_wanted(experiment: Experiment) -> bool:
    """Whether a headless run measures an experiment: a core one always, others when asked."""
    return bool(experiment.steps) and (wants_optional() or not experiment.is_optional)


def _caption_of(point: Point) -> str:
    return point.records[0].caption if point.records else "computed, not measured"
