"""A real Docker engine for the tests, simulated GPUs it hands over, containers that go again.

Without root or Docker these tests are skipped; ``LAB_REQUIRE=docker`` makes that a failure.
"""

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.models.containers import Container
from docker.models.networks import Network

import docker
from miglab_pool.gpu.simulated.machine import SimulatedMachine

HERE = Path(__file__).parent
SOCKET = "unix:///var/run/docker.sock"
STUDENT_IMAGE = "miglab-student"
HUB_IMAGE = "miglab-hub"
BASE_IMAGE = "miglab-base"
BUILD = "images/build all"
STAYS = ["sleep", "infinity"]  # a container's program that only stays; no test waits for it


def lacking(reason: str) -> None:
    """Skip, or fail where the tests are told that Docker is there."""
    if "docker" in os.environ.get("LAB_REQUIRE", "").split(","):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def engine_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``tests/docker/engine``."""
    environment = {**os.environ, "MIGLAB_PYTHON": sys.executable}
    command = [sys.executable, str(HERE / "engine"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@contextlib.contextmanager
def installed(rules: list[str]) -> Iterator[None]:
    """These rules of the firewall, for the time of a block."""
    try:
        for rule in rules:
            subprocess.run(rule.split(), check=True)
        yield
    finally:
        for rule in reversed(rules):
            undo = rule.replace(" -I ", " -D ").replace(" -A ", " -D ").replace(" -N ", " -X ")
            subprocess.run(undo.split(), check=False)


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """The machine's engine; started with the stand-in hook, and ended again, if none runs."""
    was_up = engine_script("status").returncode == 0
    if not was_up:
        if os.geteuid() != 0:
            lacking("no Docker engine answers, and starting one needs root")
        started = engine_script("start")
        if started.returncode:
            lacking(started.stderr.strip())
    client = docker.DockerClient(base_url=SOCKET)
    yield client
    client.close()
    if not was_up:
        engine_script("stop")


def image(engine: docker.DockerClient, name: str, build: str = BUILD) -> str:
    """The image, or a skip that says how to make it."""
    try:
        engine.images.get(name)
    except docker.errors.ImageNotFound:
        lacking(f"no image {name}: run {build}")
    return name


@pytest.fixture(scope="session")
def student_image(engine: docker.DockerClient) -> str:
    """The image students' servers run in."""
    return image(engine, STUDENT_IMAGE)


@pytest.fixture(scope="session")
def hub_image(engine: docker.DockerClient) -> str:
    """The image of proxy, hub and pool."""
    return image(engine, HUB_IMAGE)


@pytest.fixture(scope="session")
def base_image(engine: docker.DockerClient) -> str:
    """The small image all others stand on: Debian with Python."""
    return image(engine, BASE_IMAGE)


@pytest.fixture
def machine(tmp_path: Path, engine: docker.DockerClient) -> SimulatedMachine:
    """One simulated A100-40GB whose slices the engine's hook hands over."""
    folder = tmp_path / "gpus"
    machine = SimulatedMachine.create(folder, gpus=1, seed=uuid.uuid4().hex)
    assert engine_script("simulate", str(folder)).returncode == 0
    return machine


Start = Callable[..., Container]


@pytest.fixture
def start(engine: docker.DockerClient, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Start containers that are removed after the test; their logs are shown if it failed."""
    started: list[Container] = []

    def run(image: str, command: list[str] | None = None, **options: Any) -> Container:
        container = engine.containers.create(image, command, **options)
        started.append(container)
        container.start()
        return container

    yield run
    for container in started:
        log = container.logs(tail=50).decode(errors="replace")
        print(f"--- {container.name} ({request.node.name}) ---\n{log}")
        container.remove(force=True, v=True)


@pytest.fixture
def network(engine: docker.DockerClient) -> Iterator[Callable[..., Network]]:
    """Make networks that are removed after the test."""
    networks: list[Network] = []

    def make(**options: Any) -> Network:
        networks.append(engine.networks.create(f"miglab-test-{uuid.uuid4().hex[:8]}", **options))
        return networks[-1]

    yield make
    for network in networks:
        network.remove()
