"""The hub's configuration: the lab's own, with students' servers that only keep notes.

JupyterHub reads it as a file.  Starts and stops are answered at once, and done meanwhile.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from miglab_bench.faults.hub_log import STARTED, STARTING
from miglab_bench.faults.machine import sleep_by_select
from miglab_bench.harness import student_server
from miglab_hub.configure import configure
from miglab_hub.settings.lab_toml import load
from miglab_spawner.docker import MIGDockerSpawner

LOOK_S = 2  # how often the hub looks after a server


class RecordedSpawner(MIGDockerSpawner):
    """The lab's own, which says in the hub's log that a server is to start, and that it did.

    The second is the engine's word: it is said as soon as the start was answered.  A hub that is
    killed between the two speaks of the first when it comes back.
    """

    async def attach(self, holder: str) -> None:
        """Say it in the log, then to the pool."""
        self.log.info(STARTING, self.user.name, holder)
        await super().attach(holder)

    async def announce_running(self) -> None:
        """Say it in the log, then to the pool."""
        if self.grant is not None:
            self.log.info(STARTED, self.user.name, self._holder, self.grant.lease)
        await super().announce_running()


def configure_harness(c: Any) -> None:
    """Set all of it."""
    sleep_by_select()
    configure(c, load())
    c.JupyterHub.spawner_class = RecordedSpawner
    c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0, "slow_stop_timeout": 0}
    c.Spawner.poll_interval = LOOK_S
    c.Spawner.args = []
    spawner = c.MIGDockerSpawner
    source = Path(student_server.__file__).read_text()
    spawner.cmd = ["tini", "--", "python3", "-S", "-c", source]
    own = {"MIGLAB_HUB_VERSION": version("jupyterhub"), "HOME": "/home/student"}  # the image's none
    spawner.environment = {**spawner.environment, **own}


if "get_config" in globals():  # JupyterHub reads this file
    configure_harness(get_config())  # type: ignore[name-defined]  # noqa: F821
