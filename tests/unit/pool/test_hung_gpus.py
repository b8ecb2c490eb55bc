"""Driver calls that do not come back: their GPU is unknown, and no other one is held up."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pynvml
import pytest
from tests.refusals import because

from miglab_api.tickets import TicketState
from miglab_pool.gpu.driver import Driver
from miglab_pool.gpu.readings import DriverMissing, GpuHung, GpuMissing, Xid
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.simulated.nvml import SimulatedNvml
from miglab_pool.gpu.watched import MOST_HANGING, WatchedDriver, wait_for_outcome
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.pool import Pool
from miglab_pool.refused import Refused

from .conftest import SETTINGS, World

LIMIT_S = 20.0


class HangingLab(World):
    """A pool over simulated GPUs that hang; its clock stands for the wait for a call that does."""

    def open(self) -> None:
        """As ever, but that nobody has looked at the GPUs yet."""
        self.uuids = [gpu.uuid for gpu in self.machine.state().gpus]
        self.hung = threading.Event()  # some call hangs now
        self.let_go = threading.Event()
        nvml = SimulatedNvml(self.folder / "gpus", sleep=self._sleep)
        self.ledger = Ledger(self.folder / "ledger.sqlite")
        self.driver = WatchedDriver(
            lambda uuids, models: Driver(nvml, uuids, models),
            self.uuids,
            simulated=True,
            limit_s=LIMIT_S,
            wait=self._wait,
            clock=lambda: self.at,
        )
        self.pool = Pool(SETTINGS, self.ledger, self.driver, self.holders, lambda: self.at)

    def _sleep(self, _seconds: float) -> None:
        self.hung.set()
        self.let_go.wait(60)

    def _wait(self, outcome: "Future[Any]", limit_s: float) -> bool:
        """Wait until the call is back, or hangs: then the clock has gone on by the limit."""
        while not wait_for_outcome(outcome, 0.001):
            if self.hung.is_set():
                self.hung.clear()
                self.at += limit_s
                return False
        return True

    def mend(self) -> None:
        """Let every call that hangs come back; a while later everything is looked at again."""
        for uuid in self.uuids:
            self.machine.break_gpu("ok", uuid)
        self.let_go.set()
        while self.driver.longest_call_s:
            os.sched_yield()
        self.pass_time(SETTINGS.tuning.retry_max_s)
        self.work()

    def gpus(self) -> list[str]:
        return [gpu.state for gpu in self.pool.snapshot().gpus]

    def close(self) -> None:
        self.mend()
        self.check()
        self.driver.close()
        super().close()


MakeLab = Callable[[int], HangingLab]


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[MakeLab]:
    labs: list[HangingLab] = []

    def make(gpus: int) -> HangingLab:
        labs.append(HangingLab(tmp_path, gpus=gpus))
        return labs[-1]

    yield make
    for lab in labs:
        lab.close()


READING = ["nvmlDeviceGetMigMode", "nvmlDeviceGetTemperature"]


@pytest.mark.parametrize("function", ["", *READING, "nvmlDeviceGetGpuInstances"])
def test_a_gpu_that_hangs_holds_up_no_other(make_lab: MakeLab, function: str) -> None:
    """Whichever call it hangs in: it is unknown, and whoever asks is served by the other."""
    lab = make_lab(2)
    lab.pool.reconcile()
    lab.machine.hang(function, lab.uuids[0])
    before = lab.at
    lab.pool.reconcile()
    assert lab.at - before == LIMIT_S
    assert lab.gpus() == ["unknown", "ok"]
    assert "has not come back for 20 s" in lab.pool.snapshot().gpus[0].reason
    assert lab.grant("ada").slices[0].gpu == 1
    assert lab.driver.longest_call_s >= LIMIT_S


def test_a_reading_that_hangs_is_noticed(make_lab: MakeLab) -> None:
    """Reading the slices' memory tells it too; what was read of the slice counts no more."""
    lab = make_lab(2)
    lab.pool.reconcile()
    lab.grant("ada")
    (row,) = lab.ledger.state.slices.values()
    lab.pool.sample()
    assert lab.pool.store.slice_usage[row.id].memory_used_mib is not None
    lab.machine.hang("nvmlDeviceGetMemoryInfo", row.gpu)
    lab.pool.sample()
    assert lab.gpus()[lab.uuids.index(row.gpu)] == "unknown"
    assert lab.pool.store.slice_usage[row.id].memory_used_mib is None
    for uuid in lab.uuids:
        lab.machine.break_gpu("stuck", uuid)
    lab.pool.sample()
    assert lab.gpus() == ["unknown"] * 2


def test_a_call_that_creates_and_hangs_shuts_its_gpu(make_lab: MakeLab) -> None:
    """Its ticket is served elsewhere, nothing else is asked of that GPU, and it heals after."""
    lab = make_lab(2)
    lab.pool.reconcile()
    ticket = lab.ask("ada")
    lab.pool.turn()
    (row,) = lab.ledger.state.slices.values()
    lab.machine.hang("nvmlDeviceCreateGpuInstance", row.gpu)
    lab.work()
    assert lab.pool.tickets.find(ticket.id).state == TicketState.OFFERED
    with pytest.raises(GpuHung):
        lab.driver.slices(row.gpu)  # at once: the call that hangs may yet cut
    lab.mend()
    assert lab.gpus() == ["ok", "ok"]
    present_uuids = {reading.uuid for gpu in lab.uuids for reading in lab.driver.slices(gpu)}
    assert present_uuids == {row.uuid for row in lab.ledger.state.slices.values()}


def test_threads_that_hang_are_few(make_lab: MakeLab) -> None:
    """A GPU is asked again and again, and no more than a few of its threads are left behind."""
    lab = make_lab(1)
    lab.pool.reconcile()
    lab.machine.break_gpu("xid", xid=48)
    lab.pool.reconcile()
    lab.machine.break_gpu("stuck")
    before = threading.active_count()
    for _ in range(3 * MOST_HANGING):
        lab.at += SETTINGS.tuning.retry_max_s
        lab.pool.reconcile()
    assert threading.active_count() - before <= MOST_HANGING
    lab.mend()
    assert lab.driver.longest_call_s == 0
    (wellness,) = lab.pool.wellness().values()
    assert wellness.health.xids == (Xid(48),)


@pytest.mark.parametrize("is_first_start", [False, True])
def test_when_the_whole_driver_hangs_all_are_unknown(
    make_lab: MakeLab, is_first_start: bool
) -> None:
    """The pool goes on; at the first start, when no GPU has said what it is, it says so."""
    lab = make_lab(3)
    if not is_first_start:
        lab.pool.reconcile()
    lab.machine.hang()
    lab.pool.reconcile()
    if is_first_start:
        with pytest.raises(Refused, check=because("gpus-unknown")):
            lab.ask("ada")
    else:
        assert lab.wait("ada").state == TicketState.WAITING
    assert lab.gpus() == ["unknown"] * 3


def test_a_gpu_that_is_missing_at_the_start(make_lab: MakeLab) -> None:
    """It is lost, with a number of its own while those behind it have moved up; then it is back."""
    lab = make_lab(3)
    lab.machine.break_gpu("missing", lab.uuids[0])
    lab.pool.reconcile()
    gpus = {gpu.uuid: gpu for gpu in lab.pool.snapshot().gpus}
    assert [gpus[uuid].state for uuid in lab.uuids] == ["lost", "ok", "ok"]
    assert [gpus[uuid].index for uuid in lab.uuids] == [2, 0, 1]
    assert lab.grant("ada").slices[0].gpu in (0, 1)
    lab.mend()
    gpus = {gpu.uuid: gpu for gpu in lab.pool.snapshot().gpus}
    assert [gpus[uuid].state for uuid in lab.uuids] == ["ok"] * 3
    lab.pool.reconcile()
    gpus = {gpu.uuid: gpu for gpu in lab.pool.snapshot().gpus}
    assert [gpus[uuid].index for uuid in lab.uuids] == [0, 1, 2]


def test_opening(tmp_path: Path) -> None:
    """Only a missing driver ends it: a GPU that is not there, fails or hangs keeps no other out."""
    machine = SimulatedMachine.create(tmp_path, 1)
    (gpu,) = machine.state().gpus
    nvml = SimulatedNvml(tmp_path)

    def watched(*uuids: str) -> WatchedDriver:
        opened = lambda gpus, models: Driver(nvml, gpus, models)  # noqa: E731 -- one line
        return WatchedDriver(opened, uuids, simulated=True, limit_s=LIMIT_S)

    driver = watched(gpu.uuid, "GPU-x")
    driver.check(5.0)
    assert [info.uuid for info in driver.gpus()] == [gpu.uuid]
    with pytest.raises(GpuMissing, match="There is no GPU GPU-x"):
        driver.info("GPU-x")
    machine.fail_next("nvmlDeviceGetHandleByUUID", pynvml.NVML_ERROR_UNKNOWN)
    watched(gpu.uuid).check(5.0)
    machine.hang()
    watched(gpu.uuid).check(0.01)
    machine.break_gpu("ok")
    machine.break_gpu("no-driver")
    with pytest.raises(DriverMissing):
        watched(gpu.uuid).check(5.0)
