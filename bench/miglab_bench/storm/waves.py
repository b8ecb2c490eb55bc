"""A class that comes within so many seconds, and leaves within as many.

Meanwhile another process leases and gives back twice a second, as a spawner does, to time the pool.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

import httpx

from miglab_bench.harness.pool_service import TLS, LeasingClient
from miglab_bench.storm.lab import SHAPE
from miglab_bench.storm.visitor import TimedVisit, VisitTimes
from miglab_hub import lab_secrets
from miglab_hub.settings.lab_toml import Settings

PROBE_EVERY_S = 0.5


@dataclass(frozen=True)
class Wave:
    """What one class met.

    Attributes:
        visits: of each student.
        pool_s: seconds of each request to the pool that does not wait.
    """

    visits: Sequence[VisitTimes]
    pool_s: Sequence[float]


def storm(settings: Settings, names: Sequence[str], within_s: float) -> Wave:
    """Let the class come and leave."""
    visits = _visits(settings, names)
    with ProcessPoolExecutor(1) as other, ThreadPoolExecutor(len(names)) as class_room:
        probe = other.submit(probe_pool, settings, 2 * within_s)  # first: no thread is forked
        _evenly(class_room, [partial(each.come, SHAPE) for each in visits], within_s)
        _evenly(class_room, [each.leave for each in visits], within_s)
        return Wave([each.times for each in visits], probe.result())


def _evenly(
    class_room: ThreadPoolExecutor, acts: Sequence[Callable[[], None]], within_s: float
) -> None:
    """Begin the acts evenly spread over the time, and wait for the last to end."""
    begin = time.monotonic()

    def act_at(number: int) -> None:
        time.sleep(max(0.0, begin + within_s * number / len(acts) - time.monotonic()))
        acts[number]()

    list(class_room.map(act_at, range(len(acts))))


def _visits(settings: Settings, names: Sequence[str]) -> list[TimedVisit]:
    password = lab_secrets.read_passwords(settings).student
    return [
        TimedVisit(settings.public_url, name, password, httpx.HTTPTransport(verify=TLS))
        for name in names
    ]


def probe_pool(settings: Settings, seconds: float) -> list[float]:
    """Lease and give back, twice a second.

    Returns:
        Seconds of each request that does not wait.
    """
    return asyncio.run(_probe(settings, seconds))


async def _probe(settings: Settings, seconds: float) -> list[float]:
    async with AsyncExitStack() as opened:
        count = max(1, int(seconds / PROBE_EVERY_S))
        all_ = [await opened.enter_async_context(LeasingClient(settings)) for _ in range(count)]
        await asyncio.gather(*(each.come(PROBE_EVERY_S * n) for n, each in enumerate(all_)))
        return [second for each in all_ for second in each.requests_s]
