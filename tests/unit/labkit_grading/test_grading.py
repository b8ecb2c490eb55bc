"""Marks for handed-in evidence and code: honest work passes, each kind of forgery is seen."""

import csv
import json
import zipfile
from dataclasses import replace

import pytest

from labkit import stats
from labkit.errors import LabError
from labkit.evidence import evidence as store
from labkit.evidence.evidence import Evidence, Judgement, Point, Prediction
from labkit.records import Comparison, Device, Measurement, Tier, Verdict, to_data
from labkit_authoring import cli
from labkit_grading import grade_code, grading, submissions
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


def honest_evidence(seed=0):
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


def notebook_of(code):
    """A notebook of one cell."""
    return json.dumps({"cells": [{"cell_type": "code", "source": code}]})


def zip_of(file, parts):
    """A zip of these texts, by their names in it."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)


def handed_in(student, evidence, code="def area(r):\n    import math\n    return 3.14159265*r*r"):
    """What lies in the zip that hand_in makes."""
    data = {"schema": store.SCHEMA, **to_data(evidence)}
    data["digest"] = store.digest(data)
    return {
        "manifest.json": json.dumps({"student": student}),
        "evidence/MX-2.json": json.dumps(data),
        "notebooks/geometry.ipynb": notebook_of(code),
    }


TOLD = Judgement(Verdict.CONTRADICTED, "why", "supported")
STOPPED = "stopped by hand"


@pytest.mark.parametrize(
    ("found", "mark", "look_at"),
    [
        ({"judgement": TOLD, "verdict_read": Verdict.SUPPORTED}, 1, ""),
        ({"judgement": TOLD, "verdict_read": Verdict.CONTRADICTED}, 0, ""),
        ({"judgement": None, "verdict_read": None, "stopped": STOPPED}, 0, f"stopped: {STOPPED}"),
    ],
)
def test_a_claim_is_held_against_the_data_and_not_against_the_verdict_in_the_file(
    found, mark, look_at
):
    """Whatever a file names, the points say 2.5 times: "supported" is right. No run, no mark."""
    one = replace(honest_evidence(), **found)
    (row,) = grading.experiment_rows(Submission("ann", "ann.zip"), one, ())
    assert row.machine_mark == mark
    assert look_at in row.look_at
    assert row.verdict == "supported" or look_at


def test_no_student_gives_the_classs_experiment_its_title():
    """A title is text of a zip: the first one's was shown to the whole class as the course's."""
    titles = ("<b>The course is cancelled</b>" * 50, "hello from bob", "hello from cy")
    zips = [
        Submission(f"s{n}", f"{n}.zip", {"MX-2": replace(honest_evidence(n), title=title)})
        for n, title in enumerate(titles)
    ]
    (medians,) = grading.class_points(zips).values()
    assert medians.title == "MX-2"
    assert not any(title in json.dumps(to_data(medians)) for title in titles)


def packed_again(folder, names):
    """A zip of the same parts under other names, beside what a packer adds."""
    parts = {names(name): text for name, text in handed_in("ann", honest_evidence(0)).items()}
    zip_of(folder / "ann.zip", {**parts, "__MACOSX/._x": b"\x00\xff"})
    return submissions.read_zip(folder / "ann.zip")


@pytest.mark.parametrize("names", [str, "hand-in/{}".format], ids=["as made", "in a folder"])
def test_a_zip_that_was_packed_again_is_the_same(names, tmp_path):
    """With a folder around all and a packer's own files in it."""
    submission = packed_again(tmp_path, names)
    assert (submission.student, list(submission.evidence), list(submission.notebooks)) == (
        "ann", ["MX-2"], ["geometry"],
    )  # fmt: skip
    assert submission.problems == {}


def test_a_zip_with_nothing_of_a_hand_in_has_a_row(tmp_path):
    """Nobody disappears from the table."""
    submission = packed_again(tmp_path, "other/{}.bak".format)
    (row,) = grading.rows_of(submission, {}, {})
    assert (row.file, row.item, row.readable) == ("ann.zip", "zip", "no")


@pytest.mark.bubblewrap
@pytest.mark.long
def test_a_class_is_marked(tmp_path, capsys):
    """Honest work gets its marks, a wrong reading and wrong code do not; a copy is flagged.

    The explanation is left to a person, and is no formula.
    """
    zips, sources, table = (tmp_path / name for name in ("zips", "src", "out.csv"))
    zips.mkdir(), sources.mkdir()
    (sources / "geometry.py").write_text(SOURCE)
    misread = replace(honest_evidence(1), verdict_read=Verdict.CONTRADICTED)
    for student, parts in {
        "ann": (honest_evidence(0),),
        "bob": (honest_evidence(0), "def area(r):\n    return r"),
        "cyd": (misread, "def area(r:"),
        "dee": (replace(honest_evidence(2), headless=True), "def area(r):\n    return 1 / 0"),
        "flo": (honest_evidence(4),),
    }.items():
        zip_of(zips / f"{student}.zip", handed_in(student, *parts))
    (zips / "eve.zip").write_bytes(b"nothing")
    command = ["grade", str(zips), "--csv", str(table), "--sources", str(sources), "--run-code"]
    assert cli.main([*command, "--plot", str(tmp_path / "class.svg")]) == 0
    with table.open(encoding="utf-8-sig") as file:
        rows = {(row["file"][:3], row["item"]): row for row in csv.DictReader(file)}
    mark = {who: row["machine_mark"] for (who, item), row in rows.items() if item == "MX-2"}
    assert mark == {"ann": "1", "bob": "1", "cyd": "0", "dee": "0", "flo": "1"}
    assert "2 of 2 records rise and fall as in bob.zip" in rows["ann", "MX-2"]["look_at"]
    assert rows["cyd", "MX-2"]["verdict_read"] == "no"
    assert rows["dee", "MX-2"]["students_own"] == "no"
    code = {who: rows[who, "geometry: area"]["code_exact"] for who in mark}
    assert code == {"ann": "yes", "bob": "no", "cyd": "no", "dee": "no", "flo": "yes"}
    assert rows["flo", "geometry: area"]["machine_mark"] == "1"
    assert "ZeroDivisionError" in rows["dee", "geometry: area"]["look_at"]
    assert rows["eve", "zip"]["readable"] == "no"
    assert rows["flo", "MX-2"]["explanation_0_to_3"] == ""
    assert rows["flo", "MX-2"]["explanation"] == "'=SUM(A1)"
    assert "The class's results" in (tmp_path / "class.svg").read_text()
    assert "cannot prevent it" in capsys.readouterr().out


def test_without_asking_no_code_is_run(tmp_path, capsys):
    """By default a zip of exercises gives no row, and the command says what would."""
    code = f"open({str(tmp_path / 'ran')!r}, 'w')"
    zip_of(tmp_path / "ann.zip", {"notebooks/geometry.ipynb": notebook_of(code)})
    assert cli.main(["grade", str(tmp_path), "--csv", str(tmp_path / "o.csv")]) == 0
    assert "--run-code marks the exercises" in capsys.readouterr().out
    assert not (tmp_path / "ran").exists()


def test_nothing_to_grade_is_a_sentence(tmp_path, capsys):
    """An empty folder exits 2 with the reason."""
    assert cli.main(["grade", str(tmp_path), "--csv", str(tmp_path / "o.csv")]) == 2
    assert "There is no zip" in capsys.readouterr().err
    with pytest.raises(LabError, match="--sources"):
        grade_code.keys_of(tmp_path)
