"""`./lab bench pool`: leases granted and released per second, through the real HTTP API.

A temporary pool service with simulated GPUs without delays; each client asks for a slice, takes
it, releases it, and begins anew.  Figures for each number of clients: leases per second, and the
95th percentile of the time from asking to having, and of single requests.
"""

import asyncio
import json
import secrets
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.table import Table

from miglab_hub.errors import StartError
from miglab_hub.lab_secrets import read
from miglab_hub.settings import Settings, load

CLIENTS = (1, 8, 32)
GPUS = 8
START_S = 60.0
POLL_S = 20
PORTS = 5
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
class Row:
    """What one number of clients reached.

    Attributes:
        leases_per_s: leases granted and released per second, all clients together.
        lease_p95_ms: from asking to having, 95th percentile.
        request_p95_ms: one HTTP request that does not wait, 95th percentile.
        samples: how many leases.
    """

    clients: int
    leases_per_s: float
    lease_p95_ms: float
    request_p95_ms: float
    samples: int


def bench_pool(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    seconds: Annotated[float, typer.Option(min=1, help="How long with each number, s.")] = 5.0,
) -> None:
    """Pool: leases granted and released per second through the API, and the p95."""
    with temporary_pool() as settings:
        rows = [asyncio.run(measure(settings, clients, seconds)) for clients in CLIENTS]
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
        with Path(name, "log").open("w+b") as log:
            command = [sys.executable, "-m", "miglab_hub.service", "--config", str(file)]
            service = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                wait_until_ready(settings, service, Path(name, "log"))
                yield settings
            finally:
                service.terminate()
                service.wait()


async def measure(settings: Settings, clients: int, seconds: float) -> Row:
    """Let so many clients ask, take and release for some seconds."""
    leases_s: list[float] = []
    requests_s: list[float] = []
    began = time.perf_counter()
    async with AsyncExitStack() as opened:
        https = [await opened.enter_async_context(_http(settings)) for _ in range(clients)]
        client = (
            _client(http, f"bench-{secrets.token_hex(4)}", began + seconds, leases_s, requests_s)
            for http in https
        )
        await asyncio.gather(*client)
    took_s = time.perf_counter() - began
    return Row(
        clients,
        round(len(leases_s) / took_s, 1),
        round(_p95(leases_s) * 1000, 1),
        round(_p95(requests_s) * 1000, 1),
        len(leases_s),
    )


def _http(settings: Settings) -> httpx.AsyncClient:
    """A client of its own for each: httpx's cost of a request grows with the pool's connections."""
    return httpx.AsyncClient(
        base_url=f"{settings.pool_url}/api",
        headers={"Authorization": f"Bearer {read(settings.pool_secret)}"},
        timeout=POLL_S + 10,
        verify=TLS,
        trust_env=False,
    )


async def _client(
    http: httpx.AsyncClient,
    user: str,
    until: float,
    leases_s: list[float],
    requests_s: list[float],
) -> None:
    async def call(method: str, path: str, body: object = None) -> dict[str, object]:
        asked = time.perf_counter()
        answer = await http.request(method, path, json=body)
        if "wait_s" not in path:
            requests_s.append(time.perf_counter() - asked)
        answer.raise_for_status()
        said: dict[str, object] = answer.json()
        return said

    asking = {"user": user, "server": "", "course": "everyone", "shape": "1g.5gb"}
    while time.perf_counter() < until:
        began = time.perf_counter()
        ticket = await call("POST", "tickets", asking)
        while ticket["state"] == "waiting":
            ticket = await call("GET", f"tickets/{ticket['id']}?wait_s={POLL_S}")
        lease = await call("POST", f"tickets/{ticket['id']}/take")
        leases_s.append(time.perf_counter() - began)
        await call("POST", f"leases/{lease['id']}/release", {"reason": "bench"})


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


def free_ports() -> int:
    """The first of five ports in a row that are free just now."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first: int = probe.getsockname()[1]
        if first + PORTS < 65536 and all(_is_free(first + n) for n in range(PORTS)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _p95(samples: Sequence[float]) -> float:
    return quantiles(samples, n=20)[-1] if len(samples) > 1 else max(samples, default=0.0)


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="leases granted and released through the API")
    for column in ("clients", "leases/s", "lease p95, ms", "request p95, ms", "leases"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(str(value) for value in asdict(row).values()))
    return table
