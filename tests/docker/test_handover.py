"""From a device request to a container that sees its slices and no others."""

import pytest
from docker.models.containers import Container

import docker
from miglab_pool.gpu.watched import open_gpus

from .conftest import STAYS

pytestmark = pytest.mark.docker


def device_request(*uuids: str) -> docker.types.DeviceRequest:
    """What the spawner asks of the engine for these slices."""
    return docker.types.DeviceRequest(
        driver="nvidia", device_ids=list(uuids), capabilities=[["gpu"]]
    )


def execute(container: Container, *command: str) -> tuple[int, str]:
    """Run a program in a container: exit status, and what it printed."""
    code, printed = container.exec_run(list(command))
    return code, printed.decode()


def test_the_container_sees_exactly_its_slices(start, base_image: str, slices: list[str]):
    """The request for one slice of two shows that one, and the variable names it."""
    container = start(base_image, STAYS, device_requests=[device_request(slices[0])])
    _, variables = execute(container, "cat", "/proc/1/environ")  # the server's, not exec's
    assert f"NVIDIA_VISIBLE_DEVICES={slices[0]}" in variables.split("\0")
    code, shown = execute(container, "nvidia-smi", "-L")
    assert code == 0
    assert slices[0] in shown
    assert slices[1] not in shown


def test_several_slices_are_handed_over_together(start, base_image: str, slices: list[str]):
    """A lease of two slices shows both, in the lease's order."""
    container = start(base_image, STAYS, device_requests=[device_request(*slices)])
    _, shown = execute(container, "nvidia-smi", "-L")
    assert [line.split("UUID: ")[1].rstrip(")") for line in shown.splitlines()] == slices


def test_a_uuid_no_gpu_has_is_refused(start, base_image: str, slices: list[str]):
    """A slice that does not exist keeps the container from starting, and the reason names it."""
    gone = "MIG-00000000-0000-5000-8000-000000000000"
    with pytest.raises(docker.errors.APIError, match=f"{gone}: unknown device"):
        start(base_image, STAYS, device_requests=[device_request(gone)])


def test_a_destroyed_slice_is_refused(start, base_image: str, slices: list[str], machine):
    """A container made for a slice cannot start once that slice is gone."""
    driver = open_gpus(simulated_state=machine.folder)
    gpu = driver.gpus()[0].uuid
    for reading in driver.slices(gpu):
        driver.destroy(gpu, reading.gi_id)
    with pytest.raises(docker.errors.APIError, match="unknown device"):
        start(base_image, STAYS, device_requests=[device_request(slices[0])])


def test_a_cpu_server_sees_nothing(start, base_image: str, slices: list[str]):
    """Without a request, and with the variable at ``void``, no GPU tool is there."""
    container = start(base_image, STAYS, environment={"NVIDIA_VISIBLE_DEVICES": "void"})
    code, _ = execute(container, "test", "-e", "/usr/bin/nvidia-smi")
    assert code == 1
