"""What was recorded is drawn and judged again without measuring; samples stay as they were."""

import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from labkit.errors import LabError
from labkit.evidence import evidence as store
from labkit.evidence.replay import recorded
from labkit.panel.picture import plot_of
from labkit.records import CpuBudget, Device, Lease, Place, Tier, Verdict
from labkit_authoring import cli
from labkit_authoring import gallery as gallery_page
from labkit_authoring.definitions import define, experiments
from labkit_authoring.redraw import redraw

ROOT = Path(__file__).parents[3]
GALLERY = ROOT / "docs" / "gallery"
RECORDED = ROOT / "notebooks" / "labkit" / "recorded"
SOURCES = sorted((ROOT / "notebooks" / "src").glob("[1-6]*_*.py"))
MIXED, PARALLEL = SOURCES[2], SOURCES[3]
MACHINES = sorted(folder for folder in GALLERY.iterdir() if folder.is_dir())
OTHERWISE = {
    ("h100-2gpu", "DP-4"): "undecided",  # NVLink: sending costs too little of the step to tell
    ("h100-2gpu", "DP-6"): "undecided",
    ("h100-2gpu", "MP-6"): "contradicted",  # its stages' times leave out what waiting costs
}
"""Verdicts that a machine has shown and its tier does not expect; the gallery's page says so."""


@pytest.fixture
def gallery(tmp_path):
    """A copy of one experiment of one machine, with a verdict that is out of date."""
    folder = tmp_path / "h200-2gpu"
    folder.mkdir()
    shutil.copy(GALLERY / folder.name / gallery_page.NOTE, folder)
    found = store.load(GALLERY / folder.name / "DP-2.json")
    old = replace(found.judgement, verdict=Verdict.SUPPORTED)
    store.save(replace(found, judgement=old), folder)
    return folder


def test_verdict_figure_table_and_shipped_run_are_made_anew(gallery, tmp_path):
    """Only the judgement of the evidence changes."""
    shipped = tmp_path / "recorded"
    shutil.copytree(gallery, shipped)
    command = ["redraw", str(gallery), str(PARALLEL), "--recorded", str(shipped)]
    assert cli.main(command) == 0
    now = store.load(gallery / "DP-2.json")
    assert now == store.load(GALLERY / gallery.name / "DP-2.json")
    assert now == store.load(shipped / "DP-2.json")
    shown = "**DP-2 Time of an all-reduce**: contradicted, as expected."
    assert shown in gallery_page.page(gallery)
    ElementTree.fromstring((gallery / "DP-2.svg").read_text())


def test_an_experiment_nobody_defines_is_named(gallery):
    """The wrong notebook changes nothing and says which experiments it lacks."""
    before = (gallery / "DP-2.json").read_bytes()
    with pytest.raises(LabError, match="DP-2"):
        redraw(gallery, [MIXED])
    assert (gallery / "DP-2.json").read_bytes() == before


def test_a_folder_without_evidence_is_a_sentence(tmp_path, capsys):
    """Exit status 2 and the reason."""
    assert cli.main(["redraw", str(tmp_path), str(MIXED)]) == 2
    assert "holds no recorded evidence" in capsys.readouterr().err


@pytest.mark.parametrize("machine", MACHINES, ids=lambda folder: folder.name)
def test_the_gallery_is_whole_and_as_expected(machine):
    """Every file is unedited, was measured whole, and its verdict is the one its tier shows.

    A slice that is only emulated may leave it open: its 16 SMs have one smaller part, not three. So
    may ranks that are processes on the host's cores: how two compare with one depends on the host.
    """
    is_emulated = machine.name.endswith("-emulated")
    for file in machine.glob("*.json"):
        found = store.load(file)
        assert found.stopped is None
        if found.judgement and found.judgement.expected != "not applicable here":
            may_be_open = is_emulated or found.tier == Tier.CPU.value
            accepted = {found.judgement.expected, *(["undecided"] if may_be_open else [])}
            accepted.add(OTHERWISE.get((machine.name, found.experiment), found.judgement.expected))
            assert found.judgement.verdict.value in accepted, file
        assert file.with_suffix(".svg").is_file()


def test_what_is_shipped_is_what_the_gallery_shows():
    """A run that is replayed lies in the gallery, byte for byte."""
    shown = {file.read_bytes() for machine in MACHINES for file in machine.glob("*.json")}
    shipped = list(RECORDED.glob("*.json"))
    assert shipped
    assert all(file.read_bytes() in shown for file in shipped)


@pytest.mark.parametrize("key", ["MIG-1", "MIG-3"])
def test_a_replay_is_named_as_it_was_recorded(key):
    """On a CPU's panel the recorded run keeps its title and its SMs: threads are not in it."""
    cpu = Device("cpu", "a CPU", 1024, cpu_cores=2.0, threads=2)
    here = Place(Tier.CPU, (cpu,), "none", CpuBudget(2.0, 2), Lease())
    notebook = SOURCES[1]
    made = next(one for one in experiments(define(notebook, here)) if one.key == key)
    shown = plot_of(made, recorded(key))
    assert "threads" in made.title
    assert "SMs" in shown.title
    assert "threads" not in shown.title + shown.x_label
