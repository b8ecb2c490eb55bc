"""The simulated machine: behaviours 1 to 8 of docs/explanation/mig.md."""

import time
from collections.abc import Callable
from ctypes import byref, c_uint
from pathlib import Path

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miglab_pool.gpu.geometry import Placement, ProfilePlacement, legal_placements
from miglab_pool.gpu.simulated.geometry import model_geometry
from miglab_pool.gpu.simulated.machine import SimulatedMachine, error_code
from miglab_pool.gpu.simulated.nvml import SimulatedNvml
from miglab_pool.gpu.simulated.rules import models
from miglab_pool.gpu.simulated.state import Delays
from miglab_pool.gpu.watched import open_gpus

from .conftest import Machine

ONE, TWO, THREE, SEVEN, MEDIA = 19, 14, 9, 0, 20
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


def test_hopper_forgets_its_mode_at_a_reboot(h100: Machine) -> None:
    """No memory of the card holds it; whoever wants MIG turns it on again."""
    h100.outside.reboot()
    assert _mode(h100) == [OFF, OFF]
    h100.outside.set_mig(True)
    assert _mode(h100) == [ON, ON]


def test_a_missing_gpu_is_in_no_enumeration(a100: Machine) -> None:
    """The others move up; its handle is lost; a reboot does not bring it back, a repair does."""
    second = a100.driver.gpus()[1]
    a100.outside.break_gpu("missing", a100.uuid)
    a100.outside.reboot()
    assert a100.nvml.nvmlDeviceGetCount() == 1
    with pytest.raises(pynvml.NVMLError_NotFound):
        a100.nvml.nvmlDeviceGetHandleByUUID(a100.uuid)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        a100.nvml.nvmlDeviceGetName(a100.gpu)
    handle = a100.nvml.nvmlDeviceGetHandleByIndex(0)
    assert a100.nvml.nvmlDeviceGetUUID(handle) == second.uuid
    assert a100.nvml.nvmlDeviceGetIndex(handle) == 0
    a100.outside.break_gpu("ok", a100.uuid)
    assert [gpu.index for gpu in a100.driver.gpus()] == [0, 1]


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


# -- delays ---------------------------------------------------------------------------------------


def test_delay_runs_outside_the_lock_with_the_half_made_state_visible(a100: Machine) -> None:
    """In the middle of a slow act others read, and write, and find the place in use and taken."""
    states: list[str] = []

    def look() -> None:
        states.extend(part["state"] for part in a100.outside.view()["gpus"][0]["slices"])
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
    assert states == ["making", "destroying"]
    assert a100.driver.slices(a100.uuid) == []
    a100.clock.while_asleep = lambda: None
    a100.outside.set_delays(Delays(create_compute_instance_s=0.4))
    a100.outside.remove_process(99)
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
    created = driver.create(gpu.uuid, gpu.geometry.by_name["1g.5gb"], Placement(0, 1))
    wall_clock = 0.0
    assert [reading.uuid for reading in driver.slices(gpu.uuid)] == [created.uuid]
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


def test_an_event_carries_the_ids_of_its_slice(a100: Machine) -> None:
    """A program's fault names the slice it ran on; one of the card has no ids."""
    mig = a100.slice(2)
    (reading,) = a100.driver.slices(a100.uuid)
    events = a100.nvml.nvmlEventSetCreate()
    a100.nvml.nvmlDeviceRegisterEvents(a100.gpu, pynvml.nvmlEventTypeXidCriticalError, events)
    for uuid in (mig, a100.uuid):
        a100.outside.break_gpu("xid", uuid, xid=31)
    ids = [
        (event.gpuInstanceId, event.computeInstanceId)
        for event in (a100.nvml.nvmlEventSetWait(events, 0) for _ in range(2))
    ]
    assert ids == [(reading.gi_id, reading.ci_id), (0xFFFFFFFF, 0xFFFFFFFF)]


@pytest.mark.parametrize(("xid", "action"), [(31, 0), (94, 0), (95, 1), (119, 1), (79, 2)])
def test_the_recovery_action_stays_until_a_reset(a100: Machine, xid: int, action: int) -> None:
    """Field 230 asks for what NVIDIA's catalogue does, until the card was reset."""

    def recovery() -> int:
        (field,) = a100.nvml.nvmlDeviceGetFieldValues(a100.gpu, [230])
        return int(field.value.uiVal)

    a100.outside.break_gpu("xid", xid=xid)
    assert recovery() == action
    a100.outside.reboot()
    assert recovery() == 0


# -- the object -----------------------------------------------------------------------------------


def test_everything_of_pynvml_is_there(a100: Machine) -> None:
    """Types, constants and exceptions are pynvml's own; functions have its names."""
    for name, value in vars(pynvml).items():
        assert hasattr(a100.nvml, name)
        if isinstance(value, type):
            assert getattr(a100.nvml, name) is value
    with pytest.raises(AttributeError, match="nvmlNoSuchThing"):
        _ = a100.nvml.nvmlNoSuchThing


Act = Callable[[Machine], object]


def several(*profile_ids: int) -> Act:
    """GPU instances one after another, where the driver likes."""
    return lambda machine: [machine.create(profile_id) for profile_id in profile_ids]


def at(profile_id: int, start: int, size: int = 1) -> Act:
    return lambda machine: machine.create_at(profile_id, start, size)


REFUSED: dict[str, tuple[Act, Act, str]] = {
    "an enum where the id belongs": (several(), several(1), "InvalidArgument"),
    "a start past the last": (several(), at(ONE, 7), "InvalidArgument"),
    "a start past the GPU": (several(), at(ONE, 9), "InvalidArgument"),
    "a size that is another's": (several(), at(ONE, 0, 2), "InvalidArgument"),
    "a second media slice": (at(MEDIA, 0), at(MEDIA, 1), "InsufficientResources"),
    "no room by the driver's own choice": (
        several(ONE, ONE, TWO),
        several(THREE),
        "InsufficientResources",
    ),
    "activity of a slice on Ampere": (
        several(ONE),
        lambda m: m.nvml.nvmlGpmMigSampleGet(m.gpu, 0, m.nvml.nvmlGpmSampleAlloc()),
        "NotSupported",
    ),
    "a function that is not simulated": (
        several(),
        lambda m: m.nvml.nvmlDeviceGetNvLinkVersion(m.gpu, 0),
        "FunctionNotFound",
    ),
    "everything, without the driver": (
        lambda m: m.outside.break_gpu("no-driver"),
        lambda m: m.nvml.nvmlInit(),
        "DriverNotLoaded",
    ),
}


@pytest.mark.parametrize(("before", "act", "error"), REFUSED.values(), ids=REFUSED)
def test_refused(a100: Machine, before: Act, act: Act, error: str) -> None:
    """As NVML refuses it."""
    before(a100)
    with pytest.raises(getattr(pynvml, f"NVMLError_{error}")):
        act(a100)


def test_possible_placements_stay_the_same_when_taken(a100: Machine) -> None:
    """The list is static; what remains is another question."""
    a100.create_at(SEVEN, 0, 8)
    count = c_uint()
    a100.nvml.nvmlDeviceGetGpuInstancePossiblePlacements(a100.gpu, ONE, None, byref(count))
    assert count.value == 7
    assert a100.nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(a100.gpu, ONE) == 0


def test_destruction_is_in_the_reverse_order_of_creation(a100: Machine) -> None:
    """A process keeps its compute instance in use, that its GPU instance.

    A monitoring client's handle blocks the GPU instance, not its compute instance.
    """
    nvml, instance = a100.nvml, a100.create_at(ONE, 0, 1)
    compute = a100.fill(instance)
    (reading,) = a100.driver.slices(a100.uuid)
    with pytest.raises(pynvml.NVMLError_InUse):
        nvml.nvmlGpuInstanceDestroy(instance)
    a100.outside.add_process(str(reading.uuid), 42, 100)
    with pytest.raises(pynvml.NVMLError_InUse):
        nvml.nvmlComputeInstanceDestroy(compute)
    a100.outside.remove_process(42)
    a100.outside.break_gpu("leak")
    nvml.nvmlComputeInstanceDestroy(compute)
    with pytest.raises(pynvml.NVMLError_InUse):
        nvml.nvmlGpuInstanceDestroy(instance)
    assert a100.mig_indices() == []
    assert [r.ci_id for r in a100.driver.slices(a100.uuid)] == [None]
    a100.outside.break_gpu("ok")
    nvml.nvmlGpuInstanceDestroy(instance)
    with pytest.raises(pynvml.NVMLError_NotFound):
        nvml.nvmlGpuInstanceGetInfo(instance)


def test_compute_instances_share_a_gpu_instance(a100: Machine) -> None:
    """A 3g takes a 2c and a 1c, then is full; a 4c it cannot have."""
    instance = a100.create_at(THREE, 4, 4)
    a100.fill(instance, 1)
    a100.fill(instance, 0)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        a100.fill(instance, 0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        a100.fill(instance, 3)
    assert [r.ci_id for r in a100.driver.slices(a100.uuid)] == [0, 1]


def test_indices_are_sparse_and_handles_used_again(a100: Machine) -> None:
    """A destroyed slice leaves a hole, and an old handle then reads the slice that fills it."""
    instances = [a100.create_at(ONE, start, 1) for start in range(3)]
    computes = [a100.fill(instance) for instance in instances]
    old = a100.nvml.nvmlDeviceGetMigDeviceHandleByIndex(a100.gpu, 1)
    a100.nvml.nvmlComputeInstanceDestroy(computes[1])
    assert a100.mig_indices() == [0, 2]
    with pytest.raises(pynvml.NVMLError_NotFound):
        a100.nvml.nvmlDeviceGetGpuInstanceId(old)
    new = a100.create_at(TWO, 4, 2)
    a100.fill(new, 1)
    assert a100.nvml.nvmlDeviceGetGpuInstanceId(old) == a100.nvml.nvmlGpuInstanceGetInfo(new).id


def test_uuid_repeats_after_re_creation_elsewhere(a100: Machine) -> None:
    """The same ids give the same UUID, even for a slice at another place.

    GPU-instance ids neither are nor follow the placements.
    """
    profile = a100.driver.gpus()[0].geometry.by_id[ONE]
    first = a100.driver.create(a100.uuid, profile, Placement(0, 1))
    a100.driver.destroy(a100.uuid, first.gi_id)
    second = a100.driver.create(a100.uuid, profile, Placement(6, 1))
    assert (first.uuid, first.gi_id) == (second.uuid, second.gi_id)
    assert first.placement != second.placement
    others_created = [
        a100.driver.create(a100.uuid, profile, Placement(start, 1)) for start in range(6)
    ]
    ids = [reading.gi_id for reading in (*others_created, second)]
    assert len(set(ids)) == 7
    assert ids != sorted(ids) and not set(ids) & set(range(7))


@settings(max_examples=settings.default.max_examples // 2, suppress_health_check=list(HealthCheck))
@given(data=st.data(), model=st.sampled_from(list(models())))
def test_any_order_of_calls_keeps_to_the_geometry(
    data: st.DataObject, model: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A creation works exactly where the geometry allows it, whatever was made and destroyed."""
    folder = tmp_path_factory.mktemp("machine")
    SimulatedMachine.create(folder, model=model)
    machine = Machine.__new__(Machine)
    machine.nvml = SimulatedNvml(folder)
    machine.nvml.nvmlInit()
    machine.gpu = machine.nvml.nvmlDeviceGetHandleByIndex(0)
    geometry = model_geometry(model)
    live: dict[int, ProfilePlacement] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        if live and data.draw(st.booleans()):
            gi_id = data.draw(st.sampled_from(sorted(live)))
            del live[gi_id]
            handle = machine.nvml.nvmlDeviceGetGpuInstanceById(machine.gpu, gi_id)
            machine.nvml.nvmlGpuInstanceDestroy(handle)
            continue
        profile = data.draw(st.sampled_from(geometry.profiles))
        place = data.draw(st.sampled_from(profile.placements))
        if place in legal_placements(profile, live.values()):
            instance = machine.create_at(profile.profile_id, place.start, place.size)
            live[machine.nvml.nvmlGpuInstanceGetInfo(instance).id] = ProfilePlacement(
                profile, place
            )
        else:
            with pytest.raises(pynvml.NVMLError_InsufficientResources):
                machine.create_at(profile.profile_id, place.start, place.size)
