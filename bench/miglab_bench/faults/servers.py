"""Students' servers as the machine shows them: containers where there is an engine, else processes.

What a server holds is what it was given, not what anybody has written down.
"""

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
from docker.errors import DockerException, NotFound  # noqa: TID251 -- real containers

from miglab_api.holders import Liveness, parse_container, probe_process, process_holder
from miglab_bench.faults.engine import OwnEngine
from miglab_hub.settings.lab_toml import Settings
from miglab_spawner.containers.labels import LAB
from miglab_spawner.local import home_name
from miglab_spawner.processes import gate

NOTES = "work.txt"


@dataclass(frozen=True)
class SeenServer:
    """One that is there.

    Attributes:
        holder: its name in the ledger.
        uuids: the slices it was given.
        lease: the number of its lease; 0 for a server without one.
        token: its own, for the pool's student listener.
        is_running: whether it was started and has not ended.
    """

    holder: str
    user: str
    uuids: tuple[str, ...]
    lease: int
    token: str
    is_running: bool


class StudentServers(Protocol):
    """Looks at servers, and ends one as an accident would."""

    def all(self) -> dict[str, SeenServer]:
        """Those that are there, by holder; also one that is not yet started."""

    def ended(self, holders: Iterable[str]) -> set[str]:
        """Those of these servers, all of which were started, that run no more."""

    def forgotten(self, holders: Iterable[str]) -> set[str]:
        """Those of these servers of which something runs, though the machine does not say so."""

    def end(self, holder: str) -> None:
        """It is gone afterwards, and nobody was told."""

    def notes(self, user: str) -> list[str]:
        """The lines in the student's file."""


class Containers:
    """Containers of the harness's own engine."""

    def __init__(self, engine: OwnEngine, settings: Settings) -> None:
        self._engine = engine
        self._lab = settings.lab_id
        self._known: dict[str, SeenServer] = {}

    def all(self) -> dict[str, SeenServer]:
        """See `StudentServers`."""
        with closing(self._engine.client()) as api:
            listed = api.containers(all=True, filters={"label": [f"{LAB}={self._lab}"]})
            found = [self._seen(api, item["Id"], item["State"] == "running") for item in listed]
        return {server.holder: server for server in found if server is not None}

    def ended(self, holders: Iterable[str]) -> set[str]:
        """See `StudentServers`."""
        return set(holders) - self._running()

    def forgotten(self, holders: Iterable[str]) -> set[str]:
        """See `StudentServers`: the engine ended while it started them."""
        listed = self._running()
        cgroups = "".join(_cgroups())
        return {one for one in set(holders) - listed if parse_container(one) in cgroups}

    def end(self, holder: str) -> None:
        """See `StudentServers`."""
        with suppress(DockerException), closing(self._engine.client()) as api:  # it may be away
            api.remove_container(holder.partition(":")[2], force=True)

    def notes(self, user: str) -> list[str]:
        """See `StudentServers`."""
        volume = self._engine.folder / "data" / "volumes" / f"{self._lab}-home-{user}"
        return _lines(volume / "_data" / NOTES)

    def _running(self) -> set[str]:
        return {one.holder for one in self.all().values() if one.is_running}

    def _seen(self, api: Any, number: str, is_running: bool) -> SeenServer | None:
        key = f"{number} {is_running}"
        if key not in self._known:
            try:
                details = api.inspect_container(number)
            except NotFound:
                return None
            self._known[key] = _of_details(details, is_running)
        return self._known[key]


def _of_details(details: dict[str, Any], is_running: bool) -> SeenServer:
    env = dict(line.partition("=")[::2] for line in details["Config"]["Env"])
    given = details["HostConfig"]["DeviceRequests"] or ()
    uuids = tuple(uuid for request in given for uuid in request["DeviceIDs"] or ())
    return _server(f"container:{details['Id']}", env, uuids, is_running)


def _server(
    holder: str, env: Mapping[str, str], uuids: tuple[str, ...], is_running: bool
) -> SeenServer:
    user, token = env["JUPYTERHUB_USER"], env["JUPYTERHUB_API_TOKEN"]
    return SeenServer(holder, user, uuids, int(env.get("MIGLAB_LEASE", 0)), token, is_running)


class Processes:
    """Local processes."""

    def __init__(self, settings: Settings) -> None:
        self._homes = settings.homes
        self._lab = settings.lab_id

    def all(self) -> dict[str, SeenServer]:
        """See `StudentServers`."""
        found = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                env = process.environ()
                if env.get("MIGLAB_FAULTS_LAB") == self._lab:
                    holder = process_holder(process.pid)
                    uuids = tuple(uuid for uuid in env.get("MIGLAB_SLICES", "").split(",") if uuid)
                    is_running = gate.__file__ not in process.cmdline()  # not yet let through
                    found[holder] = _server(holder, env, uuids, is_running)
        return found

    def ended(self, holders: Iterable[str]) -> set[str]:
        """See `StudentServers`; while one executes what it is to be, it has no environment."""
        return {holder for holder in holders if probe_process(holder) is Liveness.GONE}

    def forgotten(self, holders: Iterable[str]) -> set[str]:
        """See `StudentServers`: nobody keeps a list of processes but the kernel."""
        return set()

    def end(self, holder: str) -> None:
        """See `StudentServers`."""
        with suppress(ProcessLookupError):
            os.kill(int(holder.partition(":")[2].partition(",")[0]), signal.SIGKILL)

    def notes(self, user: str) -> list[str]:
        """See `StudentServers`."""
        return _lines(self._homes / home_name(user) / NOTES)


def _cgroups() -> Iterator[str]:
    """Where all living processes are counted: a container's id is part of it."""
    for process in psutil.pids():
        with suppress(OSError):  # it has ended
            yield Path("/proc", str(process), "cgroup").read_text()


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
