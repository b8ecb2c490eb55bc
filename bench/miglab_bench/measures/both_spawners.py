"""One hub with JupyterHub's own spawner beside ours, for `./lab bench storm` and `spawn`.

Apart from these, as it loads JupyterHub.  In a storm a student's name decides which spawner starts
the server: both start the same processes; one asks the pool for a slice first.  `spawn` lets both
spawners of containers take turns.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from importlib.metadata import version
from statistics import median
from typing import Any

from docker.errors import DockerException, NotFound  # noqa: TID251 -- what Docker answers
from dockerspawner import DockerSpawner
from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner
from jupyterhub.user import User
from traitlets.config import Config

from miglab_api.gpus import SliceState
from miglab_bench.harness.hub_here import LOOK_S, hub_here, in_turns, time_start
from miglab_bench.harness.pool_operator import SHAPE, PoolOperator
from miglab_bench.harness.temporary import SMALLEST_SERVER
from miglab_bench.measures.storm import PLAIN
from miglab_hub.configure import configure
from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import Settings, load
from miglab_spawner.local import MIGLocalSpawner

Times = tuple[float, float, float, float]  # starts, ours and plain; ends, the same
SAME = ("image", "network_name", "use_internal_ip", "prefix", "client_kwargs", "default_url")
HOME = "/home/jovyan"  # of the student image


class PlainSpawner(SimpleLocalProcessSpawner):  # type: ignore[misc]  # base is untyped
    """JupyterHub's own local processes, without a pool; they open no page of JupyterLab."""


def use_both_spawners(c: Any) -> None:
    """Configure a hub for both: students whose names begin with `PLAIN` get the plain one."""
    settings = load()
    configure(c, settings)
    for spawner in (c.MIGLocalSpawner, c.PlainSpawner):
        spawner.cmd = SMALLEST_SERVER
        spawner.args = []
        spawner.environment = {"MIGLAB_HUB_VERSION": version("jupyterhub")}
    c.PlainSpawner.http_timeout = c.MIGLocalSpawner.http_timeout
    c.PlainSpawner.home_dir_template = f"{settings.homes}/plain-{{username}}"
    # Both forms are filled in alike.
    c.PlainSpawner.options_form = f'<input type="radio" name="shape" value="{SHAPE}" checked>'
    User.spawner_class = property(lambda user: class_for(user.name))


def class_for(user: str) -> type[LocalProcessSpawner]:
    """The spawner class of a user."""
    return PlainSpawner if user.startswith(PLAIN) else MIGLocalSpawner


# -- turns of containers ---------------------------------------------------------------------------


async def measure(
    settings: Settings, rounds: int, our_users: Sequence[str], plain_users: Sequence[str]
) -> list[Times]:
    """Start and end both spawners' servers in turns.

    Args:
        settings: the lab's.
        rounds: so many turns.
        our_users: whose servers are MIGDockerSpawner's.
        plain_users: as many whose are plain DockerSpawner's.

    Raises:
        StartError: the engine does not start a container with a slice.
    """
    config = Config()
    configure(config, settings)
    with closing(PoolOperator(settings)) as pool, ExitStack() as stack:
        slices = [
            stack.enter_context(pool.held(f"beside-{n}"))[0].uuids for n in range(len(plain_users))
        ]

        def is_warm() -> bool:
            """Whether what ours held is made anew, so that the next finds it warm."""
            states = Counter(s.state for gpu in pool.snapshot().gpus for s in gpu.slices)
            return states == {SliceState.LEASED: len(slices), SliceState.FREE: len(slices)}

        async def start_ours() -> tuple[float, float]:
            took_s = await _start_and_stop([hub.users[name] for name in our_users], shape=SHAPE)
            while not await asyncio.to_thread(is_warm):  # noqa: ASYNC110 -- the pool wakes nobody
                await asyncio.sleep(LOOK_S)
            return took_s

        async def start_plain() -> tuple[float, float]:
            users = [hub.users[name] for name in plain_users]
            for user, uuids in zip(users, slices, strict=True):
                traits = plain_traits(config, uuids)
                user.spawners[""] = user._new_spawner("", DockerSpawner, **traits)
            return await _start_and_stop(users)

        try:
            async with hub_here(config) as hub:
                turns = await in_turns(start_ours, start_plain, rounds)
        except DockerException as error:
            raise StartError(
                f"the Docker engine refused: {error}. To hand over simulated GPUs it needs a "
                "stand-in for NVIDIA's hook: tests/docker/engine start starts one with it"
            ) from error
    return [(ours_s[0], plain_s[0], ours_s[1], plain_s[1]) for ours_s, plain_s in turns]


async def _start_and_stop(users: Sequence[Any], **options: str) -> tuple[float, float]:
    """Start these users' servers at once, and end them at once.

    Returns:
        The median start and the whole end, s; what still runs is ended where a start fails.
    """
    try:
        starts = await asyncio.gather(*(time_start(user, **options) for user in users))
        stop_asked_at = time.perf_counter()
    finally:
        await asyncio.gather(*(user.stop("") for user in users))
        await asyncio.gather(*(until_removed(user.spawners[""]) for user in users))
    return median(starts), time.perf_counter() - stop_asked_at


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
    mig_traits = config.MIGDockerSpawner
    request = {"driver": "nvidia", "device_ids": list(uuids), "capabilities": [["gpu"]]}
    return {
        **{name: mig_traits[name] for name in SAME},
        "remove": True,
        "volumes": {mig_traits.home_volume: HOME},
        "http_timeout": mig_traits.http_timeout,
        "start_timeout": mig_traits.http_timeout,
        "extra_host_config": {"device_requests": [request]},
    }
