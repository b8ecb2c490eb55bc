"""`./lab bench page`: what one update of the pool's page costs the server.

A real pool over seven simulated A100, every one cut into seven slices that are held, and 200 who
wait.  Then a change: a GPU's draining begins or ends, or somebody joins or leaves the queue.  Then
the browser's question for the parts that it does not have, asked of the application itself: no
socket, no proxy.  Measured are the wall clock from the question to the last byte of the answer,
and the processor's time of the service's loop in it.  The snapshot of the changed pool is drawn
once for all viewers, and measured beside them; so is the page as a whole.
"""

import asyncio
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from miglab_api.holders import process_holder
from miglab_api.tickets import TicketRequest
from miglab_bench.harness.ports import free_ports
from miglab_bench.measures.ratio import p95
from miglab_hub.lab_secrets import read
from miglab_hub.service.assembly import ServiceParts, assemble
from miglab_hub.settings.lab_toml import Settings, load
from miglab_pool.http.pages.live_parts import Shelves
from miglab_pool.pool import Pool

GPUS, SLICES, WAITING = 7, 7, 200
BOUND_MS = 5.0
WARM_UP = 10
FILL_S = 1.0
BY = "bench"
COURSE, SHAPE = "everyone", "1g.5gb"
COLUMNS = ("work", "CPU, ms", "p50, ms", "p95, ms", "bytes", "samples")
Change = Callable[[Pool, int], str]
LAB = """
[lab]
state_dir = "state"
port = {port}
[gpus]
simulated = true
count = {gpus}
model = "A100-40GB"
[pool]
queue_limit = 1000
[courses.everyone]
shapes = ["1g.5gb"]
default = "1g.5gb"
"""


@dataclass(frozen=True)
class PageCost:
    """What one kind of work costs.

    Attributes:
        cpu_ms: median of the processor's time.
        p50_ms: median of the wall clock's.
        p95_ms: its 95th percentile.
        bytes: of the answer, median.
    """

    what: str
    cpu_ms: float
    p50_ms: float
    p95_ms: float
    bytes: int
    samples: int
    gpus: int = GPUS
    slices: int = GPUS * SLICES
    waiting: int = WAITING


@dataclass(frozen=True)
class TimedAnswer:
    """One answer, and what it took."""

    took_s: float
    cpu_s: float
    body: bytes


def bench_page(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    samples: Annotated[int, typer.Option(min=2, help="Samples of each.")] = 100,
) -> None:
    """Page: what one update of the pool's page costs, with full GPUs and 200 waiting."""
    with tempfile.TemporaryDirectory(prefix="miglab-bench-") as name:
        file = Path(name, "lab.toml")
        file.write_text(LAB.format(port=free_ports(), gpus=GPUS))
        rows = asyncio.run(measure(load(file, {}), samples))
    how = (
        f"{GPUS} GPUs of {SLICES} slices, {WAITING} waiting; in process, without sockets; "
        f"bound for an update: {BOUND_MS:g} ms of the processor"
    )
    if as_json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "how": how}))
        return
    Console().print(_table(rows), how)


async def measure(settings: Settings, samples: int) -> list[PageCost]:
    """Fill the pool, then ask."""
    parts = assemble(settings)
    sleepers = [_sleeper() for _ in range(GPUS * SLICES)]
    try:
        await parts.runner.start()
        await fill(parts, [process_holder(one.pid) for one in sleepers])
        visitor = PageViewer(parts, settings)
        for _ in range(WARM_UP):
            await visitor.load()
        loads = [await visitor.load(anew=True) for _ in range(samples)]
        pairs = {
            what: [await visitor.update(change, turn) for turn in range(samples)]
            for what, change in (
                ("update: a GPU", _change_gpu),
                ("update: the queue", _change_queue),
            )
        }
    finally:
        await parts.runner.stop()
        await parts.hub.aclose()
        parts.close()
        for one in sleepers:
            one.kill()
            one.wait()
    updates = [_row(what, [one for _, one in pair]) for what, pair in pairs.items()]
    snapshots = [one for pair in pairs.values() for one, _ in pair]
    return [*updates, _row("snapshot, once for all", snapshots), _row("first load", loads)]


def _sleeper() -> subprocess.Popen[bytes]:
    """A process that can hold a lease."""
    return subprocess.Popen(["sleep", "infinity"])


def _request(pool: Pool, asked: TicketRequest) -> None:
    pool.tickets.request(asked)


async def fill(parts: ServiceParts, holders: Sequence[str]) -> None:
    """Give every slice to a holder, and let `WAITING` wait."""
    runner = parts.runner
    for number in range(len(holders) + WAITING):
        asked = TicketRequest(user=f"student{number:03}", course=COURSE, shape=SHAPE)
        await runner.decide(partial(_request, asked=asked))
    while True:
        seen = runner.notifier.version
        if await runner.decide(lambda pool: _take(pool, holders)) == len(holders):
            return
        await runner.notifier.beyond(seen, FILL_S)


def _take(pool: Pool, holders: Sequence[str]) -> int:
    """Take what is offered; returns how many leases run."""
    free = [one for one in holders if one not in {lease.holder for lease in pool.leases.live()}]
    offered = [lease for lease in pool.leases.live() if lease.state == "granted" and lease.uuids]
    for lease, holder in zip(offered, free, strict=False):
        if lease.ticket is not None and pool.tickets.find(lease.ticket).state == "offered":
            pool.tickets.take(lease.ticket)
            pool.leases.attach(lease.id, lease.generation, holder)
            pool.leases.running(lease.id)
    return sum(lease.state == "running" for lease in pool.leases.live())


class PageViewer:
    """A browser with the page open, as far as the server sees it."""

    def __init__(self, parts: ServiceParts, settings: Settings) -> None:
        self._parts = parts
        self._prefix = settings.service_prefix
        self._headers = [(b"authorization", f"Bearer {read(settings.pool_secret)}".encode())]
        self._have = ""

    async def load(self, *, anew: bool = False) -> TimedAnswer:
        """Open the page; ``anew``: as somebody who has not looked before."""
        if anew:
            self._parts.management.state.shelves = Shelves()
        answer = await self._get("/")
        found = re.findall(rb'id="part-([\w-]+)" data-version="(\w+)"', answer.body)
        self._have = ",".join(f"{name.decode()}.{version.decode()}" for name, version in found)
        return answer

    async def update(self, change: Change, turn: int) -> tuple[TimedAnswer, TimedAnswer]:
        """Let something change, and ask for what did; what the snapshot cost, and the page."""
        runner = self._parts.runner
        part, snapshot = await runner.decide(lambda pool: (change(pool, turn), _snapshot(pool)))
        await runner.snapshot()
        answer = await self._get("/fragment", f"have={self._have}")
        if f'id="part-{part}"'.encode() not in answer.body:
            raise RuntimeError("the update does not show what has changed")
        await self.load()
        return snapshot, answer

    async def _get(self, path: str, query: str = "") -> TimedAnswer:
        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = self._scope(f"{self._prefix}{path}", query)
        began, used = time.perf_counter(), time.thread_time()
        await self._parts.management(scope, receive, send)
        took_s, cpu_s = time.perf_counter() - began, time.thread_time() - used
        if sent[0]["status"] != 200:
            raise RuntimeError(f"{path} gave HTTP {sent[0]['status']}")
        return TimedAnswer(took_s, cpu_s, b"".join(message.get("body", b"") for message in sent))

    def _scope(self, path: str, query: str) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": self._headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }


def _snapshot(pool: Pool) -> TimedAnswer:
    began, used = time.perf_counter(), time.thread_time()
    pool.snapshot()
    return TimedAnswer(time.perf_counter() - began, time.thread_time() - used, b"")


def _change_gpu(pool: Pool, turn: int) -> str:
    """Begin or end a GPU's draining; returns the part that changes by it."""
    gpu = pool.snapshot().gpus[turn // 2 % GPUS]
    if gpu.draining:
        pool.staff.undrain_gpu(gpu.uuid, "", BY)
    else:
        pool.staff.drain_gpu(gpu.uuid, "a change to be drawn", BY)
    return f"gpu-{gpu.index}"


def _change_queue(pool: Pool, turn: int) -> str:
    """Let somebody join the queue, or leave it again; returns the part that changes by it."""
    ticket = pool.tickets.request(
        TicketRequest(user=f"late{turn // 2}", course=COURSE, shape=SHAPE)
    )
    if turn % 2:
        pool.tickets.cancel(ticket.id, BY)
    return "queue"


def _row(what: str, answers: list[TimedAnswer]) -> PageCost:
    took_ms = [answer.took_s * 1000 for answer in answers]
    cpu_ms = [answer.cpu_s * 1000 for answer in answers]
    size = round(median(len(answer.body) for answer in answers))
    cpu, half, most = (round(ms, 2) for ms in (median(cpu_ms), median(took_ms), p95(took_ms)))
    return PageCost(what, cpu, half, most, size, len(answers))


def _table(rows: list[PageCost]) -> Table:
    table = Table(title="what the pool's page costs the server")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "work" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(str(value) for value in list(asdict(row).values())[: len(COLUMNS)]))
    return table
