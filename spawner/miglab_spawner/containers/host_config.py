"""What a server's container is created with, beside what DockerSpawner says.  Pure.

*Soft* settings give way to the site's ``extra_host_config``; *hard* ones, which make a lease safe,
do not.
"""

from collections.abc import Mapping
from typing import Any

from miglab_spawner.containers.labels import SavedLease
from miglab_spawner.containers.limits import GIB, ContainerLimits

_CPU_PERIOD_US = 100_000
_LOG = {"type": "json-file", "config": {"max-size": "10m", "max-file": "3"}}
_ULIMITS = (
    {"Name": "nofile", "Soft": 16_384, "Hard": 16_384},
    {"Name": "core", "Soft": 0, "Hard": 0},
)


def soft_host_config(
    limits: ContainerLimits, *, own_memory: bool, own_cpus: bool, disk_gib: float = 0
) -> dict[str, Any]:
    """Limits and hardening.

    Memory and swap together are as much as memory: no swap.  A log is kept as json-file, which
    alone has a limit in every engine; its size is what fills the host otherwise.

    Args:
        limits: of the shape.
        disk_gib: what a container may write beside its volumes; 0 for no limit.
        own_memory: the site set ``mem_limit``: ours is left out.
        own_cpus: the site set ``cpu_limit``: ours is left out.
    """
    config: dict[str, Any] = {
        "pids_limit": limits.pids,
        "shm_size": limits.shm_bytes,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "log_config": _LOG,
        "ulimits": list(_ULIMITS),
    }
    if disk_gib:
        config["storage_opt"] = {"size": f"{int(disk_gib * GIB)}"}
    if not own_memory:
        config["mem_limit"] = config["memswap_limit"] = limits.mem_bytes
    if not own_cpus:
        config["cpu_period"] = _CPU_PERIOD_US
        config["cpu_quota"] = int(limits.cpus * _CPU_PERIOD_US)
    return config


def hard_host_config(grant: SavedLease | None) -> dict[str, Any]:
    """What a lease demands: its slices; and no end or restart that we do not see.

    ``auto_remove`` would take exit code and out-of-memory mark away with the container; a restart
    by the engine would come back with an old slice.
    """
    if grant is None:
        return {}
    return {
        "device_requests": [
            {"driver": "nvidia", "device_ids": list(grant.uuids), "capabilities": [["gpu"]]}
        ],
        "auto_remove": False,
        "restart_policy": {"Name": "no"},
    }


def gpu_environment(env: Mapping[str, str], grant: SavedLease | None) -> dict[str, str]:
    """The environment with only such GPUs as are leased.

    NVIDIA's toolkit honours ``NVIDIA_VISIBLE_DEVICES`` of an image or a configuration: ``void``
    stops it where there is no lease.  With one, the engine adds the device request's value behind
    the image's own; said here as well, the variable is there once, and only what is leased.
    """
    visible = "void" if grant is None else ",".join(grant.uuids)
    return {**env, "NVIDIA_VISIBLE_DEVICES": visible}


def literal(value: Any) -> Any:
    """A value that DockerSpawner's template rendering leaves as it is."""
    if isinstance(value, str):
        return value.replace("{", "{{").replace("}", "}}")
    if isinstance(value, dict):
        return {literal(key): literal(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [literal(each) for each in value]
    return value
