# ruff: noqa: F401, F811 - fixtures are shared by import, and named again as arguments
"""What a site may set of Docker's own: each row of the table in the reference, on a real engine."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.hub.spawner.conftest import hub

from miglab_spawner.containers.host_config import SavedLease

from .test_spawner_docker import LAB, hub_config, lab, tidy

pytestmark = [pytest.mark.docker, pytest.mark.long]

REFERENCE = Path(__file__).parents[2] / "docs/reference/spawner.md"
GIB = 2**30
HOME = f"{LAB}-home-ada:/home/student:rw"
LEASE = SavedLease(1, 1, "ada", "", ("MIG-1",))


@dataclass(frozen=True)
class SiteSetting:
    """What a site sets, and what the engine then says of the container.

    Attributes:
        value: of the setting.
        inspected: keys of Docker's ``HostConfig``, and their values.
        config: keys of its ``Config``.
        env: of the container's environment.
        with_lease: what ``HostConfig`` says where the server holds a slice; None to leave that out.
    """

    value: Any
    inspected: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    env: tuple[str, ...] = ()
    with_lease: dict[str, Any] | None = None


GPU = {"Driver": "other", "Count": 0, "DeviceIDs": ["0"], "Capabilities": [["gpu"]], "Options": {}}
BIND = {f"{LAB}-shared": {"bind": "/shared", "mode": "rw"}}
NAMED_MOUNT = {"type": "volume", "source": f"{LAB}-shared", "target": "/shared"}
TWO_GIB = {"Memory": 2 * GIB, "MemorySwap": 2 * GIB}
ROWS = {
    "c.mem_limit": SiteSetting("2G", TWO_GIB, env=(f"MEM_LIMIT={2 * GIB}",)),
    "mem_limit": SiteSetting("2g", TWO_GIB, env=(f"MEM_LIMIT={2 * GIB}",)),
    "memswap_limit": SiteSetting("5g", {"Memory": 4 * GIB, "MemorySwap": 5 * GIB}),
    "c.cpu_limit": SiteSetting(
        0.5, {"CpuQuota": 50_000, "CpuPeriod": 100_000}, env=("CPU_LIMIT=0.5",)
    ),
    "cpu_quota": SiteSetting(50_000, {"CpuQuota": 50_000}, env=("CPU_LIMIT=0.5",)),
    "cpu_period": SiteSetting(
        50_000, {"CpuQuota": 50_000, "CpuPeriod": 50_000}, env=("CPU_LIMIT=1.0",)
    ),
    "nano_cpus": SiteSetting(
        5 * 10**8, {"NanoCpus": 0, "CpuQuota": 50_000}, env=("CPU_LIMIT=0.5",)
    ),
    "pids_limit": SiteSetting(77, {"PidsLimit": 77}),
    "shm_size": SiteSetting("128m", {"ShmSize": 128 * 2**20}),
    "cap_add": SiteSetting(["CHOWN"], {"CapAdd": ["CHOWN"], "CapDrop": ["ALL"]}),
    "cap_drop": SiteSetting(["NET_RAW"], {"CapDrop": ["NET_RAW"]}),
    "security_opt": SiteSetting(["seccomp=unconfined"], {"SecurityOpt": ["seccomp=unconfined"]}),
    "ulimits": SiteSetting(
        [{"Name": "nofile", "Soft": 99, "Hard": 99}],
        {"Ulimits": [{"Name": "nofile", "Soft": 99, "Hard": 99}]},
    ),
    "log_config": SiteSetting(
        {"type": "none", "config": {}}, {"LogConfig": {"Type": "none", "Config": {}}}
    ),
    "network_mode": SiteSetting("none", {"NetworkMode": "none"}),
    "restart_policy": SiteSetting(
        {"Name": "on-failure", "MaximumRetryCount": 2},
        {"RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 2}},
        with_lease={"RestartPolicy": {"Name": "no", "MaximumRetryCount": 0}},
    ),
    "auto_remove": SiteSetting(True, {"AutoRemove": True}, with_lease={"AutoRemove": False}),
    "device_requests": SiteSetting(
        [{"Driver": "other", "DeviceIDs": ["0"], "Capabilities": [["gpu"]]}],
        {"DeviceRequests": [GPU]},
        with_lease={
            "DeviceRequests": [{**GPU, "Driver": "nvidia", "DeviceIDs": list(LEASE.uuids)}]
        },
    ),
    "c.volumes": SiteSetting(BIND, {"Binds": [f"{LAB}-shared:/shared:rw"]}),
    "c.mounts": SiteSetting([NAMED_MOUNT], {"Binds": []}),
    "c.read_only_volumes": SiteSetting(
        {f"{LAB}-shared": "/shared"}, {"Binds": [f"{LAB}-shared:/shared:ro", HOME]}
    ),
    "c.extra_create_kwargs": SiteSetting(
        {"user": "1:1", "labels": {"course": "vision", "miglab.lab": "another"}},
        config={"User": "1:1", "Labels": {"course": "vision", "miglab.lab": LAB}},
    ),
}


async def created(spawner: Any, engine: Any, setting: str, value: Any) -> dict[str, Any]:
    """Docker's inspect of the container that this setting makes, which is removed again."""
    if setting.startswith("c."):
        spawner.set_trait(setting.removeprefix("c."), value)
    else:
        spawner.extra_host_config = {setting: value}
    container_id = (await spawner.create_object())["Id"]
    inspected: dict[str, Any] = engine.api.inspect_container(container_id)
    engine.api.remove_container(container_id, force=True)
    return inspected


def differences(row: SiteSetting, inspected: dict[str, Any]) -> list[str]:
    """What the engine says otherwise than the row."""
    host, config = inspected["HostConfig"], inspected["Config"]
    of_host = [f"{key}: {host[key]}" for key, value in row.inspected.items() if host[key] != value]
    of_env = [f"no {value}" for value in row.env if value not in config["Env"]]
    labelled = {
        **config,
        "Labels": {k: v for k, v in config["Labels"].items() if k in _labels(row)},
    }
    of_config = [
        f"{key}: {labelled[key]}" for key, value in row.config.items() if labelled[key] != value
    ]
    return of_host + of_env + of_config


def _labels(row: SiteSetting) -> dict[str, str]:
    return dict(row.config.get("Labels", {}))


def fresh_spawner(hub: Any, grant: SavedLease | None = None) -> Any:
    """A spawner with the site's defaults, as before a start."""
    user = hub.user("ada")
    user.spawners.pop("", None)
    spawner = user.spawner
    spawner.read_only_volumes, spawner.extra_host_config = {}, {}
    spawner.api_token, spawner.grant = "none", grant
    return spawner


def test_every_row_is_in_the_reference() -> None:
    """And the reference has no row that nobody tests."""
    text = REFERENCE.read_text(encoding="utf-8").partition("may set of Docker's own")[2]
    table = text.partition("\n## ")[0]
    assert re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE) == list(ROWS)


async def test_what_a_site_sets_is_what_the_engine_is_told(hub, lab, engine) -> None:
    """Each row without a lease, and with one where that makes a difference."""
    engine.networks.create(f"{LAB}-students")
    wrong = {}
    for setting, row in ROWS.items():
        inspected = await created(fresh_spawner(hub), engine, setting, row.value)
        wrong[setting] = differences(row, inspected)
        if row.with_lease is not None:
            leased = await created(fresh_spawner(hub, LEASE), engine, setting, row.value)
            wrong[f"{setting}, with a lease"] = differences(
                SiteSetting(None, row.with_lease), leased
            )
    assert {setting: lines for setting, lines in wrong.items() if lines} == {}
