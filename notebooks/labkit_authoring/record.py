"""Record notebooks on a machine: evidence and figures for the gallery, and runs to be replayed.

Everything written comes out of a rehearsal; nothing is edited. A recorded run shows a student
without such a machine what one gives, always under the machine's name.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import EvidenceDamaged
from labkit.evidence import evidence as store
from labkit.evidence.evidence import Evidence
from labkit.measuring import place as around
from labkit.records import Place, Tier
from labkit_authoring import gallery
from labkit_authoring.rehearse import Rehearsal, rehearse
from labkit_grading import figures


@dataclass(frozen=True)
class Recording:
    """Where the gallery of one machine lies, what is in it, and what may be replayed."""

    folder: Path
    shown: tuple[str, ...]
    replayable: tuple[str, ...]
    rehearsals: tuple[Rehearsal, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every notebook ran to its end."""
        return not any(one.failed for one in self.rehearsals)


def machine_name(place: Place) -> str:
    """A folder's name for a machine, e.g. "h200-2gpu"."""
    cards = [card for card in place.devices if card.backend == "cuda"]
    if not cards:
        return f"cpu-{place.cpu.cores:g}core"
    words = re.findall(r"[a-z0-9]+", cards[0].name.lower())
    name = "-".join(word for word in words if word not in ("nvidia", "tesla", "gpu"))
    kind = "slice" if cards[0].is_slice else "gpu"
    return f"{name}-{len(cards)}{kind}"


def record(
    notebooks: Sequence[Path],
    out: Path,
    *,
    recorded: Path | None = None,
    only: Sequence[str] = ("*",),
    emulate: bool = False,
    limit_s: float,
) -> Recording:
    """Rehearse notebooks and keep what they show.

    Args:
        notebooks: sources or .ipynb.
        out: the gallery; a folder named after the machine is made in it.
        recorded: where runs to be replayed are put, or None to keep none.
        only: patterns of experiments to be replayed, for example "DP-*".
        emulate: on a make-believe slice; such runs are never replayed.
        limit_s: per notebook.
    """
    place = around.where()
    work = out / ".work"
    runs = tuple(
        rehearse(one, work / one.stem, emulate=emulate, limit_s=limit_s) for one in notebooks
    )
    name = machine_name(place) + ("-emulated" if emulate else "")
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    kept = [item for run in runs for item in _keep(run, folder)]
    replayable = [item for item in kept if _is_replayable(item, only)] if recorded else []
    for item in replayable:
        _copy(folder / f"{item.experiment}.json", recorded)
    gallery.write_note(folder, place, kept, runs)
    shutil.rmtree(work)
    keys = [tuple(item.experiment for item in found) for found in (kept, replayable)]
    return Recording(folder, keys[0], keys[1], runs)


def _keep(run: Rehearsal, folder: Path) -> Iterator[Evidence]:
    """Copy evidence and figures of one rehearsal; what cannot be read again is left out."""
    for file in sorted((run.folder / "evidence").glob("*.json")):
        try:
            found = store.load(file)
        except EvidenceDamaged:
            continue
        _copy(file, folder)
        figure = run.folder / "figures" / f"{file.stem}{figures.SUFFIX}"
        if figure.is_file():
            drawn = figures.drawn(json.loads(figure.read_text(encoding="utf-8")))
            (folder / f"{file.stem}.svg").write_text(drawn, encoding="utf-8")
        yield found


def _copy(file: Path, folder: Path | None) -> None:
    if folder is not None and file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / file.name)


def _is_replayable(item: Evidence, only: Sequence[str]) -> bool:
    """Only whole runs on a real GPU, that nothing emulated, are worth replaying."""
    devices = [device for point in item.points for one in point.records for device in one.devices]
    real = bool(devices) and all(one.backend == "cuda" and not one.emulated for one in devices)
    is_asked = any(fnmatch.fnmatch(item.experiment, pattern) for pattern in only)
    return real and is_asked and item.stopped is None and item.tier != Tier.CPU.value
