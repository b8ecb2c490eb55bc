"""A Docker engine of the harness's own, beside the machine's: it may be ended at any time.

Its socket and its data lie in a folder of its own.  It is given the small base image alone.
Students' servers are its containers; what one holds is what it was given, not what anybody has
written down.
"""

import os
import subprocess
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from docker.errors import APIError, DockerException  # noqa: TID251 -- real containers

import docker  # noqa: TID251 -- real containers
from miglab_api.holders import LAB_LABEL, parse_container
from miglab_bench.harness.temporary import ENGINE_SCRIPT, engine_script
from miglab_hub.checkout import checkout
from miglab_hub.settings.lab_toml import DOCKER, Settings

IMAGE = "miglab-base"
MACHINES = DOCKER
TIMEOUT_S = 60
NOTES = "work.txt"


class OwnEngine:
    """See the module; needs root, and `OwnNetwork` around it.

    Args:
        folder: to be made, for socket and data.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.url = f"unix://{folder}/docker.sock"

    def start_with_image(self) -> None:
        """Start it for the first time, and give it the base image."""
        self.start()
        with (
            closing(docker.DockerClient(base_url=MACHINES)) as source,
            closing(self.client()) as target,
        ):
            target.images.load(b"".join(source.images.get(IMAGE).save(named=True)))

    @staticmethod
    def is_possible() -> bool:
        """Whether the machine's engine has the base image, and a second one can be started."""
        if os.geteuid() != 0 or not (checkout() / ENGINE_SCRIPT).exists():
            return False
        try:
            with closing(docker.DockerClient(base_url=MACHINES, timeout=5)) as machines:
                return bool(machines.images.list(IMAGE))
        except DockerException:
            return False

    def client(self) -> docker.DockerClient:
        """Return a client of the engine; the caller closes it."""
        return docker.DockerClient(base_url=self.url, timeout=TIMEOUT_S)

    def stop(self) -> None:
        """End the engine; its containers run on."""
        self._run_script("stop")

    def start(self) -> None:
        """Start it, unless it runs."""
        self._run_script("start")

    def use_simulated_gpus(self, simulated: Path) -> None:
        """Let the stand-in for NVIDIA's hook hand over the slices of these simulated GPUs."""
        self._run_script("simulate", str(simulated))

    def close(self) -> None:
        """End the engine and every container of it; its folder can be removed afterwards."""
        self.start()
        with closing(self.client()) as client:
            # one may still have been in the making
            while containers := client.containers.list(all=True, ignore_removed=True):
                for container in containers:
                    with suppress(APIError):
                        container.remove(force=True)
        self.stop()
        self._end_shims()
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in reversed([path for path in mounts if path.startswith(f"{self.folder}/")]):
            subprocess.run(["umount", "--lazy", mount], check=True)

    def _end_shims(self) -> None:
        """Kill the shims that are left of containers that an ending engine was about to start."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                command = " ".join(process.cmdline())
                if "containerd-shim" in command and f"{self.folder}/" in command:
                    for member in (*process.children(recursive=True), process):
                        member.kill()

    def _run_script(self, *arguments: str) -> None:
        engine_script("--home", str(self.folder), "--here", *arguments)


@dataclass(frozen=True)
class ObservedServer:
    """A student's server as the engine shows it.

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


class StudentServers:
    """The lab's servers as the engine shows them; ends one as an accident would."""

    def __init__(self, engine: OwnEngine, settings: Settings) -> None:
        self._engine = engine
        self._lab = settings.lab_id

    def all(self) -> dict[str, ObservedServer]:
        """Return all servers by holder, also those that are not started yet."""
        with closing(self._engine.client()) as client:
            listed = client.containers.list(
                all=True, filters={"label": [f"{LAB_LABEL}={self._lab}"]}, ignore_removed=True
            )
        servers = [_observed_server(container.attrs) for container in listed]
        return {server.holder: server for server in servers}

    def ended(self, holders: Iterable[str]) -> set[str]:
        """Return those of these started servers that run no more."""
        return set(holders) - self._running()

    def orphans(self, holders: Iterable[str]) -> set[str]:
        """Return the holders that still have a process although the restarted engine lost them."""
        cgroups = ""  # where all living processes are counted: a container's id is part of it
        listed = self._running()
        for process in psutil.pids():
            with suppress(OSError):  # it has ended
                cgroups += Path("/proc", str(process), "cgroup").read_text()
        return {holder for holder in set(holders) - listed if parse_container(holder) in cgroups}

    def end(self, holder: str) -> None:
        """Remove a server as an accident would: nobody is told."""
        with suppress(DockerException), closing(self._engine.client()) as client:  # may be away
            client.containers.get(holder.partition(":")[2]).remove(force=True)

    def notes(self, user: str) -> list[str]:
        """Return the lines of the student's notes."""
        volume = self._engine.folder / "data" / "volumes" / f"{self._lab}-home-{user}"
        file = volume / "_data" / NOTES
        return file.read_text().splitlines() if file.exists() else []

    def _running(self) -> set[str]:
        return {server.holder for server in self.all().values() if server.is_running}


def _observed_server(details: dict[str, Any]) -> ObservedServer:
    env = dict(line.partition("=")[::2] for line in details["Config"]["Env"])
    requests = details["HostConfig"]["DeviceRequests"] or ()
    return ObservedServer(
        holder=f"container:{details['Id']}",
        user=env["JUPYTERHUB_USER"],
        uuids=tuple(uuid for request in requests for uuid in request["DeviceIDs"] or ()),
        lease=int(env.get("MIGLAB_LEASE", 0)),
        token=env["JUPYTERHUB_API_TOKEN"],
        is_running=details["State"]["Status"] == "running",
    )
