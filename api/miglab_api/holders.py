"""What holds a slice: a container, or a process known by its start time and boot.

Both sides of the attach fence write and read it: the spawner names its server, the pool looks
whether it is gone.

An engine that ends while it starts a container knows nothing of that start afterwards: with
live-restore it lists the container as created and removes it, but its processes live on with their
GPU and their network address (moby#30095).  Only the kernel knows them, by their cgroup.  Where the
engine's processes cannot be seen, because the engine is on another host or this process has a pid
namespace of its own, nothing is found.
"""

import os
import signal
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path, PurePath

CONTAINER, PROCESS = "container", "process"
LEASE_LABEL = "miglab.lease"
GENERATION_LABEL = "miglab.generation"
LEDGER_LABEL = "miglab.ledger"
LAB_LABEL = "miglab.lab"
SLICES_LABEL = "miglab.slices"
PROOF_LABEL = "miglab.proof"  # a container of `miglab prove`, by the run; it has no lease
PROC = Path("/proc")
STARTED = 19  # of a process's `_stat`: when it was, clock ticks since boot
KILL_S = 5.0
PAUSE_S = 0.02
SHIM = "containerd-shim"  # the parent of a container's first process
LONGEST = 4096  # bytes; a container's id is near the beginning


def check_holder(holder: str) -> None:
    """Accept a holder's name, or say what is wrong with it.

    Raises:
        BadHolder: it is neither a container's nor a process's.
    """
    if holder.startswith(f"{PROCESS}:"):
        parse_process(holder)
    else:
        parse_container(holder)


def parse_container(holder: str) -> str:
    """The container's full id.

    Raises:
        BadHolder: it is not a container's name.
    """
    kind, _, number = holder.partition(":")
    if kind == CONTAINER and len(number) == 64 and set(number) <= set("0123456789abcdef"):
        return number
    raise BadHolder(f"{holder!r} is not container:<the 64 hex digits of its id>")


class Liveness(StrEnum):
    """What is known about a holder.

    A container that exists is alive, running or not: it may be started again with its old slice.
    It is forgotten if its engine does not have it, and its processes run on.
    """

    ALIVE = "alive"
    FORGOTTEN = "forgotten"
    GONE = "gone"
    UNKNOWN = "unknown"


class BadHolder(ValueError):
    """A holder's name that cannot be read."""


def boot_id() -> str:
    """This boot's id."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def process_holder(pid: int) -> str:
    """The holder's name of a living process: ``process:<pid>,<start time>,<boot id>``.

    Raises:
        ProcessLookupError: there is none.
    """
    try:
        started = _stat(pid)[STARTED]
    except FileNotFoundError:
        raise ProcessLookupError(f"There is no process {pid}.") from None
    return f"{PROCESS}:{pid},{started},{boot_id()}"


def parse_process(holder: str) -> tuple[int, int, str]:
    """Pid, start time (clock ticks since boot) and boot id.

    Raises:
        BadHolder: it is not a process's name.
    """
    kind, _, identity = holder.partition(":")
    parts = identity.split(",")
    if kind == PROCESS and len(parts) == 3 and parts[2]:
        pid, started, boot = parts
        if pid.isdecimal() and started.isdecimal() and int(pid) > 0:
            return int(pid), int(started), boot
    raise BadHolder(f"{holder!r} is not process:<pid>,<start time>,<boot id>")


def probe_process(holder: str) -> Liveness:
    """Whether that very process lives: a zombie, another start time or another boot is gone.

    Raises:
        BadHolder: it is not a process's name.
    """
    pid, started, boot = parse_process(holder)
    try:
        if boot != boot_id():
            return Liveness.GONE
        fields = _stat(pid)
        is_it = int(fields[STARTED]) == started and fields[0] not in "ZXx"
    except (FileNotFoundError, ProcessLookupError):
        return _probe_unseen(pid)
    except (OSError, ValueError, IndexError):
        return Liveness.UNKNOWN
    return Liveness.ALIVE if is_it else Liveness.GONE


def living_pid(holder: str) -> int:
    """Return the pid of the process that a holder names; 0 if that process is known to be gone.

    Raises:
        BadHolder: it is not a process's name.
    """
    return 0 if probe_process(holder) is Liveness.GONE else parse_process(holder)[0]


def _probe_unseen(pid: int) -> Liveness:
    """Not in /proc: gone, unless /proc hides other users' processes."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return Liveness.GONE
    except OSError:
        return Liveness.UNKNOWN
    return Liveness.UNKNOWN


def processes_of(holder: str) -> list[int]:
    """The pids of a container's processes.

    Raises:
        BadHolder: it is not a container's name.
    """
    container = parse_container(holder)
    with os.scandir(PROC) as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdecimal()]
    return [pid for pid in pids if _belongs_to(pid, container)]


def kill_processes_of(holder: str) -> bool:
    """Kill a container's processes at once; its engine has forgotten it, so nobody else will.

    Returns:
        Whether none is left; False where this process may not kill them.

    Raises:
        BadHolder: it is not a container's name.
    """
    container, end = parse_container(holder), time.monotonic() + KILL_S
    while pids := processes_of(holder):
        if time.monotonic() > end:
            return False
        for pid in pids:
            _kill(pid, container)
        time.sleep(PAUSE_S)
    return True


def _belongs_to(pid: int, container: str) -> bool:
    with suppress(OSError):  # it has ended
        return container in _read(pid, "cgroup") and _stat(pid)[0] not in "ZXx"
    return False


def _is_shim_of(pid: int, container: str) -> bool:
    name, *arguments = _read(pid, "cmdline").split("\0")
    return PurePath(name).name.startswith(SHIM) and container in arguments


def _kill(pid: int, container: str) -> None:
    """Kill one process of the container, and the shim that waits for it."""
    with suppress(OSError):  # it has ended, or is not ours to kill
        process = os.pidfd_open(pid)
        try:
            if not _belongs_to(pid, container):  # the pid may be another's by now
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
