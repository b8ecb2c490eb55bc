"""`./lab bench pool`: leases granted and released per second, through the real HTTP API.

A temporary pool service with simulated GPUs without delays; each client asks for a slice, takes
it, releases it, and begins anew.  Then a class: 200 students come one after the other within a
minute, hold what they get for half of it, and wait where there is none.  Figures for each:
leases per second, and the 95th percentile of the time from asking to having and of one request.
"""

import asyncio
import json
import os
import secrets
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Self

import httpx
import typer
from rich.console import Console
from rich.table import Table

from miglab_bench.harness.ports import free_ports
from miglab_bench.measures.ratio import p95
from miglab_hub.errors import StartError
from miglab_hub.lab_secrets import read
from miglab_hub.settings.lab_toml import ENV_BRIDGE, Settings, load

CLIENTS = (1, 8, 32)
STUDENTS = 200
GPUS = 8
START_S = 180.0
POLL_S = 20
TLS = ssl.create_default_context()  # not used; made once, because it takes 20 ms
LAB = """
[lab]
state_dir = "state"
port = {port}
[gpus]
simulated = true
count = {gpus}
model = "A100-40GB"
[courses.everyone]
shapes = ["1g.5gb"]
default = "1g.5gb"
"""


@dataclass(frozen=True)
class ClientsRow:
    """What one number of clients reached.

    Attributes:
        within_s: within how long they came, each once; None: all at once, again and again.
        leases_per_s: leases granted and released per second, all clients together.
        lease_p95_ms: from asking to having, 95th percentile.
        request_p95_ms: one HTTP request that does not wait, 95th percentile.
        samples: how many leases.
    """

    clients: int
    within_s: float | None
    leases_per_s: float
    lease_p95_ms: float
    request_p95_ms: float
    samples: int


def bench_pool(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    seconds: Annotated[
        float, typer.Option(min=1, help="Seconds with each number of clients.")
    ] = 5.0,
    class_s: Annotated[float, typer.Option(min=0, help="Seconds in which a class arrives.")] = 60,
) -> None:
    """Pool: leases granted and released per second through the API, and the p95."""
    with temporary_pool() as settings:
        rows = [asyncio.run(measure(settings, clients, seconds)) for clients in CLIENTS]
        if class_s:
            rows.append(asyncio.run(measure_class(settings, class_s)))
    how = f"{GPUS} simulated A100-40GB without delays, {seconds:.0f} s each, one client process"
    if as_json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "how": how}))
        return
    Console().print(_table(rows), how)


@contextmanager
def temporary_pool() -> Iterator[Settings]:
    """A pool service of its own, in a folder of its own, on free ports.

    Raises:
        StartError: it did not start; the message is what it said.
    """
    with tempfile.TemporaryDirectory(prefix="miglab-bench-") as name:
        file = Path(name, "lab.toml")
        file.write_text(LAB.format(port=free_ports(), gpus=GPUS))
        settings = load(file, {})
        with running_pool(settings):
            yield settings


@contextmanager
def running_pool(settings: Settings) -> Iterator[None]:
    """The pool service of these settings.

    Raises:
        StartError: it did not start; the message is what it said.
    """
    log_file = settings.folder / "log"
    with log_file.open("w+b") as log:
        command = [sys.executable, "-m", "miglab_hub.service", "--config", str(settings.file)]
        env = {**os.environ, ENV_BRIDGE: settings.bridge}
        service = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            wait_until_ready(settings, service, log_file)
            yield
        finally:
            service.terminate()
            service.wait()


async def measure(settings: Settings, clients: int, seconds: float) -> ClientsRow:
    """Let so many clients ask, take and release for some seconds."""
    began = time.perf_counter()
    async with AsyncExitStack() as opened:
        all_ = [await opened.enter_async_context(Client(settings)) for _ in range(clients)]
        await asyncio.gather(*(client.lease_until(began + seconds) for client in all_))
        return _row(all_, None, time.perf_counter() - began)


async def measure_class(settings: Settings, within_s: float) -> ClientsRow:
    """Let `STUDENTS` come, each once, and look at what happens until the last has come."""
    async with AsyncExitStack() as opened:
        all_ = [await opened.enter_async_context(Client(settings)) for _ in range(STUDENTS)]
        tasks = [
            asyncio.create_task(client.come(within_s * n / STUDENTS, within_s / 2))
            for n, client in enumerate(all_)
        ]
        done, late = await asyncio.wait(tasks, timeout=within_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for task in done:
            task.result()
        return _row(all_, within_s, within_s)


class Client:
    """One student's spawner.

    With a connection of its own: httpx's cost of a request grows with those in its pool.

    Attributes:
        leases_s: how long each lease took, from asking to having.
        requests_s: how long each request took that does not wait.
    """

    def __init__(self, settings: Settings) -> None:
        self.leases_s: list[float] = []
        self.requests_s: list[float] = []
        self._user = f"bench-{secrets.token_hex(4)}"
        self._http = httpx.AsyncClient(
            base_url=f"{settings.pool_url}/api",
            headers={"Authorization": f"Bearer {read(settings.pool_secret)}"},
            timeout=POLL_S + 10,
            verify=TLS,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._http.aclose()

    async def lease_until(self, until: float) -> None:
        """Lease and release, again and again."""
        while time.perf_counter() < until:
            await self._lease(hold_s=0)

    async def come(self, after_s: float, hold_s: float) -> None:
        """Lease once."""
        await asyncio.sleep(after_s)
        await self._lease(hold_s)

    async def _lease(self, hold_s: float) -> None:
        asking = {"user": self._user, "server": "", "course": "everyone", "shape": "1g.5gb"}
        began = time.perf_counter()
        ticket = await self._call("POST", "tickets", asking)
        while ticket["state"] == "waiting":
            ticket = await self._call("GET", f"tickets/{ticket['id']}?wait_s={POLL_S}")
        lease = await self._call("POST", f"tickets/{ticket['id']}/take")
        self.leases_s.append(time.perf_counter() - began)
        await asyncio.sleep(hold_s)
        asked = {"reason": "bench", "generation": lease["generation"]}
        await self._call("POST", f"leases/{lease['id']}/release", asked)

    async def _call(self, method: str, path: str, body: object = None) -> dict[str, object]:
        asked = time.perf_counter()
        answer = await self._http.request(method, path, json=body)
        if "wait_s" not in path:
            self.requests_s.append(time.perf_counter() - asked)
        answer.raise_for_status()
        said: dict[str, object] = answer.json()
        return said


def _row(clients: Sequence[Client], within_s: float | None, took_s: float) -> ClientsRow:
    leases_s = [second for client in clients for second in client.leases_s]
    requests_s = [second for client in clients for second in client.requests_s]
    return ClientsRow(
        len(clients),
        within_s,
        round(len(leases_s) / took_s, 1),
        round(p95(leases_s) * 1000, 1),
        round(p95(requests_s) * 1000, 1),
        len(leases_s),
    )


def wait_until_ready(settings: Settings, service: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and service.poll() is None:
        try:
            answer = httpx.get(f"{settings.pool_url}/api/health", trust_env=False)
        except httpx.TransportError:
            time.sleep(0.05)
            continue
        if answer.is_success:
            return
    raise StartError(f"the pool service did not start:\n{log.read_text()}")


def _table(rows: Sequence[ClientsRow]) -> Table:
    table = Table(title="leases granted and released through the API")
    for column in (
        "clients",
        "within, s",
        "leases/s",
        "lease p95, ms",
        "request p95, ms",
        "leases",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in asdict(row).values()))
    return table
