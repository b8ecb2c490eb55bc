"""What doctor looks at.  Each examination reads, changes nothing, and ends in findings.

An examination that cannot look says so: what is unknown is never reported as fine.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from miglab_api.gpus import PoolSnapshot
from miglab_api.scopes import LEASE_SCOPE, POOL_SCOPES
from miglab_hub.engine_findings import examine_docker, examine_toolkit
from miglab_hub.errors import StartError
from miglab_hub.mig_rights import examine_mig_rights
from miglab_hub.pool_api import PoolApi
from miglab_hub.settings.lab_toml import Settings
from miglab_hub.sign_in import open_sign_in_notice
from miglab_hub.watched_folders import watched_folders
from miglab_pool.gpu.readings import DriverMissing, GpuError, GpuHung, GpuLost, GpuMissing
from miglab_pool.gpu.watched import WatchedDriver, open_watched
from miglab_pool.hub_answers import HubMisunderstood, hub_base_url, json_body
from miglab_pool.settings import Gpus
from miglab_pool.worker.disks import of_disks, read_disks
from miglab_pool.worker.health_findings import (
    GPU_IS_LOST,
    GPU_IS_MISSING,
    HealthFinding,
    fine,
    fine_or_wrong,
    gpu_findings,
    pool_findings,
    wrong,
)

LEAST_FREE_GIB = 5.0
HUB_TIMEOUT_S = 5.0
SHOWN_SERVERS = 5
HUB_IS_ANOTHER = (
    "start the hub, or correct addresses.hub and lab.port in lab.toml: they must lead to the hub's "
    "own listener (c.JupyterHub.hub_ip and hub_port)"
)
USE_SET_UP = "call set_up(c, pool=…, token_file=…) in jupyterhub_config.py, and restart the hub"
GIVE_SCOPE = (
    "see what a role `user` or `server_token_scopes` in the hub's configuration takes from them; "
    "then restart these servers"
)


def examine(settings: Settings) -> list[HealthFinding]:
    """Examine everything that lab.toml names; Slurm adds its own findings."""
    looks = [examine_files, examine_disk, examine_sign_in, examine_hub]
    if not settings.is_on_slurm:
        looks += [examine_gpus, examine_docker, examine_toolkit, examine_pool]
    return [finding for look in looks for finding in look(settings)]


def examine_host(settings: Settings) -> list[HealthFinding]:
    """Examine what the service does not watch itself: files, disk, Docker, the hub's rights.

    May take seconds.
    """
    looks = (examine_files, examine_disk, examine_docker, examine_hub)
    return [finding for look in looks for finding in look(settings)]


def examine_lab_toml(file: Path, at_start: bytes) -> HealthFinding:
    """Examine whether lab.toml has changed since the lab started."""
    try:
        now = file.read_bytes()
    except OSError as error:
        return wrong("lab.toml", f"{file}: {error.strerror}", "the lab cannot restart without it")
    if now == at_start:
        return fine("lab.toml", str(file))
    advice = "restart the lab, which takes it over; leases and positions in the queue stay"
    return wrong("lab.toml", f"{file} has changed since the lab started", advice)


def examine_files(settings: Settings) -> Iterator[HealthFinding]:
    """Examine the rights of secrets and state folder."""
    if not settings.state.is_dir():
        yield wrong("state", f"{settings.state} does not exist", "start the lab once: ./lab up")
        return
    is_writable = os.access(settings.state, os.W_OK)
    observation = f"{settings.state}{'' if is_writable else ' is not writable'}"
    yield fine_or_wrong("state", is_writable, observation, "make the lab's user its owner")
    for file in (settings.pool_secret, settings.service_token, settings.proxy_token):
        yield _examine_secret(file)


def _examine_secret(file: Path) -> HealthFinding:
    try:
        mode = file.stat().st_mode & 0o777
    except OSError as error:
        return wrong("secrets", f"{file}: {error.strerror}", "start the lab once: ./lab up")
    if mode & 0o077:
        advice = f"delete it and restart the lab, which creates a new one (or chmod 600 {file})"
        return wrong("secrets", f"other users can read {file} (mode {mode:o})", advice)
    return fine("secrets", f"{file.name}, mode {mode:o}")


def examine_disk(settings: Settings) -> Iterator[HealthFinding]:
    """Examine the free space for ledger, logs and homes."""
    yield from of_disks(read_disks(watched_folders(settings)), LEAST_FREE_GIB * 2**30)


def examine_sign_in(settings: Settings) -> Iterator[HealthFinding]:
    """Report if everybody who can sign in may take slices."""
    if notice := open_sign_in_notice(settings):
        yield fine("sign-in", notice)


def examine_hub(settings: Settings) -> Iterator[HealthFinding]:
    """Examine the hub's address, and the scopes of pool and servers."""
    try:
        token = settings.service_token.read_text().strip()
        with _hub_client(token) as hub:
            base_url = hub_base_url(hub.get(f"{settings.hub_url}/"))
            api = f"{settings.hub_url}{base_url}hub/api"
            version = json_body(hub.get(f"{api}/"))["version"]
            yield fine("hub", f"JupyterHub {version} at {settings.hub_url}{base_url}")
            yield _examine_pool_scopes(json_body(hub.get(f"{api}/user")))
            if not settings.is_on_slurm:
                yield _examine_server_tokens(json_body(hub.get(f"{api}/miglab/tokens")))
    except OSError as error:
        yield wrong("hub", f"unknown: {error}", "start the lab once: ./lab up")
    except httpx.HTTPError as error:
        yield wrong(
            "hub", f"the hub at {settings.hub_url} does not answer: {error}", HUB_IS_ANOTHER
        )
    except (HubMisunderstood, KeyError) as error:
        yield wrong("hub", f"unknown: {error}", HUB_IS_ANOTHER)


def _hub_client(token: str) -> httpx.Client:
    headers = {"Authorization": f"token {token}"}
    return httpx.Client(headers=headers, timeout=HUB_TIMEOUT_S, trust_env=False)


def _examine_pool_scopes(whoami: dict[str, Any]) -> HealthFinding:
    """Examine whether the pool service has its scopes at the hub."""
    if "scopes" not in whoami:
        observation = f"the hub does not accept the pool service's token: {whoami.get('message')}"
        return wrong("pool's role", observation, USE_SET_UP)
    lacking = sorted(set(POOL_SCOPES) - set(whoami["scopes"]))
    observation = (
        f"the pool service lacks {', '.join(lacking)}" if lacking else "has all its scopes"
    )
    return fine_or_wrong("pool's role", not lacking, observation, USE_SET_UP)


def _examine_server_tokens(answer: dict[str, Any]) -> HealthFinding:
    """Examine whether the servers' tokens have the lease scope."""
    if "lacking" not in answer:
        return wrong("servers' tokens", f"unknown: {answer.get('message')}", USE_SET_UP)
    lacking: list[str] = answer["lacking"]
    if not lacking:
        return fine("servers' tokens", f"{answer['servers']} servers can see their leases")
    observation = (
        f"{len(lacking)} of {answer['servers']} servers lack the scope {LEASE_SCOPE}!server, so "
        f"the pool refuses their reports: {', '.join(lacking[:SHOWN_SERVERS])}"
    )
    return wrong("servers' tokens", observation, GIVE_SCOPE)


def examine_gpus(settings: Settings) -> Iterator[HealthFinding]:
    """Examine driver, listed GPUs, MIG mode, health, and the right to change slices."""
    try:
        driver = open_watched(
            simulated_state=settings.simulated_state,
            gpu_uuids=settings.gpus.uuids or None,
            limit_s=settings.gpus.answer_s,
        )
    except GpuError as error:  # of a simulated machine
        yield wrong("GPUs", str(error), "start the lab once: ./lab up")
        return
    try:
        with ThreadPoolExecutor(len(driver.uuids)) as threads:
            examined = list(threads.map(partial(_examine_gpu, driver, settings.gpus), driver.uuids))
    except DriverMissing as error:
        yield wrong(
            "driver", str(error), "install NVIDIA's driver, or list no gpus.uuids, to simulate GPUs"
        )
        return
    finally:
        driver.close()
    for gpu in examined:
        yield from gpu.findings
    if any(gpu.may_have_slices for gpu in examined) and not settings.gpus.simulated:
        yield examine_mig_rights()


@dataclass(frozen=True)
class ExaminedGpu:
    """Doctor's findings on a GPU.

    Attributes:
        findings: of its health.
        may_have_slices: whether slices are created on it; one that does not say so may be such.
    """

    findings: list[HealthFinding]
    may_have_slices: bool = True


def _examine_gpu(driver: WatchedDriver, gpus: Gpus, uuid: str) -> ExaminedGpu:
    """Examine a GPU with one call each; a hanging GPU is not asked twice.

    Raises:
        DriverMissing: there is no driver.
    """
    may_have_slices = True
    try:
        info = driver.info(uuid)
        may_have_slices = info.mig is True or (info.mig is None and bool(info.geometry.profiles))
        is_whole = gpus.wants_whole(uuid, info.index)
        findings = list(gpu_findings(info, driver.health(uuid), is_whole=is_whole))
    except DriverMissing:
        raise
    except GpuError as error:
        findings = [wrong(f"GPU {uuid}", *_explain_gpu_error(error))]  # it has said no index
    return ExaminedGpu(findings, may_have_slices)


def _explain_gpu_error(error: GpuError) -> tuple[str, str]:
    """Return why a GPU could not be read, and what to do about it."""
    if isinstance(error, GpuHung):
        advice = "drain it; if it does not come back, reset it or reboot the host"
        return f"unknown: {error}", advice
    if isinstance(error, GpuMissing):
        return str(error), GPU_IS_MISSING
    if isinstance(error, GpuLost):
        return str(error), GPU_IS_LOST
    return str(error), "see the driver's messages: dmesg | grep -i nvrm"


def examine_pool(settings: Settings) -> Iterator[HealthFinding]:
    """Examine the running pool: GPUs, quarantined and foreign slices, invariants."""
    try:
        with PoolApi(settings.pool_url, settings.pool_secret.read_text().strip()) as api:
            snapshot = PoolSnapshot.model_validate(api.call("GET", "/pool"))
            health = api.call("GET", "/health")
            contradictions: list[str] = api.call("GET", "/invariants")
    except (StartError, OSError) as error:
        yield wrong("pool", str(error), "start the lab, or see the pool's log in the state folder")
        return
    yield from pool_findings(snapshot, health, contradictions)
