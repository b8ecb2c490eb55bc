"""The hub's configuration: the lab's own, with students' servers that only keep notes.

JupyterHub reads it as a file.  Starts and stops are answered at once, and done meanwhile.
"""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from miglab_bench.faults.recorded_spawners import SPAWNERS
from miglab_bench.harness import student_server
from miglab_hub.configure import configure
from miglab_hub.settings.lab_toml import load

LOOK_S = 2  # how often the hub looks after a server


def configure_harness(c: Any) -> None:
    """Set all of it."""
    settings = load()
    configure(c, settings)
    source = Path(student_server.__file__).read_text()
    c.JupyterHub.spawner_class = SPAWNERS[settings.servers.spawner]
    c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0, "slow_stop_timeout": 0}
    c.Spawner.poll_interval = LOOK_S
    c.Spawner.args = []
    c.MIGDockerSpawner.cmd = ["tini", "--", "python3", "-S", "-c", source]
    c.MIGLocalSpawner.cmd = [sys.executable, "-S", "-c", source]
    c.MIGLocalSpawner.notebooks_dir = ""
    for spawner in (c.MIGDockerSpawner, c.MIGLocalSpawner):
        own = {"MIGLAB_HUB_VERSION": version("jupyterhub"), "MIGLAB_FAULTS_LAB": settings.lab_id}
        spawner.environment = {**spawner.environment, **own}
    c.MIGDockerSpawner.environment["HOME"] = "/home/student"  # the base image has none


if "get_config" in globals():  # JupyterHub reads this file
    configure_harness(get_config())  # type: ignore[name-defined]  # noqa: F821
