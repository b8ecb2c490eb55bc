"""The notebooks of the course in their order, and how far this student is with each.

Read from the files alone, by whoever opens the start page.  Where the course shares progress, and
the student has read the notice about it, `progress` is what the pool is told; nothing else is.

What counts as done is what `labkit` wrote beside the notebooks.  Must not import labkit: an image
may have notebooks and no labkit.
"""

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any
from zipfile import BadZipFile, ZipFile

MINUTE_S = 60
EXPERIMENT = re.compile(r"""labkit\.experiment\(\s*["']([\w.+-]+)["']""")
KEY = re.compile(r"[\w.+-]{1,40}")  # as the pool takes it
EVIDENCE = "evidence"
HAND_IN = "hand-in.zip"
LARGEST = 16 << 20  # bytes; what is larger is listed without being read
MOST = 100


def course(title: str, root: Path, folder: str) -> dict[str, Any]:
    """Return what the start page shows.

    Args:
        title: the course's name.
        root: where the server's paths start.
        folder: of the notebooks, below ``root``.

    Returns:
        ``title``; ``notebooks``, each with ``path``, ``title``, and how many ``experiments`` it
        has, how many are ``measured`` and how many ``explained``; ``handed_in``: when the zip to
        hand in was made (ISO 8601), or None.
    """
    notebooks_folder = root / folder
    states = _read_evidence(notebooks_folder / EVIDENCE)
    notebooks = sorted(file for file in notebooks_folder.glob("*.ipynb") if file.is_file())[:MOST]
    return {
        "title": title,
        "notebooks": [_notebook(file, f"{folder}/{file.name}", states) for file in notebooks],
        "handed_in": _modified_at(notebooks_folder / HAND_IN),
    }


def progress(root: Path, folder: str) -> list[dict[str, Any]]:
    """What a course's staff may be told: of each experiment a key, how far it is, and a minute.

    Never what was predicted, measured, written or judged.  Handed in is what lies in the zip.
    """
    notebooks_folder = root / folder
    states = _read_evidence(notebooks_folder / EVIDENCE)
    claims = [
        notebooks_folder / EVIDENCE / f"{key}.json"
        for key, explained in states.items()
        if explained
    ]
    zipped = _handed_in_minutes(notebooks_folder / HAND_IN)
    return [
        {
            "experiment": file.stem,
            "stage": "handed in" if file.stem in zipped else "claimed",
            "minute": zipped.get(file.stem) or int(file.stat().st_mtime // MINUTE_S),
        }
        for file in claims
        if KEY.fullmatch(file.stem)
    ]


def measured_ages(root: Path, folder: str) -> dict[str, float]:
    """Return how long ago each experiment was measured by hand, or last claimed, in seconds."""
    evidence = root / folder / EVIDENCE
    now = time.time()
    ages = {}
    for key in _read_evidence(evidence):
        with suppress(OSError):  # deleted since
            ages[key] = now - (evidence / f"{key}.json").stat().st_mtime
    return ages


def _handed_in_minutes(file: Path) -> dict[str, int]:
    """The experiments in the file to hand in, each with the minute in which it was made."""
    try:
        with ZipFile(file) as handed_in:
            keys = [PurePosixPath(name) for name in handed_in.namelist()]
        minute = int(file.stat().st_mtime // MINUTE_S)
    except (OSError, BadZipFile):
        return {}
    return {key.stem: minute for key in keys if key.match("evidence/*.json")}


def _notebook(file: Path, path: str, states: dict[str, bool]) -> dict[str, Any]:
    cells = list(_cells(file))
    keys = {key for cell in cells for key in EXPERIMENT.findall(cell)}
    return {
        "path": path,
        "title": _heading(cells) or file.stem.replace("_", " "),
        "experiments": len(keys),
        "measured": len(keys & states.keys()),
        "explained": sum(states.get(key, False) for key in keys),
    }


def _cells(file: Path) -> Iterator[str]:
    """The cells' texts; none of a notebook that cannot be read."""
    data = _read_json(file)
    cells = data.get("cells") if isinstance(data, dict) else None
    for cell in cells if isinstance(cells, list) else ():
        source = cell.get("source", "") if isinstance(cell, dict) else ""
        yield "".join(map(str, source)) if isinstance(source, list) else str(source)


def _heading(cells: list[str]) -> str:
    """The first heading of the first cell that has one."""
    for cell in cells:
        if heading := re.search(r"^#\s+(.+)$", cell, re.MULTILINE):
            return heading[1].strip()
    return ""


def _read_evidence(folder: Path) -> dict[str, bool]:
    """Each experiment that was measured by hand, and whether it is explained."""
    states = {}
    for file in sorted(folder.glob("*.json"))[:MOST]:
        evidence = _read_json(file)
        if isinstance(evidence, dict) and _is_own_work(evidence):
            states[file.stem] = bool(str(evidence.get("explanation") or "").strip())
    return states


def _is_own_work(evidence: dict[str, Any]) -> bool:
    """Return whether the student predicted it, ran it by hand and measured it here."""
    was_run = bool(evidence.get("points")) and not evidence.get("headless")
    return (
        was_run and evidence.get("prediction") is not None and evidence.get("replayed_from") is None
    )


def _read_json(file: Path) -> Any:
    """Return a file's JSON; None if it cannot be read."""
    try:
        if file.stat().st_size > LARGEST:
            return None
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _modified_at(file: Path) -> str | None:
    try:
        return datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat()
    except OSError:
        return None
