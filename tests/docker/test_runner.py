"""A runner's container, by a real engine: its lines, what it reaches, and how it ends."""

import asyncio
import json
import socket
import uuid
from collections.abc import Awaitable, Callable

import pytest
from docker.errors import NotFound

import docker
from miglab_pool.gpu.geometry import Placement
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.watched import open_gpus
from miglab_spawner.borrower import RESULT_LIMIT, OutputTooLarge
from miglab_spawner.containers.container_runner import ContainerRunner
from miglab_spawner.containers.host_config import (
    SavedLease,
    container_of,
    limits_of,
    soft_host_config,
)
from miglab_spawner.slices_missing import SlicesMissing

pytestmark = [pytest.mark.docker, pytest.mark.long]
GONE_S = 90.0
PROGRAM = """
import json, os, socket, sys
for line in sys.stdin:
    if line.startswith("flood"):
        sys.stdout.write("x" * (40 << 20))
    links = [name for _, name in socket.if_nameindex()]
    print("m" + json.dumps({"links": links, "env": dict(os.environ), "size": len(line)}))
    print("e", flush=True)
"""

Made = Callable[[], Awaitable[ContainerRunner]]


@pytest.fixture
def slice_uuid(machine: SimulatedMachine) -> str:
    """A slice that the engine's hook hands over."""
    driver = open_gpus(simulated_state=machine.folder)
    gpu = driver.gpus()[0]
    profile = next(item for item in gpu.geometry.profiles if item.name == "1g.5gb")
    uuid = driver.create(gpu.uuid, profile, Placement(0, 1)).uuid
    driver.close()
    return str(uuid)


@pytest.fixture
def api(engine: docker.DockerClient) -> docker.APIClient:
    return engine.api


def runner_of(api: docker.APIClient, image: str, slice_uuid: str) -> ContainerRunner:
    """A runner with limits and hardening, and with what a site gives its servers: not passed on."""
    soft = soft_host_config(limits_of("cpu", {}), {})
    site = {"binds": {"/etc": {"bind": "/home/student", "mode": "ro"}}, "network_mode": "bridge"}
    return ContainerRunner(
        api,
        image=image,
        name=f"miglab-test-run-{uuid.uuid4().hex}",
        labels={"miglab.test": "runner"},
        env={"MIGLAB_SHAPE": "1g.5gb"},
        host_config={**soft, **site},
        grant=SavedLease(1, 1, "ada", "", (slice_uuid,)),
        command=("python3", "-c", PROGRAM),
    )


async def gone(api: docker.APIClient, number: str) -> None:
    """Wait until the engine does not know the container."""
    async with asyncio.timeout(GONE_S):
        while True:
            try:
                await asyncio.to_thread(api.inspect_container, number)
            except NotFound:
                return
            await asyncio.sleep(0.1)


async def test_a_runner_reaches_nothing(
    api: docker.APIClient, base_image: str, slice_uuid: str
) -> None:
    """Lines pass both ways; no network, no files of the site's, no log; ended, it is gone."""
    runner = runner_of(api, base_image, slice_uuid)
    number = container_of(await runner.create())
    try:
        container = api.inspect_container(number)
        assert not container["State"]["Running"]
        assert container["HostConfig"]["NetworkMode"] == "none"
        assert container["HostConfig"]["LogConfig"]["Type"] == "none"
        assert container["HostConfig"]["CapDrop"] == ["ALL"] and not container["Mounts"]
        await runner.start()
        for order in (b"{}", b"x" * (1 << 20)):
            await runner.send(order)
            line = await asyncio.wait_for(runner.read(), GONE_S)
            report = json.loads(line[1:])
            assert report["links"] == ["lo"] and report["size"] == len(order) + 1
            assert not [name for name in report["env"] if "TOKEN" in name]
            assert await asyncio.wait_for(runner.read(), GONE_S) == b"e"
    finally:
        await runner.end()
    await gone(api, number)
    await runner.end()


async def test_a_runner_ends_with_its_hub(
    api: docker.APIClient, base_image: str, slice_uuid: str
) -> None:
    """Its input closes when the hub's connection does: the engine removes what is left."""
    runner = runner_of(api, base_image, slice_uuid)
    number = container_of(await runner.create())
    await runner.start()
    await runner.send(b"{}")
    assert await asyncio.wait_for(runner.read(), GONE_S)
    runner._socket.shutdown(socket.SHUT_RDWR)  # as the kernel does when the hub is killed
    try:
        await gone(api, number)
    finally:
        await runner.end()


async def test_a_flood_is_cut_off(api: docker.APIClient, base_image: str, slice_uuid: str) -> None:
    """A line without end is not kept beyond the limit."""
    runner = runner_of(api, base_image, slice_uuid)
    try:
        await runner.create()
        await runner.start()
        await runner.send(b"flood")
        with pytest.raises(OutputTooLarge):
            await asyncio.wait_for(runner.read(), GONE_S)
    finally:
        await runner.end()
    assert RESULT_LIMIT == 16 << 20


async def test_a_runner_without_its_slice_measures_nothing(
    api: docker.APIClient, base_image: str, slice_uuid: str
) -> None:
    """It is not called started: what it would measure is not what was borrowed."""
    runner = runner_of(api, base_image, slice_uuid)
    await runner.create()
    runner.grant = SavedLease(1, 1, "ada", "", (slice_uuid, "MIG-another"))
    try:
        with pytest.raises(SlicesMissing, match="slice-not-there"):
            await runner.start()
    finally:
        await runner.end()
