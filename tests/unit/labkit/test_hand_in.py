"""What a student hands in, and a fresh copy of what they got."""

import io
import json
import zipfile

import pytest

import labkit
from labkit.errors import LabError
from labkit.evidence import evidence as store
from labkit.evidence.evidence import Evidence
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


def test_nothing_to_hand_in_is_said(tmp_path):
    """An empty folder is refused, and so is a notebook that is not whole."""
    with pytest.raises(LabError, match="Nothing to hand in"):
        labkit.hand_in(folder=tmp_path)
    (tmp_path / "cut.ipynb").write_text('{"cells": [')
    with pytest.raises(LabError, match=r"cut\.ipynb' is not a whole notebook"):
        labkit.hand_in(folder=tmp_path)
    assert not list(tmp_path.glob("hand-in*"))


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
