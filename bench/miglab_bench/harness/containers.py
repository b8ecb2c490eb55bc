"""What a check with containers needs of the engine, and how its traces are removed."""

import subprocess
import sys

from docker.errors import DockerException  # noqa: TID251 -- as below

import docker  # noqa: TID251 -- removes what the check has made
from miglab_bench.harness.student import CheckFailed
from miglab_hub.checkout import checkout
from miglab_hub.errors import StartError
from miglab_hub.launch.preflight import students_bridge
from miglab_hub.settings.lab_toml import Settings

STAND_IN = "tests/docker/engine"


def prepare_engine(settings: Settings) -> None:
    """Check engine and image; let the stand-in for NVIDIA's hook know the lab's simulated GPUs.

    Raises:
        CheckFailed: the engine cannot carry the check.
    """
    try:
        students_bridge(settings)
    except StartError as error:
        raise CheckFailed(str(error)) from error
    script = checkout() / STAND_IN
    if script.exists():
        folder = str(settings.simulated_state)
        told = subprocess.run([sys.executable, script, "simulate", folder], capture_output=True)
        if told.returncode:
            raise CheckFailed(f"{STAND_IN} simulate: {told.stderr.decode(errors='replace')}")


def remove_all(settings: Settings) -> None:
    """Remove the containers, volumes and the network of this lab, and of no other."""
    name = settings.lab_id
    try:
        client = docker.DockerClient(base_url=settings.docker_url)
        # By name: a server without a GPU has no label of the pool's.
        for container in client.containers.list(all=True, filters={"name": f"^/{name}-"}):
            container.remove(force=True, v=True)
        for volume in client.volumes.list(filters={"name": f"{name}-home-"}):
            volume.remove(force=True)
        for network in client.networks.list(names=[settings.network]):
            network.remove()
        client.close()
    except DockerException as error:
        raise CheckFailed(f"removing what the check made: {error}") from error
