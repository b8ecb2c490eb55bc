"""What the hub said of students' servers: that one runs, is ready, or is given up.

Read from the hub's log, which outlives the hub; whatever is said between two looks is in it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

STARTING = "the server of %s is to start: %s"
STARTED = "the server of %s was started: %s of lease %d"
_WORDS = (
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


@dataclass(frozen=True)
class AnsweredStart:
    """One that ran.

    Attributes:
        lease: the number that the ledger gave it.
    """

    user: str
    lease: int


class HubLog:
    """The hub's words so far.

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
        """Take in what was said since the last time, whole lines only."""
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._read_bytes)
            fresh = file.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self._take_in(line)

    def forget(self) -> None:
        """The hub's database is lost: it knows of no server any more."""
        self.read()
        self._forgotten |= self.started.keys()

    def must_know(self, holder: str) -> bool:
        """Whether this server's start was answered, and neither given up nor forgotten since."""
        return holder in self.started.keys() - self.given_up - self._forgotten

    def _take_in(self, line: str) -> None:
        take_in: dict[str, Callable[..., None]] = {
            "starting": self._starting,
            "started": self._started,
            "ready": self._ready,
            "failed": self._failed,
            "given_up": self._given_up,
        }
        for word, pattern in _WORDS:
            if said := pattern.search(line):
                take_in[word](*said.groups())
                return

    def _starting(self, user: str, holder: str) -> None:
        self._latest[user] = holder
        self.to_start.add(holder)

    def _started(self, user: str, holder: str, lease: str) -> None:
        self.started[holder] = AnsweredStart(user, int(lease))

    def _ready(self, user: str) -> None:
        if user in self._latest:
            self.ready.add(self._latest[user])

    def _failed(self, user: str) -> None:
        """A start; one that got as far as ready is another."""
        if self._latest.get(user) not in self.ready:
            self._given_up(user)

    def _given_up(self, user: str) -> None:
        if user in self._latest:
            self.given_up.add(self._latest[user])
