"""A pool service as a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from miglab_bench.harness.logs import start
from miglab_bench.harness.student import wait_for
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
    command = [sys.executable, "-m", "miglab_hub.service", "--config", str(settings.file)]
    with start(log_file, command, {ENV_BRIDGE: settings.bridge}) as service:
        try:
            wait_until_ready(settings, service, log_file)
            yield
        finally:
            service.terminate()


def wait_until_ready(settings: Settings, service: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until it answers.

    Raises:
        StartError: it does not.
    """

    def answers() -> bool:
        if service.poll() is not None:
            raise StartError(f"the pool service did not start:\n{log.read_text()}")
        return httpx.get(f"{settings.pool_url}/api/health", trust_env=False).is_success

    wait_for(answers, "the pool service", START_S, 0.05)
