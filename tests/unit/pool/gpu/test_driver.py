"""What the driver does with GPUs that refuse, fail and disappear."""

from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
from tests.nvml_errors import hide_profile

from miglab_pool.gpu import readings
from miglab_pool.gpu.driver import Driver
from miglab_pool.gpu.geometry import Placement, ProfilePlacement
from miglab_pool.gpu.health import NEEDS, _is_share, judge, read_needs
from miglab_pool.gpu.nvml import call, read_if_supported
from miglab_pool.gpu.readings import SliceGone, SliceReading, Usage, Xid
from miglab_pool.gpu.simulated.machine import error_code
from miglab_pool.gpu.watched import open_gpus

from .conftest import Machine, SleepClock

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
        ("NO_PERMISSION", readings.NotPermitted, "root"),
        ("GPU_IS_LOST", readings.GpuLost, "reset"),
        ("IN_USE", readings.InUse, "stop that"),
        ("INSUFFICIENT_RESOURCES", readings.NoRoom, "read the GPU's slices again"),
        ("NOT_FOUND", readings.NotFound, "read the GPU's slices again"),
        ("NOT_SUPPORTED", readings.NotSupported, "is MIG on"),
        ("DRIVER_NOT_LOADED", readings.DriverMissing, "modprobe"),
        ("LIBRARY_NOT_FOUND", readings.DriverMissing, "simulated GPUs"),
        ("UNKNOWN", readings.UnknownGpuError, "kernel log"),
    ],
)
def test_each_nvml_error_has_a_type_and_advice(name: str, kind: type, advice: str) -> None:
    """The message says what failed, on what, and what to do."""
    with pytest.raises(kind, match=f"Could not cut GPU-1 .*{advice}"):
        call("cut GPU-1", _raiser(error_code(name)))


def test_reading_that_is_not_supported_is_none() -> None:
    """Unknown is None; any other failure is an error."""
    assert read_if_supported("read", _raiser(error_code("NOT_SUPPORTED"))) is None
    with pytest.raises(readings.GpuLost):
        read_if_supported("read", _raiser(error_code("GPU_IS_LOST")))


def test_failed_compute_instance_leaves_nothing_behind(a100: Machine) -> None:
    """A GPU instance that got no compute instance is taken back; nor is one made over another."""
    a100.outside.fail_next("nvmlGpuInstanceCreateComputeInstance", error_code("UNKNOWN"))
    with pytest.raises(readings.UnknownGpuError):
        _make(a100)
    assert a100.driver.slices(a100.uuid) == []
    reading = _make(a100)
    with pytest.raises(readings.NoRoom):
        _make(a100)
    assert a100.driver.slices(a100.uuid) == [reading]


def test_half_made_slice_that_is_stuck_is_seen_and_destroyed_later(a100: Machine) -> None:
    """Where even taking back fails, the orphan is listed, its usage unknown."""
    a100.outside.fail_next("nvmlGpuInstanceCreateComputeInstance", error_code("UNKNOWN"))
    a100.outside.fail_next("nvmlGpuInstanceDestroy", IN_USE)
    with pytest.raises(readings.UnknownGpuError):
        _make(a100)
    (orphan,) = a100.driver.slices(a100.uuid)
    assert (orphan.ci_id, orphan.uuid) == (None, None)
    assert a100.driver.usages(a100.uuid, [orphan])[orphan] == Usage(None, None)
    a100.driver.destroy(a100.uuid, orphan.gi_id)
    assert a100.driver.slices(a100.uuid) == []


def test_compute_instance_already_gone_does_not_save_its_gpu_instance(a100: Machine) -> None:
    """When someone else destroyed the compute instance in between, the rest is still done."""
    reading = _make(a100)
    a100.outside.fail_next("nvmlComputeInstanceDestroy", error_code("NOT_FOUND"))
    with pytest.raises(readings.InUse):  # it was not really gone: destroy went on to the instance
        a100.driver.destroy(a100.uuid, reading.gi_id)


@pytest.mark.parametrize(
    ("model", "name", "kind"),
    [
        ("A100-40GB", "1g.5gb", "1_SLICE"),
        ("A100-40GB", "1g.10gb", "1_SLICE"),
        ("A100-40GB", "7g.40gb", "7_SLICE"),
        ("H100", "1g.10gb", "1_SLICE"),
        ("H100", "1g.20gb", "1_SLICE_REV1"),
        ("H200", "1g.35gb", "1_SLICE_REV1"),
        ("H100", "7g.80gb", "7_SLICE"),
    ],
)
def test_a_slice_gets_all_the_sms_of_its_profile(
    tmp_path: Path, clock: SleepClock, model: str, name: str, kind: str
) -> None:
    """Of the compute profiles with its slices it is the one with its SMs, if two have, the first.

    An H100's 1g with double memory has 26 SMs, of which the plain one takes 16; an A100 tells of a
    second one for 7g and refuses it.
    """
    machine = Machine(tmp_path, model, clock)
    reading = _make(machine, name)
    (instance,) = machine.outside.state().gpus[0].instances
    assert reading.uuid
    assert instance.compute[0].profile_id == getattr(
        pynvml, f"NVML_COMPUTE_INSTANCE_PROFILE_{kind}"
    )


def test_no_room_in_a_gpu_instance_is_not_no_room_for_it(a100: Machine) -> None:
    """The second step's error is another one: the GPU instance was made, and taken back."""
    a100.outside.fail_next(
        "nvmlGpuInstanceCreateComputeInstance", error_code("INSUFFICIENT_RESOURCES")
    )
    with pytest.raises(readings.UnknownGpuError, match="its GPU instance was created"):
        _make(a100)
    assert a100.driver.slices(a100.uuid) == []


def test_an_uncut_gpu_that_is_in_use_cannot_be_cut(a100: Machine) -> None:
    """It is refused as in use, and the message says what may not run there."""
    a100.outside.add_process(a100.uuid, 42, 10)
    with pytest.raises(readings.InUse, match="nothing may run on it"):
        _make(a100)


def test_what_is_listed_after_its_destruction_is_still_there(a100: Machine) -> None:
    """That NVML says it is done, or does not find it by its id, is no proof."""
    reading = _make(a100)
    a100.outside.fail_next("nvmlGpuInstanceDestroy", pynvml.NVML_SUCCESS)
    with pytest.raises(readings.SliceStillListed, match="still lists it"):
        a100.driver.destroy(a100.uuid, reading.gi_id)
    a100.outside.fail_next("nvmlDeviceGetGpuInstanceById", error_code("NOT_FOUND"))
    with pytest.raises(readings.SliceStillListed):
        a100.driver.destroy(a100.uuid, reading.gi_id)
    a100.driver.destroy(a100.uuid, reading.gi_id)
    assert a100.driver.slices(a100.uuid) == []


def test_a_mig_device_that_is_listed_too_long_is_no_slice(
    a100: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session may go on listing what another process destroyed: the GPU instances decide."""
    reading = _make(a100)
    a100.driver.destroy(a100.uuid, reading.gi_id)
    stale = {
        "nvmlDeviceGetMigDeviceHandleByIndex": "stale",
        "nvmlDeviceGetGpuInstanceId": reading.gi_id,
        "nvmlDeviceGetComputeInstanceId": reading.ci_id,
        "nvmlDeviceGetUUID": reading.uuid,
    }
    for function, answer in stale.items():
        monkeypatch.setattr(a100.nvml, function, lambda *_, answer=answer: answer)
    assert a100.driver.slices(a100.uuid) == []


def test_a_slice_of_a_profile_that_nvml_does_not_list(
    a100: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read by its profile's id, with its place, can be destroyed, and hides no other."""
    unlisted, other = _make(a100, "2g.10gb"), _make(a100, start=2)
    hide_profile(monkeypatch, unlisted.profile.enum)
    driver = Driver(a100.nvml)
    slices = {reading.gi_id: reading for reading in driver.slices(a100.uuid)}
    reading = slices[unlisted.gi_id]
    assert (reading.profile.name, reading.placement) == ("profile 14", unlisted.placement)
    assert (reading.uuid, slices[other.gi_id]) == (unlisted.uuid, other)
    assert driver.usages(a100.uuid, [reading])[reading].processes == ()
    driver.destroy(a100.uuid, unlisted.gi_id)
    assert driver.slices(a100.uuid) == [other]


def test_a_sample_that_cannot_be_freed_keeps_no_slice(h100: Machine) -> None:
    """What is read beside must not decide whether the slice goes."""
    reading = cut(h100, 0)
    activity(h100, reading)
    h100.outside.fail_next("nvmlGpmSampleFree", error_code("UNKNOWN"))
    h100.driver.destroy(h100.uuid, reading.gi_id)
    assert h100.driver.slices(h100.uuid) == []


@pytest.mark.parametrize("mig", [True, False])
def test_mig_without_profiles_is_unknown_and_not_whole(
    tmp_path: Path, clock: SleepClock, *, mig: bool
) -> None:
    """A GPU must not pass for one that cannot do MIG because NVML lists nothing for once."""
    machine = Machine(tmp_path, "A100-40GB", clock, mig=mig)
    for times in (18, 18):  # every number of a profile there is
        machine.outside.fail_next("nvmlDeviceGetGpuInstanceProfileInfoV", 3, times)
        with pytest.raises(readings.UnknownGpuError, match="lists no profile"):
            machine.driver.info(machine.uuid)
    assert machine.driver.info(machine.uuid).geometry.profiles


def test_slice_in_use_is_not_destroyed(a100: Machine) -> None:
    """A process keeps its slice whole; one that is gone already is no error, and has no usage."""
    reading = _make(a100)
    assert reading.uuid
    a100.outside.add_process(reading.uuid, 42, 10)
    with pytest.raises(readings.InUse):
        a100.driver.destroy(a100.uuid, reading.gi_id)
    assert a100.driver.slices(a100.uuid) == [reading]
    assert a100.driver.usages(a100.uuid, [reading])[reading].memory_used_mib == 10
    a100.outside.remove_process(42)
    for _ in range(2):
        a100.driver.destroy(a100.uuid, reading.gi_id)
    assert a100.driver.slices(a100.uuid) == []
    assert a100.driver.usages(a100.uuid, [reading]) == {}


def test_placements_are_those_of_all_slices(a100: Machine) -> None:
    """A GPU instance without a compute instance takes its room, too."""
    whole = _make(a100, start=2)
    a100.create_at(19, 5, 1)
    assert a100.driver.placements(a100.uuid) == [whole.placement, Placement(5, 1)]


def test_only_the_expected_slice_is_destroyed(a100: Machine) -> None:
    """Ids come again: what has the id of a slice that is gone is left alone."""
    reading = _make(a100, start=0)
    elsewhere = ProfilePlacement(reading.profile, Placement(3, 1))
    with pytest.raises(SliceGone):
        a100.driver.destroy(a100.uuid, reading.gi_id, elsewhere)
    assert a100.driver.slices(a100.uuid) == [reading]
    expected = ProfilePlacement(reading.profile, reading.placement)
    a100.driver.destroy(a100.uuid, reading.gi_id, expected)
    assert a100.driver.slices(a100.uuid) == []
    with pytest.raises(SliceGone):
        a100.driver.destroy(a100.uuid, reading.gi_id, expected)


def test_all_slices_are_read_in_one_walk(a100: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 64 GPUs, one walk for each slice kept half a core of the pool busy.

    One that cannot be read is unknown, while its neighbours are read.
    """
    slice_readings = [_make(a100, start=start) for start in range(7)]
    opened: list[int] = []
    open_one = a100.nvml.nvmlDeviceGetMigDeviceHandleByIndex
    monkeypatch.setattr(
        a100.nvml,
        "nvmlDeviceGetMigDeviceHandleByIndex",
        lambda gpu, index: opened.append(index) or open_one(gpu, index),
    )
    a100.outside.fail_next("nvmlDeviceGetMemoryInfo", error_code("UNKNOWN"))
    usages = a100.driver.usages(a100.uuid, slice_readings)
    assert [usages[reading].processes for reading in slice_readings] == [None, *[()] * 6]
    assert [usages[reading].memory_used_mib for reading in slice_readings] == [None, *[0] * 6]
    assert len(opened) == len(set(opened))


def test_lost_gpu_is_listed_with_its_mode_unknown(a100: Machine) -> None:
    """What was known of it stays; its mode is None, its health says lost and what to do.

    Before that health goes on telling of a fault after its event was taken.
    """
    before = a100.driver.gpus()[0]
    a100.driver.health(a100.uuid)
    a100.outside.break_gpu("xid", a100.uuid, xid=48)
    assert [a100.driver.health(a100.uuid).xids for _ in range(2)] == [(Xid(48),), (Xid(48),)]
    a100.outside.break_gpu("lost", a100.uuid)
    after = a100.driver.gpus()[0]
    assert (after.uuid, after.geometry, after.mig) == (before.uuid, before.geometry, None)
    health = a100.driver.health(a100.uuid)
    assert (health.ok, health.lost, health.temperature_c) == (False, True, None)
    assert "reset" in health.reason
    with pytest.raises(readings.GpuLost):
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
    ("ecc_errors", "numbers", "needs", "ok"),
    [
        (0, (), None, True),
        (0, (13, 31, 43, 94, 68, 63), None, True),
        (0, (13, 79), None, False),
        (0, (109,), None, False),
        (2, (), None, False),
        (None, None, None, None),
        (None, (), None, True),
        (0, None, None, True),
        (2, (48, 95), "", True),
        (0, (), "a GPU reset", False),
    ],
)
def test_health_is_judged_by_faults_of_the_card(ecc_errors, numbers, needs, ok) -> None:
    """The driver's word counts; where it has none, the card's own faults and memory errors do."""
    xids = None if numbers is None else tuple(map(Xid, numbers))
    judged, reason = judge(ecc_errors, xids, needs)
    assert judged is ok
    assert bool(reason) == (ok is not True)


class FieldsOfNvml:
    """NVML whose field values answer so."""

    def __init__(self, code: int, action: int = 0, error: int | None = None) -> None:
        self.code, self.action, self.error = code, action, error

    def nvmlDeviceGetFieldValues(self, _gpu, fields) -> list[SimpleNamespace]:  # noqa: N802
        assert fields == [230]
        if self.error is not None:
            raise pynvml.NVMLError(self.error)
        return [SimpleNamespace(nvmlReturn=self.code, value=SimpleNamespace(uiVal=self.action))]


@pytest.mark.parametrize(
    ("nvml", "needs"),
    [
        (FieldsOfNvml(0, 0), ""),
        *[(FieldsOfNvml(0, action), NEEDS[action]) for action in range(1, 8)],
        (FieldsOfNvml(0, 99), "recovery action 99, which this miglab does not know"),
        (FieldsOfNvml(error_code("INVALID_ARGUMENT")), None),
        (FieldsOfNvml(error_code("NOT_SUPPORTED")), None),
        (FieldsOfNvml(0, error=error_code("FUNCTION_NOT_FOUND")), None),
        (FieldsOfNvml(0, error=error_code("UNKNOWN")), None),
    ],
)
def test_what_the_driver_says_that_a_card_needs(nvml: FieldsOfNvml, needs: str | None) -> None:
    """Field 230 in words; a driver that does not know it tells nothing, which is not "nothing"."""
    assert read_needs(nvml, None, "GPU-0") == needs


def test_a_wait_for_events_that_fails_is_unknown_once(a100: Machine) -> None:
    """It says nothing, and the next look hears again."""
    a100.driver.health(a100.uuid)
    a100.outside.fail_next("nvmlEventSetWait", error_code("UNKNOWN"))
    health = a100.driver.health(a100.uuid)
    assert (health.xids, health.ok) == (None, True)
    a100.driver.health(a100.uuid)
    a100.outside.break_gpu("xid", xid=31)
    assert a100.driver.health(a100.uuid).xids == (Xid(31),)


def test_a_fault_names_its_slice_until_that_goes(a100: Machine) -> None:
    """NVML gives the ids again: the next slice there has not caused what came before it."""
    slice_before = _make(a100)
    a100.driver.health(a100.uuid)
    a100.outside.break_gpu("xid", slice_before.uuid, xid=31)
    xid = Xid(31, slice_before.gi_id, slice_before.ci_id)
    assert a100.driver.health(a100.uuid).xids == (xid,)
    a100.outside.break_gpu("xid", slice_before.uuid, xid=43)  # not read yet
    a100.driver.destroy(a100.uuid, slice_before.gi_id)
    assert _make(a100).gi_id == slice_before.gi_id
    assert a100.driver.health(a100.uuid).xids == (Xid(31), Xid(43))


ONE = "1g"


def cut(machine: Machine, start: int) -> SliceReading:
    """A smallest slice at a start."""
    profile = next(p for p in machine.driver.gpus()[0].geometry.profiles if p.name[:2] == ONE)
    return machine.driver.create(machine.uuid, profile, profile.placements[start])


def activity(machine: Machine, *slices: SliceReading) -> list[float | None]:
    return [
        machine.driver.usages(reading.gpu_uuid, [reading])[reading].activity_pct
        for reading in slices
    ]


def test_the_busy_slice_is_told_from_its_neighbour(h100: Machine) -> None:
    """On Hopper each slice tells its own, from the second reading on."""
    busy, idle = cut(h100, 0), cut(h100, 1)
    assert busy.uuid is not None
    h100.outside.add_process(busy.uuid, 41, 100, activity_pct=60)
    assert activity(h100, busy, idle) == [None, None]
    assert activity(h100, busy, idle) == [60, 0]


def test_an_a100_does_not_tell(a100: Machine) -> None:
    """Before Hopper a slice's activity is unknown, however busy it is; a partitioned GPU's too."""
    busy = cut(a100, 0)
    assert busy.uuid is not None
    a100.outside.add_process(busy.uuid, 41, 100, activity_pct=60)
    assert [activity(a100, busy) for _ in range(3)] == [[None]] * 3
    assert a100.driver.gpu_usage(a100.uuid).activity_pct is None


@pytest.mark.parametrize("model", ["A100-40GB", "H100"])
def test_a_whole_gpu_tells(tmp_path: Path, clock: SleepClock, model: str) -> None:
    """With MIG off older cards tell their utilisation, newer ones what GPM says; none is cut."""
    machine = Machine(tmp_path, model, clock, mig=False)
    for pid, busy in ((41, 70), (42, 50)):
        machine.outside.add_process(machine.uuid, pid, 100, activity_pct=busy)
    activities_pct = [machine.driver.gpu_usage(machine.uuid).activity_pct for _ in range(2)]
    assert activities_pct[1] == 100
    with pytest.raises(pynvml.NVMLError_NotSupported):
        machine.create(19)


@pytest.mark.parametrize(
    "refuses", ["nvmlGpmQueryDeviceSupport", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet"]
)
@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_UNKNOWN])
def test_what_gpm_refuses_is_unknown_and_no_more(h100: Machine, refuses: str, code: int) -> None:
    """Memory and processes are read all the same."""
    gpu_slice = cut(h100, 0)
    h100.outside.fail_next(refuses, code, times=9)
    usages = [h100.driver.usages(gpu_slice.gpu_uuid, [gpu_slice])[gpu_slice] for _ in range(2)]
    assert [usage.activity_pct for usage in usages] == [None, None]
    assert [usage.processes for usage in usages] == [(), ()]


def test_an_id_used_again_is_another_slice(h100: Machine) -> None:
    """What lies between samples of two slices is nothing: the new one begins unknown."""
    first = cut(h100, 0)
    activity(h100, first)
    h100.driver.destroy(h100.uuid, first.gi_id)
    again = cut(h100, 0)
    assert again.gi_id == first.gi_id
    assert [activity(h100, again), activity(h100, again)] == [[None], [0]]


def test_every_sample_is_given_back(h100: Machine) -> None:
    """One is held for each slice that was read, none for one that is gone or after the end."""
    samples = h100.nvml.library._samples
    slices = [cut(h100, n) for n in range(3)]
    for _ in range(3):
        activity(h100, *slices)
        assert len(samples) == 3
    h100.driver.destroy(h100.uuid, slices[0].gi_id)
    assert len(samples) == 2
    h100.driver.close()
    assert len(samples) == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 101.0])
def test_nonsense_is_unknown(value: float) -> None:
    """What is no percentage says nothing."""
    assert not _is_share(SimpleNamespace(nvmlReturn=pynvml.NVML_SUCCESS, value=value))
