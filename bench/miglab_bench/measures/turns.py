"""The turns of `./lab bench spawn`: one hub, and now one student's server, now the other's."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from docker.errors import DockerException, NotFound  # noqa: TID251 -- what Docker answers
from dockerspawner import DockerSpawner
from traitlets.config import Config

from miglab_api.gpus import PoolSnapshot, SliceState
from miglab_api.holders import process_holder
from miglab_api.leases import LeaseView
from miglab_api.tickets import TicketRequest
from miglab_bench.harness.hub_here import HubHere, hub_here, time_start
from miglab_bench.measures.rounds import COURSE, OURS, PLAIN, SHAPE, Round
from miglab_hub import lab_secrets
from miglab_hub.configure import configure
from miglab_hub.errors import StartError
from miglab_hub.pool_api import PoolApi
from miglab_hub.settings.lab_toml import Settings
from miglab_spawner.backends import http
from miglab_spawner.backends.pool import PoolClient

BESIDE = "beside"
SAME = ("image", "network_name", "use_internal_ip", "prefix", "client_kwargs", "default_url")
LOOK_S = 0.05


async def measure(settings: Settings, rounds: int) -> list[Round]:
    """Start both in turns.

    Raises:
        StartError: the engine does not start a container with a slice.
    """
    config = Config()
    configure(config, settings)
    async with held_slice(settings) as beside, hub_here(config) as hub:
        bench = _Bench(hub, settings, beside)
        try:
            await bench.round(is_ours_first=True)
            return [await bench.round(is_ours_first=bool(n % 2)) for n in range(rounds)]
        except DockerException as error:
            raise StartError(
                f"the Docker engine refused: {error}. To hand over simulated GPUs it needs a "
                "stand-in for NVIDIA's hook: tests/docker/engine start starts one with it"
            ) from error


@asynccontextmanager
async def held_slice(settings: Settings) -> AsyncIterator[LeaseView]:
    """A slice that this process holds: the one for plain DockerSpawner."""
    pool = PoolClient(settings.pool_url, settings.pool_secret)
    request = TicketRequest(user=BESIDE, course=COURSE, shape=SHAPE)
    ticket = await pool.request(request)
    while ticket.lease is None:
        ticket = await pool.attend(ticket.id, 1)
    lease = await pool.take(ticket.id)
    await pool.attach(lease.id, lease.generation, process_holder(os.getpid()))
    await pool.running(lease.id, lease.generation)
    try:
        yield lease
    finally:
        await http.close()


class _Bench:
    """Starts now one's server, now the other's."""

    def __init__(self, hub: HubHere, settings: Settings, beside: LeaseView) -> None:
        self._hub = hub
        self._settings = settings
        self._beside = beside

    async def round(self, *, is_ours_first: bool) -> Round:
        """One start of each; then what ours held is made anew, so that the next finds it warm."""
        if is_ours_first:
            ours_s = await self._ours_s()
            measured = Round(ours_s, await self._plain_s())
        else:
            plain_s = await self._plain_s()
            measured = Round(await self._ours_s(), plain_s)
        while not await asyncio.to_thread(self._is_warm):  # noqa: ASYNC110 -- the pool wakes nobody
            await asyncio.sleep(LOOK_S)
        return measured

    async def _ours_s(self) -> float:
        return await time_start(self._hub.users[OURS], shape=SHAPE)

    async def _plain_s(self) -> float:
        user = self._hub.users[PLAIN]
        traits = plain_traits(self._hub.config, self._beside.uuids)
        spawner = user.spawners[""] = user._new_spawner("", DockerSpawner, **traits)
        try:
            return await time_start(user)
        finally:
            await until_removed(spawner)

    def _is_warm(self) -> bool:
        secret = lab_secrets.read(self._settings.pool_secret)
        with PoolApi(self._settings.pool_url, secret) as api:
            snapshot = PoolSnapshot.model_validate(api.call("GET", "/pool"))
        states = [each.state for gpu in snapshot.gpus for each in gpu.slices]
        return sorted(states) == sorted([SliceState.LEASED, SliceState.FREE])


async def until_removed(spawner: DockerSpawner) -> None:
    """Wait for the end of a removal that plain DockerSpawner leaves to the engine."""
    while True:
        try:
            await spawner.docker("inspect_container", spawner.object_name)
        except NotFound:
            return
        await asyncio.sleep(LOOK_S)


def plain_traits(config: Config, uuids: tuple[str, ...]) -> dict[str, Any]:
    """What makes plain DockerSpawner's container like ours: all but what miglab adds by itself."""
    ours = config.MIGDockerSpawner
    request = {"driver": "nvidia", "device_ids": list(uuids), "capabilities": [["gpu"]]}
    return {
        **{name: ours[name] for name in SAME},
        "remove": True,
        "volumes": {ours.home_volume: ours.home_dir},
        "http_timeout": ours.http_timeout,
        "start_timeout": ours.http_timeout,
        "extra_host_config": {"device_requests": [request]},
    }
