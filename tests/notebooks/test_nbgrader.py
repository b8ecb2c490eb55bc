"""nbgrader collects hand-ins and keeps their marks: what docs/howto/nbgrader.md says, done."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest
from tests.unit.labkit_grading.test_grading import SOURCE, honest_evidence

import labkit
from labkit.evidence import evidence as store

pytestmark = [pytest.mark.long, pytest.mark.bubblewrap]

ROOT = Path(__file__).parents[2]
HOWTO = (ROOT / "docs/howto/nbgrader.md").read_text(encoding="utf-8")
CONFIG, SCRIPT = (
    textwrap.dedent(code) for code in re.findall(r"```python\n(.*?)```", HOWTO, re.DOTALL)
)
RIGHT, WRONG = "def area(r):\n    return 3.14159265 * r * r", "def area(r):\n    return r"


@pytest.fixture(scope="module")
def nbgrader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of the environment that the page makes."""
    folder = tmp_path_factory.mktemp("nbgrader")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin/pip", "install", "--quiet", "--no-compile", "--require-hashes"]
    subprocess.run([*pip, "-r", ROOT / "requirements/nbgrader.txt"], check=True)
    return folder / "bin"


def hand_in(archive: Path, student: str, code: str) -> None:
    """What a student's last cell makes, as the learning platform names it."""
    home = archive.parents[2] / "homes" / student
    home.mkdir(parents=True)
    cell = {"cell_type": "code", "source": code, "metadata": {}, "outputs": []}
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (home / "geometry.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    store.save(honest_evidence(seed=len(student)), home / "evidence")
    labkit.hand_in(folder=home).file.rename(archive / f"{student}_hand-in.zip")


def run(folder: Path, programs: Path, *arguments: object) -> None:
    """A command in the course folder, in the environment that was activated."""
    path = f"{programs}:{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    command = [shutil.which(str(arguments[0]), path=path), *map(str, arguments[1:])]
    subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, check=True)


def test_hand_ins_are_collected_and_graded(nbgrader: Path, tmp_path: Path) -> None:
    """Zips in, notebooks by student; the marks of experiments and exercises out, twice the same."""
    archive = tmp_path / "downloaded/mig/archive"
    archive.mkdir(parents=True)
    hand_in(archive, "ada", RIGHT)
    hand_in(archive, "bob.b", WRONG)
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "geometry.py").write_text(SOURCE, encoding="utf-8")
    points = 'points = {"MX-2": 4, "geometry: area": 1}'
    script = re.sub("^points = .*$", points, SCRIPT, flags=re.MULTILINE)
    (tmp_path / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "enter_marks.py").write_text(script, encoding="utf-8")

    run(tmp_path, nbgrader, "nbgrader", "zip_collect", "mig")
    for student, code in (("ada", RIGHT), ("bob.b", WRONG)):
        collected = json.loads((tmp_path / f"submitted/{student}/mig/geometry.ipynb").read_text())
        assert collected["cells"][0]["source"] == code
    marks = tmp_path / "marks.csv"
    grade = ["labkit", "grade", archive, "--csv", marks, "--run-code", "--sources", sources]
    run(tmp_path, nbgrader, *grade)
    explain(marks, {"ada_hand-in.zip": "3", "bob.b_hand-in.zip": ""})
    for _ in range(2):
        run(tmp_path, nbgrader, "python", "enter_marks.py", "marks.csv", "mig")
    run(tmp_path, nbgrader, "nbgrader", "export", "--to", "grades.csv")
    assert scores(tmp_path / "grades.csv") == {"ada": ("5.0", "5.0"), "bob.b": ("1.0", "5.0")}


def explain(marks: Path, marks_by_file: dict[str, str]) -> None:
    """What the instructor fills in, with a spreadsheet."""
    with marks.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["item"] == "MX-2":
            row["explanation_0_to_3"] = marks_by_file[row["file"]]
    with marks.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def scores(table: Path) -> dict[str, tuple[str, str]]:
    """The score and the most there is, by student, of nbgrader's export."""
    with table.open(encoding="utf-8", newline="") as file:
        return {row["student_id"]: (row["score"], row["max_score"]) for row in csv.DictReader(file)}
