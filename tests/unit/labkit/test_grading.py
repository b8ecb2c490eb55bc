"""Marks for handed-in evidence and code: honest work passes, each kind of forgery is seen."""

import csv
import json
import zipfile
from dataclasses import replace

import pytest

from labkit import stats
from labkit.errors import LabError
from labkit.evidence import evidence as store
from labkit.evidence.evidence import Evidence, Judgement, Point
from labkit.evidence.prediction import Prediction
from labkit.records import Comparison, Device, Measurement, Tier, Verdict, to_data
from labkit_authoring import cli
from labkit_grading import consistency, grade_code, grading, submissions
from labkit_grading.submissions import Submission

BAND = (1.5, float("inf"))
SOURCE = """# %%
import math
LIMIT = 4

# %%
def area(r):
    # <solution>
    return math.pi * r * r
    # </solution>
    # <student>
    # return None
    # </student>

# %%
def check_area():
    return "right" if abs(area(LIMIT) - 50.265) < 0.01 else f"not yet right: {area(LIMIT)}"

area_verdict = check_area()
print(area_verdict)
"""


def record(name, seconds, seed):
    """Twenty samples that differ a little."""
    samples = tuple(seconds * (1 + (n * 7 + seed) % 13 / 1000) for n in range(20))
    device = Device("cpu", "a CPU", 1024)
    date = "2026-03-01T10:00:20+00:00"
    return Measurement(name, samples, Tier.CPU, (device,), "host", False, date=date)


def honest(seed=0):
    """A comparison as a panel saves it, predicted, judged, read and explained."""
    a, b = record("a", 0.025, seed), record("b", 0.01, seed + 3)
    looks = stats.judge(a.samples_s, b.samples_s, BAND)
    compared = Comparison(a, b, BAND, looks, "why")
    point = Point(1, "n=1", compared.ratio, (a, b), compared, looks[-1].low, looks[-1].high)
    return Evidence(
        "MX-2",
        "title",
        "x",
        "here",
        "whole-gpu",
        started="2026-03-01T10:00:10+00:00",
        points=(point,),
        prediction=Prediction("more work", "2026-03-01T10:00:00+00:00", 2.0, "x"),
        judgement=Judgement(Verdict.SUPPORTED, "why", "supported"),
        explanation="=SUM(A1)",
        ended="2026-03-01T10:00:30+00:00",
        verdict_read=Verdict.SUPPORTED,
    )


def zipped(
    folder, student, evidence, code="def area(r):\n    import math\n    return 3.14159265*r*r"
):
    """A zip as hand_in makes it."""
    data = {"schema": store.SCHEMA, **to_data(evidence)}
    data["digest"] = store.digest(data)
    cell = {"cell_type": "code", "source": code}
    with zipfile.ZipFile(folder / f"{student}.zip", "w") as archive:
        archive.writestr("manifest.json", json.dumps({"student": student}))
        archive.writestr("evidence/MX-2.json", json.dumps(data))
        archive.writestr("notebooks/geometry.ipynb", json.dumps({"cells": [cell]}))


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "geometry.py").write_text(SOURCE)
    return folder


def test_identical_samples_of_two_students_are_flagged():
    """Samples are noise: two people never measure the same twenty."""
    seeds = {"ann": 0, "bob": 0, "cy": 1}
    zips = [Submission(who, who, {"MX-2": honest(seed)}) for who, seed in seeds.items()]
    found = consistency.same_samples(zips)
    assert found == {("ann", "MX-2"): ["bob"], ("bob", "MX-2"): ["ann"]}


@pytest.mark.parametrize("claim", [Verdict.SUPPORTED, Verdict.CONTRADICTED])
def test_a_claim_is_held_against_the_data_and_not_against_the_verdict_in_the_file(claim):
    """Whatever verdict a file names: the points say 2.5 times, so "supported" is right."""
    told = Judgement(Verdict.CONTRADICTED, "why", "supported")
    one = replace(honest(), judgement=told, verdict_read=claim)
    (row,) = grading.experiment_rows(Submission("ann", "ann.zip"), one, ())
    assert row.verdict == "supported"
    assert row.machine_mark == (claim is Verdict.SUPPORTED)


def test_a_run_that_was_stopped_gets_no_mark():
    """It has no verdict that could be read wrongly."""
    stopped = replace(honest(), judgement=None, verdict_read=None, stopped="stopped by hand")
    (row,) = grading.experiment_rows(Submission("ann", "ann.zip"), stopped, ())
    assert (row.machine_mark, row.look_at) == (0, "stopped: stopped by hand")


def packed_again(folder, names):
    """A zip of the same parts under other names, beside what a packer adds."""
    zipped(folder, "ann", honest(0))
    with zipfile.ZipFile(folder / "ann.zip") as source:
        parts = {name: source.read(name) for name in source.namelist()}
    with zipfile.ZipFile(folder / "ann.zip", "w") as archive:
        for name, data in parts.items():
            archive.writestr(names(name), data)
        archive.writestr("__MACOSX/._x", b"\x00\xff")
    return submissions.read_zip(folder / "ann.zip")


@pytest.mark.parametrize("names", [str, "hand-in/{}".format], ids=["as made", "in a folder"])
def test_a_zip_that_was_packed_again_is_the_same(names, tmp_path):
    """With a folder around all and a packer's own files in it."""
    found = packed_again(tmp_path, names)
    assert (found.student, list(found.evidence), list(found.notebooks)) == (
        "ann", ["MX-2"], ["geometry"],
    )  # fmt: skip
    assert found.problems == {}


def test_a_zip_with_nothing_of_a_hand_in_has_a_row(tmp_path):
    """Nobody disappears from the table."""
    found = packed_again(tmp_path, "other/{}.bak".format)
    (row,) = grading.rows_of(found, {}, {})
    assert (row.file, row.item, row.readable) == ("ann.zip", "zip", "no")


def graded(folder, sources, tmp_path, *more):
    """Run the command; answers the rows by the zip's name and item."""
    table = tmp_path / "out.csv"
    command = ["grade", str(folder), "--csv", str(table), "--sources", str(sources), "--run-code"]
    assert cli.main([*command, *more]) == 0
    with table.open(encoding="utf-8-sig") as file:
        return {
            (row["file"].removesuffix(".zip"), row["item"]): row for row in csv.DictReader(file)
        }


@pytest.mark.bubblewrap
@pytest.mark.long
def test_a_class_is_marked(tmp_path, sources, capsys):
    """Honest work gets its marks, a copy, a wrong reading and wrong code do not."""
    folder = tmp_path / "zips"
    folder.mkdir()
    zipped(folder, "ann", honest(0))
    zipped(folder, "bob", honest(0), code="def area(r):\n    return r")
    zipped(folder, "cy", replace(honest(1), verdict_read=Verdict.CONTRADICTED), code="def area(r:")
    zipped(folder, "dee", replace(honest(2), headless=True), code="def area(r):\n    return 1 / 0")
    (folder / "eve.zip").write_bytes(b"nothing")
    plot = tmp_path / "class.svg"
    rows = graded(folder, sources, tmp_path, "--plot", str(plot))
    marks = {who: int(rows[who, "MX-2"]["machine_mark"]) for who in ("ann", "bob", "cy", "dee")}
    assert marks == {"ann": 0, "bob": 0, "cy": 0, "dee": 0}
    assert "the same samples as bob.zip" in rows["ann", "MX-2"]["look_at"]
    assert rows["cy", "MX-2"]["verdict_read"] == "no"
    assert rows["dee", "MX-2"]["students_own"] == "no"
    code = {who: rows[who, "geometry: area"]["code_exact"] for who in marks}
    assert code == {"ann": "yes", "bob": "no", "cy": "no", "dee": "no"}
    assert "ZeroDivisionError" in rows["dee", "geometry: area"]["look_at"]
    assert rows["eve", "zip"]["readable"] == "no"
    assert "The class's results" in plot.read_text()
    assert "cannot prevent it" in capsys.readouterr().out


@pytest.mark.bubblewrap
@pytest.mark.long
def test_honest_work_alone_gets_full_marks(tmp_path, sources):
    """One student: both rows marked, the explanation left to a person and no formula."""
    folder = tmp_path / "zips"
    folder.mkdir()
    zipped(folder, "ann", honest(0))
    rows = graded(folder, sources, tmp_path)
    assert {row["machine_mark"] for row in rows.values()} == {"1"}
    assert rows["ann", "MX-2"]["explanation_0_to_3"] == ""
    assert rows["ann", "MX-2"]["explanation"] == "'=SUM(A1)"


@pytest.mark.bubblewrap
@pytest.mark.long
def test_an_edited_check_changes_nothing(sources):
    """Only exercises come from the student; the check and its numbers come from the source."""
    cheat = (
        "def area(r):\n    return 0\ndef check_area():\n    return 'right'\narea_verdict = 'right'"
    )
    text = json.dumps({"cells": [{"cell_type": "code", "source": cheat}]})
    (marked,) = grade_code.mark(text, grade_code.answer_key(sources / "geometry.py"))
    assert not marked.right
    assert marked.said == "not yet right: 0"


@pytest.mark.bubblewrap
@pytest.mark.long
def test_a_students_own_helper_is_taken_along(sources):
    """An exercise may use a function that only the student has."""
    own = "def square(x):\n    return x * x\ndef area(r):\n    return math.pi * square(r)"
    text = json.dumps({"cells": [{"cell_type": "code", "source": own}]})
    (marked,) = grade_code.mark(text, grade_code.answer_key(sources / "geometry.py"))
    assert marked.right


@pytest.mark.bubblewrap
@pytest.mark.long
def test_code_without_an_end_is_ended(sources):
    """A loop without an end costs the limit, not the evening."""
    text = json.dumps({"cells": [{"cell_type": "code", "source": "def area(r):\n    while 1: 0"}]})
    key = grade_code.answer_key(sources / "geometry.py")
    (marked,) = grade_code.mark(text, key, limit_s=0.5)
    assert marked.said == "no answer within 0.5 s"


def test_exercises_alone_need_the_code_to_run(tmp_path, capsys):
    """Without --run-code a zip of exercises gives no row, and the command says what would."""
    with zipfile.ZipFile(tmp_path / "ann.zip", "w") as archive:
        archive.writestr("manifest.json", json.dumps({"student": "ann"}))
        archive.writestr("notebooks/geometry.ipynb", json.dumps({"cells": []}))
    assert cli.main(["grade", str(tmp_path), "--csv", str(tmp_path / "o.csv")]) == 0
    assert "--run-code marks the exercises" in capsys.readouterr().out


def test_nothing_to_grade_is_a_sentence(tmp_path, capsys):
    """An empty folder exits 2 with the reason."""
    assert cli.main(["grade", str(tmp_path), "--csv", str(tmp_path / "o.csv")]) == 2
    assert "There is no zip" in capsys.readouterr().err
    with pytest.raises(LabError, match="--sources"):
        grade_code.keys_of(tmp_path)
