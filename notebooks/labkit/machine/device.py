"""Where am I: lease, CPU budget, tier, link and devices, read in the process that will measure.

`read_device` runs in the child (it wakes CUDA); everything else is pure, reads the environment or
the system's files, or asks the pool. A lease that names a real slice while torch sees none is an
error, never a reason to measure the CPU.
"""

from __future__ import annotations

import json
import math
import os
import platform
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.errors import NoRealSlice
from labkit.machine.parts import EMULATE, Emulation
from labkit.records import CpuBudget, Device, Lease, Tier

CGROUP = Path("/sys/fs/cgroup")
CPUINFO = Path("/proc/cpuinfo")
LIVE_STATES = frozenset({"granted", "attached", "running", "warned"})
ASK_S = 2.0
LINKS = {
    Tier.SEVERAL_GPUS: "between GPUs of one host",
    Tier.SEVERAL_SLICES: "between slices, through host memory (MIG has no peer-to-peer)",
    Tier.WHOLE_GPU: "none (one GPU)",
    Tier.SLICE: "none (one slice)",
    Tier.CPU: "loopback TCP between processes on this container's CPU, not a GPU link",
}


def read_lease(environ: Mapping[str, str]) -> Lease:
    """Read the lease from the MIGLAB_ variables that the spawner sets."""
    slices = tuple(
        part.strip() for part in environ.get("MIGLAB_SLICES", "").split(",") if part.strip()
    )
    return Lease(
        lease=environ.get("MIGLAB_LEASE") or None,
        shape=environ.get("MIGLAB_SHAPE") or None,
        course=environ.get("MIGLAB_COURSE") or None,
        slices=slices,
        simulated=environ.get("MIGLAB_SIMULATED") == "1",
        api=environ.get("MIGLAB_API") or None,
    )


def is_held(lease: Lease, environ: Mapping[str, str]) -> bool | None:
    """Ask the pool whether the lease is live.

    Returns:
        None when there is no lease or the pool does not answer: unknown is not "gone".
    """
    if not (lease.lease and lease.api):
        return None
    request = urllib.request.Request(  # noqa: S310  the spawner's own http address, not user input
        f"{lease.api.rstrip('/')}/api/lease",
        headers={"Authorization": f"Bearer {environ.get('JUPYTERHUB_API_TOKEN', '')}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=ASK_S) as answer:  # noqa: S310  as above
            view = json.load(answer)
    except urllib.error.HTTPError as error:
        return False if error.code in (404, 410) else None
    except (OSError, ValueError):
        return None
    return str(view.get("id")) == lease.lease and view.get("state") in LIVE_STATES


def parse_cpu_max(text: str) -> float | None:
    """Cores allowed by cgroup v2's cpu.max ("200000 100000"); None for "max" or nonsense."""
    fields = text.split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields) or int(fields[1]) == 0:
        return None
    return int(fields[0]) / int(fields[1])


def read_quota(root: Path = CGROUP) -> float | None:
    """The container's CPU quota in cores, from cgroup v2 or v1; None when there is none."""
    try:
        return parse_cpu_max((root / "cpu.max").read_text())
    except OSError:
        pass
    try:
        quota, period = (
            (root / "cpu" / f"cpu.cfs_{part}_us").read_text().strip()
            for part in ("quota", "period")
        )
    except OSError:
        return None
    return parse_cpu_max(f"{quota} {period}")


def cpu_budget(root: Path = CGROUP) -> CpuBudget:
    """Cores this container may really use; `os.cpu_count()` would name the host's."""
    affinity = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = read_quota(root)
    return CpuBudget(
        cores=float(affinity) if quota is None else min(quota, affinity),
        affinity=affinity,
        quota=quota,
    )


def thread_environment(ranks: int, budget: CpuBudget) -> dict[str, str]:
    """Divide the CPU budget into threads for each of several children, as environment variables."""
    threads = str(max(1, math.floor(budget.cores / max(1, ranks))))
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "LABKIT_THREADS"), threads)


def tier_of(devices: Sequence[Device]) -> Tier:
    """The tier of the devices that were measured on; a device shared by ranks counts once."""
    gpus = [device for device in devices if device.backend == "cuda"]
    if not gpus or len(gpus) < len(devices):
        return Tier.CPU
    several = len({device.uuid or str(index) for index, device in enumerate(gpus)}) > 1
    if any(device.is_slice for device in gpus):
        return Tier.SEVERAL_SLICES if several else Tier.SLICE
    return Tier.SEVERAL_GPUS if several else Tier.WHOLE_GPU


def link_of(tier: Tier, ranks: int) -> str:
    """How the ranks of a measurement talk to one another, in words for the caption."""
    if ranks < 2:
        return "none"
    if tier in (Tier.WHOLE_GPU, Tier.SLICE):
        return "processes sharing one device, through host memory"
    return LINKS[tier]


def child_environment(
    choices: Sequence[str], rank: int, ranks: int, budget: CpuBudget, *, on_cpu: bool = False
) -> dict[str, str]:
    """The additions to a child's environment: its device and its threads.

    A single rank without a choice has this process's own device, unless it is to use the CPU. With
    fewer devices than ranks the ranks are CPU processes, and say so: several ranks on one
    device must be asked for, by naming it several times, and are never a silent substitute.
    """
    added = thread_environment(ranks, budget)
    if ranks <= len(choices):
        return added | {"CUDA_VISIBLE_DEVICES": choices[rank]}
    if on_cpu or ranks > 1:
        return added | {"CUDA_VISIBLE_DEVICES": "", "LABKIT_CPU_RANKS": "1"}
    return added


def require_no_slice(lease: Lease, reason: str, environ: Mapping[str, str]) -> None:
    """Refuse to go on without a GPU when the lease names a real slice.

    Args:
        lease: of this server.
        reason: why torch has no GPU.
        environ: of this process.

    Raises:
        NoRealSlice: always then, unless these are ranks that were openly sent to the CPU.
    """
    if not lease.real_slices or environ.get("LABKIT_CPU_RANKS") == "1":
        return
    raise NoRealSlice(
        f"Your lease {lease.lease or ''} holds {lease.shape or 'a slice'} "
        f"({lease.real_slices[0]}), but torch cannot open it: {reason}. "
        "Nothing was measured, because figures from the CPU would be taken for the slice's. "
        "Restart your server from the hub's page; if it happens again, tell your instructor."
    )


def _cpu_name() -> str:
    """The processor's model as Linux names it."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        lines = []
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def _memory_limit_mib() -> int:
    """The container's memory limit, or the host's memory where there is no limit."""
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
    except OSError:
        return int(host)
    return int(min(host, int(limit) // 2**20)) if limit.isdigit() else int(host)


def read_device(torch: Any, environ: Mapping[str, str], index: int = 0) -> Device:
    """Describe a device of this process; in a child only, for it makes a CUDA context.

    Raises:
        NoRealSlice: the lease names a real slice and torch sees no GPU.
    """
    cpu: dict[str, Any] = {"cpu_cores": cpu_budget().cores, "threads": torch.get_num_threads()}
    if not torch.cuda.is_available():
        has_none, finds_none = "this torch was built without CUDA", "CUDA finds no device"
        reason = has_none if torch.version.cuda is None else finds_none
        require_no_slice(read_lease(environ), reason, environ)
        return Device("cpu", _cpu_name(), _memory_limit_mib(), **cpu)
    properties = torch.cuda.get_device_properties(index)
    choice = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    emulation = Emulation.from_environment(environ)
    return Device(
        backend="cuda",
        name=properties.name,
        memory_mib=emulation.memory_mib or properties.total_memory // 2**20,
        sms=emulation.sms or properties.multi_processor_count,
        l2_mib=getattr(properties, "L2_cache_size", 0) / 2**20 or None,
        uuid=choice if choice.startswith("MIG-") else str(getattr(properties, "uuid", "")) or None,
        is_slice=choice.startswith("MIG-") or "MIG" in properties.name or emulation != Emulation(),
        capability=f"{properties.major}.{properties.minor}",
        emulated=environ.get(EMULATE) or None,
        **cpu,
    )


def read_versions(torch: Any) -> dict[str, str]:
    """The versions a figure depends on."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda is not None:
        versions["cuda"] = torch.version.cuda
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return versions
