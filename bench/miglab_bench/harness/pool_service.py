"""A pool service as a process, and a client that leases from it as a spawner does."""

import asyncio
import os
import secrets
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import httpx

from miglab_hub.errors import StartError
from miglab_hub.lab_secrets import read
from miglab_hub.settings.lab_toml import ENV_BRIDGE, Settings

START_S = 180.0
POLL_S = 20
TLS = ssl.create_default_context()  # not used; made once, because it takes 20 ms
LAB = """
[lab]
state_dir = "state"
port = {port}
[gpus]
simulate = {gpus}
[courses.everyone]
shapes = ["1g.5gb"]
default = "1g.5gb"
"""


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


class LeasingClient:
    """Asks for a slice, takes it and gives it back.

    Attributes:
        requests_s: how long each request took that does not wait.
    """

    def __init__(self, settings: Settings) -> None:
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

    async def come(self, after_s: float) -> None:
        """Lease once."""
        await asyncio.sleep(after_s)
        asking = {"user": self._user, "server": "", "course": "everyone", "shape": "1g.5gb"}
        ticket = await self._call("POST", "tickets", asking)
        while ticket["state"] == "waiting":
            ticket = await self._call("GET", f"tickets/{ticket['id']}?wait_s={POLL_S}")
        lease = await self._call("POST", f"tickets/{ticket['id']}/take")
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
