"""`miglab sim` by hand."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from miglab_hub.cli.sim import app
from miglab_pool.gpu.simulated.machine import Break
from miglab_pool.gpu.watched import open_gpus

REFERENCE = Path(__file__).parents[4] / "docs/reference/sim.md"


@pytest.fixture
def sim(tmp_path: Path):
    """Runs `miglab sim` on one machine; gives exit status and output."""

    def run(*arguments: str) -> tuple[int, str]:
        environment = {"MIGLAB_SIM_STATE": str(tmp_path / "gpus"), "COLUMNS": "160"}
        result = CliRunner(env=environment).invoke(app, list(arguments))
        return result.exit_code, result.output

    return run


def test_made_loaded_shown_and_rebooted(sim, tmp_path: Path) -> None:
    """A machine's life from the command line."""
    status, uuids = sim("create", "--gpus", "2", "--model", "A30")
    assert (status, len(uuids.split())) == (0, 2)
    driver = open_gpus(simulated_state=tmp_path / "gpus")
    gpu = driver.gpus()[0]
    profile = gpu.geometry.by_name["1g.6gb"]
    reading = driver.create(gpu.uuid, profile, profile.placements[0])
    assert sim("process", "42", "--on", reading.uuid, "--memory-mib", "100")[0] == 0
    status, output = sim("show")
    assert status == 0 and reading.uuid in output and "42" in output
    (part,) = json.loads(sim("show", "--json")[1])["gpus"][0]["slices"]
    assert (part["uuid"], part["state"]) == (reading.uuid, "ready")
    assert sim("process", "42", "--end")[0] == 0
    assert sim("reboot")[0] == 0
    assert json.loads(sim("show", "--json")[1])["gpus"][0]["slices"] == []


def test_broken_and_repaired(sim) -> None:
    """Each way to break shows, and `ok` repairs."""
    sim("create", "--gpus", "2")
    assert sim("break", "lost", "--gpu", "1")[0] == 0
    assert "LOST" in sim("show")[1]
    sim("break", "ok", "--gpu", "1")
    assert "LOST" not in sim("show")[1]
    sim("break", "fail", "--function", "nvmlGpuInstanceDestroy", "--error", "IN_USE")
    assert "requested failure: nvmlGpuInstanceDestroy" in sim("show")[1]


@pytest.mark.parametrize(
    "arguments",
    [
        "create --model B200",
        "create --gpus 0",
        "show --state /nowhere/at/all",
        "process 42",
        "process 42 --on MIG-gone",
        "process 42 --end",
        "break fail",
        "break fail --function nvmlX --error FOO",
        "break lost --gpu 7",
        "mig sideways",
        "run -- no-such-program",
    ],
)
def test_bad_input_is_one_message_and_status_two(sim, arguments: str) -> None:
    """No traceback, and nothing else happens."""
    if not arguments.startswith("create"):
        sim("create")
    status, output = sim(*arguments.split())
    assert status == 2
    assert len(output.strip().splitlines()) == 1 and output.startswith("miglab sim: ")


def test_every_break_is_in_the_reference() -> None:
    """docs/reference/sim.md names them all."""
    text = REFERENCE.read_text()
    assert [kind for kind in Break if f"| `{kind}` |" not in text] == []
