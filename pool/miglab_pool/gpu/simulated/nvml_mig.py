"""The simulated MIG functions: mode, profiles, life cycle of instances, MIG devices."""

from collections.abc import Sequence
from typing import Any

import pynvml

from miglab_pool.gpu.geometry import Placement, Profile
from miglab_pool.gpu.simulated import rules
from miglab_pool.gpu.simulated.library import (
    COMPUTE,
    GPU,
    INSTANCE,
    MIG,
    Library,
    exports,
    handle_of,
    number,
    put,
    put_handle,
    refuse,
    target,
)
from miglab_pool.gpu.simulated.state import Gpu


class MigFunctions(Library):
    """Mode, profiles and life cycle; the delays of acts are slept outside the file's lock."""

    @exports("nvmlDeviceGetMigMode")
    def get_mode(self, device: Any, current: Any, pending: Any) -> None:
        _, gpu = self.gpu_of(device)
        put(current, gpu.mig)
        put(pending, gpu.mig_pending)

    @exports("nvmlDeviceSetMigMode")
    def set_mode(self, device: Any, mode: Any, activation: Any) -> None:
        with self.file.change() as machine:
            _, gpu = self.gpu_of(device, machine)
            status = rules.set_mig_mode(machine, gpu, bool(number(mode)))
        put(activation, status)

    # -- profiles -----------------------------------------------------------------------------

    @exports("nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstanceProfileInfoV")
    def profile_info(self, device: Any, enum: Any, info: Any) -> None:
        _, gpu = self.gpu_of(device)
        if not 0 <= number(enum) < pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT:
            refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        for profile in rules.model_of(gpu).geometry.profiles:
            if profile.enum == number(enum):
                return _fill_profile(target(info), gpu, profile)
        refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)

    @exports("nvmlDeviceGetGpuInstancePossiblePlacements_v2")
    def placements(self, device: Any, profile_id: Any, places: Any, count: Any) -> None:
        _, gpu = self.gpu_of(device)
        profile = rules.profile_of(gpu, number(profile_id))
        _fill_placements(places, profile.starts, profile.size)
        put(count, len(profile.starts))

    @exports("nvmlDeviceGetGpuInstanceRemainingCapacity")
    def remaining(self, device: Any, profile_id: Any, count: Any) -> None:
        _, gpu = self.gpu_of(device)
        put(count, rules.remaining(gpu, rules.profile_of(gpu, number(profile_id))))

    # -- GPU instances ------------------------------------------------------------------------

    @exports("nvmlDeviceCreateGpuInstance")
    def create_instance(self, device: Any, profile_id: Any, made: Any) -> None:
        self._create(device, number(profile_id), None, made)

    @exports("nvmlDeviceCreateGpuInstanceWithPlacement")
    def create_instance_at(self, device: Any, profile_id: Any, place: Any, made: Any) -> None:
        wanted = target(place)
        self._create(device, number(profile_id), Placement(wanted.start, wanted.size), made)

    def _create(self, device: Any, profile_id: int, place: Placement | None, made: Any) -> None:
        with self.file.change() as machine:
            index, gpu = self.gpu_of(device, machine)
            instance = rules.create_gpu_instance(machine, gpu, profile_id, place, self.now())
            delay_s = machine.delays.create_gpu_instance_s
        self._take(delay_s)
        put_handle(made, handle_of(INSTANCE, index, instance.gi_id))

    @exports("nvmlGpuInstanceDestroy")
    def destroy_instance(self, handle: Any) -> None:
        with self.file.change() as machine:
            _, gpu, instance = self.instance_of(handle, machine)
            rules.destroy_gpu_instance(machine, gpu, instance, self.now())
            delay_s = machine.delays.destroy_gpu_instance_s
        self._take(delay_s)

    @exports("nvmlDeviceGetGpuInstances")
    def list_instances(self, device: Any, profile_id: Any, found: Any, count: Any) -> None:
        index, gpu = self.gpu_of(device)
        rules.profile_of(gpu, number(profile_id))
        wanted = [i for i in gpu.instances if i.profile_id == number(profile_id)]
        for place, instance in enumerate(wanted):
            put_handle(found, handle_of(INSTANCE, index, instance.gi_id), place)
        put(count, len(wanted))

    @exports("nvmlDeviceGetGpuInstanceById")
    def instance_by_id(self, device: Any, gi_id: Any, found: Any) -> None:
        index, gpu = self.gpu_of(device)
        if all(instance.gi_id != number(gi_id) for instance in gpu.instances):
            refuse(pynvml.NVML_ERROR_NOT_FOUND)
        put_handle(found, handle_of(INSTANCE, index, number(gi_id)))

    @exports("nvmlGpuInstanceGetInfo")
    def instance_info(self, handle: Any, info: Any) -> None:
        index, _, instance = self.instance_of(handle)
        out = target(info)
        put_handle(out, handle_of(GPU, index))  # the handle is the structure's first field
        out.id, out.profileId = instance.gi_id, instance.profile_id
        out.placement.start, out.placement.size = instance.start, instance.size

    # -- compute instances --------------------------------------------------------------------

    @exports(
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
        "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    )
    def compute_profile_info(self, handle: Any, enum: Any, engines: Any, info: Any) -> None:
        _, gpu, instance = self.instance_of(handle)
        if not 0 <= number(enum) < pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT or number(engines):
            refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if number(enum) not in rules.COMPUTE_SLICES:
            refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
        slices = rules.compute_slices_of(gpu, instance, number(enum))
        profile = rules.profile_of(gpu, instance.profile_id)
        out = target(info)
        out.id, out.sliceCount = number(enum), slices
        out.instanceCount = profile.compute_slices // slices
        out.multiprocessorCount = profile.sm_count * slices // profile.compute_slices

    @exports("nvmlGpuInstanceCreateComputeInstance")
    def create_compute(self, handle: Any, profile_id: Any, made: Any) -> None:
        with self.file.change() as machine:
            index, gpu, instance = self.instance_of(handle, machine)
            compute = rules.create_compute_instance(
                machine, gpu, instance, number(profile_id), self.now()
            )
            delay_s = machine.delays.create_compute_instance_s
        self._take(delay_s)
        put_handle(made, handle_of(COMPUTE, index, instance.gi_id, compute.ci_id))

    @exports("nvmlComputeInstanceDestroy")
    def destroy_compute(self, handle: Any) -> None:
        with self.file.change() as machine:
            _, gpu, instance, compute = self.compute_of(handle, machine)
            rules.destroy_compute_instance(machine, gpu, instance, compute, self.now())
            delay_s = machine.delays.destroy_compute_instance_s
        self._take(delay_s)

    @exports("nvmlGpuInstanceGetComputeInstances")
    def list_compute(self, handle: Any, profile_id: Any, found: Any, count: Any) -> None:
        index, _, instance = self.instance_of(handle)
        wanted = [c for c in instance.compute if c.profile_id == number(profile_id)]
        for place, compute in enumerate(wanted):
            put_handle(found, handle_of(COMPUTE, index, instance.gi_id, compute.ci_id), place)
        put(count, len(wanted))

    @exports("nvmlComputeInstanceGetInfo_v2")
    def compute_info(self, handle: Any, info: Any) -> None:
        index, _, instance, compute = self.compute_of(handle)
        out = target(info)
        put_handle(out, handle_of(GPU, index))
        put_handle(out, handle_of(INSTANCE, index, instance.gi_id), 1)
        out.id, out.profileId = compute.ci_id, compute.profile_id
        out.placement.start, out.placement.size = compute.start, compute.size

    # -- MIG devices --------------------------------------------------------------------------

    @exports("nvmlDeviceIsMigDeviceHandle")
    def is_mig(self, device: Any, answer: Any) -> None:
        put(answer, self.device_of(device)[1] is not None)

    @exports("nvmlDeviceGetGpuInstanceId")
    def gi_id(self, device: Any, answer: Any) -> None:
        put(answer, self.mig_of(device)[1].gi_id)

    @exports("nvmlDeviceGetComputeInstanceId")
    def ci_id(self, device: Any, answer: Any) -> None:
        put(answer, self.mig_of(device)[2].ci_id)

    @exports("nvmlDeviceGetMaxMigDeviceCount")
    def most_mig_devices(self, device: Any, count: Any) -> None:
        _, gpu = self.gpu_of(device)
        put(count, rules.model_of(gpu).compute_slices if gpu.mig else 0)

    @exports("nvmlDeviceGetMigDeviceHandleByIndex")
    def mig_by_index(self, device: Any, index: Any, found: Any) -> None:
        gpu_index, gpu = self.gpu_of(device)
        if number(index) >= rules.model_of(gpu).compute_slices:
            refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        indices = {compute.mig_index for _, compute in rules.mig_devices(gpu, self.now())}
        if number(index) not in indices:
            refuse(pynvml.NVML_ERROR_NOT_FOUND)
        put_handle(found, handle_of(MIG, gpu_index, number(index)))

    def _take(self, delay_s: float) -> None:
        if delay_s > 0:
            self.sleep(delay_s)


def _fill_placements(places: Any, starts: Sequence[int], size: int) -> None:
    if places is None:  # the first of two calls: only the count is asked
        return
    for place, start in zip(target(places), starts, strict=False):
        place.start, place.size = start, size


def _fill_profile(out: Any, gpu: Gpu, profile: Profile) -> None:
    engines = rules.model_of(gpu).engines[profile.profile_id]
    out.id, out.isP2pSupported = profile.profile_id, 0
    out.sliceCount, out.instanceCount = profile.compute_slices, profile.max_count
    out.multiprocessorCount, out.copyEngineCount = profile.sm_count, engines.copy
    out.decoderCount, out.encoderCount = engines.decoders, 0
    out.jpegCount, out.ofaCount = engines.jpeg, engines.ofa
    out.memorySizeMB = profile.memory_mib
    if hasattr(out, "name"):
        out.name = f"MIG {profile.name}".encode()
