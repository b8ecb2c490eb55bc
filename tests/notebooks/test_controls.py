"""Every core experiment can come out otherwise: in its twin's world the same pipeline says so."""

import contextlib
import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.needs import needs

from labkit import cli
from labkit.authoring import controls as room
from labkit.authoring.definitions import define, experiments
from labkit.authoring.twins import TWINS
from labkit.measuring.place import where
from labkit.records import CpuBudget, Device, Lease, Place, Tier

needs("torch", "the notebooks measure with torch")

SOURCES = Path(__file__).parents[2] / "notebooks" / "src"
COUNTED = ("MIG-12", "DP-5", "MP-1", "MP-2")
IN_A_CHILD = ("MX-1", "DP-1", "MX-5")
LONG = ("MX-7", "MX-9", "MP-5", "CH-2")
TIMED = ("T-1", "T-3", "T-4", "DP-2", "DP-3", "DP-4", "MP-6", "CH-3")
QUIET = 0.3  # cores that others may use before a time says more of them than of the experiment
ON_CPU = [*COUNTED, *IN_A_CHILD, *(pytest.param(key, marks=pytest.mark.long) for key in LONG)]


@pytest.fixture(autouse=True)
def no_lease(monkeypatch):
    """A server without a slice, whatever this test runs in, with the whole budget."""
    for name in ("MIGLAB_SLICES", "MIGLAB_LEASE", "LAB_QUICK", "LABKIT_TWIN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def place():
    return where()


def source_of(key):
    number = {"T": 1, "MIG": 2, "MX": 3, "DP": 4, "MP": 5, "CH": 6}[key.split("-")[0]]
    return next(SOURCES.glob(f"{number}_*.py"))


@pytest.mark.parametrize("key", ON_CPU)
def test_the_twin_turns_the_verdict_round(key, place):
    """One verdict is supported and the other contradicted, through the notebook's own pipeline."""
    (found,) = room.controls([source_of(key)], place, [key])
    assert isinstance(found, room.Control), found
    assert found.flips, found


class Neighbours(threading.Thread):
    """How many cores other people's processes use, sampled while a test measures."""

    def __init__(self):
        super().__init__(daemon=True)
        self._over, self._own, self._used = threading.Event(), {}, 0.0

    def __enter__(self):
        self._busy, self._begun = self._cpu_s(), time.monotonic()
        self._own_s()
        self.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self.join()

    @property
    def cores(self):
        return self._used / (time.monotonic() - self._begun)

    def run(self):
        while not self._over.wait(0.1):
            busy, own = self._cpu_s(), self._own_s()
            self._used += max(0.0, busy - self._busy - own)
            self._busy = busy

    def _cpu_s(self):
        times = psutil.cpu_times()
        return times.user + times.nice + times.system + times.steal

    def _own_s(self):
        """CPU seconds of this process and what it started, since the last sample."""
        before, self._own = self._own, {}
        mine = psutil.Process()
        for one in (mine, *mine.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                self._own[one.pid] = sum(one.cpu_times()[:2])
        return sum(used - before.get(pid, 0.0) for pid, used in self._own.items())


@pytest.mark.long
@pytest.mark.parametrize("key", TIMED)
def test_a_timed_twin_turns_the_verdict_round(key, place):
    """Where others take the cores, times may leave a verdict undecided, never the wrong one."""
    with Neighbours() as neighbours:
        (found,) = room.controls([source_of(key)], place, [key])
    assert isinstance(found, room.Control), found
    assert found.flips or neighbours.cores > QUIET, (found, neighbours.cores)
    assert found.verdict != "contradicted", found
    assert found.twin_verdict != "supported", found


@pytest.mark.parametrize("key", ["DP-5", "DP-1"])
def test_without_the_patch_nothing_flips(key, place, monkeypatch):
    """A twin that changes nothing, counted here or in a child, gives the same verdict."""
    monkeypatch.setattr(
        room, "TWINS", {**TWINS, key: replace(TWINS[key], change=lambda function: function)}
    )
    monkeypatch.setattr(room.twins, "environment", lambda _: {})
    (found,) = room.controls([source_of(key)], place, [key])
    assert found.verdict == found.twin_verdict == "supported"


def test_every_core_experiment_has_a_function_its_twin_can_change():
    """A renamed function of a notebook would leave a twin without a world; on a GPU, too."""
    gpu = Device("cuda", "NVIDIA H200", 143155, sms=132, cpu_cores=16.0, capability="9.0")
    there = Place(Tier.WHOLE_GPU, (gpu,), "none", CpuBudget(16.0, 16), Lease())
    for source in sorted(SOURCES.glob("[1-6]_*.py")):
        names = define(source, there)
        for one in experiments(names):
            if one.check and ":" not in TWINS[one.key].target:
                assert TWINS[one.key].target in names, one.key


def test_the_command_prints_flips_and_what_was_skipped(capsys):
    """JSON on stdout; on a CPU a claim about GPUs is skipped with its reason."""
    assert cli.main(["controls", "MIG-12", "MIG-3", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (flipped,) = said["experiments"]
    assert (flipped["key"], flipped["flips"]) == ("MIG-12", True)
    assert {one["key"]: "GPU" in one["reason"] for one in said["skipped"]} == {"MIG-3": True}


def test_an_unknown_experiment_is_a_sentence(capsys):
    """Exit status 2 and its name."""
    assert cli.main(["controls", "XX-1"]) == 2
    assert "XX-1" in capsys.readouterr().err
