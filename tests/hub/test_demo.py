"""`./lab up --demo` as a process: a class works, waits and idles, and leaves nothing behind."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from miglab_api.gpus import PoolSnapshot
from miglab_bench.harness.processes import free_ports
from miglab_bench.harness.student import wait_for
from miglab_hub.demo.simulated_class import FOLDER
from miglab_hub.pool_api import PoolApi, connect
from miglab_pool.gpu.simulated.machine import SimulatedMachine

pytestmark = pytest.mark.long
END_S = 90
FULL_S = 420.0  # its servers start one by one


@pytest.fixture
def demo(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    arguments = [
        "up",
        "--demo",
        "--config",
        str(tmp_path / "lab.toml"),
        "--port",
        str(free_ports()),
    ]
    with (tmp_path / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "miglab_hub.cli", *arguments], stdout=log, stderr=log
        )
        yield process
        process.terminate()
        process.wait(END_S)


def pool_of(folder: Path) -> PoolApi:
    return connect(folder / "lab.toml", None, None)


def test_a_lively_class(demo: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    """Leases, a queue, a reservation, hand-ins; and no process is left at the end."""
    folder = tmp_path / FOLDER
    wait_for(lambda: "ready: " in (tmp_path / "up.log").read_text(), "ready")

    def is_full() -> bool:
        with pool_of(folder) as pool:
            snapshot = PoolSnapshot.model_validate(pool.call("GET", "/pool"))
            return len(pool.call("GET", "/leases")) >= 8 and len(snapshot.waiting) >= 3

    wait_for(is_full, "a full pool with a queue", FULL_S)
    machine = SimulatedMachine(folder / "state" / "gpus")
    wait_for(lambda: any(gpu.processes for gpu in machine.state().gpus), "work on the slices")
    wait_for(lambda: len(list(folder.glob("hand-ins/*.zip"))) == 6, "the hand-ins")
    with pool_of(folder) as pool:
        assert [reservation["course"] for reservation in pool.call("GET", "/reservations")] == [
            "deep-learning"
        ]
    family = psutil.Process(demo.pid).children(recursive=True)
    demo.send_signal(signal.SIGINT)
    assert demo.wait(END_S) == 0
    assert [process for process in family if process.is_running()] == []
    assert [process for gpu in machine.state().gpus for process in gpu.processes] == []
