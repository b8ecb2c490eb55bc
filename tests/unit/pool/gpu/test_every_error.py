"""Every NVML function that the product calls, times every error code: each ends as one of ours."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.nvml_errors import FUNCTIONS, FUTURE, TABLES, FailingLibrary

from miglab_pool.gpu.driver import Driver, DriverMemory
from miglab_pool.gpu.readings import GpuError
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.simulated.nvml import SimulatedNvml


def _questions(nvml: Any, uuid: str, remembered: DriverMemory) -> Iterator[Callable[[], Any]]:
    """All that can be asked of a driver about one GPU; a slice is created and destroyed."""
    driver = Driver(nvml, [uuid], remembered)
    yield from (driver.versions, partial(driver.info, uuid), partial(driver.health, uuid))
    yield from [partial(driver.gpu_usage, uuid)] * 2
    info = driver.info(uuid)
    if info.mig:
        profile = info.geometry.profiles[0]
        yield partial(driver.create, uuid, profile, profile.placements[0])
        slices = driver.slices(uuid)
        yield from [partial(driver.usages, uuid, slices)] * 2
        yield from (partial(driver.destroy, uuid, reading.gi_id) for reading in slices)
    yield driver.close


def ask_everything(nvml: Any, uuids: Sequence[str]) -> list[GpuError]:
    """What fails of all that can be asked; anything but an error of ours comes out of here."""
    failures: list[GpuError] = []
    remembered = DriverMemory()
    for uuid in (*uuids, uuids[0]):  # the last driver looks its GPU up where it was found before
        try:
            for question in _questions(nvml, uuid, remembered):
                try:
                    question()
                except GpuError as error:
                    failures.append(error)
        except GpuError as error:
            failures.append(error)
    with suppress(GpuError):
        Driver(nvml).close()  # on all GPUs there are
    return failures


@pytest.fixture
def machine(tmp_path: Path) -> SimulatedMachine:
    """A GPU that is cut and tells activity, and two that are leased whole."""
    machine = SimulatedMachine.create(tmp_path, models=["H100", "H100", "A100"])
    for gpu in machine.state().gpus[1:]:
        machine.set_mig(False, gpu.uuid)
    return machine


@pytest.mark.parametrize("codes", TABLES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_error_of_nvml_leaves_the_driver_as_it_is(
    machine: SimulatedMachine, function: str, codes: Mapping[str, int]
) -> None:
    """Whatever NVML answers, also what only a newer driver will, ends as a `GpuError` or None.

    What there is no name for is said with its number.
    """
    nvml = SimulatedNvml(machine.folder)
    library = FailingLibrary(nvml)
    uuids = [gpu.uuid for gpu in machine.state().gpus]
    for name, code in codes.items():
        library.fail(function, code)
        failures = ask_everything(nvml, uuids)
        assert library.failures, f"nothing here calls {function}"
        assert all(str(FUTURE) in str(error) for error in failures if error.code == FUTURE), name
        library.fail("")
        machine.reboot()  # what could not be destroyed is gone, and so is a Hopper's MIG mode
        machine.set_mig(True, uuids[0])
