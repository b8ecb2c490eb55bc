"""`lab bench hub` with the real proxy, hub and pool, on a class of three."""

import json
import subprocess
import sys

import psutil
import pytest

pytestmark = pytest.mark.long
BENCH = [sys.executable, "-m", "miglab_hub.cli", "bench", "hub", "--json"]


def test_a_class_of_three_gets_its_servers():
    """Nobody fails, every page was timed, the pool too, and no process is left."""
    done = subprocess.run([*BENCH, "--students", "3", "--within-s", "1"], stdout=subprocess.PIPE)
    assert done.returncode == 0
    said = json.loads(done.stdout)
    assert (said["students"], said["failed"], said["why"]) == (3, 0, [])
    assert {row["what"] for row in said["asked"]} >= {"POST /hub/login", "GET /hub/spawn"}
    assert 0 < said["hub_p95_s"] < said["start_p95_s"]
    assert said["pool_p95_s"] > 0
    assert not [p for p in psutil.process_iter(["cmdline"]) if is_of_the_bench(p)]


def is_of_the_bench(process: psutil.Process) -> bool:
    """Whether it is a student's server of a benchmark of this environment."""
    words = process.info["cmdline"] or []
    return words[:1] == [sys.executable] and words[-1].endswith("harness/minimal_server.py")
