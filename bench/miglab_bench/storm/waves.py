"""A class that comes within so many seconds, and leaves within as many.

Meanwhile another process leases and gives back twice a second, as a spawner does, to time the pool.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import httpx

from miglab_api.tickets import TicketRequest
from miglab_bench.harness.pool_operator import SHAPE
from miglab_bench.storm.visitor import Visitor, VisitTimes
from miglab_hub import lab_secrets
from miglab_hub.settings.lab_toml import Settings
from miglab_spawner.backends import http
from miglab_spawner.backends.pool import PoolClient

Said = TypeVar("Said")
POLL_S = 20
TLS = ssl.create_default_context()  # not used; made once, because it takes 20 ms
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
        _evenly(class_room, [each.go for each in visits], within_s)
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


def _visits(settings: Settings, names: Sequence[str]) -> list[Visitor]:
    password = lab_secrets.read_passwords(settings).student
    return [
        Visitor(settings.public_url, name, password, httpx.HTTPTransport(verify=TLS))
        for name in names
    ]


def probe_pool(settings: Settings, seconds: float) -> list[float]:
    """Lease and give back, twice a second.

    Returns:
        Seconds of each request that does not wait.
    """
    return asyncio.run(_probe(settings, seconds))


async def _probe(settings: Settings, seconds: float) -> list[float]:
    pool, requests_s = PoolClient(settings.pool_url, settings.pool_secret), list[float]()
    count = max(1, int(seconds / PROBE_EVERY_S))
    try:
        await asyncio.gather(*(_lease_once(pool, number, requests_s) for number in range(count)))
    finally:
        await http.close()
    return requests_s


async def _lease_once(pool: PoolClient, number: int, requests_s: list[float]) -> None:
    async def timed(call: Awaitable[Said]) -> Said:
        asked = time.perf_counter()
        said = await call
        requests_s.append(time.perf_counter() - asked)
        return said

    await asyncio.sleep(PROBE_EVERY_S * number)
    asking = TicketRequest(user=f"probe-{number}", course="everyone", shape=SHAPE)
    ticket = await timed(pool.request(asking))
    while ticket.lease is None:
        ticket = await pool.attend(ticket.id, POLL_S)
    lease = await timed(pool.take(ticket.id))
    await timed(pool.release(lease.id, "bench", lease.generation))
