"""What a container is given by NVIDIA's own hook, and by the stand-in that plays it in the tests.

Each case is an OCI bundle as the engine writes one: the image's variables, then the container's,
then those of the device request.  The stand-in always runs.  NVIDIA's hook runs where there is one,
``MIGLAB_NVIDIA_HOOK`` or on the path, with a recorder in place of ``nvidia-container-cli``: which
devices it would be told to hand over is what the hook decides, and needs no GPU.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from miglab_api.engine import gpu_driver_name
from miglab_pool.gpu.geometry import Placement
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.watched import open_gpus
from miglab_spawner.containers.host_config import SavedLease, gpu_environment, hard_host_config

STANDIN = Path(__file__).parent / "standin/nvidia-container-runtime-hook"
REAL = os.environ.get("MIGLAB_NVIDIA_HOOK") or shutil.which("nvidia-container-runtime-hook")
IGNORES_VARIABLE = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
TAKES_MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts = true\n"
RECORDER = '#!/bin/sh\necho "$@" >> {record}\n'


@dataclass(frozen=True)
class Slices:
    """Two slices of one simulated GPU: the student's, and somebody else's."""

    folder: Path
    leased: str
    foreign: str


@pytest.fixture
def slices(tmp_path: Path) -> Slices:
    """A simulated GPU with two slices on it."""
    folder = tmp_path / "gpus"
    SimulatedMachine.create(folder, seed=uuid.uuid4().hex)
    driver = open_gpus(simulated_state=folder)
    gpu = driver.gpus()[0]
    profile = next(item for item in gpu.geometry.profiles if item.name == "1g.5gb")
    readings = [driver.create(gpu.uuid, profile, Placement(start, 1)) for start in (0, 1)]
    driver.close()
    leased, foreign = (str(reading.uuid) for reading in readings)
    return Slices(folder, leased, foreign)


@dataclass(frozen=True)
class Handover:
    """What came of a hook's run.

    Attributes:
        status: the hook's exit status; not 0: the container does not start.
        devices: what it handed over.
        errors: what it wrote.
    """

    status: int
    devices: list[str]
    errors: str


@dataclass(frozen=True)
class Hook:
    """A hook to run on bundles: NVIDIA's own, or the stand-in."""

    program: str
    is_real: bool
    folder: Path
    machine: Path

    def __call__(
        self,
        env: Sequence[str],
        config: str = "",
        *,
        mounts: Sequence[tuple[str, str]] = (),
        capabilities: Sequence[str] = (),
    ) -> Handover:
        """Run it as the engine does, on a container with these variables and mounts."""
        rootfs, record = self.folder / "rootfs", self.folder / "record"
        rootfs.mkdir(exist_ok=True)
        container = {
            "ociVersion": "1.0.2",
            "process": {"env": list(env), "capabilities": {"bounding": list(capabilities)}},
            "root": {"path": "rootfs" if not self.is_real else str(rootfs)},
            "mounts": [{"source": source, "destination": place} for source, place in mounts],
        }
        (self.folder / "config.json").write_text(json.dumps(container))
        run = subprocess.run(
            [self.program, "-config", str(self._config(config, record)), "prestart"],
            input=json.dumps({"pid": os.getpid(), "bundle": str(self.folder)}),
            env={
                **os.environ,
                "MIGLAB_SIM_STATES": str(self._states()),
                "MIGLAB_PYTHON": sys.executable,
            },
            capture_output=True,
            text=True,
        )
        return Handover(run.returncode, self._devices(record, rootfs), run.stderr)

    def _config(self, text: str, record: Path) -> Path:
        recorder = self.folder / "nvidia-container-cli"
        recorder.write_text(RECORDER.format(record=record))
        recorder.chmod(0o755)
        file = self.folder / "config.toml"
        file.write_text(f'{text}\n[nvidia-container-cli]\npath = "{recorder}"\n')
        return file

    def _states(self) -> Path:
        states = self.folder / "simulated"
        states.write_text(f"{self.machine}\n")
        return states

    def _devices(self, record: Path, rootfs: Path) -> list[str]:
        if self.is_real:
            orders = record.read_text() if record.exists() else ""
            return ",".join(re.findall(r"--device=(\S+)", orders)).split(",") if orders else []
        script = rootfs / "usr/bin/nvidia-smi"
        return re.findall(r"UUID: (MIG-[^)]+)", script.read_text()) if script.exists() else []


HOOKS = ["stand-in", *(["NVIDIA's"] if REAL else [])]


@pytest.fixture(params=HOOKS)
def hook(request: pytest.FixtureRequest, tmp_path: Path, slices: Slices) -> Hook:
    """Each of the two, the real one where it is found."""
    is_real = request.param != "stand-in"
    return Hook(str(REAL) if is_real else str(STANDIN), is_real, tmp_path, slices.folder)


def container_env(image: dict[str, str], grant: SavedLease | None) -> list[str]:
    """A container's variables, by the spawner and by the engine.

    The engine puts the request's behind all others (moby, ``injectNVIDIARuntimeHook``); without a
    request it calls no hook, unless NVIDIA's runtime is the default one.
    """
    driver = gpu_driver_name("29.7.2")
    merged = {**image, **gpu_environment({}, grant)}
    variables = [f"{name}={value}" for name, value in merged.items()]
    for request in hard_host_config(grant, driver).get("device_requests", ()):
        variables.append(f"NVIDIA_VISIBLE_DEVICES={','.join(request['device_ids'])}")
    return variables


def grant_of(slices: Slices) -> SavedLease:
    """A lease of the student's slice alone."""
    return SavedLease(1, 1, "ada", "", (slices.leased,))


def greedy_image(slices: Slices) -> dict[str, str]:
    """An image whose variables ask for what somebody else holds."""
    return {"NVIDIA_VISIBLE_DEVICES": f"{slices.foreign},all", "NVIDIA_DRIVER_CAPABILITIES": "all"}


def test_a_lease_brings_its_slice_by_the_settings_that_the_toolkit_comes_with(
    hook: Hook, slices: Slices
) -> None:
    """The device request travels as a variable, and an unprivileged container may use it."""
    handover = hook(container_env({}, grant_of(slices)))
    assert (handover.status, handover.devices) == (0, [slices.leased])


def test_an_image_cannot_ask_for_a_foreign_slice(hook: Hook, slices: Slices) -> None:
    """Its own variable is replaced by the spawner, and once more by the engine."""
    handover = hook(container_env(greedy_image(slices), grant_of(slices)))
    assert (handover.status, handover.devices) == (0, [slices.leased])


def test_an_image_cannot_ask_for_a_slice_without_a_lease(hook: Hook, slices: Slices) -> None:
    """Also where NVIDIA's runtime is the default one, and so the hook sees every container."""
    handover = hook(container_env(greedy_image(slices), None))
    assert (handover.status, handover.devices) == (0, [])


def test_a_volume_of_an_image_names_no_device(hook: Hook, slices: Slices) -> None:
    """An image can declare a volume anywhere; only a mount of /dev/null names a device."""
    volume = (
        "/var/lib/docker/volumes/x/_data",
        f"/var/run/nvidia-container-devices/{slices.foreign}",
    )
    handover = hook(container_env({}, grant_of(slices)), TAKES_MOUNTS, mounts=[volume])
    assert (handover.status, handover.devices) == (0, [slices.leased])


def test_an_image_cannot_take_the_right_to_cut(hook: Hook, slices: Slices) -> None:
    """The variable of the pool's own container keeps a student's from starting."""
    image = {"NVIDIA_MIG_CONFIG_DEVICES": "all"}
    handover = hook(container_env(image, grant_of(slices)))
    assert handover.status != 0 and "non privileged" in handover.errors
    assert handover.devices == []


def test_a_toolkit_that_ignores_the_variable_hands_nothing_over_and_says_nothing(
    hook: Hook, slices: Slices
) -> None:
    """So gpu-host.md once printed it: the container starts, without its GPU."""
    handover = hook(container_env({}, grant_of(slices)), IGNORES_VARIABLE)
    assert (handover.status, handover.devices) == (0, [])


def test_only_mounts_count_where_the_variable_is_ignored(hook: Hook, slices: Slices) -> None:
    """The third way of the toolkit, which Docker's own device requests do not use."""
    mount = ("/dev/null", f"/var/run/nvidia-container-devices/{slices.leased}")
    handover = hook(
        container_env(greedy_image(slices), None), IGNORES_VARIABLE + TAKES_MOUNTS, mounts=[mount]
    )
    assert (handover.status, handover.devices) == (0, [slices.leased])


def test_a_toolkit_set_to_cdi_refuses_the_hook(hook: Hook, slices: Slices) -> None:
    """The container does not start: nobody is without a GPU and does not know it."""
    config = '[nvidia-container-runtime]\nmode = "cdi"\n'
    handover = hook(container_env({}, grant_of(slices)), config)
    assert handover.status != 0 and "is not supported" in handover.errors
    assert handover.devices == []


def test_the_trial_of_doctor_takes_no_device(hook: Hook, slices: Slices) -> None:
    """A request for ``void`` reaches the hook, and leaves every GPU alone."""
    handover = hook(["NVIDIA_VISIBLE_DEVICES=void"])
    assert (handover.status, handover.devices) == (0, [])
