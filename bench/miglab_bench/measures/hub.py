"""`./lab bench hub`: a class that comes within a minute, through the whole lab.

Proxy, hub and pool as `./lab up` starts them, with simulated GPUs without delays and one slice for
each student; only the students' servers are the smallest there are, so that the lab is measured and
not JupyterLab.  Each student signs in, fills the spawn form, and opens the server.  Meanwhile
another process leases and gives back, as a spawner does, to time the pool.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.table import Table

from miglab_bench.harness import minimal_server
from miglab_bench.harness.visitor import VisitTimes, visit
from miglab_bench.measures.pool import TLS, Client, free_ports, p95
from miglab_hub import lab_secrets
from miglab_hub.launch.preflight import prepare
from miglab_hub.launch.process_group import Siblings
from miglab_hub.launch.up import say, siblings_of, wait_until_ready
from miglab_hub.settings.lab_toml import ENV_CONFIG, Settings

SHAPE = "1g.5gb"
SLICES_PER_GPU = 7
PROBE_EVERY_S = 0.5
HUB_BOUND_S, POOL_BOUND_S = 1.0, 0.05
LAB = """
[lab]
state_dir = "state"
port = {port}
[gpus]
count = {gpus}
[courses.everyone]
shapes = ["{shape}"]
default = "{shape}"
"""
HUB_CONFIG = """
from miglab_hub.configure import configure
from miglab_hub.settings.lab_toml import load
configure(c, load())
c.MIGLocalSpawner.cmd = {command!r}
c.MIGLocalSpawner.args = []
c.MIGLocalSpawner.environment = {{"MIGLAB_BENCH_HUB": {version!r}}}
"""


@dataclass(frozen=True)
class HubRequest:
    """One kind of request to the hub."""

    what: str
    requests: int
    median_s: float
    p95_s: float


@dataclass(frozen=True)
class Measured:
    """What a class met.

    Attributes:
        failed: how many got no server.
        why: what those were told.
        start_s: from the spawn form to the server's first answer, median.
        start_p95_s: the same, 95th percentile.
        hub_p95_s: one request to the hub that does not wait, 95th percentile.
        pool_p95_s: one request to the pool that does not wait, 95th percentile.
        asked: the requests to the hub, by kind.
    """

    students: int
    within_s: float
    failed: int
    why: tuple[str, ...]
    start_s: float
    start_p95_s: float
    hub_p95_s: float
    pool_p95_s: float
    pool_requests: int
    asked: tuple[HubRequest, ...]


def bench_hub(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    students: Annotated[int, typer.Option(min=2, help="How many students arrive.")] = 200,
    within_s: Annotated[float, typer.Option(min=1, help="Seconds in which they arrive.")] = 60.0,
) -> None:
    """Hub: a class that arrives within a minute; failed spawns, and the p95 of hub and pool."""
    with temporary_settings(students) as settings, running_lab(settings):
        measured = measure(settings, students, within_s)
    how = (
        f"{students} students come evenly within {within_s:.0f} s, one slice each, servers that "
        f"only answer; requests that do not wait by design, students and lab on the same "
        f"{os.cpu_count()} cores; load {os.getloadavg()[0]:.1f} at the end"
    )
    if as_json:
        bounds = {"failed": 0, "hub_p95_s": HUB_BOUND_S, "pool_p95_s": POOL_BOUND_S}
        print(json.dumps({**asdict(measured), "bounds": bounds, "how": how}))
        return
    Console().print(_table(measured), _sentence(measured), how, sep="\n")


@contextmanager
def temporary_settings(students: int) -> Iterator[Settings]:
    """A lab with a slice for each student and some for the probe, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="miglab-bench-") as name:
        file = Path(name, "lab.toml")
        gpus = students // SLICES_PER_GPU + 2
        file.write_text(LAB.format(port=free_ports(), gpus=gpus, shape=SHAPE))
        yield prepare(file)


@contextmanager
def running_lab(settings: Settings) -> Iterator[None]:
    """Proxy, hub and pool, until the block ends.

    Raises:
        StartError: one did not start.
    """
    os.environ[ENV_CONFIG] = str(settings.file)
    config = settings.folder / "jupyterhub_config.py"
    command = [sys.executable, "-S", str(minimal_server.__file__)]
    config.write_text(HUB_CONFIG.format(command=command, version=version("jupyterhub")))
    siblings = Siblings(siblings_of(settings, config), settings.logs, say)
    try:
        siblings.start()
        wait_until_ready(settings, siblings)
        yield
    finally:
        siblings.end()


def measure(settings: Settings, students: int, within_s: float) -> Measured:
    """Let the class come."""
    password = lab_secrets.read_passwords(settings).student
    begin = time.monotonic()

    def come(number: int) -> VisitTimes:
        time.sleep(max(0.0, begin + within_s * number / students - time.monotonic()))
        way = httpx.HTTPTransport(verify=TLS)
        return visit(settings.public_url, f"student-{number}", password, SHAPE, way)

    with ProcessPoolExecutor(1) as other, ThreadPoolExecutor(students) as class_room:
        probe = other.submit(probe_pool, settings, within_s)  # first: no thread is forked
        visits = list(class_room.map(come, range(students)))
        return summary(visits, within_s, probe.result())


def probe_pool(settings: Settings, within_s: float) -> list[float]:
    """Lease and give back, twice a second.

    Returns:
        Seconds of each request that does not wait.
    """
    return asyncio.run(_probe(settings, within_s))


async def _probe(settings: Settings, within_s: float) -> list[float]:
    async with AsyncExitStack() as opened:
        count = max(1, int(within_s / PROBE_EVERY_S))
        all_ = [await opened.enter_async_context(Client(settings)) for _ in range(count)]
        await asyncio.gather(*(each.come(PROBE_EVERY_S * n, 0) for n, each in enumerate(all_)))
        return [second for each in all_ for second in each.requests_s]


def summary(visits: Sequence[VisitTimes], within_s: float, pool_s: Sequence[float]) -> Measured:
    """The figures of a class."""
    starts = [each.start_s for each in visits if each.start_s is not None]
    by_kind: dict[str, list[float]] = {}
    for what, seconds in (request for each in visits for request in each.requests):
        by_kind.setdefault(what, []).append(seconds)
    why = [each.why_not for each in visits if each.start_s is None]
    return Measured(
        students=len(visits),
        within_s=within_s,
        failed=len(why),
        why=tuple(sorted(set(why))),
        start_s=round(median(starts), 3) if starts else 0.0,
        start_p95_s=round(p95(starts), 3),
        hub_p95_s=round(p95([second for each in by_kind.values() for second in each]), 3),
        pool_p95_s=round(p95(pool_s), 4),
        pool_requests=len(pool_s),
        asked=tuple(
            HubRequest(what, len(each), round(median(each), 3), round(p95(each), 3))
            for what, each in by_kind.items()
        ),
    )


def _table(measured: Measured) -> Table:
    table = Table(title="requests to the hub")
    table.add_column("what")
    for column in ("requests", "median, s", "p95, s"):
        table.add_column(column, justify="right")
    for row in measured.asked:
        table.add_row(row.what, str(row.requests), f"{row.median_s:.3f}", f"{row.p95_s:.3f}")
    return table


def _sentence(measured: Measured) -> str:
    why = "".join(f"\n  {each}" for each in measured.why)
    return (
        f"failed spawns: {measured.failed} of {measured.students} (bound 0){why}\n"
        f"from form to server: median {measured.start_s:.2f} s, p95 {measured.start_p95_s:.2f} s\n"
        f"hub p95 {measured.hub_p95_s:.3f} s (bound {HUB_BOUND_S:g} s), pool p95 "
        f"{measured.pool_p95_s * 1000:.1f} ms (bound {POOL_BOUND_S * 1000:.0f} ms)"
    )
