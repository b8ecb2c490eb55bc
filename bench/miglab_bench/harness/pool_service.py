"""A pool service as a process of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import ENV_BRIDGE, Settings

START_S = 180.0


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
