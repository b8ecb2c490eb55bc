"""The lab's own spawners, which say in the hub's log that a server is to start, and that it did.

The second is the engine's word: it is said as soon as the start was answered.  A hub that is killed
between the two speaks of the first when it comes back.
"""

from miglab_bench.faults.hub_log import STARTED, STARTING
from miglab_spawner.docker import MIGDockerSpawner
from miglab_spawner.local import MIGLocalSpawner
from miglab_spawner.pool_leases import PoolSpawnerMixin


class SaysStarts(PoolSpawnerMixin):
    """Comes before a spawner of the lab."""

    async def attach(self, holder: str) -> None:
        """Say it in the log, then to the pool."""
        self.log.info(STARTING, self.user.name, holder)
        await super().attach(holder)

    async def announce_running(self) -> None:
        """Say it in the log, then to the pool."""
        if self.grant is not None:
            self.log.info(STARTED, self.user.name, self._holder, self.grant.lease)
        await super().announce_running()


class RecordedDockerSpawner(SaysStarts, MIGDockerSpawner):
    """Servers in containers."""


class RecordedLocalSpawner(SaysStarts, MIGLocalSpawner):
    """Servers that are local processes."""


SPAWNERS = {"docker": RecordedDockerSpawner, "local": RecordedLocalSpawner}
