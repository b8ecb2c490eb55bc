"""`lab bench storm` with the real proxy, hub and pool, on classes of three."""

import json
import subprocess
import sys
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.long
BENCH = [sys.executable, "-m", "miglab_hub.cli", "bench"]


def test_classes_of_three_come_and_leave():
    """Nobody fails with either spawner, hub and pool were timed, and no process is left."""
    report = measured("storm", "--students", "3", "--within-s", "1")
    assert report["reasons"] == []
    assert [(row["spawner"], row["students"], row["failed"]) for row in report["rows"]] == [
        ("miglab", 3, 0),
        ("plain", 3, 0),
    ]
    assert [comparison["students"] for comparison in report["processor"]] == [3]
    for row in report["rows"]:
        assert 0 < row["start_p50_s"] <= row["start_p95_s"]
        assert min(row["hub_p95_s"], row["pool_p95_s"], row["stop_s"], row["hub_cpu_ms"]) > 0


def measured(*arguments: str) -> dict[str, Any]:
    """What a benchmark prints; no process of it is left."""
    process = subprocess.run([*BENCH, *arguments, "--json"], stdout=subprocess.PIPE)
    assert process.returncode == 0
    assert not [p for p in psutil.process_iter(["cmdline"]) if is_of_the_bench(p)]
    report: dict[str, Any] = json.loads(process.stdout)
    return report


def is_of_the_bench(process: psutil.Process) -> bool:
    """Whether it is a student's server of a benchmark of this environment."""
    command_line = process.info["cmdline"] or []
    return command_line[:1] == [sys.executable] and command_line[-1].endswith(
        "harness/student_server.py"
    )
