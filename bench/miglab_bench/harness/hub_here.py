"""A JupyterHub in this process, to time one spawner beside another within the same hub.

It has no proxy: servers are asked directly, so that only the way to the server is measured.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from jupyterhub.app import JupyterHub
from jupyterhub.proxy import Proxy
from traitlets import Dict
from traitlets.config import Config

from miglab_spawner.backends import (
    NoAnswer,
    NotConnected,
    PoolRequest,
    close_connections,
    send_request,
)

ANSWER_S = 10.0
Took = TypeVar("Took")
LOOK_S = 0.05  # less, and the looks of eight at once take a tenth of the time they measure


class NoProxy(Proxy):  # type: ignore[misc]  # base is untyped
    """A proxy that remembers its routes and forwards nothing."""

    should_start = False
    routes = Dict()

    async def add_route(self, routespec: str, target: str, data: dict[str, Any]) -> None:
        """Remember the route."""
        self.routes[routespec] = {"routespec": routespec, "target": target, "data": data}

    async def delete_route(self, routespec: str) -> None:
        """Forget the route."""
        self.routes.pop(routespec, None)

    async def get_all_routes(self) -> dict[str, Any]:
        """Return all routes."""
        return dict(self.routes)


class HubHere(JupyterHub):  # type: ignore[misc]  # base is untyped
    """A hub configured by what it is given, which leaves signals to this process."""

    def load_config_file(self, *_: Any, **__: Any) -> None:
        """Load no file: `config` has all settings."""

    def init_signal(self) -> None:
        """Install no handler: Ctrl-C ends the benchmark, and with it the hub."""


@asynccontextmanager
async def hub_here(config: Config) -> AsyncIterator[HubHere]:
    """Run a hub until the block ends; the caller stops servers that are left."""
    config.JupyterHub.proxy_class = NoProxy
    config.JupyterHub.log_level = "CRITICAL"  # what fails is raised
    hub = HubHere.instance(config=config)  # JupyterHub's database tools log through the instance
    await hub.initialize([])
    await hub.start()
    try:
        yield hub
    finally:
        await close_connections()
        hub.http_server.stop()
        for callback in hub._periodic_callbacks.values():
            callback.stop()
        hub.metrics_collector.stop()
        await hub.cleanup()
        hub.db.close()
        HubHere.clear_instance()


async def time_start(user: Any, **options: str) -> float:
    """Start a user's server.

    Returns:
        Seconds from asking JupyterHub to the server's first HTTP answer.  JupyterHub itself looks
        at intervals that grow at random, so it is not asked.
    """
    spawner = user.spawners[""]
    start, answered_at = spawner.start, 0.0

    async def start_and_wait() -> Any:
        nonlocal answered_at
        address = await start()
        await first_answer(address, f"{spawner.server.base_url}api")
        answered_at = time.perf_counter()
        return address

    spawner.start = start_and_wait
    asked_at = time.perf_counter()
    try:
        await user.spawn("", options=options)
    finally:
        spawner.start = start
    return answered_at - asked_at


async def first_answer(address: str | tuple[str, int], path: str) -> None:
    """Wait for the first HTTP answer, whatever its status."""
    url = address if isinstance(address, str) else "http://{}:{}".format(*address)
    while True:
        with suppress(NotConnected, NoAnswer):
            await send_request(PoolRequest("GET", f"{url}{path}", {}, ANSWER_S))
            return
        await asyncio.sleep(LOOK_S)


async def in_turns(
    start_ours: Callable[[], Awaitable[Took]],
    start_plain: Callable[[], Awaitable[Took]],
    rounds: int,
) -> list[tuple[Took, Took]]:
    """Run both in alternation, after a round that does not count; each goes first in turn.

    Returns:
        Of each round the result of ours and of plain.
    """
    turns = []
    for number in range(rounds + 1):
        took = {
            start: await start()
            for start in ((start_ours, start_plain), (start_plain, start_ours))[number % 2]
        }
        turns.append((took[start_ours], took[start_plain]))
    return turns[1:]
