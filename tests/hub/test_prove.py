"""`miglab prove` beside a running pool: which GPUs it gets, and what is there when it dies."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hub.test_service_process import ASK, PoolProcess

from miglab_bench.harness.student import STEP_S, wait_for
from miglab_bench.harness.temporary import write_lab
from miglab_hub.settings.lab_toml import load
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.simulated.state import Delays

PROOF_S = 120.0


class ProvingLab(PoolProcess):
    """A pool of two simulated GPUs that compares them every second."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = write_lab(folder, gpus=2, testing="pool.reconcile_s = 1")
        self.settings = load(self.file, {})

    @property
    def machine(self) -> SimulatedMachine:
        return SimulatedMachine(self.settings.state / "gpus")

    def instances(self) -> int:
        return sum(len(gpu.instances) for gpu in self.machine.state().gpus)

    def prove(self, out: Path) -> "subprocess.Popen[bytes]":
        arguments = ["prove", "--quick", "--config", str(self.file), "--out", str(out)]
        command = [sys.executable, "-m", "miglab_hub.cli", *arguments]
        with out.with_suffix(".log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def gpus(self) -> list[dict[str, Any]]:
        with self.client() as client:
            gpus: list[dict[str, Any]] = client.get("/pool").json()["gpus"]
            return gpus

    def lease(self) -> str:
        """Take the smallest slice; returns its GPU."""
        with self.client() as client:
            ticket = client.post("/tickets", json=ASK).json()
            while ticket["state"] == "waiting":
                ticket = client.get(f"/tickets/{ticket['id']}?wait_s=20").json()
            assert client.post(f"/tickets/{ticket['id']}/take").is_success
        return next(gpu["uuid"] for gpu in self.gpus() if gpu["slices"])


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[ProvingLab]:
    """Running; ended after the test."""
    lab = ProvingLab(tmp_path)
    lab.start()
    yield lab
    if lab.is_running():
        lab.end(signal.SIGKILL)


def verdicts(file: Path) -> dict[str, str]:
    return {line["line"]: line["verdict"] for line in json.loads(file.read_text())["lines"]}


def test_a_proof_beside_a_running_lab(lab: ProvingLab, tmp_path: Path) -> None:
    """It cuts the GPU that nobody holds, leaves the other alone, and everything is as before."""
    leased_gpu = lab.lease()
    proof = lab.prove(tmp_path / "proof.json")
    assert proof.wait(PROOF_S) == 0, (tmp_path / "proof.log").read_text()
    report = json.loads((tmp_path / "proof.json").read_text())
    assert (report["lab"], verdicts(tmp_path / "proof.json")["create-destroy"]) == ("up", "yes")
    assert verdicts(tmp_path / "proof.json")["all-gpus-at-once"] == "could not be tried"
    assert lab.instances() == 1
    assert [gpu["draining"] for gpu in lab.gpus()] == ["", ""]
    with lab.client() as client:
        assert client.get("/invariants").json() == []
        log = client.get("/audit", params={"limit": 50}).json()
    assert leased_gpu not in [entry["target"] for entry in log if entry["action"] == "prove"]


@pytest.mark.parametrize("ends_pool", [False, True], ids=["proof", "proof and pool"])
def test_a_proof_that_is_killed_leaves_nothing(
    lab: ProvingLab, tmp_path: Path, *, ends_pool: bool
) -> None:
    """Killed while its slice lies there: the pool destroys it, and grants leases again."""
    lab.machine.set_delays(Delays(create_gpu_instance_s=0.2, destroy_gpu_instance_s=0.2))
    proof = lab.prove(tmp_path / "proof.json")
    wait_for(lambda: lab.instances() > 0, "a slice of the proof")
    assert all("miglab prove" in gpu["draining"] for gpu in lab.gpus())
    proof.kill()
    proof.wait(STEP_S)
    if ends_pool:
        lab.end(signal.SIGKILL)
        lab.start()
    wait_for(lambda: not any(gpu["draining"] for gpu in lab.gpus()), "the GPUs to be open again")
    assert lab.instances() == 0
    assert not (lab.settings.state / "prove.json").exists()
    assert not any(gpu["slices"] for gpu in lab.gpus())
    assert lab.lease()


@pytest.mark.long
def test_sigterm_undoes_what_was_begun(lab: ProvingLab, tmp_path: Path) -> None:
    """An operator who ends it early has everything as before, without waiting for the pool."""
    lab.machine.set_delays(Delays(create_gpu_instance_s=0.2, destroy_gpu_instance_s=0.2))
    proof = lab.prove(tmp_path / "proof.json")
    wait_for(lambda: lab.instances() > 0, "a slice of the proof")
    proof.terminate()
    assert proof.wait(STEP_S) == 128 + signal.SIGTERM
    assert lab.instances() == 0
    assert not (lab.settings.state / "prove.json").exists()


@pytest.mark.long
def test_a_proof_while_the_lab_is_down(lab: ProvingLab, tmp_path: Path) -> None:
    """It holds the pool's lock meanwhile; a GPU on which anything lies it leaves alone."""
    leased_gpu = lab.lease()
    lab.end(signal.SIGTERM)
    proof = lab.prove(tmp_path / "proof.json")
    assert proof.wait(PROOF_S) == 0, (tmp_path / "proof.log").read_text()
    assert json.loads((tmp_path / "proof.json").read_text())["lab"] == "down"
    assert verdicts(tmp_path / "proof.json")["create-destroy"] == "yes"
    assert lab.instances() == 1
    assert leased_gpu not in (tmp_path / "proof.json").read_text()
    lab.start()
    with lab.client() as client:
        assert client.get("/invariants").json() == []


@pytest.mark.long
def test_two_proofs_at_once(lab: ProvingLab, tmp_path: Path) -> None:
    """The second one is told that the first is at work, and touches nothing."""
    lab.machine.set_delays(Delays(create_gpu_instance_s=0.2))
    first = lab.prove(tmp_path / "first.json")
    wait_for(lambda: lab.instances() > 0, "a slice of the first proof")
    second = lab.prove(tmp_path / "second.json")
    assert second.wait(PROOF_S) == 2
    assert "miglab prove" in (tmp_path / "second.log").read_text()
    assert first.poll() is None
    first.terminate()
    first.wait(STEP_S)
