"""`miglab prove` with a real engine: a student's container on a simulated slice, seconds old."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import docker
from miglab_api.holders import PROOF_LABEL
from miglab_bench.harness.student import STEP_S, wait_for
from miglab_bench.harness.temporary import write_lab
from miglab_hub.service.gpus import make_simulated
from miglab_hub.settings.lab_toml import Settings, load
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.simulated.state import Delays

from .conftest import SOCKET, engine_script

pytestmark = pytest.mark.docker
PROOF_S = 240.0


@pytest.fixture
def settings(engine: docker.DockerClient, student_image: str, tmp_path: Path) -> Settings:
    """A lab that is down, with two simulated GPUs that the engine's hook knows."""
    lab = load(write_lab(tmp_path, spawner="docker", image=student_image, gpus=2), {})
    make_simulated(lab)
    assert engine_script("simulate", str(lab.simulated_state)).returncode == 0
    return lab


@pytest.fixture
def proof(settings: Settings) -> Iterator["subprocess.Popen[bytes]"]:
    """A proof of that lab, under way."""
    out = settings.folder / "proof.json"
    arguments = ["prove", "--quick", "--config", str(settings.file), "--out", str(out)]
    command = [sys.executable, "-m", "miglab_hub.cli", *arguments]
    environment = {**os.environ, "DOCKER_HOST": SOCKET}
    with out.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    yield process
    if process.poll() is None:
        process.kill()
    process.wait(STEP_S)


def containers(engine: docker.DockerClient) -> list[Any]:
    listed: list[Any] = engine.containers.list(all=True, filters={"label": PROOF_LABEL})
    return listed


def test_a_container_on_a_slice_that_is_seconds_old(
    settings: Settings, proof: "subprocess.Popen[bytes]", engine: docker.DockerClient
) -> None:
    """It starts as a lease's, sees exactly its slice; another is refused; nothing stays."""
    status = proof.wait(PROOF_S)
    assert status == 0, (settings.folder / "proof.log").read_text()
    report = json.loads((settings.folder / "proof.json").read_text())
    lines = {line["line"]: line for line in report["lines"]}
    lines_held = {name for name, line in lines.items() if line["verdict"] == "yes"}
    assert lines_held >= {
        "engine",
        "create-destroy",
        "container-start",
        "container-sees-slice",
        "container-refused",
        "end-to-destroy",
        "as-it-was",
    }
    assert lines["end-to-destroy"]["figures"]["end_to_destroy_ms"]["count"] == 3
    assert containers(engine) == []
    assert settings.servers.image not in (settings.folder / "proof.json").read_text()


@pytest.mark.long
def test_the_next_run_removes_the_container_of_one_that_was_killed(
    settings: Settings, proof: "subprocess.Popen[bytes]", engine: docker.DockerClient
) -> None:
    """A container runs on with its slice; who comes next ends it first, then destroys the slice."""
    wait_for(lambda: containers(engine), "a container of the proof", PROOF_S)
    proof.send_signal(signal.SIGKILL)
    proof.wait(STEP_S)
    assert containers(engine)
    machine = SimulatedMachine(settings.simulated_state or settings.folder)
    machine.set_delays(Delays())
    command = [sys.executable, "-m", "miglab_hub.cli", "prove", "--quick"]
    again = [*command, "--config", str(settings.file), "--out", str(settings.folder / "2.json")]
    second = subprocess.run(again, capture_output=True, text=True, timeout=PROOF_S)
    assert second.returncode == 0, second.stdout + second.stderr
    assert containers(engine) == []
    assert not any(gpu.instances for gpu in machine.state().gpus)
