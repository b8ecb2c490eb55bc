"""How long calls may take: what creates and destroys may take longer than what reads."""

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from miglab_pool.gpu.driver import Driver
from miglab_pool.gpu.geometry import Placement
from miglab_pool.gpu.readings import GpuHung
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.simulated.nvml import SimulatedNvml
from miglab_pool.gpu.simulated.state import Delays
from miglab_pool.gpu.watched import WatchedDriver, wait_for_outcome

from .conftest import SleepClock

ANSWER_S, CHANGE_S = 20.0, 60.0


class SlowLab:
    """One watched GPU, whose time passes by NVML's delays alone."""

    def __init__(self, folder: Path, clock: SleepClock) -> None:
        self.machine = SimulatedMachine.create(folder)
        (gpu,) = self.machine.state().gpus
        self.uuid, self._clock, self._began = gpu.uuid, clock, clock.now_s
        nvml = SimulatedNvml(folder, clock.sleep, clock.now)
        self.driver = WatchedDriver(
            lambda gpus, remembered: Driver(nvml, gpus, remembered),
            [gpu.uuid],
            simulated=True,
            limit_s=ANSWER_S,
            change_limit_s=CHANGE_S,
            wait=self._wait,
            clock=clock.now,
        )
        self.profile = self.driver.info(gpu.uuid).geometry.by_name["1g.5gb"]

    def slow_down(self, delays: Delays) -> None:
        self.machine.set_delays(delays)
        self._began = self._clock.now_s

    def _wait(self, outcome: "Future[Any]", limit_s: float) -> bool:
        return wait_for_outcome(outcome, 60.0) and self._clock.now_s - self._began <= limit_s


@pytest.fixture
def lab(tmp_path: Path, clock: SleepClock) -> SlowLab:
    return SlowLab(tmp_path, clock)


def test_a_slow_create_on_a_healthy_gpu_is_no_hang(lab: SlowLab) -> None:
    """Its steps together take longer than a reading may, and less than a change may."""
    lab.slow_down(Delays(create_gpu_instance_s=15, create_compute_instance_s=15))
    reading = lab.driver.create(lab.uuid, lab.profile, Placement(0, 1))
    assert reading.uuid and not lab.driver.is_hung


def test_a_create_that_takes_longer_than_a_change_may_is_a_hang(lab: SlowLab) -> None:
    """The message says how long it was waited for."""
    lab.slow_down(Delays(create_gpu_instance_s=61))
    with pytest.raises(GpuHung, match="has not come back for 60 s"):
        lab.driver.create(lab.uuid, lab.profile, Placement(0, 1))


class NotingLock:
    """A lock that notes how long it was waited for at most."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []
        self.is_waited_for = threading.Semaphore(0)
        self._lock = threading.Lock()

    def acquire(self, timeout: float) -> bool:
        self.timeouts.append(timeout)
        self.is_waited_for.release()
        return self._lock.acquire(timeout=60.0)

    def release(self) -> None:
        self._lock.release()


def test_a_reading_waits_for_a_change_under_way(lab: SlowLab, clock: SleepClock) -> None:
    """As long as that may take: who waits behind a slow create has not met a hang."""
    lock, sleeps, go_on = NotingLock(), threading.Event(), threading.Event()
    lab.driver._gpus[lab.uuid]._one_at_a_time = lock  # type: ignore[assignment]

    def asleep() -> None:
        sleeps.set()
        assert go_on.wait(60.0)

    clock.while_asleep = asleep
    lab.slow_down(Delays(create_gpu_instance_s=15))
    place = Placement(0, 1)
    change = threading.Thread(target=lab.driver.create, args=(lab.uuid, lab.profile, place))
    reading = threading.Thread(target=lab.driver.slices, args=(lab.uuid,))
    change.start()
    assert sleeps.wait(60.0)
    reading.start()
    for _ in (change, reading):
        assert lock.is_waited_for.acquire(timeout=60.0)
    go_on.set()
    for thread in (change, reading):
        thread.join(60.0)
    assert lock.timeouts == [CHANGE_S, CHANGE_S]


def test_a_reading_behind_a_reading_waits_for_a_change(lab: SlowLab) -> None:
    """One that came before it may be next: who waits behind both has not met a hang."""
    lock = NotingLock()
    lab.driver._gpus[lab.uuid]._one_at_a_time = lock  # type: ignore[assignment]
    lab.driver.slices(lab.uuid)
    assert lock.timeouts == [CHANGE_S]
