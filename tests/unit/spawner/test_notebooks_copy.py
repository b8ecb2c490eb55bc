"""Notebooks come into a home, and what the student wrote stays."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from miglab_spawner.processes import notebooks_copy
from miglab_spawner.processes.notebooks_copy import MANIFEST, Copied, copy_new


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


def test_new_notebooks_come(source: Path, home: Path):
    """An empty home gets every notebook, in its folder."""
    copied = copy_new(source, home)
    assert copied == Copied(new=("first.ipynb", "more/zweites Heft ü.ipynb"))
    assert (home / "more" / "zweites Heft ü.ipynb").read_text() == "second, version 1"


def test_nothing_happens_twice(source: Path, home: Path):
    """A second start with the same notebooks writes nothing."""
    copy_new(source, home)
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    assert copy_new(source, home) == Copied()
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before


def test_an_unedited_notebook_is_updated(source: Path, home: Path):
    """A newer version replaces the one delivered before."""
    copy_new(source, home)
    (source / "first.ipynb").write_text("first, version 2")
    assert copy_new(source, home) == Copied(updated=("first.ipynb",))
    assert (home / "first.ipynb").read_text() == "first, version 2"


def test_an_edited_notebook_is_kept(source: Path, home: Path):
    """What the student wrote survives every later version."""
    copy_new(source, home)
    (home / "first.ipynb").write_text("my answer")
    for version in (2, 3):
        (source / "first.ipynb").write_text(f"first, version {version}")
        assert copy_new(source, home) == Copied(kept=("first.ipynb",))
    assert (home / "first.ipynb").read_text() == "my answer"


def test_a_file_of_the_same_name_is_the_students(source: Path, home: Path):
    """A file that was never delivered is not overwritten by one of that name."""
    home.mkdir(parents=True)
    (home / "first.ipynb").write_text("mine before")
    assert copy_new(source, home).kept == ("first.ipynb",)
    assert (home / "first.ipynb").read_text() == "mine before"


def test_a_deleted_notebook_comes_back(source: Path, home: Path):
    """Deleting a notebook is how to get a fresh one."""
    copy_new(source, home)
    (home / "first.ipynb").unlink()
    assert copy_new(source, home) == Copied(new=("first.ipynb",))


def test_a_link_is_not_written_through(source: Path, home: Path, tmp_path: Path):
    """A link in the notebook's place stays, and so does what it points to."""
    copy_new(source, home)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("first, version 1")
    (home / "first.ipynb").unlink()
    (home / "first.ipynb").symlink_to(elsewhere)
    (source / "first.ipynb").write_text("first, version 2")
    assert copy_new(source, home).kept == ("first.ipynb",)
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
    assert "more/zweites Heft ü.ipynb" in copy_new(source, home).kept
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("manifest", ["", "{", "[1]", "null", "ü" * 10_000])
def test_a_damaged_manifest_overwrites_nothing(source: Path, home: Path, manifest: str):
    """Without knowing what was delivered, everything in the home is the student's."""
    copy_new(source, home)
    (home / MANIFEST).write_text(manifest)
    (source / "first.ipynb").write_text("first, version 2")
    assert copy_new(source, home).kept == ("first.ipynb",)


def test_an_interruption_is_made_good(source: Path, home: Path, monkeypatch: pytest.MonkeyPatch):
    """Stopped before the manifest was written, the next run still knows what it delivered."""
    with monkeypatch.context() as patched:
        patched.setattr(notebooks_copy, "MANIFEST", "no/such\0name")
        with pytest.raises(ValueError, match="null"):
            copy_new(source, home)
    assert copy_new(source, home) == Copied()
    (source / "first.ipynb").write_text("first, version 2")
    assert copy_new(source, home) == Copied(updated=("first.ipynb",))


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


def test_it_runs_alone(source: Path, home: Path):
    """The image runs the one file with a bare Python, and is told what came."""
    script = Path(notebooks_copy.__file__)
    command = [sys.executable, "-I", "-S", str(script), str(source), str(home)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    assert "notebooks new: first.ipynb" in done.stderr
    assert set(json.loads((home / MANIFEST).read_text())) == {
        "first.ipynb",
        "more/zweites Heft ü.ipynb",
    }


def test_an_unwritable_home_is_one_clear_line(source: Path, tmp_path: Path):
    """Where the home is a file, the reason is said and the exit status is 1."""
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    script = Path(notebooks_copy.__file__)
    command = [sys.executable, str(script), str(source), str(in_the_way / "notebooks")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("notebooks: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("what", ["pipe", "link to a device", "folder", "huge"])
@pytest.mark.parametrize("name", [MANIFEST, "first.ipynb"])
def test_no_odd_file_holds_up_a_start(source: Path, home: Path, name: str, what: str):
    """A pipe nobody writes to, a device without end, a folder, a file without bounds: passed by."""
    home.mkdir(parents=True)
    odd = home / name
    if what == "pipe":
        os.mkfifo(odd)
    elif what == "link to a device":
        odd.symlink_to("/dev/zero")
    elif what == "folder":
        odd.mkdir()
    else:
        odd.touch()
        os.truncate(odd, 2**40)
    try:
        copied = copy_new(source, home)
    except IsADirectoryError:  # it is said, and the start goes on
        assert (what, name) == ("folder", MANIFEST)
        return
    assert ("first.ipynb" in copied.kept) is (name == "first.ipynb")
    assert (home / "more" / "zweites Heft ü.ipynb").exists()
