"""Each process, started as in a lab, loads what it works with and nothing of the others'.

What was loaded is what Python itself says with ``PYTHONPROFILEIMPORTTIME``; a module that is loaded
by its name, as the root of `miglab` loads a command, shows by what it imports.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from miglab_bench.harness.temporary import wait_until_ready, write_lab
from miglab_hub import lab_secrets
from miglab_hub.settings.lab_toml import load
from miglab_pool.state.lock import PoolLock

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"^import time: .*\| +(\S+)$", re.MULTILINE)
WEB = {"fastapi", "starlette", "uvicorn"}
LEDGER = {"sqlalchemy", "miglab_pool.ledger.ledger"}
LAB_ONLY = {
    *("miglab_api", "miglab_spawner", "miglab_pool", "miglab_hub", "miglab_slurm", "miglab_bench")
}
UNBUILT = {"torch", "ipywidgets"}
POOL_ROOMS = {"miglab_pool.http", "miglab_pool.reclaim", "miglab_pool.leases"}
COMPILES = "rfc3987_syntax"  # its grammars, for two seconds, at each import

COMMANDS = {
    "lab.toml": (
        ["-c", "from miglab_hub.settings.lab_toml import load; load()"],
        {"miglab_hub.settings", "pydantic"},
        {"pynvml", "docker", "httpx", "jupyterhub", "miglab_spawner", *LEDGER, *WEB},
    ),
    "the hub's configuration": (
        ["-m", "jupyterhub", "-f", str(ROOT / "jupyterhub_config.py"), "--show-config"],
        {"miglab_hub.configure", "miglab_spawner", "jupyterhub"},
        {"pynvml", "miglab_pool.gpu", "miglab_pool.ledger", *POOL_ROOMS, *WEB, COMPILES},
    ),
    "the hub's spawners": (
        ["-c", "import miglab_spawner.docker, miglab_spawner.local"],
        {"miglab_spawner.docker", "miglab_spawner.local"},
        {"pynvml", "miglab_pool", "miglab_hub", *WEB},
    ),
    "miglab pool": (
        ["-m", "miglab_hub.cli", "pool", "status"],
        {"miglab_hub.cli.pool", "miglab_hub.pool_api"},
        {"pynvml", "docker", "jupyterhub", "miglab_spawner", *LEDGER, *WEB},
    ),
    "miglab doctor": (
        ["-m", "miglab_hub.cli", "doctor"],
        {"miglab_hub.doctor", "miglab_pool.gpu", "docker"},
        {"jupyterhub", "miglab_spawner", "miglab_hub.cli.pool", *POOL_ROOMS, *LEDGER, *WEB},
    ),
    "miglab sim": (
        ["-m", "miglab_hub.cli", "sim", "show"],
        {"miglab_pool.gpu.simulated"},
        {"docker", "httpx", "jupyterhub", "miglab_spawner", "miglab_hub.cli.pool", *LEDGER, *WEB},
    ),
    "the launcher, which ends at the lock of another": (
        ["-m", "miglab_hub.cli", "up"],
        {"miglab_hub.launch", "miglab_pool.gpu", "miglab_pool.ledger"},
        {
            "jupyterhub.app", "miglab_spawner.mixin", "miglab_spawner.docker", "dockerspawner",
            *POOL_ROOMS, *WEB,
        },
    ),
    "labkit": (
        ["-m", "labkit", "--help"],
        {"labkit_authoring.cli"},
        {"pynvml", "httpx", "pydantic", *LAB_ONLY, *UNBUILT},
    ),
}  # fmt: skip
"""Of each process: how it is started, what it must load (else nothing was looked at), and never."""


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A lab.toml and its secrets; nothing runs."""
    file = write_lab(tmp_path)
    lab_secrets.make_all(load(file, {}))
    return file


def environ(file: Path) -> dict[str, str]:
    return {**os.environ, "MIGLAB_CONFIG": str(file), "PYTHONPROFILEIMPORTTIME": "1"}


def assert_loaded(loaded: set[str], required: set[str], never: set[str]) -> None:
    """Packages count with all that is in them."""
    names = {".".join(name.split(".")[:n]) for name in loaded for n in range(1, 4)}
    assert not required - names
    assert not never & names


def modules(stderr: str) -> set[str]:
    return set(LINE.findall(stderr))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_loads_its_own(lab: Path, name: str) -> None:
    """A command that ends by itself, beside another lab: what it loaded, whatever it answered."""
    arguments, required, never = COMMANDS[name]
    with PoolLock(load(lab, {}).pool_lock):
        process = subprocess.run(
            [sys.executable, *arguments],
            cwd=lab.parent, env=environ(lab), capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    assert_loaded(modules(process.stderr), required, never)


def test_the_pool_service_loads_no_spawner(lab: Path) -> None:
    """The pool runs and answers without the code that starts students' servers."""
    log = lab.with_name("log")
    command = [sys.executable, "-m", "miglab_hub.service", "--config", str(lab)]
    with log.open("w") as file, subprocess.Popen(command, stderr=file, env=environ(lab)) as service:
        try:
            wait_until_ready(load(lab, {}), service, log)
        finally:
            service.terminate()
    never = {"miglab_spawner", "dockerspawner", "miglab_hub.cli", "miglab_hub.configure"}
    assert_loaded(modules(log.read_text()), {"miglab_pool.http", *LEDGER}, never)


def test_a_students_server_loads_the_extension_alone(lab: Path) -> None:
    """In a student's server nothing of the lab is loaded but what is the student's."""
    log = lab.with_name("log")
    stderr = serve_until_ready(log, environ(lab))
    assert_loaded(
        modules(stderr),
        {"miglab_jupyterlab.app"},
        {"labkit", "pydantic", "pynvml", COMPILES, *LAB_ONLY},
    )


def serve_until_ready(log: Path, variables: dict[str, str]) -> str:
    """What Jupyter Server with the extension wrote until it served."""
    arguments: Sequence[str] = (
        "--ServerApp.jpserver_extensions={'miglab_jupyterlab': True}",
        f"--ServerApp.root_dir={log.parent}",
        "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0",
    )  # fmt: skip
    command = [sys.executable, "-m", "jupyter_server", *arguments]
    homes = {name: str(log.parent / name) for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")}
    with log.open("w") as file:
        server = subprocess.Popen(command, stderr=file, env={**variables, **homes})
    try:
        ends = time.monotonic() + 60
        while "is running at" not in log.read_text():
            assert server.poll() is None and time.monotonic() < ends, log.read_text()[-2000:]
            time.sleep(0.05)
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
    return log.read_text()
