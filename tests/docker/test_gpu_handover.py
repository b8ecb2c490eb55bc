# ruff: noqa: F401, F811 - a fixture is shared by import, and named again as an argument
"""Whether a container has its slices, seen by a real engine in real containers."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import docker
from miglab_api.engine import gpu_driver_name
from miglab_pool.gpu.geometry import Placement
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.watched import open_gpus
from miglab_spawner.containers.gpu_handover import LISTING_PATH, check_container
from miglab_spawner.containers.host_config import SavedLease, hard_host_config
from miglab_spawner.slices_missing import SlicesMissing

from .conftest import STAYS, Start, engine_script
from .test_engine_restart import SecondEngine, second

pytestmark = [pytest.mark.docker, pytest.mark.long]

GPU = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-a)"
SLICE = "  MIG 1g.5gb      Device  0: (UUID: MIG-1)"
FOREIGN = "  MIG 1g.5gb      Device  1: (UUID: MIG-2)"
UNKNOWN_ERROR = "Failed to initialize NVML: Unknown Error"

Container = Callable[[str], str]


@pytest.fixture
def container(start: Start, base_image: str, tmp_path: Path) -> Container:
    """A running container with this shell script as its ``nvidia-smi``, or without any."""

    def run(script: str) -> str:
        file = tmp_path / "nvidia-smi"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        place = {"bind": "/usr/bin/nvidia-smi", "mode": "ro"}
        volumes = {str(file): place} if script else {}
        started = start(base_image, STAYS, init=True, volumes=volumes)
        assert started.id is not None
        return started.id

    return run


def printing(*lines: str, status: int = 0) -> str:
    return "\n".join(["cat <<'END'", *lines, "END", f"exit {status}"])


@pytest.mark.parametrize(
    ("listing", "uuids"), [((GPU, SLICE), ("MIG-1",)), ((GPU,), ("GPU-a",))], ids=["MIG", "full"]
)
def test_a_container_with_its_slices_is_handed_over(
    engine: docker.DockerClient, container: Container, listing: tuple[str], uuids: tuple[str]
) -> None:
    """The driver lists there exactly what was leased: a slice, or a whole GPU."""
    check_container(engine.api, container(printing(*listing)), uuids)


@pytest.mark.parametrize(
    ("script", "reason", "details"),
    [
        (printing(GPU), "slice-not-there", "it has GPU-a"),
        (printing("No devices found."), "slice-not-there", "it has no GPU"),
        (printing(GPU, SLICE, FOREIGN), "slice-not-there", "it has MIG-1, MIG-2"),
        (printing(GPU, FOREIGN), "slice-not-there", "it has MIG-2"),
        (printing(UNKNOWN_ERROR, status=255), "slice-unknown", UNKNOWN_ERROR),
        ("yes", "slice-unknown", "more output"),
        ("", "slice-unknown", "leaves out `utility`"),
    ],
    ids=["GPU without slice", "nothing", "one more", "another", "failure", "flood", "no tool"],
)
def test_a_container_without_its_slices_is_not(
    engine: docker.DockerClient, container: Container, script: str, reason: str, details: str
) -> None:
    """Fewer, others or more, a tool that fails, floods or is not there: each is told apart."""
    with pytest.raises(SlicesMissing) as missing:
        check_container(engine.api, container(script), ("MIG-1",))
    assert missing.value.reason == reason and details in missing.value.details


def test_a_program_of_the_student_is_not_asked(
    engine: docker.DockerClient, start: Start, base_image: str
) -> None:
    """An ``nvidia-smi`` in the home, first on the image's path, says nothing about the slice."""
    home = "/home/student/.local/bin"
    command = f"mkdir -p {home} && ln -s /bin/true {home}/nvidia-smi && exec sleep infinity"
    environment = {"PATH": f"{home}:{LISTING_PATH}"}
    started = start(base_image, ["sh", "-c", command], init=True, environment=environment)
    assert started.id is not None
    with pytest.raises(SlicesMissing, match="utility"):
        check_container(engine.api, started.id, ("MIG-1",))


def test_a_container_that_has_ended_is_left_to_its_watcher(
    engine: docker.DockerClient, start: Start, base_image: str
) -> None:
    """Why it ended is told elsewhere, in better words."""
    started = start(base_image, ["true"])
    started.wait()
    assert started.id is not None
    check_container(engine.api, started.id, ("MIG-1",))


def test_a_hook_that_ignores_the_request_is_noticed(
    second: SecondEngine, machine: SimulatedMachine, base_image: str
) -> None:
    """By the setting that gpu-host.md once printed: with it no slice, and without it the slice."""
    second.do("simulate", str(machine.folder))
    driver = open_gpus(simulated_state=machine.folder)
    gpu = driver.gpus()[0]
    profile = next(item for item in gpu.geometry.profiles if item.name == "1g.5gb")
    uuid = str(driver.create(gpu.uuid, profile, Placement(0, 1)).uuid)
    driver.close()
    config = second.home / "config.toml"
    with closing(docker.APIClient(base_url=second.url, version="auto")) as api:
        config.write_text("accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")
        with pytest.raises(SlicesMissing, match="slice-unknown"):
            check_container(api, leased_container(api, base_image, uuid), (uuid,))
        config.unlink()
        check_container(api, leased_container(api, base_image, uuid), (uuid,))


def test_a_gpu_leased_whole_arrives(
    engine: docker.DockerClient, start: Start, base_image: str, tmp_path: Path
) -> None:
    """Its own UUID is what the driver lists, and no slice."""
    machine = SimulatedMachine.create(tmp_path / "gpus", mig=False)
    assert engine_script("simulate", str(machine.folder)).returncode == 0
    uuid = machine.state().gpus[0].uuid
    host = hard_host_config(SavedLease(1, 1, "ada", "", (uuid,)), "nvidia")
    started = start(base_image, STAYS, init=True, device_requests=host["device_requests"])
    assert started.id is not None
    check_container(engine.api, started.id, (uuid,))


def leased_container(api: docker.APIClient, image: str, uuid: str) -> str:
    """A running container, made as a server is, that is to have this slice."""
    grant = SavedLease(1, 1, "ada", "", (uuid,))
    host = hard_host_config(grant, gpu_driver_name(api.version()["Version"]))
    created = api.create_container(image, STAYS, host_config=api.create_host_config(**host))
    api.start(created["Id"])
    return str(created["Id"])
