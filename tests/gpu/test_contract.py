"""What every NVML must do, simulated or real.  Reads only."""

import json
from collections import Counter
from contextlib import closing
from ctypes import byref, c_uint
from pathlib import Path
from typing import Any

import pynvml
import pytest
from tests.maximal_layouts import maximal_layouts

from miglab_pool.gpu.driver import Driver
from miglab_pool.gpu.geometry import ProfilePlacement, legal_placements, occupied_mask
from miglab_pool.gpu.readings import GpuMissing
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.simulated.nvml import SimulatedNvml

NO_SUCH_GPU = "GPU-00000000-0000-0000-0000-000000000000"
RECORDED = json.loads(Path(__file__).with_name("h200_mig_off.json").read_text())
PLAIN = ["1g", "2g", "3g", "4g", "7g"]


def test_every_listed_gpu_has_a_name_memory_and_a_unique_uuid(driver: Driver) -> None:
    """The driver lists GPUs in NVML's order, each told apart by its UUID."""
    gpus = driver.gpus()
    assert [gpu.index for gpu in gpus] == list(range(len(gpus)))
    assert len({gpu.uuid for gpu in gpus}) == len(gpus) > 0
    assert all(gpu.uuid.startswith("GPU-") and gpu.name and gpu.memory_mib > 0 for gpu in gpus)


def test_mode_is_known_exactly_where_there_is_mig(driver: Driver) -> None:
    """A GPU that can be cut says whether MIG is on and will be on."""
    for gpu in driver.gpus():
        can_be_cut = bool(gpu.geometry.profiles)
        assert (gpu.mig is not None) == (gpu.mig_pending is not None) == can_be_cut


def test_no_profile_is_larger_than_its_gpu(driver: Driver) -> None:
    """Memory, SMs and placements of every profile lie within the GPU."""
    for gpu in driver.gpus():
        for profile in gpu.geometry.profiles:
            assert profile.memory_mib <= gpu.memory_mib
            assert gpu.sm_count is None or profile.sm_count <= gpu.sm_count
            assert all(p.start + p.size <= gpu.geometry.memory_slices for p in profile.placements)


def test_placements_of_one_profile_do_not_overlap_and_are_as_many_as_fit(driver: Driver) -> None:
    """A profile's placements are apart, and the +me profile alone fits fewer times than that."""
    for gpu in driver.gpus():
        for profile in gpu.geometry.profiles:
            masks = [placement.mask for placement in profile.placements]
            assert sum(masks) == occupied_mask(
                ProfilePlacement(profile, p) for p in profile.placements
            )
            has_last_engine = profile.name.endswith(("+me", "+me.all"))
            assert profile.max_count == (1 if has_last_engine else len(masks))


def test_layout_counts_of_cards_with_eight_memory_slices(driver: Driver) -> None:
    """The geometry read through NVML has 19 maximal layouts, and 78 with the double-memory 1g."""
    for gpu in driver.gpus():
        if gpu.geometry.memory_slices != 8:
            continue
        plain = [p.name for p in gpu.geometry.profiles if p.enum <= 4]
        double = [p.name for p in gpu.geometry.profiles if p.profile_id == 15]
        assert [name[:2] for name in plain] == PLAIN
        assert _layouts(gpu.geometry, plain) == (19, 14)
        assert _layouts(gpu.geometry, plain + double) == (78, 38)


def test_what_exists_does_not_overlap(driver: Driver) -> None:
    """Slices on a GPU are apart, each with an id of its own and at a legal placement."""
    for gpu in driver.gpus():
        readings = driver.slices(gpu.uuid)
        placements = {r.gi_id: ProfilePlacement(r.profile, r.placement) for r in readings}
        for gi_id, present_slice in placements.items():
            neighbours = [other for other_id, other in placements.items() if other_id != gi_id]
            assert present_slice.placement in legal_placements(present_slice.profile, neighbours)


def test_gpu_without_mig_has_no_slices(driver: Driver) -> None:
    """With MIG off the list of slices is empty, not an error."""
    assert all(driver.slices(gpu.uuid) == [] for gpu in driver.gpus() if not gpu.mig)


def test_usage_of_a_whole_gpu_is_known_with_mig_off(driver: Driver) -> None:
    """`full` is leased only while the process list is known, so it must be readable."""
    for gpu in driver.gpus():
        usage = driver.gpu_usage(gpu.uuid)
        assert usage.memory_used_mib is not None
        assert 0 <= usage.memory_used_mib <= gpu.memory_mib
        assert usage.processes is not None


def test_activity_is_a_share_or_unknown(driver: Driver, nvml: Any) -> None:
    """Asked twice, a GPU and each of its slices tell a percentage, or nothing at all.

    A slice of a card without GPM never tells; a whole GPU with MIG off always does in the end.
    """
    for gpu in driver.gpus():
        handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        has_gpm = bool(nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
        for reading in driver.slices(gpu.uuid):
            slice_pcts = [
                driver.usages(gpu.uuid, [reading])[reading].activity_pct for _ in range(2)
            ]
            assert has_gpm or slice_pcts == [None, None]
            assert all(share is None or 0 <= share <= 100 for share in slice_pcts)
        gpu_pcts = [driver.gpu_usage(gpu.uuid).activity_pct for _ in range(2)]
        assert all(share is None or 0 <= share <= 100 for share in gpu_pcts)
        assert gpu.mig or has_gpm or None not in gpu_pcts


def test_health_of_a_good_gpu(driver: Driver) -> None:
    """A GPU in order says so twice, with its temperature and power."""
    for gpu in driver.gpus():
        for _ in range(2):
            health = driver.health(gpu.uuid)
            assert (health.ok, health.lost, health.reason) == (True, False, "")
            assert health.temperature_c is not None and 0 < health.temperature_c < 110
            assert health.power_w is not None and health.power_w > 0


def test_gpu_that_is_not_there_is_named_with_those_that_are(driver: Driver, nvml: Any) -> None:
    """A wrong UUID in the settings is answered with the right ones."""
    present_uuid = driver.gpus()[0].uuid
    with pytest.raises(GpuMissing, match=present_uuid):
        Driver(nvml, [NO_SUCH_GPU])


def test_driver_touches_only_the_gpus_it_was_given(driver: Driver, nvml: Any) -> None:
    """A driver for one GPU lists one."""
    last = driver.gpus()[-1]
    with closing(Driver(nvml, [last.uuid])) as narrow:
        assert [gpu.uuid for gpu in narrow.gpus()] == [last.uuid]


def test_profile_number_past_the_end_is_an_invalid_argument(nvml: Any, gpu: Any) -> None:
    """A profile the card lacks is NOT_SUPPORTED; a number that is none, INVALID_ARGUMENT."""
    for enum in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, enum)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            continue
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, 1000)
    with pytest.raises(pynvml.NVMLError_NotSupported):  # no card has six compute slices of seven
        nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, pynvml.NVML_GPU_INSTANCE_PROFILE_6_SLICE)


def test_both_versions_of_profile_info_agree(nvml: Any, gpu: Any) -> None:
    """The older structure has the same values, without the name."""
    for enum in (0, 1):
        new = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, enum)
        old = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, enum, 1)
        fields = [name for name, _ in old._fields_]
        assert [getattr(new, name) for name in fields] == [getattr(old, name) for name in fields]


def test_remaining_capacity_of_an_empty_gpu_is_all(driver: Driver, nvml: Any, gpu: Any) -> None:
    """Remaining capacity counts what fits, with MIG off too."""
    uuid = nvml.nvmlDeviceGetUUID(gpu)
    if driver.slices(uuid):
        pytest.skip("there are slices on this GPU")
    for profile in driver.gpus()[0].geometry.profiles:
        count = nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, profile.profile_id)
        assert count == profile.max_count


def test_possible_placements_are_counted_first_and_filled_in_second(nvml: Any, gpu: Any) -> None:
    """The two calls agree, and the array is not written past the count."""
    profile_id = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, 0).id
    count = c_uint()
    ask = nvml.nvmlDeviceGetGpuInstancePossiblePlacements
    ask(gpu, profile_id, None, byref(count))
    places = (pynvml.c_nvmlGpuInstancePlacement_t * (count.value + 1))()
    ask(gpu, profile_id, places, byref(count))
    assert [place.start for place in places[: count.value]] == list(range(count.value))
    assert (places[count.value].start, places[count.value].size) == (0, 0)


def test_mig_device_that_does_not_exist_is_not_found(driver: Driver, nvml: Any, gpu: Any) -> None:
    """An index without a device is NOT_FOUND, which a walk steps over."""
    if driver.slices(nvml.nvmlDeviceGetUUID(gpu)):
        pytest.skip("there are slices on this GPU")
    with pytest.raises(pynvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)


def test_a_gpu_is_no_mig_device(nvml: Any, gpu: Any) -> None:
    """Handles of GPUs and of slices are told apart."""
    assert not nvml.nvmlDeviceIsMigDeviceHandle(gpu).value


def test_gpm_is_where_mode_changes_without_reset(nvml: Any, gpu: Any) -> None:
    """Hopper has both GPM and reset-less MIG; cards before it have neither."""
    field = nvml.nvmlDeviceGetFieldValues(gpu, [pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED])[0]
    is_hopper = tuple(nvml.nvmlDeviceGetCudaComputeCapability(gpu)) >= (9, 0)
    assert field.nvmlReturn == pynvml.NVML_SUCCESS
    assert bool(field.value.uiVal) == is_hopper
    assert bool(nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice) == is_hopper


def test_utilisation_is_unknown_with_mig_on(nvml: Any, gpu: Any) -> None:
    """NOT_SUPPORTED with MIG on, a share of 100 with MIG off."""
    if nvml.nvmlDeviceGetMigMode(gpu)[0]:
        with pytest.raises(pynvml.NVMLError_NotSupported):
            nvml.nvmlDeviceGetUtilizationRates(gpu)
    else:
        assert 0 <= nvml.nvmlDeviceGetUtilizationRates(gpu).gpu <= 100


def test_event_set_that_hears_nothing_times_out(nvml: Any, gpu: Any) -> None:
    """Xid and layout events can be asked for; without any the wait ends with TIMEOUT."""
    kinds = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventMigConfigChange
    assert nvml.nvmlDeviceGetSupportedEventTypes(gpu) & pynvml.nvmlEventTypeXidCriticalError
    events = nvml.nvmlEventSetCreate()
    supported = kinds & nvml.nvmlDeviceGetSupportedEventTypes(gpu)
    nvml.nvmlDeviceRegisterEvents(gpu, supported, events)
    with pytest.raises(pynvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait_v2(events, 1)
    nvml.nvmlEventSetFree(events)


def test_a_field_that_the_driver_does_not_know_is_invalid(nvml: Any, gpu: Any) -> None:
    """The call succeeds; only the field's own code says it, as it would of a recovery action."""
    known_field, unknown_field = nvml.nvmlDeviceGetFieldValues(gpu, [230, 9999])
    assert unknown_field.nvmlReturn == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert known_field.nvmlReturn in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_INVALID_ARGUMENT)
    assert known_field.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT or known_field.nvmlReturn


def test_a_gpu_that_is_well_needs_nothing(driver: Driver) -> None:
    """Or does not tell; it reports no faults of its own."""
    for gpu in driver.gpus():
        health = driver.health(gpu.uuid)
        assert health.needs in ("", None)
        assert health.xids == ()


def test_closed_library_says_so(nvml: Any) -> None:
    """After the last shutdown every call is UNINITIALIZED."""
    nvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetCount()
    nvml.nvmlInit()


@pytest.mark.gpu
def test_a_real_h200_still_answers_as_recorded() -> None:
    """What the simulated H200 was made from is what a real one says, if there is one."""
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        pytest.skip("no NVIDIA driver here")
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    if pynvml.nvmlDeviceGetName(gpu) != RECORDED["name"]:
        pytest.skip("not an H200")
    assert _profiles_as_recorded(pynvml, gpu) == RECORDED["profiles"]
    pynvml.nvmlShutdown()


def test_simulated_h200_answers_as_the_real_one_was_recorded(tmp_path: Path) -> None:
    """Every field of every profile, its placements and what remains, with MIG off."""
    SimulatedMachine.create(tmp_path, model="H200", mig=False)
    nvml = SimulatedNvml(tmp_path)
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetName(gpu) == RECORDED["name"]
    assert _profiles_as_recorded(nvml, gpu) == RECORDED["profiles"]
    assert nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice == int(RECORDED["gpm"])


def _layouts(geometry: Any, names: list[str]) -> tuple[int, int]:
    layouts = list(maximal_layouts(geometry, names))
    multisets = {frozenset(Counter(p.profile.name for p in layout).items()) for layout in layouts}
    return len(layouts), len(multisets)


def _profiles_as_recorded(nvml: Any, gpu: Any) -> list[dict[str, Any]]:
    profiles = []
    for recorded in RECORDED["profiles"]:
        info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, recorded["enum"])
        facts = {name: getattr(info, name) for name, _ in info._fields_}
        # The record has 0; whether the driver writes the field is not known, and it says nothing.
        facts["version"] = recorded["version"]
        facts["enum"] = recorded["enum"]
        facts["placements"] = _placements(nvml, gpu, info.id)
        facts["remaining"] = nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, info.id)
        profiles.append(facts)
    return profiles


def _placements(nvml: Any, gpu: Any, profile_id: int) -> list[list[int]]:
    count = c_uint(16)
    places = (pynvml.c_nvmlGpuInstancePlacement_t * 16)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, places, byref(count))
    return [[place.start, place.size] for place in places[: count.value]]
