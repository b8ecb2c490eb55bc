"""What the hub says of students' servers in its log: how it is said, and how it is read back.

The hub's configuration is the lab's own, with students' servers that only keep notes.  Starts and
stops are answered at once, and done meanwhile.  The log outlives the hub; whatever is said between
two looks is in it.
"""

import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from miglab_bench.faults.machine import sleep_by_select
from miglab_bench.harness import student_server
from miglab_hub.configure import configure
from miglab_hub.settings.lab_toml import load
from miglab_spawner.docker import MIGDockerSpawner

LOOK_S = 2  # how often the hub looks after a server
HUB_CONFIG = """
from miglab_bench.faults.recorded_hub import configure_harness

configure_harness(c)
"""
STARTING = "the server of %s is to start: %s"
STARTED = "the server of %s was started: %s of lease %d"
_EVENTS = (
    ("starting", re.compile(r"the server of (\S+) is to start: (\S+)$")),
    ("started", re.compile(r"the server of (\S+) was started: (\S+) of lease (\d+)$")),
    ("ready", re.compile(r"User (\S+) took -?[\d.]+ seconds to start$")),
    ("ready", re.compile(r"(\S+) still running$")),
    ("failed", re.compile(r"(\S+)'s server failed to start in")),
    ("failed", re.compile(r"(?:[Ee]rror starting|Not starting) (\S+)'s server")),
    ("failed", re.compile(r"(\S+) appears to have stopped while the Hub was down")),
    ("given_up", re.compile(r"(\S+)'s server never showed up at")),
    ("given_up", re.compile(r"error waiting for (\S+)'s server to show up")),
    ("given_up", re.compile(r"Stopping (\S+) to avoid inconsistent state")),
)


class RecordedSpawner(MIGDockerSpawner):
    """The lab's spawner, which also logs that a server is about to start, and that it has.

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
    """Configure the hub of the fault lab."""
    sleep_by_select()
    configure(c, load())
    c.JupyterHub.spawner_class = RecordedSpawner
    c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0, "slow_stop_timeout": 0}
    c.Spawner.poll_interval = LOOK_S
    c.Spawner.args = []
    spawner = c.MIGDockerSpawner
    source = Path(student_server.__file__).read_text()
    spawner.cmd = ["tini", "--", "python3", "-S", "-c", source]
    # The image has neither.
    harness_env = {"MIGLAB_HUB_VERSION": version("jupyterhub"), "HOME": "/home/student"}
    spawner.environment = {**spawner.environment, **harness_env}


@dataclass(frozen=True)
class AnsweredStart:
    """A server whose start the engine has answered.

    Attributes:
        lease: the number that the ledger gave it.
    """

    user: str
    lease: int


class HubLog:
    """What the hub has logged so far about students' servers.

    Args:
        file: the hub's log; it need not exist yet.

    Attributes:
        to_start: the holders of all servers that were to start.
        started: the servers whose start was answered, by holder.
        ready: the holders that the hub called ready.
        given_up: the holders whose start failed, or that did not answer a hub that came back.
    """

    def __init__(self, file: Path) -> None:
        self.to_start: set[str] = set()
        self.started: dict[str, AnsweredStart] = {}
        self.ready: set[str] = set()
        self.given_up: set[str] = set()
        self._file = file
        self._read_bytes = 0
        self._latest: dict[str, str] = {}
        self._forgotten: set[str] = set()

    def read(self) -> None:
        """Read the lines that were logged since the last call; an incomplete line waits."""
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._read_bytes)
            fresh = file.read()
        lines = fresh[: fresh.rfind(b"\n") + 1]
        self._read_bytes += len(lines)
        for line in lines.decode(errors="replace").splitlines():
            self._take_in(line)

    def forget(self) -> None:
        """Record that the hub has lost its database, and with it all servers."""
        self.read()
        self._forgotten |= self.started.keys()

    def must_know(self, holder: str) -> bool:
        """Whether this server's start was answered, and neither given up nor forgotten since."""
        return holder in self.started.keys() - self.given_up - self._forgotten

    def _take_in(self, line: str) -> None:
        matches = ((kind, pattern.search(line)) for kind, pattern in _EVENTS)
        kind, match = next(((kind, match) for kind, match in matches if match), ("", None))
        if match is None:
            return
        user, *values = match.groups()
        latest = self._latest.get(user, "")
        if kind == "starting":
            self._latest[user] = values[0]
            self.to_start.add(values[0])
        elif kind == "started":
            self.started[values[0]] = AnsweredStart(user, int(values[1]))
        elif latest and kind == "ready":
            self.ready.add(latest)
        elif latest and (kind == "given_up" or latest not in self.ready):
            self.given_up.add(latest)  # a start that failed after it was ready is another one
