"""Proxy, hub and pool as `./lab up` starts them, with simulated GPUs without delays."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import psutil

from miglab_hub.launch.process_group import Siblings
from miglab_hub.launch.up import say, siblings_of, wait_until_ready
from miglab_hub.settings.lab_toml import ENV_CONFIG, Settings

HUB_CONFIG = Path(__file__).with_name("plain.py")


@contextmanager
def running_lab(settings: Settings) -> Iterator[Siblings]:
    """Proxy, hub and pool, until the block ends.

    Raises:
        StartError: one did not start.
    """
    os.environ[ENV_CONFIG] = str(settings.file)
    siblings = Siblings(siblings_of(settings, HUB_CONFIG), settings.logs, say)
    signal.signal(signal.SIGTERM, lambda *_: _end_now(siblings))
    try:
        siblings.start()
        wait_until_ready(settings, siblings)
        yield siblings
    finally:
        siblings.end()


def _end_now(siblings: Siblings) -> NoReturn:
    """Leave no process behind; students' threads may sleep for a minute, so they are not joined."""
    siblings.end()
    os._exit(128 + signal.SIGTERM)


def processor_times(siblings: Siblings) -> Mapping[str, float]:
    """Processor seconds of each of the three so far, without their children."""
    times: dict[str, float] = {}
    for sibling in siblings.siblings:
        assert sibling.process is not None
        spent = psutil.Process(sibling.process.pid).cpu_times()
        times[sibling.name] = spent.user + spent.system
    return times
