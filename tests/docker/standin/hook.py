"""Plays NVIDIA's container hook on a machine without a GPU: same name, same place, same refusals.

The Docker engine calls ``nvidia-container-runtime-hook prestart`` with the container's state on
standard input.  The real hook reads from the container which devices it is to have, looks these up
through NVML, refuses what it does not find, and puts the devices and ``nvidia-smi`` into the
container.  This one does the same over the simulated NVML, and the ``nvidia-smi -L`` that it puts
in lists the container's own slices, below their GPUs, and no others.

Like the real one it obeys a configuration file, ``-config FILE`` or ``config.toml`` beside the list
of simulated machines, and so fails as the real one does: ``test_nvidia_hook.py`` holds the two
against one another.  It imports nothing of the lab but the simulated NVML.

The simulated GPUs are those in the state folders listed, one a line, in the file that
MIGLAB_SIM_STATES names, one for each engine; ``tests/docker/engine simulate FOLDER`` adds one.
"""

import json
import os
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miglab_pool.gpu.simulated.nvml import SimulatedNvml

STATES = Path(os.environ.get("MIGLAB_SIM_STATES", "/run/miglab-test/simulated"))
BY_VARIABLE = "accept-nvidia-visible-devices-envvar-when-unprivileged"
BY_MOUNT = "accept-nvidia-visible-devices-as-volume-mounts"
MOUNTS = Path("/var/run/nvidia-container-devices")
CONFIGURES = ("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES")
USE_THE_RUNTIME = (
    "invoking the NVIDIA Container Runtime Hook directly (e.g. specifying the docker --gpus flag) "
    "is not supported. Please use the NVIDIA Container Runtime"
)


class HookRefusedError(Exception):
    """The container must not start."""


@dataclass(frozen=True)
class HandedDevice:
    """What a container can be given.

    Attributes:
        uuid: its own; ``gpu`` is that of the GPU on which it lies, the same for a whole GPU.
        line: how ``nvidia-smi -L`` names it, without index and UUID.
    """

    uuid: str
    gpu: str
    line: str


def devices_on(folder: Path) -> Iterator[HandedDevice]:
    """What NVML lists on a simulated machine; nothing where its driver does not answer."""
    nvml: Any = SimulatedNvml(folder)
    with suppress(nvml.NVMLError):
        nvml.nvmlInit()
        for index in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError):  # this GPU is lost
                yield from devices_of(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
        nvml.nvmlShutdown()


def devices_of(nvml: Any, gpu: Any) -> Iterator[HandedDevice]:
    """A GPU, and every slice of it."""
    uuid = nvml.nvmlDeviceGetUUID(gpu)
    yield HandedDevice(uuid, uuid, nvml.nvmlDeviceGetName(gpu))
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        with suppress(nvml.NVMLError_NotFound):
            mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
            profile = nvml.nvmlDeviceGetName(mig).rpartition("MIG ")[2]
            yield HandedDevice(nvml.nvmlDeviceGetUUID(mig), uuid, f"MIG {profile}")


def devices() -> dict[str, HandedDevice]:
    """By UUID, over all registered simulated machines that still exist."""
    registered = STATES.read_text().splitlines() if STATES.exists() else []
    folders = [Path(line) for line in dict.fromkeys(registered)]
    machines = [folder for folder in folders if (folder / "state.json").exists()]
    return {device.uuid: device for folder in machines for device in devices_on(folder)}


def requested(container: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """The names of the devices that a container is to have, by the real hook's rules.

    From 1.13 to 1.20: mounts of ``/dev/null`` come first where they are accepted; then the
    variable, of which the last value holds, unless the container is unprivileged and the
    configuration ignores it there.
    """
    is_privileged = "CAP_SYS_ADMIN" in container["process"]["capabilities"].get("bounding", ())
    if config.get(BY_MOUNT, False) and (mounted := named_by_mounts(container)):
        return mounted
    if not is_privileged and not config.get(BY_VARIABLE, True):
        return []
    variables = environment_of(container)
    names = [name for name in variables.get("NVIDIA_VISIBLE_DEVICES", "").split(",") if name]
    return [] if "void" in names else names


def named_by_mounts(container: dict[str, Any]) -> list[str]:
    """The devices for which ``/dev/null`` is mounted at NVIDIA's place."""
    places = [Path(m["destination"]) for m in container["mounts"] if m.get("source") == "/dev/null"]
    return [place.name for place in places if place.parent == MOUNTS]


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    """Its variables; of one that is there twice, the last."""
    return dict(pair.split("=", 1) for pair in container["process"]["env"] if "=" in pair)


def check(container: dict[str, Any], config: dict[str, Any]) -> None:
    """Refuse, in the real hook's words, what it refuses before it looks at a device."""
    if config.get("nvidia-container-runtime", {}).get("mode", "auto") == "cdi":
        raise HookRefusedError(USE_THE_RUNTIME)
    is_privileged = "CAP_SYS_ADMIN" in container["process"]["capabilities"].get("bounding", ())
    for name in CONFIGURES:
        if environment_of(container).get(name) and not is_privileged:
            short = name.removeprefix("NVIDIA_")
            raise HookRefusedError(f"cannot set {short} in non privileged container")


def listing(names: list[str], devices: dict[str, HandedDevice]) -> list[str]:
    """What ``nvidia-smi -L`` shows in a container that has these devices."""
    lines: list[str] = []
    for number, gpu in enumerate(dict.fromkeys(devices[name].gpu for name in names)):
        lines.append(f"GPU {number}: {devices[gpu].line} (UUID: {gpu})")
        slices = [devices[name] for name in names if devices[name].gpu == gpu != name]
        lines += [
            f"  {device.line:15} Device {index:2}: (UUID: {device.uuid})"
            for index, device in enumerate(slices)
        ]
    return lines


def show(rootfs: Path, lines: list[str]) -> None:
    """Put an ``nvidia-smi`` that prints these lines into the container."""
    script = rootfs / "usr/bin/nvidia-smi"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text("\n".join(["#!/bin/sh", "cat <<'END'", *lines, "END", ""]))
    script.chmod(0o755)


def hand_over(bundle: Path, config: dict[str, Any]) -> None:
    """Put what the container is to have into it.

    Raises:
        HookRefusedError: the real hook would not let it start.
    """
    container = json.loads((bundle / "config.json").read_text())
    names = requested(container, config)
    if not names:
        return
    check(container, config)
    on_host = devices()
    if names == ["all"]:
        names = list(on_host)
    if strange := [name for name in names if name not in on_host]:
        raise HookRefusedError(f"nvidia-container-cli: device error: {strange[0]}: unknown device")
    show(bundle / container["root"]["path"], listing(names, on_host))


def main(arguments: list[str]) -> int:
    """Hand over what is asked for; 1, and why on standard error, if that cannot be."""
    file = STATES.parent / "config.toml"
    if arguments[:1] == ["-config"]:
        file, arguments = Path(arguments[1]), arguments[2:]
    if arguments != ["prestart"]:
        return 0
    config = tomllib.loads(file.read_text()) if file.exists() else {}
    try:
        hand_over(Path(json.load(sys.stdin)["bundle"]), config)
    except HookRefusedError as refusal:
        print(refusal, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
