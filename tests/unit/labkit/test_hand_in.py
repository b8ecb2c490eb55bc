"""What a student hands in, and a fresh copy of what they got."""

import io
import json
import zipfile
from dataclasses import replace

import pytest

import labkit
from labkit.errors import LabError
from labkit.evidence import evidence as store
from labkit.evidence.evidence import Evidence, Judgement, Prediction
from labkit.records import Verdict
from labkit_grading.submissions import read_zip


def notebook(source="x = 1"):
    """An executed notebook of one cell."""
    cell = {"cell_type": "code", "source": source, "execution_count": 3, "outputs": [{"big": 1}]}
    return json.dumps({"cells": [cell], "metadata": {"widgets": {"state": 1}}})


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_USER", "zoë")
    (tmp_path / "3_mixed_precision.ipynb").write_text(notebook())
    empty = Evidence("T-1", "t", "x", "here", "cpu", "2026-01-01T00:00:00+00:00")
    store.save(empty, tmp_path / "evidence")
    return tmp_path


def test_the_zip_holds_evidence_and_code_without_outputs(work):
    """One zip: who, what was measured, and the notebook stripped of outputs."""
    hand_in = labkit.hand_in(folder=work)
    submission = read_zip(hand_in.file)
    assert (submission.student, set(submission.evidence), submission.problems) == (
        "zoë",
        {"T-1"},
        {},
    )
    cell = json.loads(submission.notebooks["3_mixed_precision"])["cells"][0]
    assert (cell["source"], cell["outputs"], cell["execution_count"]) == ("x = 1", [], None)


def test_it_says_what_will_not_count(work):
    """A headless run and an edited file are named; the link holds the zip, without a server."""
    (work / "evidence" / "T-2.json").write_text("{")
    hand_in = labkit.hand_in(folder=work)
    assert any("T-1 ran without your prediction" in note for note in hand_in.notes)
    assert any("T-2.json is not whole" in note for note in hand_in.notes)
    assert "T-2" in read_zip(hand_in.file).problems
    html = hand_in._repr_html_()
    assert 'download="hand-in.zip"' in html
    assert "data:application/zip;base64,UEs" in html


COURSE_NOTEBOOK = [
    ("# 1. Timers", ""),
    ("## T-1: a timer", ""),
    ('labkit.experiment("T-1", step)\nlabkit.experiment("T-2", step)', ""),
    ("## Exercise 1: a clock", ""),
    ("print(labkit.exercises.check_timer(f))", "right: it waits.\n"),
    ("## Exercise 2: a roof", ""),
    ("print(labkit.exercises.check_roof(f))", "not yet right: too low.\n"),
    ("## Exercise 3: a share", ""),
    ("print(labkit.exercises.check_share(f))", ""),
    ("## Optional: more", ""),
    ('labkit.experiment("T-9", step)\nlabkit.exercises.check_more(f)', ""),
]


def course_notebook(is_run=True):
    """A notebook of the course as it is saved: run, or as it was delivered."""
    cells = [
        {"cell_type": "markdown", "source": [text]}
        if text.startswith("#")
        else {
            "cell_type": "code",
            "source": text.splitlines(keepends=True),
            "outputs": [{"output_type": "stream", "text": [printed]}] if printed and is_run else [],
        }
        for text, printed in COURSE_NOTEBOOK
    ]
    return json.dumps({"cells": cells, "metadata": {}})


def test_it_says_what_is_missing_before_it_goes(tmp_path, monkeypatch):
    """What is not measured, solved, claimed or explained; nothing of optional sections.

    A notebook that was not begun is named once, and what is whole is said to lack nothing.
    """
    monkeypatch.setenv("JUPYTERHUB_USER", "zoë")
    (tmp_path / "1_timers.ipynb").write_text(course_notebook())
    (tmp_path / "2_later.ipynb").write_text(course_notebook(is_run=False).replace("T-", "U-"))
    run = replace(
        Evidence("T-1", "t", "x", "here", "cpu", "2026-01-01T00:00:00+00:00"),
        prediction=Prediction("of <waiting>", "2026-01-01T00:00:00+00:00", number=2.0, unit="x"),
        judgement=Judgement(Verdict.SUPPORTED, "it is so", "supported"),
    )
    store.save(run, tmp_path / "evidence")
    hand_in = labkit.hand_in(folder=tmp_path)
    assert hand_in.notes == (
        "1_timers: not measured: T-2.",
        "1_timers: Exercise 2: a roof: not solved.",
        "1_timers: Exercise 3: a share: not checked in the notebook as it is saved.",
        "Not begun: 2_later.",
        "T-1: you have not said whether your data support the claim.",
        "T-1 has no explanation yet.",
    )
    html = hand_in._repr_html_()
    assert html.index("Missing, before you send it") < html.index("Download")
    assert html.index("Download") < html.index("What your marker will see")
    assert "2 x, because of &lt;waiting&gt;" in html
    (tmp_path / "1_timers.ipynb").write_text(notebook())
    (tmp_path / "2_later.ipynb").unlink()
    store.save(
        replace(run, verdict_read=Verdict.SUPPORTED, explanation="it waits"), tmp_path / "evidence"
    )
    assert "Nothing is missing." in labkit.hand_in(folder=tmp_path)._repr_html_()


def test_a_damaged_file_was_measured(tmp_path, monkeypatch):
    """An experiment whose file cannot be read is called damaged, never unmeasured or not begun."""
    monkeypatch.setenv("JUPYTERHUB_USER", "zoë")
    (tmp_path / "1_timers.ipynb").write_text(course_notebook(is_run=False))
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "T-1.json").write_text("{")
    damaged, unmeasured, *unchecked = labkit.hand_in(folder=tmp_path).notes
    assert "T-1.json is not whole" in damaged
    assert unmeasured == "1_timers: not measured: T-2."
    assert len(unchecked) == 3 and all("not checked" in note for note in unchecked)


def test_it_warns_if_nothing_counts(work):
    """Evidence of which nothing is the student's own is no work yet."""
    assert labkit.hand_in(folder=work).notes[0] == "No experiment counts as your own work yet."


def test_nothing_to_hand_in_is_said(tmp_path):
    """An empty folder is refused, and so is a notebook that is not whole."""
    with pytest.raises(LabError, match="Nothing to hand in"):
        labkit.hand_in(folder=tmp_path)
    (tmp_path / "cut.ipynb").write_text('{"cells": [')
    with pytest.raises(LabError, match=r"cut\.ipynb' is not a whole notebook"):
        labkit.hand_in(folder=tmp_path)
    assert not list(tmp_path.glob("hand-in*"))


CHECKED = {"cell_type": "code", "source": "labkit.exercises.check_timer(f)"}


@pytest.mark.parametrize(
    "odd",
    [
        {"cells": [CHECKED | {"outputs": ["right: it waits.", None, 3]}]},
        {"cells": [CHECKED | {"outputs": 5}]},
        {"cells": [CHECKED | {"outputs": [{"data": None}, {"data": "text"}, {"text": 1}]}]},
        {"cells": [CHECKED], "metadata": None},
        {"cells": [CHECKED, {}, {"cell_type": "markdown", "source": None}], "metadata": ["kept"]},
        {"cells": [CHECKED, {"cell_type": "markdown", "source": "half a sign: \ud83d"}]},
    ],
)
def test_an_odd_notebook_is_handed_in_whole(tmp_path, monkeypatch, odd):
    """Outputs, metadata and text as no editor writes them: all but the outputs is in the zip."""
    monkeypatch.setenv("JUPYTERHUB_USER", "zoë")
    (tmp_path / "1_timers.ipynb").write_text(json.dumps(odd))
    hand_in = labkit.hand_in(folder=tmp_path)
    assert hand_in.notes == ("Not begun: 1_timers.",)
    cleared, *others = odd["cells"]
    assert json.loads(read_zip(hand_in.file).notebooks["1_timers"]) == odd | {
        "cells": [cleared | {"outputs": [], "execution_count": None}, *others]
    }


def test_a_fresh_copy_lies_beside_the_edited_one(work, tmp_path_factory, monkeypatch):
    """Every copy is new; neither the edited notebook nor an earlier copy is touched.

    A wrong name is answered with the right ones.
    """
    delivered = tmp_path_factory.mktemp("delivered")
    (delivered / "3_mixed_precision.ipynb").write_text("as delivered")
    monkeypatch.setenv("MIGLAB_NOTEBOOKS", str(delivered))
    names = [labkit.fresh_copy("3_mixed_precision.ipynb", work).name for _ in range(2)]
    assert names == ["3_mixed_precision (fresh).ipynb", "3_mixed_precision (fresh 2).ipynb"]
    assert {(work / name).read_text() for name in names} == {"as delivered"}
    assert (work / "3_mixed_precision.ipynb").read_text() == notebook()
    with pytest.raises(LabError, match="There: 3_mixed_precision"):
        labkit.fresh_copy("../../etc/passwd")


def zip_with(name, text):
    """A zip of one file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, text)
    return buffer.getvalue()


WHOLE = zip_with("manifest.json", json.dumps({"student": "ann " * 50}))
BROKEN_STREAM = WHOLE[:45] + b"\xff" * 15 + WHOLE[60:]
BOMB = zip_with("evidence/T-1.json", "0" * ((16 << 20) + 1))


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 cut", BROKEN_STREAM, BOMB])
def test_a_broken_zip_is_a_problem_not_a_crash(tmp_path, content):
    """What is no zip is said to be none; a bomb is refused before it is unpacked."""
    file = tmp_path / "ann.zip"
    file.write_bytes(content)
    submission = read_zip(file)
    assert submission.student == "ann"
    problem = "bigger than 16 MiB" if content is BOMB else "cannot be read"
    assert problem in submission.problems["zip"]
