"""Notebooks come into a home, and what the student wrote stays."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from miglab_spawner import notebooks_copy
from miglab_spawner.notebooks_copy import MANIFEST, CopyResult, copy_new


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "more").mkdir(parents=True)
    (folder / "first.ipynb").write_text("first, version 1")
    (folder / "more" / "zweites Heft ü.ipynb").write_text("second, version 1")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home" / "notebooks"


def test_new_notebooks_come_once(source: Path, home: Path):
    """An empty home gets every notebook, in its folder; a second start writes nothing."""
    copied = copy_new(source, home)
    assert copied == CopyResult(new=("first.ipynb", "more/zweites Heft ü.ipynb"))
    assert (home / "more" / "zweites Heft ü.ipynb").read_text() == "second, version 1"
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    assert copy_new(source, home) == CopyResult()
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before


@pytest.mark.parametrize(
    ("delivered", "student_text", "copied", "expected"),
    [
        (True, "first, version 1", CopyResult(updated=("first.ipynb",)), "first, version 2"),
        (True, "my answer", CopyResult(preserved=("first.ipynb",)), "my answer"),
        (True, None, CopyResult(new=("first.ipynb",)), "first, version 2"),
        (False, "mine before", CopyResult(("more/zweites Heft ü.ipynb",), (), ("first.ipynb",)),
         "mine before"),
    ],
    ids=["as delivered", "edited", "deleted to get a fresh one", "another of that name"],
)  # fmt: skip
def test_what_comes_of_a_notebook(
    source: Path,
    home: Path,
    delivered: bool,
    student_text: str | None,
    copied: CopyResult,
    expected: str,
):
    """A newer version replaces what was delivered, and never what the student wrote."""
    if delivered:
        copy_new(source, home)
    home.mkdir(parents=True, exist_ok=True)
    notebook = home / "first.ipynb"
    notebook.unlink(missing_ok=True) if student_text is None else notebook.write_text(student_text)
    (source / "first.ipynb").write_text("first, version 2")
    assert copy_new(source, home) == copied
    assert notebook.read_text() == expected
    (source / "first.ipynb").write_text("first, version 3")
    assert copy_new(source, home).preserved == copied.preserved, "also by every later version"


def test_a_link_is_not_written_through(source: Path, home: Path, tmp_path: Path):
    """A link in the notebook's place stays, and so does what it points to."""
    copy_new(source, home)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("first, version 1")
    (home / "first.ipynb").unlink()
    (home / "first.ipynb").symlink_to(elsewhere)
    (source / "first.ipynb").write_text("first, version 2")
    assert copy_new(source, home).preserved == ("first.ipynb",)
    assert elsewhere.read_text() == "first, version 1"


@pytest.mark.parametrize("linked", ["notebooks", "notebooks/more"])
def test_no_folder_is_written_through_a_link(source: Path, home: Path, linked: str):
    """A link in a folder's place leads where the student wants; nothing is written there."""
    elsewhere = home.parents[1] / "elsewhere"
    for folder in (home.parent, elsewhere):
        folder.mkdir()
    link = home.parent / linked
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(elsewhere)
    assert "more/zweites Heft ü.ipynb" in copy_new(source, home).preserved
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("manifest", ["", "{", "[1]", "null", "ü" * 10_000])
def test_a_damaged_manifest_overwrites_nothing(source: Path, home: Path, manifest: str):
    """Without knowing what was delivered, everything in the home is the student's."""
    copy_new(source, home)
    (home / MANIFEST).write_text(manifest)
    (source / "first.ipynb").write_text("first, version 2")
    assert copy_new(source, home).preserved == ("first.ipynb",)


def test_an_interruption_is_made_good(source: Path, home: Path, monkeypatch: pytest.MonkeyPatch):
    """Stopped before the manifest was written, the next run still knows what it delivered."""
    with monkeypatch.context() as patched:
        patched.setattr(notebooks_copy, "MANIFEST", "no/such\0name")
        with pytest.raises(ValueError, match="null"):
            copy_new(source, home)
    assert copy_new(source, home) == CopyResult()
    (source / "first.ipynb").write_text("first, version 2")
    assert copy_new(source, home) == CopyResult(updated=("first.ipynb",))


def test_no_half_file_is_left(source: Path, home: Path, monkeypatch: pytest.MonkeyPatch):
    """A full disk leaves neither a broken notebook nor a leftover beside it."""
    copy_new(source, home)
    (source / "first.ipynb").write_text("first, version 2")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        copy_new(source, home)
    assert (home / "first.ipynb").read_text() == "first, version 1"
    assert sorted(path.name for path in home.iterdir()) == [MANIFEST, "first.ipynb", "more"]


def run_alone(source: Path, home: Path) -> "subprocess.CompletedProcess[str]":
    """As the image does: the one file, with a bare Python."""
    command = [sys.executable, "-I", "-S", notebooks_copy.__file__, source, home]
    return subprocess.run([*map(str, command)], capture_output=True, text=True)


def test_it_runs_alone(source: Path, home: Path, tmp_path: Path):
    """It says what came; where the home is a file, why nothing did, in one line."""
    process = run_alone(source, home)
    assert (process.returncode, "notebooks new: first.ipynb" in process.stderr) == (0, True)
    delivered = json.loads((home / MANIFEST).read_text())
    assert set(delivered) == {"first.ipynb", "more/zweites Heft ü.ipynb"}
    (tmp_path / "file").touch()
    process = run_alone(source, tmp_path / "file" / "notebooks")
    assert (process.returncode, len(process.stderr.splitlines())) == (1, 1)
    assert process.stderr.startswith("notebooks: ")


@pytest.mark.parametrize("kind", ["pipe", "link to a device", "folder", "huge"])
@pytest.mark.parametrize("name", [MANIFEST, "first.ipynb"])
def test_no_odd_file_holds_up_a_start(source: Path, home: Path, name: str, kind: str):
    """A pipe nobody writes to, a device without end, a folder, a file without bounds: passed by."""
    home.mkdir(parents=True)
    odd = home / name
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "link to a device":
        odd.symlink_to("/dev/zero")
    elif kind == "folder":
        odd.mkdir()
    else:
        odd.touch()
        os.truncate(odd, 2**40)
    try:
        copied = copy_new(source, home)
    except IsADirectoryError:  # it is said, and the start goes on
        assert (kind, name) == ("folder", MANIFEST)
        return
    assert ("first.ipynb" in copied.preserved) is (name == "first.ipynb")
    assert (home / "more" / "zweites Heft ü.ipynb").exists()
