"""`lab bench spawn` on a real engine: two rounds, and nothing is left of them."""

import json
import subprocess
import sys

import pytest

import docker

pytestmark = [pytest.mark.docker, pytest.mark.long]
BENCH = [sys.executable, "-m", "miglab_hub.cli", "bench", "spawn", "--json"]
BENCH += ["--rounds", "2", "--at-once", "2"]


def test_both_start_in_turns_and_leave_nothing(engine: docker.DockerClient, student_image: str):
    """Every start answered; no container, volume or network of the benchmark remains."""
    before = made(engine)
    process = subprocess.run(BENCH, stdout=subprocess.PIPE)
    assert process.returncode == 0
    report = json.loads(process.stdout)
    assert len(report["rounds"]) == 2
    assert all(seconds > 0 for timings in report["rounds"] for seconds in timings.values())
    assert report["ratio"]["low"] <= report["ratio"]["median"] <= report["ratio"]["high"]
    assert made(engine) <= before


def made(engine: docker.DockerClient) -> set[str]:
    """The names of what benchmarks have made on the engine."""
    name_filter = {"name": "miglab-bench-"}
    containers = engine.containers.list(all=True, filters=name_filter)
    networks = engine.networks.list(names=["miglab-bench-"])
    volumes = engine.volumes.list(filters=name_filter)
    return {resource.name for resource in (*containers, *networks, *volumes)}
