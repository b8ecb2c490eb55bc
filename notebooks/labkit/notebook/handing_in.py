"""What is a student's own: the zip to hand in, fresh copies of notebooks, numbers of a question.

The zip has the evidence and the notebooks, without outputs. It shows what was measured and written;
it deters forgery and cannot prevent it: who can run this code can also write such a file.
"""

from __future__ import annotations

import base64
import html
import itertools
import json
import os
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.arguments import public
from labkit.errors import EvidenceDamaged, LabError, WrongArgument
from labkit.evidence import evidence as store
from labkit.evidence.evidence import Evidence
from labkit.notebook.missing import list_missing, read_tasks
from labkit.records import now_text
from labkit.student import draw, student_here

FORMAT = 1
NAME = "hand-in.zip"
INLINE_LIMIT = 8 << 20  # bytes of a zip that the download link carries itself
VARIABLE = "MIGLAB_NOTEBOOKS"
DELIVERED = "/opt/miglab/notebooks"
MARKER_COLUMNS = ("experiment", "you predicted", "measured", "you said of the claim", "explanation")


@dataclass(frozen=True)
class HandIn:
    """The zip, with a link to download it.

    Attributes:
        notes: what is missing in it; none if nothing is.
        marker_rows: what the marker will see of each experiment, a row each of `MARKER_COLUMNS`.
    """

    file: Path
    experiments: tuple[str, ...]
    notebooks: tuple[str, ...]
    notes: tuple[str, ...] = ()
    marker_rows: tuple[tuple[str, ...], ...] = ()

    def __repr__(self) -> str:
        contents = " and ".join(
            f"{len(names)} {kind}{'' if len(names) == 1 else 's'}"
            for names, kind in ((self.experiments, "experiment"), (self.notebooks, "notebook"))
        )
        return "\n".join([f"{self.file}: {contents}", *self.notes])

    def _repr_html_(self) -> str:
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        before = (
            f"<p><b>Missing, before you send it:</b></p><ul>{notes}</ul>"
            if notes
            else "<p>Nothing is missing.</p>"
        )
        link = f"<p>{self._link()} {html.escape(repr(self).splitlines()[0])}</p>"
        return before + link + self._as_marker_sees_it()

    def _as_marker_sees_it(self) -> str:
        """The experiments as a table; the marker gets the notebooks without their outputs."""
        head = "".join(f'<th scope="col">{column}</th>' for column in MARKER_COLUMNS)
        rows = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>"
            for row in self.marker_rows
        )
        return (
            f"<details><summary>What your marker will see</summary>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
            "<p>And the code and text of your notebooks, without outputs: exercises are run anew. "
            "Numbers are judged again from your samples.</p></details>"
        )

    def _link(self) -> str:
        """A link that carries the file: a path would open the file browser instead."""
        if self.file.stat().st_size > INLINE_LIMIT:
            return "Download it from the file browser:"
        data = base64.b64encode(self.file.read_bytes()).decode()
        return (
            f'<a download="{html.escape(self.file.name)}" '
            f'href="data:application/zip;base64,{data}">Download</a>'
        )


@public
def hand_in(*notebooks: str | Path, folder: Path = Path()) -> HandIn:
    """Make the zip to hand in, and say what is missing in it and what its marker will see.

    Save the notebooks first (Ctrl+S): what is on disk is handed in.

    Args:
        notebooks: which ones; all beside the evidence when none is named.
        folder: where they and `evidence` lie, and where the zip goes.

    Raises:
        LabError: there is neither evidence nor a notebook, or a named notebook is not whole.
    """
    paths = [folder / name for name in notebooks] or sorted(folder.glob("*.ipynb"))
    contents = {path: _read_notebook(path) for path in paths}
    tasks = {path.stem: read_tasks(data["cells"]) for path, data in contents.items()}
    notebook_texts = {path.name: _without_outputs(data) for path, data in contents.items()}
    evidence_texts, damage_notes, runs = _read_evidence(folder / store.FOLDER)
    notes = [*damage_notes.values(), *list_missing(tasks, runs, damage_notes.keys())]
    if not notebook_texts and not evidence_texts:
        raise LabError(f"Nothing to hand in: no notebook and no evidence in {folder.resolve()}.")
    manifest = {"format": FORMAT, "student": student_here(), "at": now_text()}
    target = folder / NAME
    with (
        store.draft_of(target) as draft,
        zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        archive.writestr("manifest.json", json.dumps(manifest, ensure_ascii=False))
        for name, text in notebook_texts.items():
            archive.writestr(f"notebooks/{name}", text)
        for name, text in evidence_texts.items():
            archive.writestr(f"evidence/{name}", text)
    keys = tuple(name.removesuffix(".json") for name in evidence_texts)
    marker_rows = tuple(map(_marker_row, runs.values()))
    return HandIn(target, keys, tuple(notebook_texts), tuple(notes), marker_rows)


def _read_notebook(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not all(isinstance(cell, dict) for cell in data["cells"]):
            raise TypeError("a cell is no object")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LabError(
            f"{path.name!r} is not a whole notebook ({error}): save it again."
        ) from error
    return data


def _without_outputs(data: dict[str, Any]) -> str:
    """Return a notebook's text without the outputs, which go from `data` too."""
    for cell in data["cells"]:
        if cell.get("cell_type") == "code":
            cell["outputs"], cell["execution_count"] = [], None
    if isinstance(metadata := data.get("metadata"), dict):
        metadata.pop("widgets", None)
    return json.dumps(data, indent=1)  # in ASCII: half of a surrogate pair has no UTF-8


def _read_evidence(folder: Path) -> tuple[dict[str, str], dict[str, str], dict[str, Evidence]]:
    """The evidence files' texts, damaged ones too; a note on each of these; what the others say.

    The notes and what the others say are by experiment.
    """
    texts, damage_notes, runs = {}, {}, {}
    for file in sorted(folder.glob("*.json")):
        texts[file.name] = file.read_text(encoding="utf-8", errors="replace")
        try:
            runs[file.stem] = store.load(file)
        except EvidenceDamaged as error:
            damage_notes[file.stem] = str(error)
    return texts, damage_notes, runs


def _marker_row(run: Evidence) -> tuple[str, ...]:
    """What a marker sees of an experiment, in the order of `MARKER_COLUMNS`."""
    return (
        run.experiment,
        str(run.prediction) if run.is_students else "none that counts",
        f"{len(run.points)} points, {run.samples} samples on {run.place}",
        str(run.verdict_read or ("not answered" if run.has_question else "no claim")),
        run.explanation or "none",
    )


@public
def fresh_copy(name: str, folder: Path = Path()) -> Path:
    """Put a fresh copy of a notebook into the folder; nothing is ever overwritten.

    Args:
        name: the notebook's name, with or without .ipynb.
        folder: where the copy goes.

    Returns:
        The copy, "NAME (fresh).ipynb" or with a number.

    Raises:
        LabError: no such notebook was delivered; the message names those that were.
    """
    source = Path(os.environ.get(VARIABLE) or DELIVERED)
    delivered = {file.stem: file for file in sorted(source.rglob("*.ipynb"))}
    delivered_file = delivered.get(Path(name).name.removesuffix(".ipynb"))
    if delivered_file is None:
        delivered_names = ", ".join(delivered) or f"none; {VARIABLE} names their folder"
        raise LabError(f"No notebook “{name}” lies in {source}. There: {delivered_names}.")
    for number in itertools.count(1):
        suffix = "fresh" if number == 1 else f"fresh {number}"
        target = folder / f"{delivered_file.stem} ({suffix}).ipynb"
        try:
            with target.open("xb") as copy, delivered_file.open("rb") as original:
                shutil.copyfileobj(original, copy)
        except FileExistsError:
            continue
        return target
    raise AssertionError("itertools.count never ends")


@public
def drawn(question: str, *, student: str = "", **choices: Sequence[Any]) -> dict[str, Any]:
    """Draw a question's numbers for a student: the same ones every time, on every machine.

    Args:
        question: the same numbers are drawn for the same question.
        student: who works here; a marker names the student of a hand-in.
        choices: by name, what may be drawn.

    Raises:
        WrongArgument: a name has nothing to draw from.
    """
    if not choices or not all(isinstance(some, list | tuple) and some for some in choices.values()):
        raise WrongArgument(
            "drawn takes what may be drawn, by name: `batch=(32, 64)`, "
            f"not {', '.join(choices) or 'nothing'}."
        )
    seed = f"{student or student_here()}/{question}"
    return {name: some[draw(f"{seed}/{name}", len(some))] for name, some in choices.items()}
