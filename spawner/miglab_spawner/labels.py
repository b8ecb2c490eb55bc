"""What a server of ours is known by: container labels, holder names, environment.

The hub saves a spawner's state only after ``start()`` returned, so a crash before loses it.  The
labels are on the container itself and outlive every crash: pool and spawner reconcile from them.
Must not import JupyterHub, Docker or the pool.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

LAB = "miglab.lab"
LEASE = "miglab.lease"
GENERATION = "miglab.generation"
USER = "miglab.user"
SERVER = "miglab.server"
SLICES = "miglab.slices"

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Grant:
    """What a server holds: the part of a lease that must survive a hub crash.

    Attributes:
        lease: the lease's id.
        generation: the fence that attach presents.
        uuids: the slices, in the lease's order.
    """

    lease: int
    generation: int
    user: str
    server: str
    uuids: tuple[str, ...]


def to_labels(lab: str, grant: Grant) -> dict[str, str]:
    """The labels of a container that is to hold this grant."""
    return {
        LAB: lab,
        LEASE: str(grant.lease),
        GENERATION: str(grant.generation),
        USER: grant.user,
        SERVER: grant.server,
        SLICES: ",".join(grant.uuids),
    }


def from_labels(lab: str, labels: Mapping[str, str] | None) -> Grant | None:
    """The grant a container's labels name; None if they name none, or another lab's."""
    if not labels or labels.get(LAB) != lab:
        return None
    lease, generation = labels.get(LEASE, ""), labels.get(GENERATION, "")
    if not (lease.isdecimal() and generation.isdecimal()):
        return None
    uuids = tuple(uuid for uuid in labels.get(SLICES, "").split(",") if uuid)
    return Grant(int(lease), int(generation), labels.get(USER, ""), labels.get(SERVER, ""), uuids)


def container_holder(container_id: str) -> str:
    """The holder's name of a container: its full id, never its name, which is used again."""
    return f"container:{container_id}"


def process_holder(pid: int) -> str | None:
    """The holder's name of a process: pid, start time (seconds) and boot id.

    A pid alone is used again by the kernel; with its start time and the boot it is not.

    Returns:
        ``process:<pid>,<start time>,<boot id>``, or None if there is no such process or it is a
        zombie.
    """
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        return f"process:{pid},{process.create_time():.2f},{BOOT_ID.read_text().strip()}"
    except psutil.NoSuchProcess:
        return None


def container_of(holder: str) -> str:
    """The container id a holder names; empty for another kind of holder."""
    kind, _, rest = holder.partition(":")
    return rest if kind == "container" else ""


def living_pid(holder: str) -> int:
    """The pid of the very process a holder names, if it still lives; else 0."""
    kind, _, rest = holder.partition(":")
    pid, _, when = rest.partition(",")
    if kind != "process" or not pid.isdecimal():
        return 0
    now = process_holder(int(pid))
    return int(pid) if now is not None and _same_start(when, now.partition(",")[2]) else 0


def _same_start(one: str, other: str) -> bool:
    """Start times are reckoned from the boot, which the clock moves by parts of a second."""
    (start, _, boot), (other_start, _, other_boot) = one.partition(","), other.partition(",")
    return boot == other_boot and abs(float(start) - float(other_start)) <= 1.0
