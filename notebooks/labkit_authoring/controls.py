"""Runs every experiment with a claim twice, as it is and in its twin's world.

Both runs go through the notebook's own steps, series and check. An experiment *notices* what is
absent in the twin's world when the verdict is decided here and is not the same there.

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
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

from labkit.evidence.checks import CHECKS
from labkit.evidence.evidence import NOT_APPLICABLE
from labkit.panel.experiment import Experiment
from labkit.panel.panel import Panel
from labkit.panel.runner import Runner
from labkit.records import Place, Verdict
from labkit_authoring import twins
from labkit_authoring.twins import TWINS
from labkit_grading.cells import read_cells

MEASURING = frozenset({"measure", "compare", "ranks", "settle", "where", "below"})
RUNS_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
FAILED = "failed"
DECIDED = {Verdict.SUPPORTED.value, Verdict.CONTRADICTED.value}


@dataclass(frozen=True)
class Control:
    """One experiment's verdict, and its twin's.

    Attributes:
        absent: what is taken away in the twin's world.
        why: the verdict's reason.
        twin_why: the reason of the twin's.
    """

    key: str
    verdict: str
    absent: str
    twin_verdict: str
    why: str = ""
    twin_why: str = ""

    @property
    def notices(self) -> bool:
        """Whether the verdict is decided, and differs where the effect is absent."""
        is_judged = self.twin_verdict != FAILED
        return self.verdict in DECIDED and is_judged and self.twin_verdict != self.verdict


@dataclass(frozen=True)
class Skipped:
    """An experiment that cannot run here, and why."""

    key: str
    reason: str


def controls(
    notebooks: Sequence[Path], place: Place, only: Sequence[str] = ()
) -> Iterator[Control | Skipped]:
    """Run the core experiments of some notebooks and their twins.

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
    """Judge an experiment here and in its twin's world; skip it where its claim does not apply."""
    twin = TWINS[experiment.key]
    plain_outcome = judge_with_environment(experiment, {})
    if not plain_outcome.applies:
        return Skipped(experiment.key, plain_outcome.why)
    if twin.is_in_the_notebook:
        names = define(notebook, place, {twin.target: twin.change})
        experiment = experiments(names)[experiment.key]
    twin_outcome = judge_with_environment(experiment, twins.environment(experiment.key))
    return Control(
        experiment.key,
        plain_outcome.verdict,
        twin.absent,
        twin_outcome.verdict,
        plain_outcome.why,
        twin_outcome.why,
    )


class _Outcome(NamedTuple):
    verdict: str
    why: str
    applies: bool = True


def judge_with_environment(experiment: Experiment, added: Mapping[str, str]) -> _Outcome:
    """Measure and judge an experiment with variables added to its children's environment."""
    world = mock.patch.dict(os.environ, {"LAB_HEADLESS": "1", **added})
    with tempfile.TemporaryDirectory(prefix="labkit-control-") as folder, world:
        runner = Runner(experiment, Path(folder))
        evidence = asyncio.run(runner.run(None, headless=True))
    judgement = evidence.judgement
    if judgement is None:
        return _Outcome(FAILED, runner.message)
    return _Outcome(judgement.verdict.value, judgement.why, judgement.expected != NOT_APPLICABLE)


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
