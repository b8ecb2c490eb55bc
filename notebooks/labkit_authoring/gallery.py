"""The gallery's page of one machine, from what was recorded there; the docs' build makes it.

A recording leaves its evidence, its figures and a note of the machine; nothing of it is edited.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from html import escape
from pathlib import Path

from labkit.evidence import evidence as store
from labkit.evidence.evidence import Evidence
from labkit.records import Place, now_text
from labkit_authoring.rehearse import Rehearsal

NOTE = "machine.toml"


def write_note(
    folder: Path, place: Place, kept: Sequence[Evidence], runs: Sequence[Rehearsal]
) -> None:
    """Keep beside the evidence on what it was recorded, and how each notebook ended."""
    devices = ", ".join(sorted(_on_gpus(kept) or {device.label for device in place.devices}))
    note = {
        "recorded": now_text()[:10],
        "devices": f"{len(place.devices)} × {devices}",
        "versions": ", ".join(f"{what} {number}" for what, number in place.versions.items()),
    }
    lines = [_set(key, value) for key, value in note.items()]
    for one in runs:
        lines += ["", "[[notebooks]]", _set("name", one.notebook)]
        lines += [f"minutes = {one.total_s / 60:.1f}", _set("ended", one.failed or "whole")]
    (folder / NOTE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _set(key: str, text: str) -> str:
    return f"{key} = {json.dumps(text, ensure_ascii=False)}"


def _on_gpus(kept: Sequence[Evidence]) -> set[str]:
    """The GPUs as the records name them: an emulated slice is known to its children alone."""
    records = [record for item in kept for point in item.points for record in point.records]
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
        lines += ["", *described(store.load(file))]
    return "\n".join(lines)


def described(item: Evidence) -> list[str]:
    """One experiment: its verdict, where it was measured, and its figure."""
    said = escape(f"{item.experiment}: {item.title}")
    return [
        f"**{item.experiment} {_cell(item.title)}**: {verdict(item)}.",
        f"Where: {_cell(item.place)}.",
        "",
        f"![{said}]({item.experiment}.svg)",
    ]


def verdict(item: Evidence) -> str:
    """What the check said, beside what it was expected to say on such a machine."""
    if item.stopped:
        return f"stopped: {_cell(item.stopped)}"
    if item.judgement is None:
        return "no verdict asked"
    said, expected = item.judgement.verdict.value, item.judgement.expected
    return f"{said}, as expected" if said == expected else f"{said}, expected {expected}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
