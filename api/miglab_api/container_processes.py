"""What runs of a container on this host, whatever its engine says.

An engine that ends while it starts a container knows nothing of that start afterwards: with
live-restore it lists the container as created and removes it, but its processes live on with their
GPU and their network address (moby#30095).  Only the kernel knows them, by their cgroup.

Where the engine's processes cannot be seen, because the engine is on another host or this process
has a pid namespace of its own, nothing is found.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import PurePath

from miglab_api.holders import PROC, parse_container

KILL_S = 5.0
PAUSE_S = 0.02
SHIM = "containerd-shim"  # the parent of a container's first process
LONGEST = 4096  # bytes; a container's id is near the beginning


def processes_of(holder: str) -> list[int]:
    """The pids of a container's processes.

    Raises:
        BadHolder: it is not a container's name.
    """
    container = parse_container(holder)
    with os.scandir(PROC) as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdecimal()]
    return [pid for pid in pids if _is_of(pid, container)]


def kill_processes_of(holder: str) -> bool:
    """Kill them at once: the engine has forgotten the container, so nobody else will.

    Returns:
        Whether none is left; False where this process may not kill them.

    Raises:
        BadHolder: it is not a container's name.
    """
    container, end = parse_container(holder), time.monotonic() + KILL_S
    while left := processes_of(holder):
        if time.monotonic() > end:
            return False
        for pid in left:
            _kill(pid, container)
        time.sleep(PAUSE_S)
    return True


def _is_of(pid: int, container: str) -> bool:
    with suppress(OSError):  # it has ended
        return container in _read(pid, "cgroup") and _stat(pid)[0] not in "ZXx"
    return False


def _is_shim_of(pid: int, container: str) -> bool:
    name, *arguments = _read(pid, "cmdline").split("\0")
    return PurePath(name).name.startswith(SHIM) and container in arguments


def _kill(pid: int, container: str) -> None:
    """Kill one of the container's, and the shim that waits for it."""
    with suppress(OSError):  # it has ended, or is not ours to kill
        process = os.pidfd_open(pid)
        try:
            if not _is_of(pid, container):  # the pid may be another's by now
                return
            parent = int(_stat(pid)[1])
            signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)
        if _is_shim_of(parent, container):
            os.kill(parent, signal.SIGKILL)


def _stat(pid: int) -> list[str]:
    """State, parent and more; the name before them, in brackets, may hold anything."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, name: str) -> str:
    """The beginning of a file; read in one call, since a host has thousands of processes."""
    file = os.open(f"{PROC}/{pid}/{name}", os.O_RDONLY)
    try:
        return os.read(file, LONGEST).decode(errors="replace")
    finally:
        os.close(file)
