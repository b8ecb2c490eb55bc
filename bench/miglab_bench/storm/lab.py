"""Proxy, hub and pool as `./lab up` starts them, with simulated GPUs without delays."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

import psutil

from miglab_bench.harness import student_server
from miglab_bench.harness.pool_service import LAB
from miglab_bench.harness.ports import free_ports
from miglab_bench.harness.temporary import simulated
from miglab_hub.launch.preflight import prepare
from miglab_hub.launch.process_group import Siblings
from miglab_hub.launch.up import say, siblings_of, wait_until_ready
from miglab_hub.settings.lab_toml import ENV_CONFIG, Settings

SHAPE = "1g.5gb"
SLICES_PER_GPU = 7
FOR_THE_PROBE = 2  # GPUs
HUB_CONFIG = """
from miglab_bench.storm.plain import use_both_spawners
from miglab_hub.configure import configure
from miglab_hub.settings.lab_toml import load
settings = load()
configure(c, settings)
use_both_spawners(c, {command!r}, {shape!r}, {version!r}, str(settings.homes))
"""


@contextmanager
def temporary_settings(students: int) -> Iterator[Settings]:
    """A lab with a slice for each student and some for the probe, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="miglab-bench-") as name:
        file = Path(name, "lab.toml")
        gpus = students // SLICES_PER_GPU + FOR_THE_PROBE
        file.write_text(LAB.format(port=free_ports(), gpus=simulated(gpus)))
        yield prepare(file)


@contextmanager
def running_lab(settings: Settings) -> Iterator[Siblings]:
    """Proxy, hub and pool, until the block ends.

    Raises:
        StartError: one did not start.
    """
    os.environ[ENV_CONFIG] = str(settings.file)
    config = settings.folder / "jupyterhub_config.py"
    command = [sys.executable, "-I", "-S", str(student_server.__file__)]
    config.write_text(
        HUB_CONFIG.format(command=command, shape=SHAPE, version=version("jupyterhub"))
    )
    siblings = Siblings(siblings_of(settings, config), settings.logs, say)
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
