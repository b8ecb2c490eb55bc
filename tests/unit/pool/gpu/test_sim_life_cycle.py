"""The life cycle of simulated slices: behaviours 1, 2, 3 and 6 of docs/explanation/mig.md."""

from collections.abc import Callable
from ctypes import byref, c_uint

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miglab_pool.gpu.geometry import Placed, Placement, legal_placements
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.simulated.models import model_named
from miglab_pool.gpu.simulated.nvml import SimulatedNvml

from .conftest import Machine, SleepClock

ONE, TWO, THREE, SEVEN, MEDIA = 19, 14, 9, 0, 20


Act = Callable[[Machine], object]


def several(*profile_ids: int) -> Act:
    """GPU instances one after another, where the driver likes."""
    return lambda machine: [machine.create(profile_id) for profile_id in profile_ids]


def at(profile_id: int, start: int, size: int = 1) -> Act:
    return lambda machine: machine.create_at(profile_id, start, size)


def profile_info(number: int) -> Act:
    return lambda machine: machine.nvml.nvmlDeviceGetGpuInstanceProfileInfo(machine.gpu, number)


REFUSED: dict[str, tuple[Act, Act, type[Exception]]] = {
    "a profile that this card lacks": (several(), profile_info(5), pynvml.NVMLError_NotSupported),
    "a number past the last profile": (
        several(),
        profile_info(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT),
        pynvml.NVMLError_InvalidArgument,
    ),
    "an enum where the id belongs": (several(), several(1), pynvml.NVMLError_InvalidArgument),
    "a start past the last": (several(), at(ONE, 7), pynvml.NVMLError_InvalidArgument),
    "a start past the GPU": (several(), at(ONE, 9), pynvml.NVMLError_InvalidArgument),
    "a size that is another's": (several(), at(ONE, 0, 2), pynvml.NVMLError_InvalidArgument),
    "a second media slice": (
        at(MEDIA, 0),
        at(MEDIA, 1),
        pynvml.NVMLError_InsufficientResources,
    ),
    "room that the driver's own choice has fragmented": (
        several(ONE, ONE, TWO),
        several(THREE),
        pynvml.NVMLError_InsufficientResources,
    ),
    "activity of a slice on Ampere": (
        several(ONE),
        lambda m: m.nvml.nvmlGpmMigSampleGet(m.gpu, 0, m.nvml.nvmlGpmSampleAlloc()),
        pynvml.NVMLError_NotSupported,
    ),
    "utilisation of a GPU with slices": (
        several(ONE),
        lambda m: m.nvml.nvmlDeviceGetUtilizationRates(m.gpu),
        pynvml.NVMLError_NotSupported,
    ),
    "a function that is not simulated": (
        several(),
        lambda m: m.nvml.nvmlDeviceGetNvLinkVersion(m.gpu, 0),
        pynvml.NVMLError_FunctionNotFound,
    ),
    "everything, without the driver": (
        lambda m: m.outside.break_gpu("no-driver"),
        lambda m: m.nvml.nvmlInit(),
        pynvml.NVMLError_DriverNotLoaded,
    ),
}


@pytest.mark.parametrize(("before", "act", "error"), REFUSED.values(), ids=REFUSED)
def test_refused(a100: Machine, before: Act, act: Act, error: type[Exception]) -> None:
    """As NVML refuses it."""
    before(a100)
    with pytest.raises(error):
        act(a100)


def test_driver_chosen_placement_in_a_better_order(a100: Machine) -> None:
    """Creating 9, 19, 14, 19 without placements works."""
    several(THREE, ONE, TWO, ONE)(a100)
    found = sorted(reading.profile.name for reading in a100.driver.slices(a100.uuid))
    assert found == ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]


def test_possible_placements_stay_the_same_when_taken(a100: Machine) -> None:
    """The list is static; what remains is another question."""
    a100.create_at(SEVEN, 0, 8)
    count = c_uint()
    a100.nvml.nvmlDeviceGetGpuInstancePossiblePlacements(a100.gpu, ONE, None, byref(count))
    assert count.value == 7
    assert a100.nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(a100.gpu, ONE) == 0


def test_destruction_is_in_the_reverse_order_of_creation(a100: Machine) -> None:
    """A process keeps its compute instance in use, that its GPU instance."""
    instance = a100.create_at(ONE, 0, 1)
    compute = a100.fill(instance)
    (reading,) = a100.driver.slices(a100.uuid)
    a100.outside.add_process(str(reading.uuid), 42, 100)
    with pytest.raises(pynvml.NVMLError_InUse):
        a100.nvml.nvmlGpuInstanceDestroy(instance)
    with pytest.raises(pynvml.NVMLError_InUse):
        a100.nvml.nvmlComputeInstanceDestroy(compute)
    a100.outside.remove_process(42)
    a100.nvml.nvmlComputeInstanceDestroy(compute)
    a100.nvml.nvmlGpuInstanceDestroy(instance)
    with pytest.raises(pynvml.NVMLError_NotFound):
        a100.nvml.nvmlGpuInstanceGetInfo(instance)


def test_leaked_handle_leaves_a_half_destroyed_slice(a100: Machine) -> None:
    """A monitoring client's handle blocks the GPU instance, not its compute instance."""
    instance = a100.create_at(ONE, 0, 1)
    compute = a100.fill(instance)
    a100.outside.break_gpu("leak")
    a100.nvml.nvmlComputeInstanceDestroy(compute)
    with pytest.raises(pynvml.NVMLError_InUse):
        a100.nvml.nvmlGpuInstanceDestroy(instance)
    assert a100.mig_indices() == []
    assert [r.ci_id for r in a100.driver.slices(a100.uuid)] == [None]
    a100.outside.break_gpu("ok")
    a100.nvml.nvmlGpuInstanceDestroy(instance)


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
    """The same ids give the same UUID, even for a slice at another place."""
    profile = a100.driver.gpus()[0].geometry.by_id[ONE]
    first = a100.driver.create(a100.uuid, profile, Placement(0, 1))
    a100.driver.destroy(a100.uuid, first.gi_id)
    second = a100.driver.create(a100.uuid, profile, Placement(6, 1))
    assert (first.uuid, first.gi_id) == (second.uuid, second.gi_id)
    assert first.placement != second.placement


def test_ids_are_not_starts(a100: Machine) -> None:
    """GPU-instance ids neither are nor follow the placements."""
    ids = [a100.nvml.nvmlGpuInstanceGetInfo(a100.create_at(ONE, start, 1)).id for start in range(7)]
    assert len(set(ids)) == 7
    assert ids != sorted(ids) and not set(ids) & set(range(7))


@pytest.mark.parametrize(("model", "most"), [("A100-40GB", 7), ("A30", 4), ("H200", 7)])
def test_whole_gpu_in_smallest_slices(tmp_path, clock: SleepClock, model: str, most: int) -> None:
    """Every memory slice a 1g can have takes one, and its MIG device is found by UUID."""
    machine = Machine(tmp_path, model, clock)
    smallest = machine.driver.gpus()[0].geometry.profiles[0]
    made = [machine.driver.create(machine.uuid, smallest, p) for p in smallest.placements]
    assert len({r.uuid for r in made}) == len(made) == most
    for reading in made:
        handle = machine.nvml.nvmlDeviceGetHandleByUUID(reading.uuid)
        assert machine.nvml.nvmlDeviceGetGpuInstanceId(handle) == reading.gi_id


@settings(max_examples=settings.default.max_examples // 2, suppress_health_check=list(HealthCheck))
@given(data=st.data(), model=st.sampled_from(["A100-40GB", "A30", "H200"]))
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
    geometry = model_named(model).geometry
    live: dict[int, Placed] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        if live and data.draw(st.booleans()):
            gi_id = data.draw(st.sampled_from(sorted(live)))
            del live[gi_id]
            handle = machine.nvml.nvmlDeviceGetGpuInstanceById(machine.gpu, gi_id)
            machine.nvml.nvmlGpuInstanceDestroy(handle)
            continue
        profile = data.draw(st.sampled_from(geometry.profiles))
        place = data.draw(st.sampled_from(profile.placements))
        if place in legal_placements(geometry, profile, live.values()):
            made = machine.create_at(profile.profile_id, place.start, place.size)
            live[machine.nvml.nvmlGpuInstanceGetInfo(made).id] = Placed(profile, place)
        else:
            with pytest.raises(pynvml.NVMLError_InsufficientResources):
                machine.create_at(profile.profile_id, place.start, place.size)
