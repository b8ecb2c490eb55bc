"""What doctor looks at.  Each examination reads, changes nothing, and ends in findings.

An examination that cannot look says so: what is unknown is never reported as fine.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import docker.errors  # noqa: TID251 - doctor may ask the Docker engine
import requests

import docker  # noqa: TID251
from miglab_hub.errors import StartError
from miglab_hub.pool_api import PoolApi
from miglab_hub.settings import Settings
from miglab_spawner.gpu import open_gpus
from miglab_spawner.gpu.errors import DriverMissing, GpuError, GpuLost
from miglab_spawner.gpu.nvml import Driver
from miglab_spawner.gpu.readings import GpuInfo, Health
from miglab_spawner.messages import PoolSnapshot, SliceState
from miglab_spawner.pool.ledger.rows import GPU_LOST

LEAST_FREE_GIB = 5.0
HOT_C = 85  # °C; an A100 begins to slow down a little above
OLDEST_ENGINE = (19, 3)
TOOLKIT_HOOK = "nvidia-container-runtime-hook"
GPU_IS_LOST = (
    "see the kernel log for Xid messages (dmesg | grep -i xid), then end what runs on the GPU and "
    "reset it, or reboot the host"
)
MIG_RIGHTS = Path("/proc/driver/nvidia/capabilities/mig/config")
DOCKER_TIMEOUT_S = 5


class Level(StrEnum):
    """How bad a finding is."""

    FINE = "ok"
    WRONG = "WRONG"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: which part of the lab.
        found: how it is.
        do: what to do about it; empty if it is fine.
    """

    what: str
    level: Level
    found: str
    do: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether somebody has to do something."""
        return self.level is Level.WRONG


def fine(what: str, found: str) -> Finding:
    """A finding about which nothing is to be done."""
    return Finding(what, Level.FINE, found)


def wrong(what: str, found: str, do: str) -> Finding:
    """A finding about which something is to be done."""
    return Finding(what, Level.WRONG, found, do)


Examination = Callable[[Settings], Iterator[Finding]]


def examine(settings: Settings) -> list[Finding]:
    """Look at everything that lab.toml names."""
    looks: tuple[Examination, ...] = (
        examine_files,
        examine_disk,
        examine_gpus,
        examine_docker,
        examine_pool,
    )
    return [finding for look in looks for finding in look(settings)]


def examine_host(settings: Settings) -> list[Finding]:
    """What the running service cannot know by itself: files, disk, Docker.  May take seconds."""
    looks: tuple[Examination, ...] = (examine_files, examine_disk, examine_docker)
    return [finding for look in looks for finding in look(settings)]


def examine_files(settings: Settings) -> Iterator[Finding]:
    """Secrets that others can read, and a state folder that cannot be written."""
    if not settings.state.is_dir():
        yield wrong("state", f"{settings.state} is not there", "start the lab once: ./lab up")
        return
    if not os.access(settings.state, os.W_OK):
        yield wrong("state", f"{settings.state} cannot be written", "give it to the lab's user")
    else:
        yield fine("state", str(settings.state))
    for file in (settings.pool_secret, settings.service_token, settings.proxy_token):
        yield _secret(file)


def _secret(file: Path) -> Finding:
    try:
        mode = file.stat().st_mode & 0o777
    except OSError as error:
        return wrong("secrets", f"{file}: {error.strerror}", "start the lab once: ./lab up")
    if mode & 0o077:
        do = f"delete it and start the lab anew, which makes another (or chmod 600 {file})"
        return wrong("secrets", f"{file} can be read by others (mode {mode:o})", do)
    return fine("secrets", f"{file.name}, mode {mode:o}")


def examine_disk(settings: Settings) -> Iterator[Finding]:
    """Space where the ledger and the homes lie."""
    folder = next(path for path in (settings.state, *settings.state.parents) if path.exists())
    free_gib = shutil.disk_usage(folder).free / 2**30
    found = f"{free_gib:.1f} GiB free below {folder}"
    if free_gib < LEAST_FREE_GIB:
        yield wrong("disk", found, f"make room: a lab needs {LEAST_FREE_GIB:.0f} GiB at least")
    else:
        yield fine("disk", found)


def examine_gpus(settings: Settings) -> Iterator[Finding]:
    """Driver, the listed GPUs, their MIG mode and health, and the right to change slices."""
    try:
        driver = open_gpus(
            simulated_state=settings.simulated_state, gpu_uuids=settings.gpus.uuids or None
        )
    except DriverMissing as error:
        yield wrong("driver", str(error), "install NVIDIA's driver, or set gpus.simulated = true")
        return
    except GpuLost as error:
        yield wrong("GPUs", str(error), GPU_IS_LOST)
        return
    except GpuError as error:
        yield wrong("GPUs", str(error), "compare gpus.uuids in lab.toml with `nvidia-smi -L`")
        return
    try:
        yield from _each_gpu(driver)
    finally:
        driver.close()
    if not settings.gpus.simulated:
        yield from _rights()


def _each_gpu(driver: Driver) -> Iterator[Finding]:
    try:
        gpus = driver.gpus()
    except GpuError as error:
        yield wrong("GPUs", str(error), "see the driver's messages: dmesg | grep -i nvrm")
        return
    for gpu in gpus:
        yield from of_gpu(gpu, driver.health(gpu.uuid))


def of_gpu(gpu: GpuInfo, health: Health) -> Iterator[Finding]:
    """What a GPU says of itself."""
    name = f"GPU {gpu.index}"
    if health.lost:
        yield wrong(name, health.why, GPU_IS_LOST)
    elif health.ok is False:
        yield wrong(name, health.why, "drain it, then reset it (or take it out of gpus.uuids)")
    elif health.ok is None:
        yield wrong(name, f"health unknown: {health.why}", "see `nvidia-smi -q`")
    if health.temperature_c is not None and health.temperature_c > HOT_C:
        found = f"it has {health.temperature_c} °C, and slows down to protect itself"
        yield wrong(name, found, "look at the fans and at the room")
    yield _mig_mode(name, gpu)


def _mig_mode(name: str, gpu: GpuInfo) -> Finding:
    if gpu.mig is None and gpu.geometry.profiles:
        return wrong(name, f"{gpu.name}: MIG mode unknown", "see `nvidia-smi -q -d MIG`")
    if gpu.mig != gpu.mig_pending:
        do = "with nothing running on it: nvidia-smi --gpu-reset, or reboot"
        return wrong(name, f"{gpu.name}: MIG mode changes at the next reset", do)
    words = "on: is cut on demand" if gpu.mig else "off: leased whole"
    return fine(name, f"{gpu.name}, MIG {words}")


def _rights() -> Iterator[Finding]:
    if os.geteuid() == 0 or (MIG_RIGHTS.exists() and os.access(MIG_RIGHTS, os.R_OK)):
        yield fine("permissions", "MIG may be configured")
        return
    do = "run the pool service as root, or give its user nvidia-cap1 (MIG config)"
    yield wrong("permissions", f"{MIG_RIGHTS} cannot be read: slices cannot be made", do)


def examine_docker(settings: Settings) -> Iterator[Finding]:
    """Engine, image and toolkit, if students are containers."""
    if settings.students.spawner != "docker":
        yield fine("Docker", "not used: students are local processes, no isolation")
        return
    url = settings.students.docker_url
    try:
        client = docker.APIClient(base_url=url, timeout=DOCKER_TIMEOUT_S, version="auto")
    except (docker.errors.DockerException, requests.RequestException) as error:
        do = "start it, and let the lab's user reach its socket (which is as good as root)"
        yield wrong("Docker", f"{url} does not answer: {error}", do)
        return
    try:
        yield _engine(str(client.version()["Version"]))
        yield _image(client, settings.students.image)
        if not settings.gpus.simulated:
            yield _toolkit(client)
    finally:
        client.close()


def _engine(version: str) -> Finding:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < OLDEST_ENGINE:
        return wrong("Docker", f"engine {version}", "install 19.03 or newer: it hands over GPUs")
    return fine("Docker", f"engine {version}")


def _image(client: Any, image: str) -> Finding:
    try:
        client.inspect_image(image)
    except docker.errors.ImageNotFound:
        return wrong("image", f"{image} is not there", "build it: images/build")
    except (docker.errors.DockerException, requests.RequestException) as error:
        return wrong("image", f"unknown: {error}", "see the engine's log")
    return fine("image", image)


def _toolkit(client: Any) -> Finding:
    runtimes = client.info().get("Runtimes", {})
    if "nvidia" in runtimes or shutil.which(TOOLKIT_HOOK):
        return fine("toolkit", "NVIDIA container toolkit is there")
    do = "install nvidia-container-toolkit, then restart dockerd"
    return wrong("toolkit", f"{TOOLKIT_HOOK} is not on the PATH", do)


def examine_pool(settings: Settings) -> Iterator[Finding]:
    """The running pool service: its GPUs, what is set aside or foreign, and its invariants."""
    try:
        with PoolApi(settings.pool_url, settings.pool_secret.read_text().strip()) as api:
            snapshot = PoolSnapshot.model_validate(api.call("GET", "/pool"))
            health = api.call("GET", "/health")
            contradictions: list[str] = api.call("GET", "/invariants")
    except (StartError, OSError) as error:
        yield wrong("pool", str(error), "start the lab, or see the pool's log in the state folder")
        return
    yield from of_pool(snapshot, health, contradictions)


def of_pool(
    snapshot: PoolSnapshot, health: dict[str, Any], contradictions: Sequence[str]
) -> Iterator[Finding]:
    """What the running service says of itself, of its GPUs and slices."""
    yield from _loops(health)
    yield fine("pool", f"{len(snapshot.gpus)} GPUs, {len(snapshot.waiting)} waiting")
    if snapshot.paused:
        yield wrong("pool", f"paused: {snapshot.paused}", "miglab pool resume")
    for contradiction in contradictions:
        do = "pause the pool, keep a copy of the ledger, and report this"
        yield wrong("invariant", contradiction, do)
    yield from _slices(snapshot)


def _loops(health: dict[str, Any]) -> Iterator[Finding]:
    if health["is_stuck"]:
        do = "see the driver's messages (dmesg | grep -i nvrm); a restart loses no lease"
        yield wrong("pool", "a driver call hangs: no slice is made or destroyed", do)
    if not health["is_reconciled"]:
        do = "wait a moment and look again; if it stays so, see the pool's log in the state folder"
        yield wrong("pool", "ledger, GPUs and servers were not compared yet", do)
    if health["failing"]:
        do = "see the pool's log in the state folder; a restart of the lab loses no lease"
        yield wrong("pool", f"its last rounds failed: {', '.join(health['failing'])}", do)


def _slices(snapshot: PoolSnapshot) -> Iterator[Finding]:
    for gpu in snapshot.gpus:
        if gpu.state != "ok":
            do = GPU_IS_LOST if gpu.state == GPU_LOST else "see the driver's messages"
            yield wrong(f"GPU {gpu.index}", f"{gpu.state}: {gpu.why}", do)
        for item in gpu.slices:
            name = f"slice {item.slice_id}"
            found = f"{item.profile} on GPU {gpu.index}: {item.why}"
            if item.state is SliceState.QUARANTINED:
                yield wrong(
                    name, found, f"see what uses it, then: miglab pool clear {item.slice_id}"
                )
            elif item.state is SliceState.FOREIGN:
                do = f"leave it, or give its place to the pool: miglab pool adopt {item.slice_id}"
                yield wrong(name, found, do)
