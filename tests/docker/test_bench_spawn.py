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
    done = subprocess.run(BENCH, stdout=subprocess.PIPE)
    assert done.returncode == 0
    said = json.loads(done.stdout)
    assert len(said["rounds"]) == 2
    assert all(seconds > 0 for each in said["rounds"] for seconds in each.values())
    assert said["ratio"]["low"] <= said["ratio"]["median"] <= said["ratio"]["high"]
    assert made(engine) <= before


def made(engine: docker.DockerClient) -> set[str]:
    """The names of what benchmarks have made on the engine."""
    named = {"name": "miglab-bench-"}
    containers = engine.containers.list(all=True, filters=named)
    networks = engine.networks.list(names=["miglab-bench-"])
    volumes = engine.volumes.list(filters=named)
    return {each.name for each in (*containers, *networks, *volumes)}
