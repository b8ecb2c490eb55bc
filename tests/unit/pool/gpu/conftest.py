"""A simulated machine with a clock that only sleeping moves, and short ways to cut it."""

from collections.abc import Callable, Iterator
from ctypes import byref
from pathlib import Path
from typing import Any

import pynvml
import pytest

from miglab_pool.gpu.driver import Driver
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.simulated.nvml import SimulatedNvml


class SleepClock:
    """Time that passes when someone sleeps; ``while_asleep`` is called in the middle of it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s: list[float] = []
        self.while_asleep: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds / 2
        self.while_asleep()
        self.now_s += seconds / 2


class Machine:
    """One simulated machine: its outside, pynvml's functions over it, and a driver."""

    def __init__(self, folder: Path, model: str, clock: SleepClock, mig: bool = True) -> None:
        self.clock = clock
        machine = SimulatedMachine.create(folder, 2, model, mig=mig, seed="test")
        self.outside = SimulatedMachine(machine.folder, now=clock.now)
        self.nvml = SimulatedNvml(folder, clock.sleep, clock.now)
        self.nvml.nvmlInit()
        self.driver = Driver(self.nvml)
        self.gpu = self.nvml.nvmlDeviceGetHandleByIndex(0)
        self.uuid: str = self.nvml.nvmlDeviceGetUUID(self.gpu)

    def create_at(self, profile_id: int, start: int, size: int) -> Any:
        """A GPU instance at a placement."""
        place = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
        create = self.nvml.nvmlDeviceCreateGpuInstanceWithPlacement
        return create(self.gpu, profile_id, byref(place))

    def create(self, profile_id: int) -> Any:
        """A GPU instance where the driver likes."""
        return self.nvml.nvmlDeviceCreateGpuInstance(self.gpu, profile_id)

    def fill(self, instance: Any, compute_profile_id: int = 0) -> Any:
        """A compute instance in it."""
        return self.nvml.nvmlGpuInstanceCreateComputeInstance(instance, compute_profile_id)

    def slice(self, start: int = 0) -> str:
        """A whole 1g slice there: its UUID."""
        self.fill(self.create_at(19, start, 1))
        uuid = self.driver.slices(self.uuid)[-1].uuid
        assert uuid
        return uuid

    def mig_indices(self) -> list[int]:
        """The MIG device indices that exist."""
        indices = []
        for index in range(self.nvml.nvmlDeviceGetMaxMigDeviceCount(self.gpu)):
            try:
                self.nvml.nvmlDeviceGetMigDeviceHandleByIndex(self.gpu, index)
            except pynvml.NVMLError_NotFound:
                continue
            indices.append(index)
        return indices


@pytest.fixture
def clock() -> SleepClock:
    """A clock at 1000 s."""
    return SleepClock()


@pytest.fixture
def a100(tmp_path: Path, clock: SleepClock) -> Iterator[Machine]:
    """Two A100-40GB, MIG on."""
    yield Machine(tmp_path, "A100-40GB", clock)


@pytest.fixture
def h100(tmp_path: Path, clock: SleepClock) -> Iterator[Machine]:
    """Two H100, MIG on."""
    yield Machine(tmp_path, "H100", clock)
