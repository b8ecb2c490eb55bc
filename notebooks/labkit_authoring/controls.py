"""Runs every experiment with a claim twice, as it is and in its twin's world.

Both runs go through the notebook's own steps, series and check. An experiment *notices* what is
absent in the twin's world when the verdict is decided here and is not the same there.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from labkit.evidence.checks import CHECKS
from labkit.evidence.evidence import NOT_APPLICABLE
from labkit.panel.experiment import Experiment
from labkit.panel.runner import Runner
from labkit.records import Place, Verdict
from labkit_authoring import twins
from labkit_authoring.definitions import define, experiments
from labkit_authoring.twins import TWINS

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
        """Whether the verdict is decided, and is another one where the effect is absent."""
        is_judged = self.twin_verdict != FAILED
        return self.verdict in DECIDED and is_judged and self.twin_verdict != self.verdict


@dataclass(frozen=True)
class Skipped:
    """An experiment that cannot be asked here, and why."""

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
        found = {
            one.key: one for one in experiments(define(notebook, place, probing=True)) if one.check
        }
        for key, experiment in found.items():
            if not only or key in only:
                reason = why_not(experiment, place)
                yield Skipped(key, reason) if reason else control(experiment, notebook, place)


def why_not(experiment: Experiment, place: Place) -> str:
    """Why an experiment cannot be asked on this machine; empty where it can."""
    expected = CHECKS[experiment.key].expects(place.tier, emulated=place.emulated)
    if not isinstance(expected, Verdict):
        return expected
    return "" if experiment.steps else "nothing here can be cut into parts"


def control(experiment: Experiment, notebook: Path, place: Place) -> Control | Skipped:
    """One experiment, and the same in its twin's world; skipped where it turns out not to apply."""
    twin = TWINS[experiment.key]
    plain = said_by(experiment, {})
    if not plain.applies:
        return Skipped(twin.key, plain.why)
    if twin.is_in_the_notebook:
        names = define(notebook, place, probing=True, changes={twin.target: twin.change})
        (experiment,) = (one for one in experiments(names) if one.key == twin.key)
    there = said_by(experiment, twins.environment(twin.key))
    return Control(twin.key, plain.verdict, twin.absent, there.verdict, plain.why, there.why)


class _Said(NamedTuple):
    verdict: str
    why: str
    applies: bool = True


def said_by(experiment: Experiment, added: Mapping[str, str]) -> _Said:
    """Measure and judge, with this added to the children's environment."""
    world = mock.patch.dict(os.environ, {"LAB_HEADLESS": "1", **added})
    with tempfile.TemporaryDirectory(prefix="labkit-control-") as folder, world:
        runner = Runner(experiment, Path(folder))
        evidence = asyncio.run(runner.run(None, headless=True))
    found = evidence.judgement
    if found is None:
        return _Said(FAILED, runner.message)
    return _Said(found.verdict.value, found.why, found.expected != NOT_APPLICABLE)
