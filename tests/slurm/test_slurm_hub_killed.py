"""A hub that is killed: who runs is found again, who waits keeps the place."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.hubs import STUDENT
from tests.polling import until

from miglab_bench.harness.ports import free_ports
from miglab_bench.harness.student import STEP_S
from miglab_slurm_bench.cluster import SlurmCluster

from .conftest import SITE
from .test_slurm_spawner import hold, jobs

pytestmark = pytest.mark.long
TOKEN = secrets.token_hex(16)
CONFIG = """
from miglab_bench.harness.hub_here import NoProxy
from miglab_slurm.hub_setup import set_up
set_up(c)
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "mig-slurm"
c.JupyterHub.proxy_class = NoProxy
c.JupyterHub.bind_url = "http://127.0.0.1:{public}/"
c.JupyterHub.hub_ip = "127.0.0.1"
c.JupyterHub.hub_port = {port}
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 0, "slow_stop_timeout": 0}}
c.JupyterHub.services = [{{"name": "test", "api_token": "{token}"}}]
c.JupyterHub.load_roles.append(
    {{"name": "test", "services": ["test"],
      "scopes": ["admin:users", "admin:servers", "access:servers"]}}
)
c.MIGSlurmSpawner.cmd = {cmd!r}
c.MIGSlurmSpawner.slurm = {site!r}
c.MIGSlurmSpawner.ip = "127.0.0.1"
c.MIGSlurmSpawner.longest_wait_s = 400
c.MIGSlurmSpawner.create_timeout_s = 90
c.MIGSlurmSpawner.poll_interval = 1
"""


class HubProcess:
    """JupyterHub as a process of its own, which can be killed and started again."""

    def __init__(self, folder: Path, slurm: SlurmCluster) -> None:
        self.folder, self.slurm = folder, slurm
        self.port = free_ports(1)
        self.http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}/hub/api/",
            headers={"Authorization": f"token {TOKEN}"},
            timeout=STEP_S,
            trust_env=False,
        )
        self.process: subprocess.Popen[bytes] | None = None
        site = {**SITE, "home": str(slurm.folder)}
        text = CONFIG.format(
            public=free_ports(1), port=self.port, token=TOKEN, site=site,
            cmd=[sys.executable, "-S", str(STUDENT)],
        )  # fmt: skip
        (folder / "hub.py").write_text(text)

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.folder / "hub.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", "hub.py"],
                cwd=self.folder,
                env={**os.environ, "SLURM_CONF": self.slurm.environment["SLURM_CONF"]},
                stdout=log,
                stderr=log,
            )
        await until(self._answers, "the hub to answer", 90)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    async def begin(self, name: str, shape: str) -> None:
        """Ask for a server."""
        await self.http.post(f"users/{name}")
        answer = await self.http.post(f"users/{name}/server", json={"shape": shape})
        assert answer.status_code in (201, 202), answer.text

    async def server(self, name: str) -> dict[str, Any]:
        """What the hub says of a server; empty if there is none."""
        said = (await self.http.get(f"users/{name}")).json()
        return dict(said["servers"].get("") or {})

    async def until_ready(self, name: str) -> None:
        """Wait until the hub says that the server is ready."""

        async def ready() -> Any:
            return (await self.server(name)).get("ready")

        await until(ready, f"the server of {name} to be ready", STEP_S)

    async def stop(self, name: str) -> None:
        """Stop a server."""
        await self.http.delete(f"users/{name}/server")

    async def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "hub.log").read_text()[-3000:]
        try:
            return (await self.http.get("")).is_success
        except httpx.TransportError:
            return False


@pytest.fixture
async def hub_process(slurm: SlurmCluster, log_folder: Path) -> AsyncIterator[HubProcess]:
    """A hub that runs."""
    hub = HubProcess(log_folder, slurm)
    await hub.start()
    yield hub
    hub.kill()
    await hub.http.aclose()


async def test_a_killed_hub_loses_neither_server_nor_position(
    hub_process: HubProcess, slurm: SlurmCluster
):
    """Ada's server is found again; bo's job waits on, and his next start adopts it."""
    await hub_process.begin("ada", "1g.5gb")
    await hub_process.until_ready("ada")
    (server,) = jobs(slurm)
    hold(slurm, 7)
    await hub_process.begin("bo", "1g.5gb")
    await until(lambda: len(jobs(slurm, "PENDING")) == 1, "bo waits")
    (ticket,) = jobs(slurm, "PENDING")
    hub_process.kill()
    await hub_process.start()
    await hub_process.until_ready("ada")
    assert server in jobs(slurm, "RUNNING")
    assert jobs(slurm, "PENDING") == [ticket]
    await hub_process.begin("bo", "1g.5gb")
    await hub_process.stop("ada")
    await hub_process.until_ready("bo")
    assert ticket in jobs(slurm, "RUNNING")
    assert server not in jobs(slurm)


@pytest.mark.parametrize("after_s", [0.3, 0.9, 1.6])
async def test_a_hub_killed_in_the_middle_of_a_start(
    hub_process: HubProcess, slurm: SlurmCluster, after_s: float
):
    """At whatever moment: afterwards one job at most, and the student gets a server of it."""
    await hub_process.begin("ada", "1g.5gb")
    await asyncio.sleep(after_s)  # where in the start it is killed is what is tried out
    hub_process.kill()
    await hub_process.start()
    if not (await hub_process.server("ada")).get("ready"):
        await hub_process.begin("ada", "1g.5gb")
    await hub_process.until_ready("ada")
    await until(lambda: len(jobs(slurm)) == 1, "one job in all")
    assert jobs(slurm, "RUNNING") == jobs(slurm)
    await hub_process.stop("ada")
    await until(lambda: jobs(slurm) == [], "no job is left")
