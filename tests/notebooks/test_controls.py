"""Every panel notices when its experiment is not what its title says."""

import asyncio
import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.needs import needs

from labkit.evidence.checks import CHECKS
from labkit.measuring import sharing
from labkit.measuring.place import where
from labkit.panel.runner import Runner
from labkit.records import CpuBudget, Device, Lease, Place, Tier
from labkit_authoring import cli
from labkit_authoring import controls as room
from labkit_authoring.controls import define, experiments
from labkit_authoring.worlds import WORLDS

needs("torch", "the notebooks measure with torch")

SOURCES = Path(__file__).parents[2] / "notebooks" / "src"
# and MX-9, by the command
COUNTED = (
    pytest.param("MX-5", marks=pytest.mark.long),
    *("DP-12", "SH-1", "SH-2", "KN-1", "MP-12"),
    pytest.param("MP-13", marks=pytest.mark.long),
)
TIMED = ("T-1", "T-3", "T-4", "T-6", "MIG-14", "KN-2", "KN-3", "KN-4", "CH-2", "CH-3")
RANKS = ("DP-2", "DP-3", "DP-4", "DP-6", "DP-15", "MP-3", "MP-6", "MP-11", "SH-3", "WL-1", "WL-2")
OF_THE_MACHINE = ("budget of", "Not finished after")


@pytest.fixture(autouse=True)
def no_lease(monkeypatch):
    """A server without a slice, whatever this test runs in, with the whole budget."""
    for name in ("MIGLAB_SLICES", "MIGLAB_LEASE", "LAB_QUICK", "LABKIT_WORLD"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def place():
    return where()


def source_of(key):
    call = f'labkit.experiment("{key}",'
    return next(file for file in sorted(SOURCES.glob("*.py")) if call in file.read_text())


@pytest.mark.parametrize("key", COUNTED)
def test_what_is_counted_notices_every_broken_world(key, place):
    """Through the notebook's own pipeline, and every time."""
    (control,) = room.controls([source_of(key)], place, [key])
    assert isinstance(control, room.Control), control
    assert control.is_noticed, control


@pytest.mark.long
@pytest.mark.parametrize("key", [*TIMED, *RANKS])
def test_what_is_timed_misses_no_broken_world(key, place):
    """A time depends on the machine: noise may leave a world undecided, never unnoticed.

    What cannot be asked of this machine's cores is skipped with the gain that was measured. What
    takes too long is ended.
    """
    (control,) = room.controls([source_of(key)], place, [key])
    if isinstance(control, room.Skipped):
        assert CHECKS[key].least_gain, control
        assert "side by side" in control.reason
        return
    for run in control.broken:
        is_ended = any(part in run.outcome.reason for part in OF_THE_MACHINE)
        assert run.notice is not room.Notice.MISSED or is_ended, control


@pytest.mark.long
def test_the_training_curves_show_what_a_scale_is_for(place, tmp_path):
    """fp16 alone learns less than fp32 in as many steps; with the scaler it follows it, as bf16."""
    runner = Runner(experiments(define(source_of("MX-11"), place))["MX-11"], tmp_path)
    evidence = asyncio.run(runner.run(None, headless=True))
    loss = {point.label: point.value for point in evidence.points}
    true = loss["fp32, step 200"]
    assert loss["fp16, step 200"] > 1.1 * true
    for way in ("bf16", "fp16, your scaler"):
        assert loss[f"{way}, step 200"] == pytest.approx(true, rel=0.02)


@pytest.mark.parametrize("key", ["MX-9"])
def test_a_world_that_changes_nothing_is_missed(key, place, monkeypatch):
    """What is noticed is what runs, and not the name of a world."""
    whole = tuple(replace(world, change=lambda function: function) for world in WORLDS[key][1:])
    monkeypatch.setattr(room, "WORLDS", {**WORLDS, key: whole})
    monkeypatch.setattr(room.worlds, "environment", lambda *_: {})
    (control,) = room.controls([source_of(key)], place, [key])
    assert control.outcome.verdict == "contradicted"
    assert {run.notice for run in control.broken} == {room.Notice.MISSED}
    assert not control.is_noticed


def test_every_world_has_a_function_to_change(monkeypatch):
    """A renamed function would leave a world that changes nothing; on a GPU, too."""
    gpu = Device("cuda", "NVIDIA H200", 143155, sms=132, cpu_cores=16.0, capability="9.0")
    gpu_place = Place(Tier.WHOLE_GPU, (gpu,), "none", CpuBudget(16.0, 16), Lease())
    monkeypatch.setattr(sharing, "why_not", lambda *_, **__: "not tried")
    for source in sorted(SOURCES.glob("[1-7]*_*.py")):
        names = define(source, gpu_place)
        for experiment in experiments(names).values():
            for world in WORLDS[experiment.key] if experiment.check else ():
                module, _, name = world.target.rpartition(":")
                assert name in (vars(importlib.import_module(module)) if module else names), world


def test_the_command_prints_what_is_noticed_and_what_was_skipped(capsys):
    """JSON on stdout; on a CPU a claim about GPUs is skipped with its reason."""
    assert cli.main(["controls", "XX-1"]) == 2
    assert "XX-1" in capsys.readouterr().err
    assert cli.main(["controls", "MX-9", "MIG-3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (control,) = report["experiments"]
    assert (control["key"], control["is_noticed"]) == ("MX-9", True)
    assert control["outcome"]["verdict"] == "contradicted"
    assert {run["notice"] for run in control["broken"]} == {"noticed"}
    skipped = {run["key"]: "GPU" in run["reason"] for run in report["skipped"]}
    assert skipped == {"MIG-3": True}
