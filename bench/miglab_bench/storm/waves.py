"""A class that comes within so many seconds, and leaves within as many.

Meanwhile another process leases and gives back twice a second, to time the pool.
"""

import ssl
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import httpx

from miglab_api.leases import ReleaseRequest
from miglab_bench.harness.pool_operator import SHAPE, PoolOperator
from miglab_bench.storm.visitor import Visitor, VisitTimes, time_requests
from miglab_hub import lab_secrets
from miglab_hub.settings.lab_toml import Settings

TLS = ssl.create_default_context()  # not used; made once, because it takes 20 ms
PROBE_EVERY_S = 0.5
PROBES = 14  # at a time: there are slices for so many


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
    password = lab_secrets.read_passwords(settings).student
    visits = [
        Visitor(settings.public_url, name, password, httpx.HTTPTransport(verify=TLS))
        for name in names
    ]
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


def probe_pool(settings: Settings, seconds: float) -> list[float]:
    """Lease and give back, twice a second.

    Returns:
        Seconds of each request that does not wait.
    """
    pool = PoolOperator(settings)
    took_s = time_requests(pool.http, lambda method, _path: "" if method == "GET" else method)

    def lease_once(user: str) -> None:
        lease = pool.grant(user)
        gone = ReleaseRequest(reason="bench", generation=lease.generation)
        pool.ask(f"/api/leases/{lease.id}/release", gone)

    with closing(pool), ThreadPoolExecutor(PROBES) as probes:
        count = max(1, int(seconds / PROBE_EVERY_S))
        acts = [partial(lease_once, f"probe-{number}") for number in range(count)]
        _evenly(probes, acts, seconds)
    return [each for _, each in took_s]
