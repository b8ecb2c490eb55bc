"""What was recorded is whole, is what is shipped, and is named as it was recorded."""

from pathlib import Path

import pytest

from labkit.evidence import evidence as store
from labkit.evidence.evidence import recorded
from labkit.measuring import sharing
from labkit.panel.plot import plot_of
from labkit.records import CpuBudget, Device, Lease, Place, Tier
from labkit_authoring.controls import define, experiments

ROOT = Path(__file__).parents[3]
GALLERY = ROOT / "docs" / "gallery"
RECORDED = ROOT / "notebooks" / "labkit" / "recorded"
NOTEBOOK = ROOT / "notebooks" / "src" / "2_mig_trade_offs.py"
MACHINES = sorted(folder for folder in GALLERY.iterdir() if folder.is_dir())
OTHERWISE = {
    ("h100-2gpu", "DP-4"): "undecided",  # NVLink: sending costs too little of the step to tell
    ("h100-2gpu", "DP-6"): "undecided",
    ("h100-2gpu", "MP-6"): "contradicted",  # its stages' times leave out what waiting costs
}
"""Verdicts that a machine has shown and its tier does not expect; the gallery's page says so."""


@pytest.mark.parametrize("machine", MACHINES, ids=lambda folder: folder.name)
def test_the_gallery_is_whole_and_as_expected(machine):
    """Every file is unedited, was measured whole, and its verdict is the one its tier shows.

    A slice that is only emulated may leave it open: its 16 SMs have one smaller part, not three. So
    may ranks that are processes on the host's cores: how two compare with one depends on the host.
    """
    is_emulated = machine.name.endswith("-emulated")
    for file in machine.glob("*.json"):
        evidence = store.load(file)
        assert evidence.stopped is None
        if evidence.judgement and evidence.judgement.expected != "not applicable here":
            may_be_open = is_emulated or evidence.tier == Tier.CPU.value
            accepted = {evidence.judgement.expected, *(["undecided"] if may_be_open else [])}
            accepted.add(
                OTHERWISE.get((machine.name, evidence.experiment), evidence.judgement.expected)
            )
            assert evidence.judgement.verdict.value in accepted, file
        assert file.with_suffix(".svg").is_file()


def test_what_is_shipped_is_what_the_gallery_shows():
    """A run that is replayed lies in the gallery, byte for byte."""
    gallery_files = {file.read_bytes() for machine in MACHINES for file in machine.glob("*.json")}
    shipped = list(RECORDED.glob("*.json"))
    assert shipped
    assert all(file.read_bytes() in gallery_files for file in shipped)


@pytest.mark.parametrize("key", ["MIG-1", "MIG-3"])
def test_a_replay_is_named_as_it_was_recorded(key, monkeypatch):
    """On a CPU's panel the recorded run keeps its title and its SMs: threads are not in it."""
    cpu = Device("cpu", "a CPU", 1024, cpu_cores=2.0, threads=2)
    cpu_place = Place(Tier.CPU, (cpu,), "none", CpuBudget(2.0, 2), Lease())
    monkeypatch.setattr(sharing, "why_not", lambda *_, **__: "not tried")
    experiment = experiments(define(NOTEBOOK, cpu_place))[key]
    replay = plot_of(experiment, recorded(key))
    assert "threads" in experiment.title
    assert "SMs" in replay.title
    assert "threads" not in replay.title + replay.x_label
