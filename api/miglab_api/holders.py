"""What holds a slice: a container, or a process known by its start time and boot.

Both sides of the attach fence write and read it: the spawner names its server, the pool looks
whether it is gone.
"""

import os
from enum import StrEnum
from pathlib import Path

CONTAINER, PROCESS = "container", "process"
LEASE_LABEL = "miglab.lease"
GENERATION_LABEL = "miglab.generation"
LEDGER_LABEL = "miglab.ledger"
LAB_LABEL = "miglab.lab"
SLICES_LABEL = "miglab.slices"
PROC = Path("/proc")


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
        _, started = _stat(pid)
    except FileNotFoundError:
        raise ProcessLookupError(f"There is no process {pid}.") from None
    return f"{PROCESS}:{pid},{started},{boot_id()}"


def parse_process(holder: str) -> tuple[int, int, str]:
    """Pid, start time (clock ticks since boot) and boot id.

    Raises:
        BadHolder: it is not a process's name.
    """
    kind, _, rest = holder.partition(":")
    parts = rest.split(",")
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
        status, start = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return _probe_unseen(pid)
    except (OSError, ValueError, IndexError):
        return Liveness.UNKNOWN
    return Liveness.ALIVE if start == started and status not in "ZXx" else Liveness.GONE


def living_pid(holder: str) -> int:
    """The pid of the very process a holder names, unless it is known to be gone: then 0.

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


def _stat(pid: int) -> tuple[str, int]:
    """The process's state letter and start time; its name, in brackets, may hold anything."""
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[19])
