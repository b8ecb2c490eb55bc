"""A real lab that starts with one good GPU of eight; the others come back while it runs."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pynvml
from tests.students import served, signed_in

from miglab_bench.harness.processes import logs_below
from miglab_bench.harness.student import wait_for
from miglab_bench.harness.temporary import START_S, TemporaryLab, write_lab
from miglab_hub.checkout import checkout
from miglab_hub.settings.lab_toml import load
from miglab_pool.gpu.simulated.machine import Break, SimulatedMachine

STATES = ["lost", "lost", "lost", "unknown", "unknown", "unfit", "unfit", "ok"]
REASONS = [
    "There is no GPU",
    "fallen off the bus",
    "There is no GPU",
    "Could not read the placements",
    "Could not read the MIG mode",
    "needs a GPU reset",
    "MIG is off, and lab.toml wants it on",
    "",
]
FOR_EVER = 10**9


def break_seven(machine: SimulatedMachine, uuids: list[str]) -> None:
    """Each but the last in its own way."""
    for uuid in (uuids[0], uuids[2]):
        machine.break_gpu(Break.MISSING, uuid)
    machine.break_gpu(Break.LOST, uuids[1])
    calls = ("nvmlDeviceGetGpuInstancePossiblePlacements", "nvmlDeviceGetMigMode")
    for call, uuid in zip(calls, uuids[3:5], strict=True):
        machine.fail_next(call, pynvml.NVML_ERROR_UNKNOWN, FOR_EVER, uuid)
    machine.break_gpu(Break.XID, uuids[5], xid=95)
    machine.set_mig(False, uuids[6])


def test_a_lab_with_one_good_gpu_of_eight(tmp_path: Path) -> None:
    """It starts and serves; seven are told of everywhere with their reasons, and come back."""
    settings = load(write_lab(tmp_path, gpus=8, testing="pool.reconcile_s = 2"), {})
    machine = SimulatedMachine.create(settings.simulated_state, gpus=8)
    uuids = [gpu.uuid for gpu in machine.state().gpus]
    break_seven(machine, uuids)
    with logs_below(tmp_path):
        lab = TemporaryLab(settings, {})
        try:
            wait_for(lab.is_ready, "the line that says ready", START_S)
            _check_bad(lab, uuids)
            for uuid in uuids:
                machine.break_gpu(Break.OK, uuid)
            machine.set_mig(True, uuids[6])
            wait_for(lambda: states(lab, uuids) == ["ok"] * 8, "all GPUs to come back")
            assert doctor(lab)["ok"]
        finally:
            lab.close()


def states(lab: TemporaryLab, uuids: list[str]) -> list[str]:
    by_uuid = {gpu.uuid: gpu.state for gpu in lab.snapshot().gpus}
    return [by_uuid.get(uuid, "") for uuid in uuids]


def _check_bad(lab: TemporaryLab, uuids: list[str]) -> None:
    wait_for(lambda: states(lab, uuids) == STATES, "every GPU to be looked at")
    gpus = {gpu.uuid: gpu for gpu in lab.snapshot().gpus}
    assert sorted(gpu.index for gpu in gpus.values()) == list(range(8))
    assert all(text in gpus[uuid].reason for uuid, text in zip(uuids, REASONS, strict=True))
    student = served(lab, "ada", "1g.5gb")
    (lease,) = lab.leases().values()
    assert lease.slices[0].gpu == gpus[uuids[7]].index
    _check_everywhere(lab, uuids)
    student.leave()
    student.close()


def _check_everywhere(lab: TemporaryLab, uuids: list[str]) -> None:
    """The Health page, the metric that the alerts watch, and doctor."""
    admin = signed_in(lab, "admin")
    page = admin.page("/services/pool/health")
    admin.close()
    assert all(text in page for text in REASONS) and all(uuid in page for uuid in uuids)
    metrics = httpx.get(f"{lab.settings.pool_origin}/metrics", trust_env=False).text
    for state, number in {"lost": 3, "unknown": 2, "unfit": 2, "ok": 1}.items():
        assert f'miglab_gpus{{state="{state}"}} {number}.0' in metrics
    findings = [finding for finding in doctor(lab)["findings"] if finding["level"] == "WRONG"]
    for text in REASONS[:-1]:
        assert any(text in finding["found"] and finding["do"] for finding in findings), text


def doctor(lab: TemporaryLab) -> dict[str, object]:
    """What `miglab doctor` says in a process of its own."""
    command = [sys.executable, "-m", "miglab_hub.cli", "doctor", "--json"]
    config = ["--config", str(lab.settings.file)]
    answer = subprocess.run(
        [*command, *config], cwd=checkout(), capture_output=True, text=True, check=False
    )
    findings: dict[str, object] = json.loads(answer.stdout)
    return findings
