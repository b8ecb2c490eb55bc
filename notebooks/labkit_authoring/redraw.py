"""Draw and judge a recorded gallery again, with today's plots and checks, without measuring.

Of a notebook only what defines its experiments runs, as if on the machine recorded. Samples, places
and dates stay as they were recorded; figure and verdict are made anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from labkit.errors import LabError
from labkit.evidence import evidence as store
from labkit.evidence.evidence import Evidence
from labkit.machine import device
from labkit.panel.experiment import Experiment
from labkit.panel.picture import plot_of
from labkit.records import CpuBudget, Device, Lease, Place
from labkit_authoring.definitions import define, experiments
from labkit_grading import figures


def redraw(
    folder: Path, notebooks: Sequence[Path], *, recorded: Path | None = None
) -> tuple[str, ...]:
    """Draw and judge every recorded experiment of one machine again.

    Args:
        folder: the gallery of one machine, as `record` made it.
        notebooks: the sources that define the experiments.
        recorded: where the runs to be replayed lie; those of this gallery are brought up to date.

    Returns:
        The keys of the experiments drawn.

    Raises:
        LabError: the folder holds no evidence, or no notebook defines one of its experiments.
    """
    kept = {file.stem: store.load(file) for file in sorted(folder.glob("*.json"))}
    if not kept:
        raise LabError(f"{folder} holds no recorded evidence")
    place = place_of(list(kept.values()))
    known = {one.key: one for notebook in notebooks for one in experiments(define(notebook, place))}
    if missing := sorted(kept.keys() - known.keys()):
        raise LabError(f"no notebook given defines {', '.join(missing)} on {place.tier} any more")
    for key, item in kept.items():
        _draw(known[key], item, folder, recorded)
    return tuple(kept)


def place_of(found: Sequence[Evidence]) -> Place:
    """The machine of a gallery: the most GPUs any of its records names, else its CPU.

    Raises:
        LabError: nothing there was measured.
    """
    records = [one for item in found for point in item.points for one in point.records]
    if not records:
        raise LabError("nothing in this gallery was measured")
    best = max(records, key=lambda one: (_gpus(one.devices), len(one.devices)))
    cores = best.devices[0].cpu_cores
    link = device.LINKS[best.tier]
    return Place(best.tier, best.devices, link, CpuBudget(cores, int(cores)), Lease())


def _gpus(devices: Sequence[Device]) -> int:
    return sum(one.backend == "cuda" for one in devices)


def judged_again(experiment: Experiment, item: Evidence) -> Evidence:
    """The same evidence with the verdict of today's check; none where none is asked."""
    return replace(item, judgement=None if item.stopped else experiment.judge(item))


def _draw(experiment: Experiment, item: Evidence, folder: Path, recorded: Path | None) -> None:
    again, file = judged_again(experiment, item), folder / f"{item.experiment}.json"
    if again.judgement != item.judgement:
        store.save(again, folder)
    drawn = figures.svg(plot_of(experiment, again))
    file.with_suffix(".svg").write_text(drawn, encoding="utf-8")
    shipped = recorded / file.name if recorded else None
    if shipped and shipped.is_file() and store.load(shipped).started == item.started:
        shutil.copyfile(file, shipped)
