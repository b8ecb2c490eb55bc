"""Programs that other people wrote against pynvml, over the simulated GPUs, unchanged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from miglab_pool.gpu.readings import SliceReading
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.watched import open_gpus

RUN = (
    "import sys; from miglab_pool.gpu.simulated.nvml import run_program; "
    "run_program(sys.argv[2:], sys.argv[1])"
)


@pytest.fixture
def machine(tmp_path: Path) -> SimulatedMachine:
    """A loaded A100: a 1g.5gb on which this very process holds 1234 MiB."""
    return SimulatedMachine.create(tmp_path, gpus=2)


@pytest.fixture
def own_slice(machine: SimulatedMachine) -> SliceReading:
    """The slice this process runs on."""
    driver = open_gpus(simulated_state=machine.folder)
    gpu = driver.gpus()[0]
    profile = gpu.geometry.by_name["1g.5gb"]
    reading = driver.create(gpu.uuid, profile, profile.placements[6])
    driver.close()
    assert reading.uuid
    machine.add_process(reading.uuid, os.getpid(), 1234)
    return reading


def test_gpustat_lists_gpus_and_processes(
    machine: SimulatedMachine, own_slice: SliceReading
) -> None:
    """Gpustat shows both GPUs, this process's memory, and utilisation as unknown."""
    gpustat = json.loads(_run(machine, "-m", "gpustat", "--json"))
    first, second = gpustat["gpus"]
    assert first["uuid"] == own_slice.gpu_uuid
    assert (first["memory.total"], first["memory.used"], second["memory.used"]) == (40960, 1234, 0)
    assert [process["pid"] for process in first["processes"]] == [os.getpid()]
    assert first["utilization.gpu"] is None


def test_nvitop_shows_slices_and_their_processes(
    machine: SimulatedMachine, own_slice: SliceReading
) -> None:
    """Nvitop walks MIG devices: it names the slice by profile and ids, and the process on it."""
    output = _run(machine, "-m", "nvitop", "--once", "--ascii")
    assert f"1g.5gb @ GI/CI: {own_slice.gi_id:2}/{own_slice.ci_id:2}".replace(" ", "") in _squeezed(
        output
    )
    assert "1234MiB/4864MiB" in _squeezed(output)
    assert str(os.getpid()) in output
    assert "Enabled" in output


def test_nvitop_api_sees_the_same_slice(machine: SimulatedMachine, own_slice: SliceReading) -> None:
    """Nvitop's library finds the slice by its UUID, with unknown utilisation."""
    script = machine.folder / "look.py"
    script.write_text(
        "import nvitop\n"
        "gpu = nvitop.Device.all()[0]\n"
        "(mig,) = gpu.mig_devices()\n"
        "print(mig.uuid(), mig.memory_used() >> 20, mig.gpu_instance_id(), gpu.gpu_utilization())\n"
    )
    fields = _run(machine, str(script)).split()
    assert fields == [own_slice.uuid, "1234", str(own_slice.gi_id), "N/A"]


def test_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A program that cannot be found is one message."""
    failed = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path), "no-such-program"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "There is no program no-such-program" in failed.stderr


def _run(machine: SimulatedMachine, *program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", RUN, str(machine.folder), *program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "120", "LINES": "60", "TERM": "xterm"},
    ).stdout


def _squeezed(text: str) -> str:
    return "".join(text.split())
