"""Modes, reboot, readings, delays, faults: behaviours 4, 5, 7, 8 of docs/explanation/mig.md."""

import time
from pathlib import Path
from typing import Any

import pynvml
import pytest

from miglab_pool.gpu.geometry import Placement
from miglab_pool.gpu.simulated.machine import SimulatedMachine, error_code
from miglab_pool.gpu.simulated.state import Delays
from miglab_pool.gpu.watched import open_gpus

from .conftest import Machine, SleepClock

ONE, THREE = 19, 9
ON, OFF = 1, 0


def _mode(machine: Machine) -> list[int]:
    return list(machine.nvml.nvmlDeviceGetMigMode(machine.gpu))


# -- mode -----------------------------------------------------------------------------------------


def test_ampere_needs_a_reset_to_change_mode(a100: Machine) -> None:
    """The call succeeds, the status says RESET_REQUIRED, and the mode is pending until a reset."""
    status = a100.nvml.nvmlDeviceSetMigMode(a100.gpu, OFF)
    assert (status, _mode(a100)) == (pynvml.NVML_ERROR_RESET_REQUIRED, [ON, OFF])
    a100.outside.reboot()
    assert _mode(a100) == [OFF, OFF]


def test_hopper_changes_mode_at_once(h100: Machine) -> None:
    """Without a reset, and field 184 says so; with a slice on the GPU the status is IN_USE."""
    (field,) = h100.nvml.nvmlDeviceGetFieldValues(h100.gpu, [184])
    assert field.value.uiVal == 1
    instance = h100.create(ONE)
    assert h100.nvml.nvmlDeviceSetMigMode(h100.gpu, OFF) == pynvml.NVML_ERROR_IN_USE
    assert _mode(h100) == [ON, OFF]
    h100.nvml.nvmlGpuInstanceDestroy(instance)
    assert h100.nvml.nvmlDeviceSetMigMode(h100.gpu, OFF) == pynvml.NVML_SUCCESS
    assert _mode(h100) == [OFF, OFF]


def test_operator_cannot_change_mode_of_a_gpu_in_use(a100: Machine) -> None:
    """`miglab sim mig` is refused while slices are there."""
    a100.create(ONE)
    with pytest.raises(RuntimeError, match="in use"):
        a100.outside.set_mig(False)
    other = a100.driver.gpus()[1].uuid
    a100.outside.set_mig(False, other)
    assert [gpu.mig for gpu in a100.driver.gpus()] == [True, False]


# -- reboot ---------------------------------------------------------------------------------------


def test_reboot_keeps_the_mode_and_loses_the_slices(a100: Machine) -> None:
    """Instances and processes are gone; a pending mode has become current."""
    a100.outside.add_process(a100.slice(), 42, 100)
    a100.nvml.nvmlDeviceSetMigMode(a100.nvml.nvmlDeviceGetHandleByIndex(1), OFF)
    a100.outside.reboot()
    assert a100.driver.slices(a100.uuid) == []
    assert [gpu.mig for gpu in a100.driver.gpus()] == [True, False]
    assert a100.driver.gpu_usage(a100.uuid).processes == ()


# -- readings -------------------------------------------------------------------------------------


def test_memory_and_processes_per_slice(a100: Machine) -> None:
    """A slice shows its own processes alone, the GPU all; an A100 tells not how busy they are."""
    assert a100.nvml.nvmlGpmQueryDeviceSupport(a100.gpu).isSupportedDevice == 0
    first, second = a100.slice(0), a100.slice(1)
    a100.outside.add_process(first, 41, 1000)
    a100.outside.add_process(second, 42, None)
    handle = a100.nvml.nvmlDeviceGetHandleByUUID(first)
    (process,) = a100.nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    assert (process.pid, process.usedGpuMemory >> 20) == (41, 1000)
    memory = a100.nvml.nvmlDeviceGetMemoryInfo(handle)
    assert (memory.total >> 20, memory.used >> 20, memory.free >> 20) == (4864, 1000, 3864)
    everywhere = a100.nvml.nvmlDeviceGetComputeRunningProcesses(a100.gpu)
    assert len({p.gpuInstanceId for p in everywhere}) == 2
    assert [p.usedGpuMemory for p in everywhere] == [1000 << 20, None]  # untold is not zero


def test_a_whole_gpu(tmp_path: Path, clock: SleepClock) -> None:
    """With MIG off there is a number; profiles can be read, but nothing be created."""
    machine = Machine(tmp_path, "A100-40GB", clock, mig=False)
    machine.outside.add_process(machine.uuid, 41, 100, activity_pct=70)
    machine.outside.add_process(machine.uuid, 42, 100, activity_pct=50)
    assert machine.nvml.nvmlDeviceGetUtilizationRates(machine.gpu).gpu == 100
    assert machine.nvml.nvmlDeviceGetGpuInstanceProfileInfo(machine.gpu, 0).id == ONE
    with pytest.raises(pynvml.NVMLError_NotSupported):
        machine.create(ONE)


def _activity(machine: Machine, gi_id: int) -> float:
    nvml = machine.nvml
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 1
    request.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
    samples = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
    for sample in samples:
        nvml.nvmlGpmMigSampleGet(machine.gpu, gi_id, sample)
    request.sample1, request.sample2 = samples
    metric: Any = nvml.nvmlGpmMetricsGet(request).metrics[0]
    assert metric.nvmlReturn == pynvml.NVML_SUCCESS
    for sample in samples:
        nvml.nvmlGpmSampleFree(sample)
    return float(metric.value)


# -- delays ---------------------------------------------------------------------------------------


def test_delay_runs_outside_the_lock_with_the_half_made_state_visible(a100: Machine) -> None:
    """In the middle of a slow act others read, and write, and find the place in use and taken."""
    seen: list[str] = []

    def look() -> None:
        seen.extend(part["state"] for part in a100.outside.view()["gpus"][0]["slices"])
        a100.outside.add_process(a100.uuid, 99, 1)
        (reading,) = a100.driver.slices(a100.uuid)
        handle = a100.nvml.nvmlDeviceGetGpuInstanceById(a100.gpu, reading.gi_id)
        for act in (a100.nvml.nvmlGpuInstanceDestroy, a100.fill):
            with pytest.raises(pynvml.NVMLError_InUse):
                act(handle)
        with pytest.raises(pynvml.NVMLError_InsufficientResources):
            a100.create_at(ONE, 0, 1)

    a100.outside.set_delays(Delays(create_gpu_instance_s=0.8, destroy_gpu_instance_s=1.0))
    a100.clock.while_asleep = look
    instance = a100.create_at(ONE, 0, 1)
    a100.nvml.nvmlGpuInstanceDestroy(instance)
    assert a100.clock.slept_s == [0.8, 1.0]
    assert seen == ["making", "destroying"]
    assert a100.driver.slices(a100.uuid) == []
    a100.clock.while_asleep = lambda: None
    a100.outside.set_delays(Delays(create_compute_instance_s=0.4))
    a100.slice()
    assert a100.clock.slept_s[2:] == [0.4]


def test_act_whose_caller_died_ends_all_the_same(a100: Machine) -> None:
    """A creation interrupted by its caller's death is finished by the driver in its own time."""
    a100.outside.set_delays(Delays(create_gpu_instance_s=10))

    def die() -> None:
        raise KeyboardInterrupt

    a100.clock.while_asleep = die
    with pytest.raises(KeyboardInterrupt):
        a100.create_at(ONE, 0, 1)
    assert a100.outside.view()["gpus"][0]["slices"][0]["state"] == "making"
    a100.clock.now_s += 10
    assert a100.outside.view()["gpus"][0]["slices"][0]["state"] == "half-made"


def test_what_is_on_a_gpu_does_not_hang_on_a_clock_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice is there for every process, whatever wall clock each has; as on a real GPU."""
    monkeypatch.setattr(time, "time", lambda: wall_clock)
    wall_clock = 3600.0
    machine = SimulatedMachine.create(tmp_path)
    driver = open_gpus(simulated_state=tmp_path)
    gpu = driver.gpus()[0]
    made = driver.create(gpu.uuid, gpu.geometry.by_name["1g.5gb"], Placement(0, 1))
    wall_clock = 0.0
    assert [reading.uuid for reading in driver.slices(gpu.uuid)] == [made.uuid]
    assert machine.view()["gpus"][0]["slices"][0]["state"] == "ready"


def test_a_restart_of_the_host_leaves_nothing_in_the_making(a100: Machine) -> None:
    """The clock of the delays begins anew with the host: what it says of before is over."""
    a100.clock.now_s = 10_000_000.0
    uuid = a100.slice()
    a100.clock.now_s = 10.0
    assert [reading.uuid for reading in a100.driver.slices(a100.uuid)] == [uuid]


# -- faults ---------------------------------------------------------------------------------------


def test_without_permission_reading_works_and_creating_does_not(a100: Machine) -> None:
    """NO_PERMISSION for every change; reading goes on."""
    instance = a100.create_at(ONE, 0, 1)
    a100.outside.break_gpu("no-permission")
    for act in (
        lambda: a100.create_at(ONE, 1, 1),
        lambda: a100.fill(instance),
        lambda: a100.nvml.nvmlGpuInstanceDestroy(instance),
        lambda: a100.nvml.nvmlDeviceSetMigMode(a100.gpu, OFF),
    ):
        with pytest.raises(pynvml.NVMLError_NoPermission):
            act()
    assert len(a100.driver.slices(a100.uuid)) == 1


def test_lost_gpu_answers_nothing_else(a100: Machine) -> None:
    """Every call about it is GPU_IS_LOST; the other GPU is well."""
    a100.outside.break_gpu("lost", a100.uuid)
    for act in (
        lambda: a100.nvml.nvmlDeviceGetMemoryInfo(a100.gpu),
        lambda: a100.create(ONE),
        lambda: a100.nvml.nvmlDeviceGetHandleByIndex(0),
    ):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            act()
    assert a100.nvml.nvmlDeviceGetMemoryInfo(a100.nvml.nvmlDeviceGetHandleByIndex(1)).used == 0
    a100.outside.break_gpu("ok", a100.uuid)
    assert a100.nvml.nvmlDeviceGetMemoryInfo(a100.gpu).used == 0


def test_stuck_call_waits_until_the_gpu_is_unstuck(a100: Machine) -> None:
    """A call on a stuck GPU hangs; it goes on when the GPU does."""
    a100.outside.break_gpu("stuck", a100.uuid)

    def unstick_later() -> None:
        if len(a100.clock.slept_s) == 5:
            a100.outside.break_gpu("ok", a100.uuid)

    a100.clock.while_asleep = unstick_later
    assert a100.nvml.nvmlDeviceGetMemoryInfo(a100.gpu).used == 0
    assert len(a100.clock.slept_s) == 5


def test_ordered_failure_happens_so_many_times(a100: Machine) -> None:
    """The named call fails as ordered, then works; neither other calls nor the other GPU's do."""
    code, call = error_code("unknown"), "nvmlDeviceCreateGpuInstanceWithPlacement"
    a100.outside.fail_next(call, code, times=2, gpu_uuid=a100.uuid)
    a100.outside.fail_next(call, code, gpu_uuid=a100.driver.gpus()[1].uuid)
    for _ in range(2):
        with pytest.raises(pynvml.NVMLError_Unknown):
            a100.create_at(ONE, 0, 1)
        assert a100.driver.slices(a100.uuid) == []
    a100.create_at(ONE, 0, 1)


def test_events_tell_of_faults(a100: Machine) -> None:
    """Each set hears of its GPUs' faults, once, from then on; a wait ends when one comes."""
    nvml = a100.nvml
    a100.outside.break_gpu("xid", xid=31)
    first, second = nvml.nvmlEventSetCreate(), nvml.nvmlEventSetCreate()
    other = nvml.nvmlDeviceGetHandleByIndex(1)
    nvml.nvmlDeviceRegisterEvents(a100.gpu, pynvml.nvmlEventTypeXidCriticalError, first)
    nvml.nvmlDeviceRegisterEvents(other, pynvml.nvmlEventTypeXidCriticalError, second)

    def break_later() -> None:
        if len(a100.clock.slept_s) == 3:
            a100.outside.break_gpu("xid", xid=48)

    a100.clock.while_asleep = break_later
    fault = nvml.nvmlEventSetWait(first, 60_000)
    assert len(a100.clock.slept_s) == 3
    assert (fault.eventType, fault.eventData) == (pynvml.nvmlEventTypeXidCriticalError, 48)
    assert nvml.nvmlDeviceGetUUID(fault.device) == a100.uuid
    for events in (first, second):
        with pytest.raises(pynvml.NVMLError_Timeout):
            nvml.nvmlEventSetWait(events, 100)
        nvml.nvmlEventSetFree(events)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            nvml.nvmlEventSetWait(events, 0)


# -- the object -----------------------------------------------------------------------------------


def test_everything_of_pynvml_is_there(a100: Machine) -> None:
    """Types, constants and exceptions are pynvml's own; functions have its names."""
    for name, value in vars(pynvml).items():
        assert hasattr(a100.nvml, name)
        if isinstance(value, type):
            assert getattr(a100.nvml, name) is value
    with pytest.raises(AttributeError, match="nvmlNoSuchThing"):
        _ = a100.nvml.nvmlNoSuchThing
