"""Calls of the Docker engine, from threads of their own: many at once, for all users together."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from docker.errors import APIError  # noqa: TID251 - one of the rooms that talk to Docker
from traitlets import Int, default
from traitlets.config import LoggingConfigurable

from miglab_api.holders import kill_processes_of
from miglab_spawner.containers.host_config import container_holder

GONE = 404
BUSY = 409
_PAUSE_S = 0.2
_MEASUREMENTS = 4
_REMOVAL_TRIES = 100

Answer = TypeVar("Answer")


@cache
def _threads(name: str, count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, name)


class EngineCalls(LoggingConfigurable):
    """Calls the engine for a DockerSpawner, which comes after this class in the bases."""

    log: logging.Logger
    client: Any
    docker: Callable[..., Awaitable[Any]]

    docker_workers = Int(
        16,
        min=1,
        help="""How many calls to the Docker engine may run at once, for all users together.

        DockerSpawner has only one thread, so a ten-second `docker stop` would delay everybody.
        Starts of containers also take turns: at most half as many at once as the hub's machine has
        cores, and at least one.  A start that takes longer than 3 s lets the next one begin, and
        none waits for longer than 45 s.
        """,
    ).tag(config=True)

    @property
    def executor(self) -> ThreadPoolExecutor:
        """Return the threads for calls of the engine, one set for all users."""
        return _threads("docker", self.docker_workers)

    @property
    def measurement_threads(self) -> ThreadPoolExecutor:
        """Return the threads that measure homes, which may take long."""
        return _threads("homes", _MEASUREMENTS)

    @default("client_kwargs")
    def _connections_for_all_workers(self) -> dict[str, Any]:
        return {"max_pool_size": self.docker_workers}

    async def _inspect(self, name: str) -> dict[str, Any] | None:
        """Return Docker's inspect of a container, or None for its 404; other errors raise."""
        try:
            inspected: dict[str, Any] = await self.docker("inspect_container", name)
        except APIError as error:
            if error.status_code != GONE:
                raise
            return None
        return inspected

    async def _remove(self, container: str) -> None:
        """Remove a container, running or not, and wait until it is gone."""
        for tries_left in reversed(range(_REMOVAL_TRIES)):
            try:
                await self.docker("remove_container", container, v=True, force=True)
            except APIError as error:
                if error.status_code == GONE:
                    return
                if error.status_code != BUSY or not tries_left:
                    raise
                await asyncio.sleep(_PAUSE_S)  # someone else is removing it
            else:
                return

    async def _end_orphaned_processes(self, container: str) -> None:
        """End processes of a container that the engine has lost; the pool does so for leases."""
        holder = container_holder(container)
        await asyncio.wrap_future(self.executor.submit(kill_processes_of, holder))

    async def _with_engine(
        self,
        call: Callable[..., Answer],
        *args: Any,
        executor: ThreadPoolExecutor | None = None,
    ) -> Answer:
        """Call a function with a client of the engine, in a thread; making a client blocks too."""
        loop = asyncio.get_running_loop()
        threads = executor or self.executor
        return await loop.run_in_executor(threads, lambda: call(self.client, *args))
