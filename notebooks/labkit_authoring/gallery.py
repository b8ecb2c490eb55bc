"""What the docs show of the notebooks: recordings as pages, and where published figures are shown.

A recording comes out of a rehearsal, and nothing of it is edited: evidence, figures, a note of the
machine, and runs to be replayed. These show a student without such a machine what one gives, always
under the machine's name.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from labkit.errors import EvidenceDamaged
from labkit.evidence import evidence as store
from labkit.evidence import published
from labkit.evidence.evidence import NOT_APPLICABLE, Evidence
from labkit.measuring import place as around
from labkit.notebook.catalogue import EXPERIMENTS
from labkit.records import Place, Tier, now_text
from labkit_authoring.rehearse import Rehearsal, rehearse
from labkit_grading import figures

NOTE = "machine.toml"
SOURCES = Path(__file__).parent.parent / "src"
NAMED = re.compile(
    r"f?\"((?:cern5|cern6|dettmers|habr)\.[^\"]+|(?:nvidia\.)?(?:finetune|infer)\.[^\"]+)\""
)


@dataclass(frozen=True)
class Recording:
    """Where the gallery of one machine lies, what is in it, and what may be replayed."""

    folder: Path
    drawn_keys: tuple[str, ...]
    replayable: tuple[str, ...]
    rehearsals: tuple[Rehearsal, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every notebook ran to its end."""
        return not any(rehearsal.failed for rehearsal in self.rehearsals)


def machine_name(place: Place) -> str:
    """A folder's name for a machine, e.g. "h200-2gpu"."""
    cards = [card for card in place.devices if card.backend == "cuda"]
    if not cards:
        return f"cpu-{place.cpu.cores:g}core"
    name_parts = re.findall(r"[a-z0-9]+", cards[0].name.lower())
    name = "-".join(part for part in name_parts if part not in ("nvidia", "tesla", "gpu"))
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

    Raises:
        LabError: vl-convert is not installed; said before anything is run.
    """
    figures.renderer()
    place = around.where()
    work = out / ".work"
    runs = tuple(
        rehearse(notebook, work / notebook.stem, emulate=emulate, limit_s=limit_s)
        for notebook in notebooks
    )
    name = machine_name(place) + ("-emulated" if emulate else "")
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    saved = [item for run in runs for item in _copy_results(run, folder)]
    replayable = [item for item in saved if _is_replayable(item, only)] if recorded else []
    for item in replayable:
        _copy(folder / f"{item.experiment}.json", recorded)
    _write_note(folder, place, saved, runs)
    shutil.rmtree(work)
    keys = [tuple(item.experiment for item in group) for group in (saved, replayable)]
    return Recording(folder, keys[0], keys[1], runs)


def _copy_results(run: Rehearsal, folder: Path) -> Iterator[Evidence]:
    """Copy evidence and figures of one rehearsal; what cannot be read again is left out."""
    for file in sorted((run.folder / "evidence").glob("*.json")):
        try:
            evidence = store.load(file)
        except EvidenceDamaged:
            continue
        _copy(file, folder)
        figure = run.folder / "figures" / f"{file.stem}{figures.SUFFIX}"
        if figure.is_file():
            svg = figures.drawn(json.loads(figure.read_text(encoding="utf-8")))
            (folder / f"{file.stem}.svg").write_text(svg, encoding="utf-8")
        yield evidence


def _copy(file: Path, folder: Path | None) -> None:
    if folder is not None and file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / file.name)


def _is_replayable(evidence: Evidence, only: Sequence[str]) -> bool:
    """Whether a run is worth replaying: it is complete, and was measured on a real GPU."""
    records = [r for point in evidence.points for r in point.records]
    devices = [device for r in records for device in r.devices]
    real = bool(devices) and all(d.backend == "cuda" and not d.emulated for d in devices)
    is_asked = any(fnmatch.fnmatch(evidence.experiment, pattern) for pattern in only)
    return real and is_asked and evidence.stopped is None and evidence.tier != Tier.CPU.value


def _write_note(
    folder: Path, place: Place, saved: Sequence[Evidence], runs: Sequence[Rehearsal]
) -> None:
    """Write on what machine the evidence was recorded, and how each notebook ended."""
    devices = ", ".join(sorted(_on_gpus(saved) or {device.label for device in place.devices}))
    note = {
        "recorded": now_text()[:10],
        "devices": f"{len(place.devices)} × {devices}",
        "versions": ", ".join(map(" ".join, place.versions.items())),
    }
    lines = [_set(key, value) for key, value in note.items()]
    for run in runs:
        lines += ["", "[[notebooks]]", _set("name", run.notebook)]
        lines += [f"minutes = {run.total_s / 60:.1f}", _set("ended", run.failed or "whole")]
    (folder / NOTE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _set(key: str, text: str) -> str:
    return f"{key} = {json.dumps(text, ensure_ascii=False)}"


def _on_gpus(saved: Sequence[Evidence]) -> set[str]:
    """The GPUs named by the records; only children know of an emulated slice."""
    records = [record for item in saved for point in item.points for record in point.records]
    devices = [device for record in records for device in record.devices]
    return {device.label for device in devices if device.backend == "cuda"}


def page(folder: Path) -> str:
    """One machine's page in Markdown: how the notebooks ran, then each experiment's figure."""
    note = tomllib.loads((folder / NOTE).read_text(encoding="utf-8"))
    lines = [
        "---",
        "nosearch: true",
        "---",
        f"# {note['devices'].partition(', ')[0]} ({folder.name})",
        "",
        f"Recorded {note['recorded']} by `labkit record` on {note['devices']}.",
        f"Versions: {note['versions']}.",
        "Headless: nobody predicted, so no prediction is drawn.",
        "",
        "| notebook | minutes | ended |",
        "|---|---|---|",
    ]
    for run in note.get("notebooks", []):
        lines.append(f"| {_cell(run['name'])} | {run['minutes']} | {_cell(run['ended'])} |")
    for file in sorted(folder.glob("*.json")):
        lines += ["", *_experiment_lines(store.load(file))]
    return "\n".join(lines)


def _experiment_lines(evidence: Evidence) -> list[str]:
    """One experiment: its verdict, where it was measured, and its figure."""
    alt_text = escape(f"{evidence.experiment}: {evidence.title}")
    return [
        f"**{evidence.experiment} {_cell(evidence.title)}**: {_verdict(evidence)}.",
        f"Where: {_cell(evidence.place)}.",
        "",
        f"![{alt_text}]({evidence.experiment}.svg)",
    ]


def _verdict(evidence: Evidence) -> str:
    """The verdict of the check, compared with the one expected on such a machine."""
    if evidence.stopped:
        return f"stopped: {_cell(evidence.stopped)}"
    if evidence.judgement is None:
        return "no verdict asked"
    verdict, expected = evidence.judgement.verdict.value, evidence.judgement.expected
    if expected == NOT_APPLICABLE:
        return f"{verdict}; on such a machine the claim need not apply"
    as_expected = "as expected" if verdict == expected else f"expected {expected}"
    mismatch = f"; but {_cell(evidence.judgement.mismatch)}" if evidence.judgement.mismatch else ""
    return f"{verdict}, {as_expected}{mismatch}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def shown_in() -> dict[str, list[str]]:
    """For each published figure, the panels that draw it, then the notebooks that print it."""
    uses: dict[str, list[str]] = {}
    for key, experiment in EXPERIMENTS.items():
        row = experiment.published
        for name in filter(None, (*row.places, row.base)) if row else ():
            uses.setdefault(name, []).append(key)
    for source in sorted(SOURCES.glob("[1-9]*_*.py")):
        for name in set(NAMED.findall(source.read_text(encoding="utf-8"))):
            full_name = name if name.split(".")[0] in published.SHORT else f"nvidia.{name}"
            # Braces in a name stand for any part of it.
            pattern = re.sub(r"\\{[^}]*\\}", r"[^.]+", re.escape(full_name))
            for figure in filter(re.compile(pattern).fullmatch, published.figures()):
                uses.setdefault(figure, []).append(f"{source.name[0]}: printed")
    return uses
