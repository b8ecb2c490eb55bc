"""What the driver does with GPUs that refuse, fail and disappear."""

from pathlib import Path

import pynvml
import pytest

from miglab_pool.gpu import errors
from miglab_pool.gpu.driver import Driver
from miglab_pool.gpu.geometry import Placement
from miglab_pool.gpu.nvml.call import call, read
from miglab_pool.gpu.nvml.health import judge
from miglab_pool.gpu.readings import SliceReading, Usage
from miglab_pool.gpu.simulated.machine import SimulatedMachine, error_code
from miglab_pool.gpu.simulated.nvml import SimulatedNvml
from miglab_pool.gpu.watched import open_gpus

from .conftest import Machine

IN_USE = error_code("IN_USE")


def _make(machine: Machine, name: str = "1g.5gb", start: int = 0) -> SliceReading:
    profile = machine.driver.gpus()[0].geometry.by_name[name]
    return machine.driver.create(machine.uuid, profile, Placement(start, profile.size))


def _raiser(code: int):
    def fail() -> None:
        raise pynvml.NVMLError(code)

    return fail


@pytest.mark.parametrize(
    ("name", "kind", "advice"),
    [
        ("NO_PERMISSION", errors.NotPermitted, "root"),
        ("GPU_IS_LOST", errors.GpuLost, "reset"),
        ("IN_USE", errors.InUse, "stop that"),
        ("INSUFFICIENT_RESOURCES", errors.NoRoom, "read the GPU's slices again"),
        ("NOT_FOUND", errors.NotFound, "read the GPU's slices again"),
        ("NOT_SUPPORTED", errors.NotSupported, "is MIG on"),
        ("DRIVER_NOT_LOADED", errors.DriverMissing, "modprobe"),
        ("LIBRARY_NOT_FOUND", errors.DriverMissing, "simulated GPUs"),
        ("UNKNOWN", errors.UnknownGpuError, "kernel log"),
    ],
)
def test_each_nvml_error_has_a_type_and_advice(name: str, kind: type, advice: str) -> None:
    """The message says what failed, on what, and what to do."""
    with pytest.raises(kind, match=f"Could not cut GPU-1 .*{advice}"):
        call("cut GPU-1", _raiser(error_code(name)))


def test_reading_that_is_not_supported_is_none() -> None:
    """Unknown is None; any other failure is an error."""
    assert read("read", _raiser(error_code("NOT_SUPPORTED"))) is None
    with pytest.raises(errors.GpuLost):
        read("read", _raiser(error_code("GPU_IS_LOST")))


def test_failed_compute_instance_leaves_nothing_behind(a100: Machine) -> None:
    """A GPU instance that got no compute instance is taken back; nor is one made over another."""
    a100.outside.fail_next("nvmlGpuInstanceCreateComputeInstance", error_code("UNKNOWN"))
    with pytest.raises(errors.UnknownGpuError):
        _make(a100)
    assert a100.driver.slices(a100.uuid) == []
    made = _make(a100)
    with pytest.raises(errors.NoRoom):
        _make(a100)
    assert a100.driver.slices(a100.uuid) == [made]


def test_half_made_slice_that_is_stuck_is_seen_and_destroyed_later(a100: Machine) -> None:
    """Where even taking back fails, the orphan is listed, its usage unknown."""
    a100.outside.fail_next("nvmlGpuInstanceCreateComputeInstance", error_code("UNKNOWN"))
    a100.outside.fail_next("nvmlGpuInstanceDestroy", IN_USE)
    with pytest.raises(errors.UnknownGpuError):
        _make(a100)
    (orphan,) = a100.driver.slices(a100.uuid)
    assert (orphan.ci_id, orphan.uuid) == (None, None)
    assert a100.driver.usages(a100.uuid, [orphan])[orphan] == Usage(None, None)
    a100.driver.destroy(a100.uuid, orphan.gi_id)
    assert a100.driver.slices(a100.uuid) == []


def test_destroying_twice_is_fine(a100: Machine) -> None:
    """A slice that is gone already is no error, and has no usage: gone is said, not zero."""
    made = _make(a100)
    for _ in range(2):
        a100.driver.destroy(a100.uuid, made.gi_id)
    assert a100.driver.slices(a100.uuid) == []
    assert a100.driver.usages(a100.uuid, [made]) == {}


def test_compute_instance_already_gone_does_not_save_its_gpu_instance(a100: Machine) -> None:
    """When someone else destroyed the compute instance in between, the rest is still done."""
    made = _make(a100)
    a100.outside.fail_next("nvmlComputeInstanceDestroy", error_code("NOT_FOUND"))
    with pytest.raises(errors.InUse):  # it was not really gone: destroy went on to the instance
        a100.driver.destroy(a100.uuid, made.gi_id)


def test_slice_in_use_is_not_destroyed(a100: Machine) -> None:
    """A process keeps its slice, and the slice stays whole."""
    made = _make(a100)
    assert made.uuid
    a100.outside.add_process(made.uuid, 42, 10)
    with pytest.raises(errors.InUse):
        a100.driver.destroy(a100.uuid, made.gi_id)
    assert a100.driver.slices(a100.uuid) == [made]
    assert a100.driver.usages(a100.uuid, [made])[made].memory_used_mib == 10


def test_all_slices_are_read_in_one_walk(a100: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 64 GPUs, one walk for each slice kept half a core of the pool busy.

    One that cannot be read is unknown, while its neighbours are read.
    """
    made = [_make(a100, start=start) for start in range(7)]
    opened: list[int] = []
    open_one = a100.nvml.nvmlDeviceGetMigDeviceHandleByIndex
    monkeypatch.setattr(
        a100.nvml,
        "nvmlDeviceGetMigDeviceHandleByIndex",
        lambda gpu, index: opened.append(index) or open_one(gpu, index),
    )
    a100.outside.fail_next("nvmlDeviceGetMemoryInfo", error_code("UNKNOWN"))
    usages = a100.driver.usages(a100.uuid, made)
    assert [usages[one].processes for one in made] == [None, *[()] * 6]
    assert [usages[one].memory_used_mib for one in made] == [None, *[0] * 6]
    assert len(opened) == len(set(opened))


def test_a_machine_may_have_hundreds_of_gpus(tmp_path: Path) -> None:
    """Each is found by its UUID, and the last one is cut like the first."""
    folder = SimulatedMachine.create(tmp_path, 200).folder
    nvml = SimulatedNvml(folder)
    nvml.nvmlInit()
    driver = Driver(nvml)
    gpus = driver.gpus()
    assert len({gpu.uuid for gpu in gpus}) == 200
    profile = gpus[-1].geometry.profiles[0]
    made = driver.create(gpus[-1].uuid, profile, profile.placements[0])
    assert driver.slices(gpus[-1].uuid) == [made]
    assert driver.slices(gpus[0].uuid) == []


def test_lost_gpu_is_listed_with_its_mode_unknown(a100: Machine) -> None:
    """What was known of it stays; its mode is None, its health says lost and what to do."""
    before = a100.driver.gpus()[0]
    a100.outside.break_gpu("lost", a100.uuid)
    after = a100.driver.gpus()[0]
    assert (after.uuid, after.geometry, after.mig) == (before.uuid, before.geometry, None)
    health = a100.driver.health(a100.uuid)
    assert (health.ok, health.lost, health.temperature_c) == (False, True, None)
    assert "reset" in health.reason
    with pytest.raises(errors.GpuLost):
        a100.driver.slices(a100.uuid)


def test_old_driver_without_profile_names_gets_the_same_names(a100: Machine) -> None:
    """Names are made up as NVIDIA does where NVML knows version 1 of the structure alone."""
    missing = error_code("FUNCTION_NOT_FOUND")
    a100.outside.fail_next("nvmlDeviceGetGpuInstanceProfileInfoV", missing, times=10_000)
    old = open_gpus(simulated_state=a100.outside.folder).gpus()[0].geometry
    assert [p.name for p in old.profiles] == [
        p.name for p in a100.driver.gpus()[0].geometry.profiles
    ]


@pytest.mark.parametrize(
    ("ecc_errors", "xids", "ok"),
    [
        (0, (), True),
        (0, (13, 31, 43), True),
        (0, (13, 79), False),
        (2, (), False),
        (None, None, None),
        (None, (), True),
        (0, None, True),
    ],
)
def test_health_is_judged_by_faults_of_the_gpu(ecc_errors, xids, ok) -> None:
    """Application faults do not count, memory errors do, and nothing readable is unknown."""
    judged, reason = judge(ecc_errors, xids)
    assert judged is ok
    assert bool(reason) == (ok is not True)


def test_xid_seen_once_is_remembered(a100: Machine) -> None:
    """Health goes on telling of a fault after its event was taken."""
    a100.driver.health(a100.uuid)
    a100.outside.break_gpu("xid", a100.uuid, xid=48)
    assert [a100.driver.health(a100.uuid).xids for _ in range(2)] == [(48,), (48,)]
