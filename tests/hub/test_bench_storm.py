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
    said = measured("storm", "--students", "3", "--within-s", "1")
    assert said["reasons"] == []
    assert [(row["spawner"], row["students"], row["failed"]) for row in said["rows"]] == [
        ("miglab", 3, 0),
        ("plain", 3, 0),
    ]
    for row in said["rows"]:
        assert 0 < row["start_p50_s"] <= row["start_p95_s"]
        assert min(row["hub_p95_s"], row["pool_p95_s"], row["stop_s"], row["hub_cpu_s"]) > 0


def measured(*words: str) -> dict[str, Any]:
    """What a benchmark prints; no process of it is left."""
    done = subprocess.run([*BENCH, *words, "--json"], stdout=subprocess.PIPE)
    assert done.returncode == 0
    assert not [p for p in psutil.process_iter(["cmdline"]) if is_of_the_bench(p)]
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def is_of_the_bench(process: psutil.Process) -> bool:
    """Whether it is a student's server of a benchmark of this environment."""
    words = process.info["cmdline"] or []
    return words[:1] == [sys.executable] and words[-1].endswith("harness/student_server.py")
