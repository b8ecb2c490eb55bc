"""`./lab bench reclaim`: from the decision to take a slice back until another may start on it.

The service as it runs, with its own timers, over one simulated A100 whose driver calls take as
long as given.  A student's server is a process; the benchmark ends it as soon as the service asks
for that, so what a hub needs to stop a server is not in the figures.  From the reclaim in the
ledger to the attach of the next student's server; the driver's own time in destroy and create is
measured on the way and taken off.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table

from miglab_api.holders import process_holder
from miglab_api.leases import LeaseState, LeaseView
from miglab_api.tickets import TicketRequest, TicketState
from miglab_bench.measures.ratio import p95
from miglab_pool.gpu.driver import Driver
from miglab_pool.gpu.geometry import Placement, Profile
from miglab_pool.gpu.open import open_gpus
from miglab_pool.gpu.readings import SliceReading
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.simulated.state import Delays
from miglab_pool.http.metrics import Metrics
from miglab_pool.http.pool_runner import PoolRunner, Times
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.pool import Pool
from miglab_pool.settings import Course, PoolSettings
from miglab_pool.worker.holders import ProcessHolders

SHAPE = "7g.40gb"
WAIT_S = 60.0
IDLE = [sys.executable, "-c", "import time; time.sleep(3600)"]


@dataclass(frozen=True)
class ReclaimTimes:
    """What was measured, seconds.

    Attributes:
        samples: how many reclaims.
        total_p50_s: from the decision until the next server may start, median.
        total_p95_s: the same, 95th percentile.
        driver_p50_s: how much of it the driver took to destroy and create, median.
        beyond_p50_s: what is beyond the driver's own time, median.
        beyond_p95_s: the same, 95th percentile.
    """

    samples: int
    total_p50_s: float
    total_p95_s: float
    driver_p50_s: float
    beyond_p50_s: float
    beyond_p95_s: float


def bench_reclaim(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    samples: Annotated[int, typer.Option(min=2, help="How many reclaims.")] = 20,
    call_s: Annotated[
        float, typer.Option(min=0, help="Seconds that each driver call takes.")
    ] = 0.1,
) -> None:
    """Reclaim: time from the decision until another server may start on the slice."""
    row = asyncio.run(measure(samples, call_s))
    how = (
        f"one simulated A100-40GB, {SHAPE}, a recut makes four driver calls of {call_s} s each; "
        "servers are processes, ended as soon as the service asks; without the hub's own time"
    )
    if as_json:
        print(json.dumps({"rows": [asdict(row)], "how": how}))
        return
    table = Table(title="from the decision to the next server's start, s")
    for name in asdict(row):
        table.add_column(name, justify="right")
    table.add_row(*(str(value) for value in asdict(row).values()))
    Console().print(table, how)


async def measure(samples: int, call_s: float, times: Times | None = None) -> ReclaimTimes:
    """Take the same slice back so many times, each time for the student who waits.

    Args:
        samples: how often.
        call_s: how long each driver call takes.
        times: the service's timers; None for those it has by default.
    """
    with tempfile.TemporaryDirectory(prefix="miglab-bench-") as name:
        async with running(Path(name), call_s, times or Times()) as lab:
            lease = await lab.start("student-0")
            took = []
            for number in range(1, samples + 1):
                lease, total_s, driver_s = await lab.hand_over(lease, f"student-{number}")
                took.append((total_s, driver_s))
    return _row([total_s for total_s, _ in took], [driver_s for _, driver_s in took])


def _row(totals_s: Sequence[float], drivers_s: Sequence[float]) -> ReclaimTimes:
    beyond_s = [total_s - driver_s for total_s, driver_s in zip(totals_s, drivers_s, strict=True)]
    return ReclaimTimes(
        len(totals_s),
        round(median(totals_s), 3),
        round(p95(totals_s), 3),
        round(median(drivers_s), 3),
        round(median(beyond_s), 3),
        round(p95(beyond_s), 3),
    )


class TimedDriver:
    """The driver, with the time that its destroys and creates take added up."""

    def __init__(self, driver: Driver) -> None:
        self.spent_s = 0.0
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        """Everything else is the driver's own."""
        return getattr(self._driver, name)

    def create(self, gpu_uuid: str, profile: Profile, placement: Placement) -> SliceReading:
        """As the driver."""
        with self._timing():
            return self._driver.create(gpu_uuid, profile, placement)

    def destroy(self, gpu_uuid: str, gi_id: int) -> None:
        """As the driver."""
        with self._timing():
            self._driver.destroy(gpu_uuid, gi_id)

    @contextmanager
    def _timing(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent_s += time.perf_counter() - began


class ReclaimLab:
    """The service, and students' servers as processes; stands in for the hub that stops them."""

    def __init__(self, driver: TimedDriver, ledger: Ledger, times: Times) -> None:
        rules = {"everyone": Course(title="Everyone", shapes=(SHAPE,), default=SHAPE)}
        self._driver = driver
        self._servers: dict[int, subprocess.Popen[bytes]] = {}
        pool = Pool(PoolSettings(courses=rules), ledger, cast(Driver, driver), ProcessHolders())
        self.runner = PoolRunner(pool, Metrics(), times, self._end_servers)

    async def start(self, user: str) -> LeaseView:
        """Ask, wait, take, attach, run."""
        request = TicketRequest(user=user, course="everyone", shape=SHAPE)
        ticket = await self.runner.decide(lambda pool: pool.tickets.request(request))
        return await self._served(ticket.id)

    async def hand_over(self, lease: LeaseView, user: str) -> tuple[LeaseView, float, float]:
        """Take the lease back while ``user`` waits.

        Returns:
            The next lease; seconds in all; and of these the driver's.
        """
        request = TicketRequest(user=user, course="everyone", shape=SHAPE)
        ticket = await self.runner.decide(lambda pool: pool.tickets.request(request))
        spent_s, began = self._driver.spent_s, time.perf_counter()
        await self.runner.decide(lambda pool: pool.leases.release(lease.id, "reclaimer", "unused"))
        following = await self._served(ticket.id)
        return following, time.perf_counter() - began, self._driver.spent_s - spent_s

    def close(self) -> None:
        """End every process."""
        for server in self._servers.values():
            server.kill()
            server.wait()

    async def _served(self, ticket: int) -> LeaseView:
        """As a spawner: the server's process exists beforehand, and starts once it is attached."""
        server = _process()
        holder = process_holder(server.pid)
        async with asyncio.timeout(WAIT_S):
            while True:
                seen = self.runner.notifier.version
                now = await self.runner.decide(lambda pool: pool.tickets.attend(ticket))
                if now.state is TicketState.OFFERED:
                    break
                await self.runner.notifier.beyond(seen, WAIT_S)
        lease = await self.runner.decide(lambda pool: pool.tickets.take(ticket))
        self._servers[lease.id] = server
        number, generation = lease.id, lease.generation
        await self.runner.decide(lambda pool: pool.leases.attach(number, generation, holder))
        return lease

    async def _end_servers(self, runner: PoolRunner) -> None:
        for lease in await runner.decide(lambda pool: pool.leases.live()):
            server = self._servers.get(lease.id)
            if lease.state is LeaseState.RELEASING and server is not None:
                server.kill()
                server.wait()


def _process() -> subprocess.Popen[bytes]:
    return subprocess.Popen(IDLE)


@asynccontextmanager
async def running(folder: Path, call_s: float, times: Times) -> AsyncIterator[ReclaimLab]:
    """A service of its own over one simulated A100."""
    delays = Delays(call_s, call_s, call_s, call_s)
    SimulatedMachine.create(folder / "gpus", 1, "A100-40GB", delays=delays)
    driver = open_gpus(simulated_state=folder / "gpus")
    ledger = Ledger(folder / "ledger.sqlite")
    lab = ReclaimLab(TimedDriver(driver), ledger, times)
    await lab.runner.start()
    try:
        yield lab
    finally:
        await lab.runner.stop()
        lab.close()
        ledger.close()
        driver.close()
