"""What a student wrote is shown as such, and nowhere as the course's, a formula or a command."""

import csv
import json
from dataclasses import replace

import pytest
from tests.unit.labkit_grading.test_grading import handed_in, honest_evidence, zip_of

from labkit.evidence import evidence as store
from labkit.records import to_data
from labkit_grading import grading, submissions, tables
from labkit_grading.cells import notebooks_of
from labkit_grading.submissions import Submission
from miglab_api.plain_text import printable

ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def evidence_parts(*runs):
    """The parts of a zip that hold these runs."""
    parts = {}
    for run in runs:
        data = {"schema": store.SCHEMA, **to_data(run)}
        data["digest"] = store.digest(data)
        parts[f"evidence/{run.experiment}.json"] = json.dumps(data)
    return parts


def grade(folder):
    """The rows of a folder's zips, and the class's plot."""
    table, plot = folder / "marks.csv", folder / "class.svg"
    grading.grade_folder(folder, table, plot, folder, class_folder=folder / "class")
    with table.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file)), plot.read_text()


def test_an_experiment_that_the_course_does_not_have_earns_nothing(tmp_path):
    """A hundred invented ones earned a mark each, and a place in the class's plot."""
    names = ["All marks are public", *(f"MX-2.{number}" for number in range(99))]
    for student in "abc":
        runs = [replace(honest_evidence(), experiment=name, judgement=None) for name in names]
        zip_of(tmp_path / f"{student}.zip", evidence_parts(honest_evidence(), *runs))
    rows, plot = grade(tmp_path)
    marked = [row["item"] for row in rows if row["machine_mark"] == "1"]
    assert marked == ["MX-2"] * 3
    sentences = [row["look_at"] for row in rows if row["item"] == "evidence"]
    assert [sentence.split()[0] for sentence in sentences] == ["100"] * 3
    assert "public" not in plot
    assert [file.name for file in (tmp_path / "class").iterdir()] == ["MX-2.json"]


def test_a_courses_own_experiment_counts(tmp_path):
    """The notebooks' sources name it."""
    (tmp_path / "own.py").write_text('labkit.experiment("OWN-1", title="Ours")')
    run = replace(honest_evidence(), experiment="OWN-1", judgement=None)
    zip_of(tmp_path / "ann.zip", evidence_parts(run))
    rows, _ = grade(tmp_path)
    assert [(row["item"], row["machine_mark"]) for row in rows] == [("OWN-1", "1")]


NOTEBOOK = json.dumps(
    {"cells": [{"cell_type": "code", "source": ["labkit.experiment('OWN-1')"]}], "metadata": {}}
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("own.py", "labkit.experiment(key='OWN-1')"),
        ("own.py", "import labkit as lk\n\nlk.experiment('OWN-1')"),
        ("own.py", "from labkit import experiment\n\nexperiment(\n    'OWN-1')"),
        ("own.ipynb", NOTEBOOK),
    ],
)
def test_however_a_notebook_names_its_experiment(tmp_path, name, text):
    """A course need not write it as ours do, nor keep sources."""
    (tmp_path / name).write_text(text)
    assert notebooks_of(tmp_path) == {"OWN-1": tmp_path / name}


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("3\u202f%", "3 %"),
        ("\u3000a", " a"),
        ("\u0645\u06cc\u200c\u0634\u0648\u062f", "\u0645\u06cc\u200c\u0634\u0648\u062f"),
        ("\u202eevil", "\\u202eevil"),
    ],
)
def test_what_people_write_stays_readable(text, cell):
    """Any space is one, and letters stay joined; what turns text round is shown as such."""
    assert tables.text_cell(text) == cell
    assert printable(text) == cell.replace("\\u202e", "?")


def test_no_zip_outvotes_the_class():
    """A point that one run repeats, and its unit, stay that run's."""
    runs = [honest_evidence(number) for number in range(3)]
    shout = replace(runs[0].points[0], x=9.0, label="The course is cancelled")
    runs[0] = replace(runs[0], points=(*runs[0].points, *[shout] * 100), unit="a rumour")
    zips = [Submission(f"s{n}", f"{n}.zip", {"MX-2": run}) for n, run in enumerate(runs)]
    (medians,) = grading.class_points(zips).values()
    assert [point.label for point in medians.points] == ["n=1"]
    assert medians.unit == "x"


def test_a_name_of_a_zip_commands_no_terminal(tmp_path, monkeypatch, capsys):
    """Whoever uploads a zip chooses its name, and progress prints it."""
    zip_of(tmp_path / f"ann{ESCAPE}.zip", handed_in(f"ann{ESCAPE}", honest_evidence()))
    monkeypatch.setattr(grading.grade_code, "keys_of", lambda sources: {})

    class Nothing:
        def require(self):
            """Need nothing: no code is there to run."""

    table = tmp_path / "marks.csv"
    grading.grade_folder(tmp_path, table, None, None, isolation=Nothing())
    output = capsys.readouterr()
    assert "\x1b" not in output.out + output.err + table.read_text(encoding="utf-8-sig")
    assert "ann\\x1b]0;owned" in output.err


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("because it is\nfaster – 2 × C:\\temp", "because it is\nfaster – 2 × C:\\temp"),
        ("=SUM(A1)", "'=SUM(A1)"),
        (" \u200b=SUM(A1)", "' \\u200b=SUM(A1)"),
        ("＝SUM(A1)", "'＝SUM(A1)"),
        ("|calc", "'|calc"),
        ("'=SUM(A1)", "''=SUM(A1)"),
        (ESCAPE, "\\x1b]0;owned\\x07\\x1b[2J"),
        ("a\tb\r\nc\x00", "a   b\nc\\x00"),
        ("nice \u202eetihw", "nice \\u202eetihw"),
        ("", ""),
    ],
)
def test_a_students_text_is_text_in_a_table(text, cell):
    """Its lines stay; formulas, control characters and text that turns round are shown as such."""
    assert tables.text_cell(text) == cell


@pytest.mark.usefixtures("open_umask")
def test_nobody_else_reads_the_marks(tmp_path):
    """On a machine that markers share."""
    zip_of(tmp_path / "ann.zip", evidence_parts(honest_evidence()))
    grade(tmp_path)
    assert (tmp_path / "marks.csv").stat().st_mode & 0o777 == 0o600


def test_a_cell_is_no_longer_than_a_person_reads():
    """An explanation of megabytes leaves a table that can be opened."""
    cell = tables.text_cell("x" * 1_000_000)
    assert len(cell) < 2**15
    assert cell.endswith("… (1000000 characters in all)")


def test_a_zip_of_very_many_parts_is_one_row(tmp_path):
    """It fills no table."""
    many = {f"evidence/{number}.json": "{}" for number in range(submissions.MOST_PARTS + 1)}
    zip_of(tmp_path / "ann.zip", many)
    (row,), _ = grade(tmp_path)
    assert "has 501 parts" in row["look_at"]
