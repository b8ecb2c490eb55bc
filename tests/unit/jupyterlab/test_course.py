"""What the start page lists: the notebooks in their order, and how far the student is."""

import json
import os
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from miglab_jupyterlab.course import course, progress


def notebook(*cells: str) -> str:
    code_cells = [{"cell_type": "code", "source": text.splitlines(keepends=True)} for text in cells]
    return json.dumps({"cells": code_cells})


def evidence(explanation: str = "", **fields: Any) -> str:
    fields_of_evidence = {"points": [1], "prediction": {}, "explanation": explanation, **fields}
    return json.dumps(fields_of_evidence)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "notebooks"
    (folder / "evidence").mkdir(parents=True)
    two = 'labkit.experiment("T-1", step)\nx = labkit.experiment(\n    "T-2", step)'
    (folder / "2_second.ipynb").write_text(notebook("no heading here"))
    (folder / "1_first.ipynb").write_text(notebook("# Your slice\n\ntext", two))
    return tmp_path


def test_notebooks_come_in_order_with_their_headings(root: Path) -> None:
    """Titles are the first headings; a notebook without one is called by its file."""
    lab_course = course("Lab", root, "notebooks")
    assert [(n["path"], n["title"]) for n in lab_course["notebooks"]] == [
        ("notebooks/1_first.ipynb", "Your slice"),
        ("notebooks/2_second.ipynb", "2 second"),
    ]
    assert (lab_course["title"], lab_course["handed_in"]) == ("Lab", None)


def test_what_is_done_is_counted(root: Path) -> None:
    """Measured by hand counts, explained counts more; a headless or damaged file counts nothing."""
    folder = root / "notebooks/evidence"
    (folder / "T-1.json").write_text(evidence("because"))
    (folder / "T-2.json").write_text(evidence("", headless=True))
    (folder / "T-3.json").write_text("{")
    first, second = course("Lab", root, "notebooks")["notebooks"]
    assert (first["experiments"], first["measured"], first["explained"]) == (2, 1, 1)
    assert (second["experiments"], second["measured"]) == (0, 0)
    (folder / "T-2.json").write_text(evidence(" "))
    first, _ = course("Lab", root, "notebooks")["notebooks"]
    assert (first["measured"], first["explained"]) == (2, 1)
    (root / "notebooks/hand-in.zip").write_bytes(b"")
    assert course("Lab", root, "notebooks")["handed_in"] is not None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cells": 3}', '{"cells": [3, {"source": 4}]}'])
def test_a_damaged_notebook_is_still_listed(root: Path, text: str) -> None:
    """Whatever is in a file, the page shows."""
    (root / "notebooks/1_first.ipynb").write_text(text)
    first, _ = course("Lab", root, "notebooks")["notebooks"]
    assert (first["title"], first["experiments"]) == ("1 first", 0)
    assert course("Lab", root, "no folder")["notebooks"] == []


def test_progress_is_a_key_a_stage_and_a_minute(root: Path) -> None:
    """What is claimed, and what of it lies in the zip; no word that the student wrote."""
    folder = root / "notebooks"
    for key, text in (("T-1", "because"), ("T-2", ""), ("T-3", "my secret")):
        (folder / f"evidence/{key}.json").write_text(evidence(text))
        os.utime(folder / f"evidence/{key}.json", (6000, 6000))
    assert progress(root, "notebooks") == [
        {"experiment": "T-1", "stage": "claimed", "minute": 100},
        {"experiment": "T-3", "stage": "claimed", "minute": 100},
    ]
    with ZipFile(folder / "hand-in.zip", "w") as handed_in:
        handed_in.writestr("manifest.json", "{}")
        handed_in.writestr("evidence/T-3.json", evidence("my secret"))
    os.utime(folder / "hand-in.zip", (6600, 6600))
    assert progress(root, "notebooks")[1] == {
        "experiment": "T-3", "stage": "handed in", "minute": 110
    }  # fmt: skip
