"""Students' servers that hold slices: containers where there is an engine, processes elsewhere.

Each is made and not started, as a spawner does; what it was given is on its labels, and its
student's file lies in a home of its own.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

from docker.errors import APIError, DockerException, NotFound  # noqa: TID251 -- real containers

import docker  # noqa: TID251 -- real containers
from miglab_api.holders import Liveness, probe_process, process_holder
from miglab_hub.settings.tables import Students
from miglab_spawner.containers.labels import to_labels
from miglab_spawner.lease_session import SavedLease

IMAGE = Students().image
FOREVER = "86400"


class StudentServers(Protocol):
    """Makes and ends servers."""

    has_labels: bool

    def make(self, lease: dict[str, Any], home: Path) -> str:
        """A server that is not started; returns its holder's name."""

    def start(self, holder: str) -> None:
        """Let it run."""

    def end(self, holder: str) -> None:
        """It is gone afterwards."""

    def is_alive(self, holder: str) -> bool:
        """Whether it runs."""

    def close(self) -> None:
        """End all of them."""


class Containers:
    """Real containers of the student's image, which do nothing."""

    has_labels = True

    def __init__(self, lab: str) -> None:
        self._lab = lab
        self._engine = docker.APIClient(base_url=Students().docker_url, version="auto")

    @classmethod
    def are_possible(cls) -> bool:
        """Whether an engine answers and has the image."""
        try:
            engine = docker.APIClient(base_url=Students().docker_url, version="auto", timeout=5)
            return bool(engine.images(name=IMAGE))
        except DockerException:
            return False

    def make(self, lease: dict[str, Any], home: Path) -> str:
        """See `StudentServers`."""
        grant = SavedLease(
            lease["id"],
            lease["generation"],
            lease["user"],
            lease["server"],
            tuple(lease["uuids"]),
            lease["ledger"],
        )
        host = self._engine.create_host_config(
            network_mode="none", binds=[f"{home}:/home/student"], init=True
        )
        labels = to_labels(self._lab, grant)
        made = self._engine.create_container(
            IMAGE, entrypoint=["sleep", FOREVER], labels=labels, host_config=host
        )
        return f"container:{made['Id']}"

    def start(self, holder: str) -> None:
        """See `StudentServers`."""
        self._engine.start(holder.partition(":")[2])

    def end(self, holder: str) -> None:
        """See `StudentServers`."""
        try:
            self._engine.remove_container(holder.partition(":")[2], force=True)
        except (NotFound, APIError):
            return

    def is_alive(self, holder: str) -> bool:
        """See `StudentServers`."""
        try:
            found = self._engine.inspect_container(holder.partition(":")[2])
        except NotFound:
            return False
        return bool(found["State"]["Running"])

    def close(self) -> None:
        """See `StudentServers`."""
        mine = {"label": [f"miglab.lab={self._lab}"]}
        for item in self._engine.containers(all=True, filters=mine):
            self.end(f"container:{item['Id']}")
        self._engine.close()


class Processes:
    """Processes that wait for a line, then do nothing."""

    has_labels = False

    def __init__(self) -> None:
        self._made: dict[str, subprocess.Popen[bytes]] = {}

    def make(self, lease: dict[str, Any], home: Path) -> str:
        """See `StudentServers`."""
        code = f"import time; input(); time.sleep({FOREVER})"
        command = [sys.executable, "-I", "-S", "-c", code]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=home)
        holder = process_holder(process.pid)
        self._made[holder] = process
        return holder

    def start(self, holder: str) -> None:
        """See `StudentServers`."""
        gate = self._made[holder].stdin
        assert gate is not None
        gate.write(b"go\n")
        gate.close()

    def end(self, holder: str) -> None:
        """See `StudentServers`."""
        self._made[holder].kill()
        self._made[holder].wait()

    def is_alive(self, holder: str) -> bool:
        """See `StudentServers`."""
        return probe_process(holder) is Liveness.ALIVE

    def close(self) -> None:
        """See `StudentServers`."""
        for holder in self._made:
            self.end(holder)
