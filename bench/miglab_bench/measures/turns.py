"""The turns of `./lab bench spawn`: one hub, and now one spawner's servers, now the other's."""

import asyncio
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from statistics import median
from typing import Any

from docker.errors import DockerException, NotFound  # noqa: TID251 -- what Docker answers
from dockerspawner import DockerSpawner
from traitlets.config import Config

from miglab_api.gpus import PoolSnapshot, SliceState
from miglab_api.holders import process_holder
from miglab_api.leases import LeaseView
from miglab_api.tickets import TicketRequest
from miglab_bench.harness.hub_here import HubHere, hub_here, time_start
from miglab_bench.measures.rounds import COURSE, OURS, PLAIN, SHAPE, Round, names
from miglab_hub import lab_secrets
from miglab_hub.configure import configure
from miglab_hub.errors import StartError
from miglab_hub.pool_api import PoolApi
from miglab_hub.settings.lab_toml import Settings
from miglab_spawner.backends import http
from miglab_spawner.backends.pool import PoolClient

BESIDE = "beside"
SAME = ("image", "network_name", "use_internal_ip", "prefix", "client_kwargs", "default_url")
HOME = "/home/jovyan"  # of the student image
LOOK_S = 0.05


async def measure(settings: Settings, rounds: int, at_once: int) -> list[Round]:
    """Start and end both spawners' servers in turns.

    Raises:
        StartError: the engine does not start a container with a slice.
    """
    config = Config()
    configure(config, settings)
    async with held_slices(settings, at_once) as beside, hub_here(config) as hub:
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
async def held_slices(settings: Settings, count: int) -> AsyncIterator[list[LeaseView]]:
    """Slices that processes of this benchmark hold: those for plain DockerSpawner."""
    pool = PoolClient(settings.pool_url, settings.pool_secret)
    with ExitStack() as held:
        holders = {user: held.enter_context(_holder()) for user in names(BESIDE, count)}
        try:
            yield [await _hold(pool, user, pid) for user, pid in holders.items()]
        finally:
            await http.close()


@contextmanager
def _holder() -> Iterator[int]:
    """A process that holds a slice and does nothing; its id."""
    with subprocess.Popen(["sleep", "infinity"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


async def _hold(pool: PoolClient, user: str, pid: int) -> LeaseView:
    ticket = await pool.request(TicketRequest(user=user, course=COURSE, shape=SHAPE))
    while ticket.lease is None:
        ticket = await pool.attend(ticket.id, 1)
    lease = await pool.take(ticket.id)
    await pool.attach(lease.id, lease.generation, process_holder(pid))
    return await pool.running(lease.id, lease.generation)


class _Bench:
    """Starts now one spawner's servers, now the other's."""

    def __init__(self, hub: HubHere, settings: Settings, beside: list[LeaseView]) -> None:
        self._hub = hub
        self._settings = settings
        self._beside = beside

    async def round(self, *, is_ours_first: bool) -> Round:
        """One turn of each; then what ours held is made anew, so that the next finds it warm."""
        if is_ours_first:
            ours = await self._ours()
            plain = await self._plain()
        else:
            plain = await self._plain()
            ours = await self._ours()
        while not await asyncio.to_thread(self._is_warm):  # noqa: ASYNC110 -- the pool wakes nobody
            await asyncio.sleep(LOOK_S)
        return Round(ours[0], plain[0], ours[1], plain[1])

    async def _ours(self) -> tuple[float, float]:
        users = [self._hub.users[name] for name in names(OURS, len(self._beside))]
        return await _start_and_stop(users, shape=SHAPE)

    async def _plain(self) -> tuple[float, float]:
        users = [self._hub.users[name] for name in names(PLAIN, len(self._beside))]
        for user, lease in zip(users, self._beside, strict=True):
            traits = plain_traits(self._hub.config, lease.uuids)
            user.spawners[""] = user._new_spawner("", DockerSpawner, **traits)
        return await _start_and_stop(users)

    def _is_warm(self) -> bool:
        secret = lab_secrets.read(self._settings.pool_secret)
        with PoolApi(self._settings.pool_url, secret) as api:
            snapshot = PoolSnapshot.model_validate(api.call("GET", "/pool"))
        states = [each.state for gpu in snapshot.gpus for each in gpu.slices]
        each_is = {SliceState.LEASED: len(self._beside), SliceState.FREE: len(self._beside)}
        return Counter(states) == each_is


async def _start_and_stop(users: Sequence[Any], **options: str) -> tuple[float, float]:
    """Start these users' servers at once, and end them at once.

    Returns:
        The median start and the whole end, s; what still runs is ended where a start fails.
    """
    try:
        starts = await asyncio.gather(*(time_start(user, **options) for user in users))
        asked = time.perf_counter()
    finally:
        await asyncio.gather(*(user.stop("") for user in users))
        await asyncio.gather(*(until_removed(user.spawners[""]) for user in users))
    return median(starts), time.perf_counter() - asked


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
        "volumes": {ours.home_volume: HOME},
        "http_timeout": ours.http_timeout,
        "start_timeout": ours.http_timeout,
        "extra_host_config": {"device_requests": [request]},
    }
