"""What doctor finds of the Docker engine: what it is, how it is set, and what its host has.

NVIDIA's toolkit is looked for where the engine runs it, which the pool's own container is not: a
container of no GPU is asked for through the hook, and reads the hook's version and settings on the
host.
"""

import tomllib
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Self

import docker.errors  # noqa: TID251 - doctor may ask the Docker engine
import requests

import docker  # noqa: TID251
from miglab_api.engine import HOOK_HAS_A_NAME, Version, gpu_driver_name, parse_version
from miglab_api.holders import processes_of
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.worker.health_findings import HealthFinding, fine, fine_or_wrong, wrong

#: From the first on, and before the second: what gpu-host.md says, and why.
TESTED_ENGINES: tuple[Version, Version] = ((20, 10), (30, 0))
TESTED_TOOLKITS: tuple[Version, Version] = ((1, 13), (1, 21))
CDI = "CDI"
DOCKER_TIMEOUT_S = 5
TRIAL_TIMEOUT_S = 60
TOOLKIT_HOOK = "nvidia-container-runtime-hook"
TOOLKIT_SETTINGS = "/etc/nvidia-container-runtime/config.toml"
BY_VARIABLE = "accept-nvidia-visible-devices-envvar-when-unprivileged"
NO_GPU = "void"  # the hook is called, and hands over nothing
SETTINGS_FOLLOW = "--- settings"
TRIAL = f"{TOOLKIT_HOOK} --version; echo '{SETTINGS_FOLLOW}'; cat {{settings}} 2>/dev/null; true"
HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SEE_GUIDE = "see 'Driver, toolkit, Docker' in the guide to a GPU host"
_ERRORS = (docker.errors.DockerException, requests.RequestException)


@dataclass(frozen=True)
class Toolkit:
    """NVIDIA's container toolkit on the engine's host.

    Attributes:
        version: None: it could not be read.
        settings: what its file sets; empty without a file.
    """

    version: Version | None
    settings: dict[str, Any]

    @classmethod
    def of(cls, output: str) -> Self:
        """Parse the output of `TRIAL`.

        Raises:
            tomllib.TOMLDecodeError: the settings are no TOML.
        """
        version, _, settings = output.partition(f"{SETTINGS_FOLLOW}\n")
        return cls(parse_version(version), tomllib.loads(settings))


def examine_docker(settings: Settings) -> Iterator[HealthFinding]:
    """Examine engine, image and the engine's settings, if servers are containers."""
    if settings.servers.spawner != "docker":
        yield fine("Docker", "not used: students' servers are local processes without isolation")
        return
    url = settings.docker_url
    try:
        client = docker.APIClient(base_url=url, timeout=DOCKER_TIMEOUT_S, version="auto")
    except _ERRORS as error:
        remedy = "start it, and give the lab's user access to its socket (as good as root)"
        yield wrong("Docker", f"the engine at {url} does not answer: {error}", remedy)
        return
    with closing(client):
        try:
            version = str(client.version()["Version"])
            yield examine_engine(version)
            yield _examine_image(client, settings.servers.image)
            yield from _examine_processes(client)
            if settings.servers.disk_gib:
                yield examine_disk_limit(client.info())
            if not settings.gpus.simulated:
                yield from examine_engine_settings(version, client.info())
        except _ERRORS as error:
            yield wrong("Docker", f"unknown: {error}", "see the engine's log")


def examine_engine(version: str) -> HealthFinding:
    """Examine whether this version of the engine was tested with the lab."""
    oldest, first_untried = TESTED_ENGINES
    number = parse_version(version)
    remedy = (
        f"install one from {_as_text(oldest)} on and before {_as_text(first_untried)}, {SEE_GUIDE}"
    )
    is_tested = number is not None and oldest <= number < first_untried
    doubt = "" if is_tested else ", which the lab has not been tried with"
    return fine_or_wrong("Docker", is_tested, f"engine {version}{doubt}", remedy)


def examine_engine_settings(version: str, info: dict[str, Any]) -> Iterator[HealthFinding]:
    """Examine settings in daemon.json that break access to real GPUs, at once or later."""
    number = parse_version(version)
    if number is not None and number >= HOOK_HAS_A_NAME and info.get("CDISpecDirs"):
        state = (
            f"engine {version} answers by CDI first: the pool's container can lose GPUs, and its "
            "right to create slices, when it next starts"
        )
        remedy = 'put "features": {"cdi": false} into daemon.json, restart the engine, then the lab'
        yield wrong(CDI, state, remedy)
    if info.get("CgroupDriver") == "systemd":
        state = "`systemctl daemon-reload` takes the GPUs from all running containers"
        remedy = (
            'put "exec-opts": ["native.cgroupdriver=cgroupfs"] into daemon.json and restart the '
            "engine while no server runs"
        )
        yield wrong("cgroup driver", state, remedy)
    if info.get("DefaultRuntime", "").startswith("nvidia"):
        state = "NVIDIA's runtime is the default: it looks into every container, and uses CDI too"
        yield wrong("runtime", state, "remove default-runtime from daemon.json; restart the engine")


def _examine_image(client: Any, image: str) -> HealthFinding:
    try:
        client.inspect_image(image)
    except docker.errors.ImageNotFound:
        return wrong("image", f"the engine has no image {image}", "build it: images/build")
    return fine("image", image)


def _examine_processes(client: Any) -> Iterator[HealthFinding]:
    """Examine whether a container's processes are visible; no finding without a container."""
    for running in client.containers(filters={"status": "running"}, limit=1):
        if not processes_of(f"container:{running['Id']}"):
            state = "the processes of containers cannot be seen: what an engine forgets runs on"
            remedy = "run the pool on the engine's host, in a container with `pid: host`"
            yield wrong("processes", state, remedy)


def examine_disk_limit(info: dict[str, Any]) -> HealthFinding:
    """Examine whether the engine can limit what a container writes."""
    driver = str(info.get("Driver"))
    backing = dict(info.get("DriverStatus") or ()).get("Backing Filesystem", "")
    if driver == "zfs" or (driver, backing) == ("overlay2", "xfs"):
        return fine("disk limit", f"{driver} {backing}: can be kept; XFS needs the option pquota")
    verb = "does not keep" if driver == "btrfs" else "refuses"
    state = f"servers.disk_gib is set, and the engine on {driver} {backing} {verb} this limit"
    return wrong("disk limit", state, "move the engine's data to XFS with pquota, or set it to 0")


def examine_toolkit(settings: Settings) -> Iterator[HealthFinding]:
    """Examine NVIDIA's toolkit with a short container, if containers get real GPUs."""
    if settings.servers.spawner != "docker" or settings.gpus.simulated:
        return
    try:
        client = docker.APIClient(
            base_url=settings.docker_url, timeout=TRIAL_TIMEOUT_S, version="auto"
        )
        with closing(client):
            output = run_trial(client, settings.servers.image)
        yield from examine_toolkit_facts(Toolkit.of(output))
    except tomllib.TOMLDecodeError as error:
        yield wrong("toolkit", f"{TOOLKIT_SETTINGS}: {error}", "correct it, or remove it")
    except docker.errors.APIError as error:
        yield explain_hook_refusal(str(error.explanation))
    except _ERRORS as error:
        yield wrong("toolkit", f"unknown: {error}", "see the engine's log")


def run_trial(
    client: Any, image: str, *, path: str = HOST_PATH, settings: str = TOOLKIT_SETTINGS
) -> str:
    """Start a container through the hook, without a GPU, and read what its host has.

    Args:
        client: docker-py's ``APIClient``.
        image: any that has ``chroot``.
        path: where on the host the hook is looked for.
        settings: the hook's file on the host.

    Returns:
        What `TRIAL` prints.

    Raises:
        DockerException: the engine has no hook, or the hook refuses.
    """
    request = {"driver": gpu_driver_name(client.version()["Version"]), "device_ids": [NO_GPU]}
    host = client.create_host_config(
        binds=["/:/host:ro"],
        network_mode="none",
        cap_drop=["ALL"],
        cap_add=["SYS_CHROOT"],
        device_requests=[{**request, "capabilities": [["gpu"]]}],
    )
    trial = client.create_container(
        image,
        ["/host", "env", f"PATH={path}", "sh", "-c", TRIAL.format(settings=settings)],
        entrypoint=["chroot"],
        user="root",
        environment={"PATH": HOST_PATH},
        host_config=host,
    )
    try:
        client.start(trial["Id"])
        client.wait(trial["Id"], timeout=TRIAL_TIMEOUT_S)
        return str(client.logs(trial["Id"], stderr=False).decode(errors="replace"))
    finally:
        with suppress(*_ERRORS):
            client.remove_container(trial["Id"], force=True, v=True)


def explain_hook_refusal(explanation: str) -> HealthFinding:
    """Return the finding for a container that the engine does not start through the hook."""
    if "could not select device driver" in explanation:
        state = f"the engine did not find {TOOLKIT_HOOK} when it started"
        return wrong("toolkit", state, "install nvidia-container-toolkit, then restart dockerd")
    state = f"not even a container without a GPU starts through NVIDIA's hook: {explanation}"
    return wrong("toolkit", state, SEE_GUIDE)


def examine_toolkit_facts(toolkit: Toolkit) -> Iterator[HealthFinding]:
    """Examine the toolkit's version, and whether it honours Docker's requests."""
    oldest, first_untried = TESTED_TOOLKITS
    tried = f"from {_as_text(oldest)} on and before {_as_text(first_untried)}"
    if toolkit.version is None:
        state = f"the engine has it, but its version is unknown: {TOOLKIT_HOOK} does not tell it"
        yield wrong("toolkit", state, f"see that it is one {tried}; {SEE_GUIDE}")
    else:
        is_tested = oldest <= toolkit.version < first_untried
        doubt = "" if is_tested else ", which the lab has not been tried with"
        state = f"NVIDIA container toolkit {_as_text(toolkit.version)}{doubt}"
        yield fine_or_wrong("toolkit", is_tested, state, f"install one {tried}; {SEE_GUIDE}")
    yield from _examine_toolkit_settings(toolkit.settings)


def _examine_toolkit_settings(settings: dict[str, Any]) -> Iterator[HealthFinding]:
    if settings.get(BY_VARIABLE, True) is not True:
        state = f"{BY_VARIABLE} is not true: no server gets a GPU, since Docker asks that way"
        yield wrong("toolkit", state, f"remove that line from {TOOLKIT_SETTINGS}")
    if (mode := settings.get("nvidia-container-runtime", {}).get("mode")) == "cdi":
        state = f'the toolkit\'s mode is "{mode}": it refuses what Docker asks for'
        yield wrong("toolkit", state, f'set mode = "auto" in {TOOLKIT_SETTINGS}')
    if variable := settings.get("swarm-resource"):
        state = f"an image can ask for any GPU by the variable {variable} (swarm-resource)"
        yield wrong("toolkit", state, f"remove that line from {TOOLKIT_SETTINGS}")


def _as_text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
