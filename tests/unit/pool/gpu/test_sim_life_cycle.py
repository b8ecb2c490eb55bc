"""The life cycle of simulated slices: behaviours 1, 2, 3 and 6 of docs/explanation/mig.md."""

from ctypes import byref, c_uint

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miglab_pool.gpu.geometry import Placed, Placement, legal_placements
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.simulated.nvml import SimulatedNvml

from .conftest import Machine, SleepClock

ONE, TWO, THREE, FOUR, SEVEN, MEDIA, DOUBLE = 19, 14, 9, 5, 0, 20, 15


def test_card_lacks_some_profiles_and_no_card_has_others(a100: Machine) -> None:
    """A profile the card lacks is NOT_SUPPORTED, a number past the end INVALID_ARGUMENT."""
    with pytest.raises(pynvml.NVMLError_NotSupported):
        a100.nvml.nvmlDeviceGetGpuInstanceProfileInfo(a100.gpu, 5)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        a100.nvml.nvmlDeviceGetGpuInstanceProfileInfo(
            a100.gpu, pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT
        )


def test_enum_and_profile_id_are_two_numbers(a100: Machine) -> None:
    """Profile info takes the enum, creation the id: enum 1 is id 14, and id 1 is nothing."""
    assert a100.nvml.nvmlDeviceGetGpuInstanceProfileInfo(a100.gpu, 1).id == TWO
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        a100.create(1)


def names(machine: Machine) -> list[str]:
    """The profiles of the GPU instances there are."""
    return [found.profile.name for found in machine.driver.slices(machine.uuid)]


def test_driver_chosen_placement_fragments(a100: Machine) -> None:
    """Creating 19, 19, 14, 9 without placements fails at the last."""
    for profile_id in (ONE, ONE, TWO):
        a100.create(profile_id)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        a100.create(THREE)


def test_driver_chosen_placement_in_a_better_order(a100: Machine) -> None:
    """Creating 9, 19, 14, 19 without placements works."""
    for profile_id in (THREE, ONE, TWO, ONE):
        a100.create(profile_id)
    assert sorted(names(a100)) == ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]


@pytest.mark.parametrize(("start", "size"), [(7, 1), (0, 2), (9, 1)])
def test_placement_that_no_slice_can_have_is_an_invalid_argument(
    a100: Machine, start: int, size: int
) -> None:
    """A start or size that is not in the profile's list is refused as such."""
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        a100.create_at(ONE, start, size)


def test_one_media_slice_per_gpu(a100: Machine) -> None:
    """A second +me slice has no room, and the capacity says so."""
    a100.create_at(MEDIA, 0, 1)
    assert a100.nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(a100.gpu, MEDIA) == 0
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        a100.create_at(MEDIA, 1, 1)


def test_possible_placements_stay_the_same_when_taken(a100: Machine) -> None:
    """The list is static; what remains is another question."""
    a100.create_at(SEVEN, 0, 8)
    count = c_uint()
    a100.nvml.nvmlDeviceGetGpuInstancePossiblePlacements(a100.gpu, ONE, None, byref(count))
    assert count.value == 7
    assert a100.nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(a100.gpu, ONE) == 0


def test_instance_with_a_compute_instance_is_in_use(a100: Machine) -> None:
    """Destruction is in the reverse order of creation."""
    instance = a100.create_at(ONE, 0, 1)
    compute = a100.fill(instance)
    with pytest.raises(pynvml.NVMLError_InUse):
        a100.nvml.nvmlGpuInstanceDestroy(instance)
    a100.nvml.nvmlComputeInstanceDestroy(compute)
    a100.nvml.nvmlGpuInstanceDestroy(instance)
    with pytest.raises(pynvml.NVMLError_NotFound):
        a100.nvml.nvmlGpuInstanceGetInfo(instance)


def test_process_keeps_its_slice_in_use(a100: Machine) -> None:
    """Nothing of a slice can be destroyed while a process runs on it."""
    compute = a100.fill(a100.create_at(ONE, 0, 1))
    (reading,) = a100.driver.slices(a100.uuid)
    assert reading.uuid
    a100.outside.add_process(reading.uuid, 42, 100)
    with pytest.raises(pynvml.NVMLError_InUse):
        a100.nvml.nvmlComputeInstanceDestroy(compute)
    a100.outside.remove_process(42)
    a100.nvml.nvmlComputeInstanceDestroy(compute)


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
    first = a100.driver.create(a100.uuid, a100.driver.gpus()[0].geometry.by_id[ONE], _at(0))
    a100.driver.destroy(a100.uuid, first.gi_id)
    second = a100.driver.create(a100.uuid, a100.driver.gpus()[0].geometry.by_id[ONE], _at(6))
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
    geometry = _geometry(model)
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


def _at(start: int) -> Placement:
    return Placement(start, 1)


def _geometry(model: str):
    from miglab_pool.gpu.simulated.models import model_named

    return model_named(model).geometry
