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
    """Routes that lead nowhere."""

    should_start = False
    routes = Dict()

    async def add_route(self, routespec: str, target: str, data: dict[str, Any]) -> None:
        """Remember the route."""
        self.routes[routespec] = {"routespec": routespec, "target": target, "data": data}

    async def delete_route(self, routespec: str) -> None:
        """Forget the route."""
        self.routes.pop(routespec, None)

    async def get_all_routes(self) -> dict[str, Any]:
        """All that are remembered."""
        return dict(self.routes)


class HubHere(JupyterHub):  # type: ignore[misc]  # base is untyped
    """A hub configured by what it is given, which leaves signals to this process."""

    def load_config_file(self, *_: Any, **__: Any) -> None:
        """No file: `config` says all."""

    def init_signal(self) -> None:
        """Ctrl-C ends the benchmark, and with it the hub."""


@asynccontextmanager
async def hub_here(config: Config) -> AsyncIterator[HubHere]:
    """A running hub; what its servers leave is the caller's to stop."""
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
    start, answered = spawner.start, 0.0

    async def start_and_wait() -> Any:
        nonlocal answered
        where = await start()
        await first_answer(where, f"{spawner.server.base_url}api")
        answered = time.perf_counter()
        return where

    spawner.start = start_and_wait
    asked = time.perf_counter()
    try:
        await user.spawn("", options=options)
    finally:
        spawner.start = start
    return answered - asked


async def first_answer(where: str | tuple[str, int], path: str) -> None:
    """Wait for the first HTTP answer, whatever it says."""
    url = where if isinstance(where, str) else "http://{}:{}".format(*where)
    while True:
        with suppress(NotConnected, NoAnswer):
            await send_request(PoolRequest("GET", f"{url}{path}", {}, ANSWER_S))
            return
        await asyncio.sleep(LOOK_S)


async def in_turns(
    ours: Callable[[], Awaitable[Took]], plain: Callable[[], Awaitable[Took]], rounds: int
) -> list[tuple[Took, Took]]:
    """So many rounds of both, after one that does not count; who goes first changes each round.

    Returns:
        What ours took and what plain took, by round.
    """
    found = []
    for number in range(rounds + 1):
        took = {start: await start() for start in ((ours, plain), (plain, ours))[number % 2]}
        found.append((took[ours], took[plain]))
    return found[1:]
