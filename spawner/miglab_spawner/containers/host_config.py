"""What a server's container is created with, beside what DockerSpawner says.  Pure.

Its labels: the hub saves a spawner's state only after ``start()`` returned, so a crash before loses
it.  They are on the container itself and outlive every crash: pool and spawner reconcile from them.
Its limits: what it may use of the host, by the shape it holds.

*Soft* settings give way to the site's ``extra_host_config``; *hard* ones, which make a lease safe,
do not.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from jupyterhub.traitlets import ByteSpecification

from miglab_api.holders import (
    CONTAINER,
    GENERATION_LABEL,
    LAB_LABEL,
    LEASE_LABEL,
    LEDGER_LABEL,
    SLICES_LABEL,
)
from miglab_api.leases import LeaseView
from miglab_spawner.home_size import GIB

USER, SERVER = "miglab.user", "miglab.server"


@dataclass(frozen=True)
class SavedLease:
    """The part of a lease that must survive a hub crash.

    Attributes:
        lease: the lease's id.
        generation: the fence that attach presents.
        ledger: the id of the ledger that granted it; empty before there was one.
        uuids: the slices, in the lease's order.
    """

    lease: int
    generation: int
    user: str
    server: str
    uuids: tuple[str, ...]
    ledger: str = ""

    @classmethod
    def from_lease(cls, lease: LeaseView) -> Self:
        """Return what must be saved of this lease."""
        return cls(lease.id, lease.generation, lease.user, lease.server, lease.uuids, lease.ledger)


def to_labels(lab: str, grant: SavedLease) -> dict[str, str]:
    """Return the labels of a container that is to hold this lease."""
    return {
        LAB_LABEL: lab,
        LEASE_LABEL: str(grant.lease),
        GENERATION_LABEL: str(grant.generation),
        USER: grant.user,
        SERVER: grant.server,
        SLICES_LABEL: ",".join(grant.uuids),
        LEDGER_LABEL: grant.ledger,
    }


def from_labels(lab: str, labels: Mapping[str, str] | None) -> SavedLease | None:
    """Return the lease that a container's labels name; None without one of this lab."""
    if not labels or labels.get(LAB_LABEL) != lab:
        return None
    lease, generation = labels.get(LEASE_LABEL, ""), labels.get(GENERATION_LABEL, "")
    if not (lease.isdecimal() and generation.isdecimal()):
        return None
    uuids = tuple(uuid for uuid in labels.get(SLICES_LABEL, "").split(",") if uuid)
    user, server = labels.get(USER, ""), labels.get(SERVER, "")
    return SavedLease(
        int(lease), int(generation), user, server, uuids, labels.get(LEDGER_LABEL, "")
    )


def container_holder(container_id: str) -> str:
    """Return a container's holder name: its full id, since container names are reused."""
    return f"{CONTAINER}:{container_id}"


def container_of(holder: str) -> str:
    """Return the container id in a holder's name; empty for another kind of holder."""
    kind, _, container_id = holder.partition(":")
    return container_id if kind == CONTAINER else ""


DEFAULT = "default"
_CPU_PERIOD_US = 100_000
_UNLIMITED = -1

#: Starting points; a lab sets its own for its hosts.
SHAPE_LIMITS: dict[str, dict[str, float]] = {
    "cpu": {"mem_gib": 4, "cpus": 1, "pids": 1024, "shm_gib": 0.5},
    "borrow": {"mem_gib": 4, "cpus": 1, "pids": 1024, "shm_gib": 0.5},
    DEFAULT: {"mem_gib": 8, "cpus": 2, "pids": 1024, "shm_gib": 1},
    "full": {"mem_gib": 64, "cpus": 8, "pids": 4096, "shm_gib": 16},
}
_KEYS = {"mem_gib", "cpus", "pids", "shm_gib"}
_COUNTED = re.compile(r"^(\d+)x(.+)$")


@dataclass(frozen=True)
class ContainerLimits:
    """Bytes, cores, processes (with threads) and bytes of /dev/shm.

    Memory and cores are 0 where a site lifted the limit.
    """

    mem_bytes: int
    cpus: float
    pids: int
    shm_bytes: int

    def with_site_limits(
        self, host: Mapping[str, Any], *, mem_limit: Any = None, cpu_limit: float | None = None
    ) -> Self:
        """Return these limits with the memory and the cores that the site sets.

        Args:
            host: the site's ``extra_host_config``, which wins, as in DockerSpawner.
            mem_limit: the trait: bytes, or a size such as ``2G``; empty for none.
            cpu_limit: the trait: cores; empty for none.
        """
        memory = _to_bytes(host.get("mem_limit", mem_limit or self.mem_bytes) or 0)
        if "nano_cpus" in host:
            cpus = host["nano_cpus"] / 1e9
        elif "cpu_quota" in host:
            cpus = host["cpu_quota"] / host.get("cpu_period", _CPU_PERIOD_US)
        else:
            cpus = cpu_limit or self.cpus
        return replace(self, mem_bytes=max(0, memory), cpus=max(0, cpus))


def _to_bytes(size: Any) -> int:
    """Return bytes for a number, or a size such as ``2G`` (JupyterHub) or ``2gb`` (Docker)."""
    plain = size.upper().removesuffix("B") if isinstance(size, str) else size
    return int(ByteSpecification().validate(None, plain))


def check_limits(table: Mapping[str, Mapping[str, float]]) -> None:
    """Check a limits table.

    Raises:
        ValueError: an unknown key or a limit that is not above zero, naming shape and key.
    """
    for shape, row in table.items():
        for key, value in row.items():
            if key not in _KEYS:
                raise ValueError(f"limits of {shape!r}: no key {key!r}; allowed: {sorted(_KEYS)}")
            if value <= 0:
                raise ValueError(f"limits of {shape!r}: {key} must be above 0, not {value}")


def limits_of(shape: str, table: Mapping[str, Mapping[str, float]]) -> ContainerLimits:
    """Return the limits of a shape.

    The shape's own row; for ``2x1g.5gb`` without one, twice the row of ``1g.5gb``; for several
    kinds (``1g.5gb,2x2g.10gb``) their sum; else the row ``default``.  A key missing from a row
    comes from ``default``, and one missing there from `SHAPE_LIMITS`.
    """
    rows = {**SHAPE_LIMITS, **table}
    if shape in rows:
        return _to_limits(_row_with_defaults(rows, shape))
    total: dict[str, float] = dict.fromkeys(_KEYS, 0)
    for part in shape.split(","):
        counted = _COUNTED.match(part)
        count, profile = (int(counted[1]), counted[2]) if counted else (1, part)
        if part in rows:
            count, profile = 1, part
        row = _row_with_defaults(rows, profile)
        total = {key: total[key] + count * row[key] for key in _KEYS}
    return _to_limits(total)


def _row_with_defaults(rows: Mapping[str, Mapping[str, float]], shape: str) -> dict[str, float]:
    return {**SHAPE_LIMITS[DEFAULT], **rows[DEFAULT], **rows.get(shape, {})}


def _to_limits(row: Mapping[str, float]) -> ContainerLimits:
    return ContainerLimits(
        int(row["mem_gib"] * GIB), row["cpus"], int(row["pids"]), int(row["shm_gib"] * GIB)
    )


_LOG = {"type": "json-file", "config": {"max-size": "10m", "max-file": "3"}}
_ULIMITS = (
    {"Name": "nofile", "Soft": 16_384, "Hard": 16_384},
    {"Name": "core", "Soft": 0, "Hard": 0},
)


def soft_host_config(
    limits: ContainerLimits, site: Mapping[str, Any], *, disk_gib: float = 0
) -> dict[str, Any]:
    """Return limits and hardening as host configuration, overridden by the site's.

    Memory and swap together are as much as memory: no swap.  A log is kept as json-file, which
    alone has a limit in every engine; its size is what fills the host otherwise.  ``nano_cpus``
    becomes a quota: the engine takes no period beside it, and DockerSpawner (14.0) always sets one.

    Args:
        limits: what the container may use, by the shape or as the site sets it.
        site: the site's ``extra_host_config``.
        disk_gib: what a container may write beside its volumes; 0 for no limit.
    """
    period = site.get("cpu_period", _CPU_PERIOD_US)
    config: dict[str, Any] = {
        "mem_limit": limits.mem_bytes,
        "memswap_limit": limits.mem_bytes or _UNLIMITED,
        "cpu_period": period,
        "cpu_quota": int(limits.cpus * period) or _UNLIMITED,
        "pids_limit": limits.pids,
        "shm_size": limits.shm_bytes,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "log_config": _LOG,
        "ulimits": list(_ULIMITS),
    }
    if disk_gib:
        config["storage_opt"] = {"size": f"{int(disk_gib * GIB)}"}
    return {**config, **{key: value for key, value in site.items() if key != "nano_cpus"}}


def hard_host_config(grant: SavedLease | None, driver: str) -> dict[str, Any]:
    """Return the host configuration that a lease requires, which no site overrides.

    ``auto_remove`` would take exit code and out-of-memory mark away with the container; a restart
    by the engine would come back with an old slice.

    Args:
        grant: what the container is to hold; None: no slice.
        driver: what the engine calls NVIDIA's hook (`miglab_api.engine.driver_for`).
    """
    if grant is None:
        return {}
    return {
        "device_requests": [
            {"driver": driver, "device_ids": list(grant.uuids), "capabilities": [["gpu"]]}
        ],
        "auto_remove": False,
        "restart_policy": {"Name": "no"},
    }


def gpu_environment(env: Mapping[str, str], grant: SavedLease | None) -> dict[str, str]:
    """Return the environment with the leased GPUs visible, and no others.

    NVIDIA's toolkit honours ``NVIDIA_VISIBLE_DEVICES`` of an image or a configuration: ``void``
    stops it where there is no lease.  With one, the engine adds the device request's value behind
    the image's own; said here as well, the variable is there once, and only what is leased.
    """
    visible = "void" if grant is None else ",".join(grant.uuids)
    return {**env, "NVIDIA_VISIBLE_DEVICES": visible}


def escape_braces(value: Any) -> Any:
    """Escape braces, so that DockerSpawner's template rendering leaves a value as it is."""
    if isinstance(value, str):
        return value.replace("{", "{{").replace("}", "}}")
    if isinstance(value, dict):
        return {escape_braces(key): escape_braces(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [escape_braces(item) for item in value]
    return value
