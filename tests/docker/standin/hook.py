"""Plays NVIDIA's container hook on a machine without a GPU: same name, same place, same refusals.

The Docker engine calls ``nvidia-container-runtime-hook prestart`` with the container's state on
standard input.  The real hook looks NVIDIA_VISIBLE_DEVICES up through NVML, refuses what it does
not find, and puts the devices and ``nvidia-smi`` into the container.  This one looks the UUIDs up
in the simulated GPUs, refuses what is not there, and puts in an ``nvidia-smi -L`` that lists the
container's own slices and no others.

The simulated GPUs are those in the state folders listed, one a line, in the file that
MIGLAB_SIM_STATES names, one for each engine; ``tests/docker/engine simulate FOLDER`` adds one.
"""

import json
import os
import sys
from pathlib import Path

from miglab_pool.gpu.watched import open_gpus

STATES = Path(os.environ.get("MIGLAB_SIM_STATES", "/run/miglab-test/simulated"))
NOTHING = ("", "void", "none")


class UnknownDeviceError(Exception):
    """What was asked for is not there; the container must not start."""


def wanted(environment: list[str]) -> list[str]:
    """The UUIDs in NVIDIA_VISIBLE_DEVICES, which the engine sets from the device request."""
    variables = dict(line.split("=", 1) for line in environment if "=" in line)
    value = variables.get("NVIDIA_VISIBLE_DEVICES", "")
    return [] if value in NOTHING else value.split(",")


def on_machine(folder: Path) -> dict[str, str]:
    """UUID -> profile, for every slice and whole GPU of one simulated machine."""
    driver = open_gpus(simulated_state=folder)
    try:
        gpus = driver.gpus()
        slices = [reading for gpu in gpus for reading in driver.slices(gpu.uuid)]
    finally:
        driver.close()
    whole = {gpu.uuid: gpu.name for gpu in gpus}
    return whole | {reading.uuid: reading.profile.name for reading in slices if reading.uuid}


def known() -> dict[str, str]:
    """UUID -> profile, over all registered simulated machines that still exist."""
    listed = STATES.read_text().splitlines() if STATES.exists() else []
    folders = [Path(line) for line in dict.fromkeys(listed) if (Path(line) / "state.json").exists()]
    return {uuid: name for folder in folders for uuid, name in on_machine(folder).items()}


def lines_for(uuids: list[str], there: dict[str, str]) -> list[str]:
    """What ``nvidia-smi -L`` shows; refuses, in the real hook's words, what no GPU has."""
    for uuid in uuids:
        if uuid not in there:
            raise UnknownDeviceError(f"nvidia-container-cli: device error: {uuid}: unknown device")
    return [
        f"  MIG {there[uuid]}  Device  {place}: (UUID: {uuid})" for place, uuid in enumerate(uuids)
    ]


def show(rootfs: Path, lines: list[str]) -> None:
    """Put an ``nvidia-smi`` that prints these lines into the container."""
    script = rootfs / "usr/bin/nvidia-smi"
    script.write_text("\n".join(["#!/bin/sh", "cat <<'END'", *lines, "END", ""]))
    script.chmod(0o755)


def main() -> int:
    """Hand over the slices that were asked for; 1, and why on standard error, if that cannot be."""
    if sys.argv[1:] != ["prestart"]:
        return 0
    bundle = Path(json.load(sys.stdin)["bundle"])
    config = json.loads((bundle / "config.json").read_text())
    uuids = wanted(config["process"]["env"])
    if not uuids:
        return 0
    there = known()
    try:
        lines = lines_for(list(there) if uuids == ["all"] else uuids, there)
    except UnknownDeviceError as refusal:
        print(refusal, file=sys.stderr)
        return 1
    show(bundle / config["root"]["path"], lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
