"""Runs every experiment with a claim as it is, and in each of its broken worlds.

All runs go through the notebook's own steps, series and check. A world is *noticed* when the panel
says there that this is not what the title says, and does not say so of the experiment as it is.

What only makes something in a notebook is executed, as a kernel does it; loops, output and whatever
measures are left out.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import linecache
import os
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

from labkit.evidence.checks import CHECKS
from labkit.evidence.evidence import NOT_APPLICABLE
from labkit.panel.experiment import Experiment
from labkit.panel.panel import Panel
from labkit.panel.runner import Runner
from labkit.records import Place, Verdict
from labkit_authoring import worlds
from labkit_authoring.worlds import WORLDS, BrokenWorld
from labkit_grading.cells import read_cells

MEASURING = frozenset({"measure", "compare", "ranks", "settle", "where", "below", "accuse"})
RUNS_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
FAILED = "failed"


class Notice(StrEnum):
    """Whether a broken world was noticed."""

    NOTICED = "noticed"
    MISSED = "MISSED"
    UNDECIDED = "undecided"  # noise decided nothing in it, or the cores were busy
    FAILED = "failed"  # it ended with an error, which the panel says in place of a verdict


@dataclass(frozen=True)
class PanelOutcome:
    """What a panel said of one run.

    Attributes:
        verdict: of the claim.
        reason: what the verdict follows from, in words.
        mismatch: why the run does not show what the title says; empty where it does.
        applies: whether a claim could be asked.
        seconds: how long the run took.
    """

    verdict: str
    reason: str
    mismatch: str = ""
    applies: bool = True
    seconds: float = 0.0

    def __str__(self) -> str:
        reason = f"not what the title says: {self.mismatch}" if self.mismatch else self.reason
        return f"{self.verdict} ({self.seconds:.0f} s): {reason}"


@dataclass(frozen=True)
class BrokenRun:
    """One broken world, and what the panel said in it."""

    world: str
    outcome: PanelOutcome
    notice: Notice

    def __str__(self) -> str:
        return f"  {self.notice}: {self.world}: {self.outcome}"


@dataclass(frozen=True)
class Control:
    """One experiment as it is, and in its broken worlds."""

    key: str
    outcome: PanelOutcome
    broken: tuple[BrokenRun, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.key}: {self.outcome}", *map(str, self.broken)])

    @property
    def is_noticed(self) -> bool:
        """Whether the panel noticed every broken world, and only those."""
        is_every_world_noticed = all(run.notice is Notice.NOTICED for run in self.broken)
        return not self.outcome.mismatch and is_every_world_noticed


@dataclass(frozen=True)
class Skipped:
    """An experiment that cannot run here, and why."""

    key: str
    reason: str

    def __str__(self) -> str:
        return f"{self.key}: skipped: {self.reason}"


def controls(
    notebooks: Sequence[Path], place: Place, only: Sequence[str] = ()
) -> Iterator[Control | Skipped]:
    """Run the experiments of some notebooks that have a claim, and their broken worlds.

    Args:
        notebooks: their sources.
        place: where this is.
        only: keys of experiments; none means all.
    """
    for notebook in notebooks:
        for key, experiment in experiments(define(notebook, place)).items():
            if experiment.check and (not only or key in only):
                reason = why_not(experiment, place)
                yield Skipped(key, reason) if reason else control(experiment, notebook, place)


def why_not(experiment: Experiment, place: Place) -> str:
    """Why an experiment cannot run on this machine; empty where it can."""
    expected = CHECKS[experiment.key].expects(place.tier, emulated=place.emulated)
    if not isinstance(expected, Verdict):
        return expected
    return "" if experiment.steps else "nothing here can be cut into parts"


def control(experiment: Experiment, notebook: Path, place: Place) -> Control | Skipped:
    """Judge an experiment as it is and in its worlds; skip it where its claim does not apply."""
    plain = judge_with_environment(experiment, {})
    if not plain.applies:
        return Skipped(experiment.key, plain.reason)
    broken = []
    for number, world in enumerate(WORLDS[experiment.key]):
        changed = experiment
        if world.is_in_the_notebook:
            names = define(notebook, place, {world.target: world.change})
            changed = experiments(names)[experiment.key]
        outcome = judge_with_environment(changed, worlds.environment(experiment.key, number))
        broken.append(BrokenRun(world.name, outcome, notice(outcome, world)))
    return Control(experiment.key, plain, tuple(broken))


def notice(outcome: PanelOutcome, world: BrokenWorld) -> Notice:
    """Whether a world was noticed: by a sentence that says so, or by refused cores."""
    if outcome.verdict == FAILED:
        return Notice.FAILED
    if outcome.mismatch or (world.takes_cores and not outcome.applies):
        return Notice.NOTICED
    is_open = outcome.verdict == Verdict.UNDECIDED.value or not outcome.applies
    return Notice.UNDECIDED if is_open else Notice.MISSED


def judge_with_environment(experiment: Experiment, added: Mapping[str, str]) -> PanelOutcome:
    """Measure and judge an experiment with variables added to its children's environment."""
    started_s = time.monotonic()
    environment = mock.patch.dict(os.environ, {"LAB_HEADLESS": "1", **added})
    with tempfile.TemporaryDirectory(prefix="labkit-control-") as folder, environment:
        runner = Runner(experiment, Path(folder))
        evidence = asyncio.run(runner.run(None, headless=True))
    judgement, seconds = evidence.judgement, round(time.monotonic() - started_s, 1)
    if judgement is None:
        return PanelOutcome(FAILED, runner.message, seconds=seconds)
    return PanelOutcome(
        judgement.verdict.value,
        judgement.reason,
        judgement.mismatch,
        judgement.expected != NOT_APPLICABLE,
        seconds,
    )


def define(
    notebook: Path,
    place: Place,
    changes: Mapping[str, Callable[[Any], Any]] = MappingProxyType({}),
) -> dict[str, Any]:
    """A notebook's names on a machine, solutions kept; nothing is measured to find out.

    Args:
        notebook: its source.
        place: the machine.
        changes: by the name of a function or class, what makes another of it.
    """
    names = vars(types.ModuleType("__main__"))
    names["place"] = place
    for cell in read_cells(notebook):
        file = f"<{notebook.name}, cell {cell.number}>"
        linecache.cache[file] = (len(cell.text), None, cell.text.splitlines(keepends=True), file)
        for statement in ast.parse(cell.text).body:
            if _defines(statement):
                code = compile(ast.Module([statement], []), file, "exec")
                # What needs a result fails, and only words for the student are made of results.
                with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
                    exec(code, names)  # noqa: S102  the project's own notebook
                defined = getattr(statement, "name", "")
                if defined in changes:
                    names[defined] = changes[defined](names[defined])
    return names


def experiments(names: Mapping[str, Any]) -> dict[str, Experiment]:
    """The experiments among a notebook's names, by key."""
    panel_experiments = (value.experiment for value in names.values() if isinstance(value, Panel))
    return {e.key: e for e in panel_experiments}


def _defines(statement: ast.stmt) -> bool:
    """Whether a statement only makes something: no loop, no output, nothing that measures."""
    if isinstance(statement, RUNS_LATER):
        return True
    if not isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.If):
        return False
    return not any(_measures(node) for node in ast.walk(statement))


def _measures(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Await)
    called: Any = node.func
    return getattr(called, "attr", getattr(called, "id", "")) in MEASURING
