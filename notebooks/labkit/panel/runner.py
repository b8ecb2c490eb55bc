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
from labkit.evidence.evidence import Evidence, Judgement, Point, Prediction
from labkit.panel.experiment import Experiment, comparison
from labkit.records import Comparison, Measurement, Tier, Verdict, now_text
from labkit.run.borrowed import waits

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
        self._step, self._began = 0, 0.0
        self._is_waiting = False
        self._explanation = ""
        self._recall()

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

    def _recall(self) -> None:
        """Show what an earlier run saved, with the slice it came from."""
        file = self._folder / f"{self.experiment.key}.json"
        if not file.exists():
            return
        try:
            self.evidence = store.load(file)
        except EvidenceDamaged as error:
            self.message = str(error)
            return
        self._explanation = self.evidence.explanation
        where, when = self.evidence.place, self.evidence.ended[:16]
        asks = self.verdict_or_question() if self.evidence.is_open_to_claims else ""
        self.message = f"Saved {when} on {where}. Predict to repeat it. {asks}".rstrip()

    @property
    def shown(self) -> Evidence:
        """The evidence with the point that is being measured."""
        if self._live is None:
            return self.evidence
        return replace(
            self.evidence, points=(*self.evidence.points, self._live), place=_place(self._live)
        )

    @property
    def progress(self) -> float:
        """Between 0 and 1, by finished steps."""
        return self._step / max(1, len(self.experiment.steps))

    @property
    def is_waiting(self) -> bool:
        """Whether the step has no slice yet, so that none of its seconds pass."""
        return self._is_waiting and self.is_running

    @property
    def seconds_left(self) -> float:
        """At most this many seconds remain, by the steps' budgets."""
        left = sum(step.seconds for step in self.experiment.steps[self._step :])
        spent = time.monotonic() - self._began if self.is_running else 0.0
        return max(0.0, left - spent)

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
        empty = self._empty(prediction, headless=headless or nobody_is_there())
        self.evidence = replace(empty, explanation=self._explanation)
        self.is_running, self._step = True, 0
        self._task = asyncio.ensure_future(self._steps())
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
        said = f"Recorded on {recorded.replayed_from}, not yours."
        self._say(" ".join([*self._outcome(), said]))

    async def _steps(self) -> None:
        waits.set(self._wait)
        for number, step in enumerate(self.experiment.steps):
            self._step = number
            self._measuring()
            self._keep(await step.run(self.show_live))
        self._step = len(self.experiment.steps)

    def _measuring(self) -> None:
        """A step begins, or its slice is here: its seconds count from now."""
        self._is_waiting, self._began = False, time.monotonic()
        steps = self.experiment.steps
        self._say(f"Measuring {steps[self._step].label}, step {self._step + 1} of {len(steps)}.")

    def _wait(self, words: str) -> None:
        """The step waits for a borrowed slice, or for its runner to start."""
        self._is_waiting = True
        self._say(words)

    def show_live(self, point: Point) -> None:
        """Take a point that is still being measured."""
        self._live = point
        if self.is_waiting:
            self._measuring()
        self._on_change()

    def _keep(self, point: Point) -> None:
        self._live = None
        self.evidence = replace(
            self.evidence,
            points=(*self.evidence.points, point),
            place=_place(point),
            tier=point.records[0].tier.value if point.records else Tier.CPU.value,
            emulated=self.evidence.emulated or any(one.is_emulated for one in point.records),
        )
        self._on_change()

    def _say(self, message: str) -> None:
        self.message = message
        self._on_change()

    def _finish(self) -> None:
        """Judge or excuse the run, and save it."""
        task, kept = self._task, self._live
        self._live, self.is_running = None, False
        if task is None or task.cancelled():
            self._end("stopped by hand", kept)
        elif (error := task.exception()) is None:
            self._judge()
        elif isinstance(error, LabError):
            self._end(str(error), self._rescued(error, kept))
        else:
            self.message = f"{FAULT} {error!r}"
            raise error
        self.evidence = replace(self.evidence, ended=now_text())
        if self.evidence.points:
            store.save(self.evidence, self._folder)
        self._on_change()

    def _rescued(self, error: LabError, live: Point | None) -> Point | None:
        """The unfinished point, rebuilt from what the failure kept."""
        step = self.experiment.steps[self._step].label
        if isinstance(error.kept, Measurement) and live is not None:
            return replace(live, records=(error.kept,))
        if isinstance(error.kept, Comparison):
            records = (error.kept.a, error.kept.b)
            return Point(live.x if live else 0.0, step, error.kept.ratio, records, error.kept)
        return live

    def _end(self, why: str, kept: Point | None) -> None:
        if kept is not None:
            self._keep(kept)
        self.evidence = replace(self.evidence, stopped=why)
        samples = self.evidence.samples
        kept_words = f"{samples} samples are kept." if samples else NOTHING_MEASURED
        self.message = f"{why[0].upper()}{why[1:]}. {kept_words}"

    def _judge(self) -> None:
        judgement = self.experiment.judge(self.evidence)
        if judgement is not None:
            self.evidence = replace(self.evidence, judgement=self._with_budget(judgement))
        taken = f"{self.evidence.samples} samples on " if self.evidence.samples else ""
        said = f"Done: {taken}{self.evidence.place}."
        if judgement is None or self.evidence.is_open_to_claims:
            self.message = " ".join([*self._outcome(), said])
        else:
            self.message = " ".join(self._outcome())

    def _with_budget(self, judgement: Judgement) -> Judgement:
        """An undecided verdict also says when a record was cut short."""
        records = [record for point in self.evidence.points for record in point.records]
        cut = next((record.stopped for record in records if record.stopped), None)
        asked = judgement.expected != store.NOT_APPLICABLE
        if cut is None or not asked or judgement.verdict is not Verdict.UNDECIDED:
            return judgement
        return replace(judgement, why=f"{judgement.why} ({cut})")

    def _outcome(self) -> list[str]:
        """Prediction beside result; then the verdict, or the question before a claim."""
        compared = comparison(self.experiment, self.evidence)
        return [words for words in (compared, self.verdict_or_question()) if words]

    def verdict_or_question(self) -> str:
        """The verdict for whoever has made a claim, and for nobody; the question for all others."""
        judgement, check = self.evidence.judgement, self.experiment.check
        if judgement is None or check is None:
            return ""
        if self.evidence.is_open_to_claims:
            return (
                f"The claim: “{check.says}”. What do the data say of it? Choose, then press Keep."
            )
        said = sentence(judgement, check.says)
        cannot_be_asked = judgement.expected == store.NOT_APPLICABLE
        is_elsewhere = cannot_be_asked and store.is_recorded(self.experiment.key)
        if is_elsewhere and not self.evidence.replayed_from:
            return f"{said} The recorded run of a GPU can show it."
        return said

    def explain(self, text: str, claim: Verdict | None) -> None:
        """Keep the student's words and their first claim; the verdict is said after the claim.

        Args:
            text: their explanation.
            claim: what they say the data show; None when they did not say. A later one is not
                taken: by then the verdict has been seen.
        """
        if not self.evidence.points:
            self._say("Measure first, then explain: this keeps your words with your own evidence.")
            return
        first = self.evidence.verdict_read or claim
        kept = "Your explanation is kept with the evidence."
        if self.evidence.replayed_from:
            kept = "This run is not yours: nothing is kept of it."
            self.evidence = replace(self.evidence, verdict_read=first)
        else:
            self._explanation = text.strip()
            explained = replace(self.evidence, explanation=self._explanation)
            self.evidence = replace(explained, verdict_read=first)
            store.save(self.evidence, self._folder)
        own = f"You say: {first}." if first and self.evidence.judgement else ""
        self._say(" ".join(words for words in (kept, own, self.verdict_or_question()) if words))


def nobody_is_there() -> bool:
    """Whether this notebook is executed by a program (LAB_HEADLESS=1, or LAB_QUICK=1 in tests)."""
    return "1" in (os.environ.get("LAB_HEADLESS"), os.environ.get("LAB_QUICK"))


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


def sentence(judgement: Judgement, says: str) -> str:
    """The verdict in words, with what this tier was expected to show."""
    if judgement.expected == store.NOT_APPLICABLE:
        return f"“{says}”: not a question for this device, because {judgement.why}."
    if judgement.verdict is Verdict.UNDECIDED:
        return f"“{says}”: undecided: {judgement.why}."
    tail = "as expected here."
    if judgement.verdict.value != judgement.expected:
        tail = f"although {judgement.expected} was expected here: why?"
    return f"“{says}”: {judgement.verdict}, {tail} The data: {judgement.why}."


def _place(point: Point) -> str:
    return point.records[0].caption if point.records else "computed, not measured"
