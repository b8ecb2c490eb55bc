"""A JupyterHub that is not ours: `miglab-spawner` from its wheel, over a pool service of its own.

What docs/howto/add-to-your-hub.md says, with local processes for containers.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.wheels import bare_environment, build_wheels, pins

from miglab_bench.harness.ports import free_ports
from miglab_bench.harness.student import STEP_S, Student, wait_for
from miglab_hub import lab_secrets
from miglab_hub.settings.lab_toml import Settings, load

ROOT = Path(__file__).parents[2]
PASSWORD = "a-password-for-all"
LAB_TOML = """
[lab]
name = "plain"
port = {port}
[gpus]
count = 1
[courses.everyone]
title = "Open lab"
shapes = ["1g.5gb", "cpu"]
"""
HUB = """
from pathlib import Path
from miglab_spawner.hub_setup import set_up

state = Path({state!r})
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_port = {port} + 2
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{port_of_proxy}"
c.ConfigurableHTTPProxy.command = {proxy!r}
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = {password!r}
c.Authenticator.allow_all = True
c.JupyterHub.services = [
    {{
        "name": "pool",
        "url": "http://127.0.0.1:" + str({port} + 3),
        "api_token": (state / "service.token").read_text().strip(),
    }}
]
c.JupyterHub.load_roles = [
    {{
        "name": "miglab-pool",
        "scopes": ["read:servers", "delete:servers"],
        "services": ["pool"],
    }}
]
set_up(c)
c.JupyterHub.spawner_class = "mig-local"
c.MIGLocalSpawner.pool_url = {pool_url!r}
c.MIGLocalSpawner.pool_secret_file = str(state / "pool.secret")
c.MIGLocalSpawner.homes_dir = str(state / "homes")
c.MIGLocalSpawner.cmd = [{singleuser!r}]  # JupyterLab is not the hub's
c.MIGLocalSpawner.http_timeout = 120
"""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def hub_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a bare environment in which pip has installed the spawner's wheel."""
    folder = tmp_path_factory.mktemp("hub")
    build_wheels(folder, ["api", "spawner"])
    return bare_environment(folder / "env", *pins(folder), "miglab-spawner")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    file = tmp_path / "lab.toml"
    file.write_text(LAB_TOML.format(port=free_ports()), encoding="utf-8")
    return load(file, {})


@contextmanager
def running(log: Path, *command: object) -> Iterator[None]:
    """A process with all that it starts, but for students' servers, which have their own group."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env={**os.environ, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"},  # node
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False, timeout=20).is_success
    except httpx.TransportError:
        return False


def test_a_server_gets_its_slice(hub_python: Path, settings: Settings) -> None:
    """The spawn page offers the pool's shapes, and the server that starts holds a lease."""
    folder, port = settings.folder, settings.lab.port
    prefix = Path(sys.prefix)
    proxy = prefix / "proxy/node_modules/configurable-http-proxy/bin/configurable-http-proxy"
    config = folder / "jupyterhub_config.py"
    pool = [sys.executable, "-m", "miglab_hub.service", "--config", settings.file]
    with running(folder / "pool.log", *pool):
        wait_for(lambda: answers(f"{settings.pool_url}/api/health"), "the pool")
        config.write_text(
            HUB.format(
                state=str(settings.state),
                port=port,
                port_of_proxy=settings.proxy_port,
                proxy=[str(proxy)],
                password=PASSWORD,
                pool_url=settings.pool_url,
                singleuser=str(prefix / "bin/jupyterhub-singleuser"),
            ),
            encoding="utf-8",
        )
        with running(folder / "hub.log", hub_python, "-I", "-m", "jupyterhub", "-f", config):
            wait_for(lambda: answers(f"http://127.0.0.1:{port}/hub/health"), "the hub")
            student = Student(f"http://127.0.0.1:{port}", "ada", PASSWORD)
            student.sign_in()
            student.ask("1g.5gb")
            student.wait_until_ready()
            assert leases(settings) == ["ada"]
            student.leave()
            wait_for(lambda: not leases(settings), "the slice to be released")
            student.close()


def leases(settings: Settings) -> list[str]:
    """Who holds a lease, as the pool tells its operator."""
    headers = {"Authorization": f"Bearer {lab_secrets.read(settings.pool_secret)}"}
    url = f"{settings.pool_url}/api/leases"
    found = httpx.get(url, headers=headers, trust_env=False, timeout=STEP_S)
    return [lease["user"] for lease in found.raise_for_status().json()]
