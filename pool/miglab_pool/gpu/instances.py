"""Lists the GPU instances and compute instances on a GPU, and creates compute instances.

A slice is one GPU instance with one compute instance on all of it.  Both are enumerated: a GPU
instance without a compute instance is invisible to a walk over MIG devices.
"""

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pynvml

from miglab_pool.gpu.geometry import Geometry, Profile
from miglab_pool.gpu.nvml import call, read_if_supported
from miglab_pool.gpu.readings import NoRoom, NotFound, NotSupported, UnknownGpuError


class _ComputeProfile(NamedTuple):
    profile_id: int
    slices: int
    max_count: int
    sm_count: int


def gpu_instances(nvml: Any, gpu: Any, profile: Profile, owner: str) -> list[Any]:
    """Handles of the GPU instances of one profile, also those without a compute instance."""
    count = ctypes.c_uint(profile.max_count)
    handles = (pynvml.c_nvmlGpuInstance_t * profile.max_count)()
    task = f"list the {profile.name} slices of {owner}"
    call(
        task, nvml.nvmlDeviceGetGpuInstances, gpu, profile.profile_id, handles, ctypes.byref(count)
    )
    return list(handles[: count.value])


def instance_infos(nvml: Any, gpu: Any, geometry: Geometry, owner: str) -> Iterator[Any]:
    """What NVML says of each GPU instance that it lists; one that goes meanwhile is not there."""
    for profile in geometry.profiles:
        for instance in gpu_instances(nvml, gpu, profile, owner):
            with suppress(NotFound):
                task = f"read a {profile.name} slice of {owner}"
                yield call(task, nvml.nvmlGpuInstanceGetInfo, instance)


def profile_of(geometry: Geometry, info: Any) -> Profile:
    """The profile of a GPU instance, by what NVML says of it.

    A driver may have made it by a profile that it does not list: then it is called by its id, and
    takes its placement, whatever else it takes.
    """
    listed = geometry.by_id.get(info.profileId)
    start, size = info.placement.start, info.placement.size
    name = f"profile {info.profileId}"
    return listed or Profile(name, info.profileId, -1, 0, size, 0, 0, 1, (start,))


class ComputeInstances:
    """Compute instances of GPU instances, whatever their profile.

    Which compute profiles a GPU instance can have depends on its own profile alone; it is asked
    once for each, because a profile-info call costs about 0.5 ms (real H200).
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._profiles_by_gpu_profile: dict[Profile, tuple[_ComputeProfile, ...]] = {}

    def handles(self, instance: Any, profile: Profile, owner: str) -> list[Any]:
        """Handles of every compute instance of a GPU instance."""
        handles: list[Any] = []
        for kind in self._profiles(instance, profile, owner):
            count = ctypes.c_uint(kind.max_count)
            of_kind = (pynvml.c_nvmlComputeInstance_t * max(kind.max_count, 1))()
            call(
                f"list the compute instances of {owner}",
                self._nvml.nvmlGpuInstanceGetComputeInstances,
                instance,
                kind.profile_id,
                of_kind,
                ctypes.byref(count),
            )
            handles += of_kind[: count.value]
        return handles

    def create_full(self, instance: Any, profile: Profile, owner: str) -> None:
        """Give the whole GPU instance to one compute instance.

        Raises:
            GpuError: it could not be created; never `NoRoom`, as the GPU instance has its place.
        """
        task = f"create the compute instance of {owner}"
        kind = _full(profile, self._profiles(instance, profile, owner), owner)
        create = self._nvml.nvmlGpuInstanceCreateComputeInstance
        try:
            call(task, create, instance, kind.profile_id)
        except NoRoom as error:
            raise UnknownGpuError(
                f"Could not {task} (NVMLError_InsufficientResources): its GPU instance was "
                "created, and NVML finds no room in it; look at the kernel log "
                "(dmesg | grep -i nvrm)."
            ) from error

    def _profiles(self, instance: Any, profile: Profile, owner: str) -> tuple[_ComputeProfile, ...]:
        if profile not in self._profiles_by_gpu_profile:
            self._profiles_by_gpu_profile[profile] = tuple(
                _compute_profiles(self._nvml, instance, owner)
            )
        return self._profiles_by_gpu_profile[profile]


def _full(profile: Profile, kinds: tuple[_ComputeProfile, ...], owner: str) -> _ComputeProfile:
    """The compute profile that takes a whole GPU instance, all of its SMs where NVML has that.

    An H100's ``1g.20gb`` has 26 SMs: ``1_SLICE`` takes 16 of them, ``1_SLICE_REV1`` all (NVIDIA
    go-nvlib, pull request 85).  Simply the largest is wrong on an A100 (pull request 102), and of
    equal ones only the first can be created (dra-driver-nvidia-gpu, issue 1480).
    """
    alike = [kind for kind in kinds if kind.slices == profile.compute_slices]
    if not alike:
        raise NotSupported(
            f"{owner} has no compute-instance profile of {profile.compute_slices} slices; "
            "update the NVIDIA driver."
        )
    return next((kind for kind in alike if kind.sm_count == profile.sm_count), alike[0])


def _compute_profiles(nvml: Any, instance: Any, owner: str) -> Iterator[_ComputeProfile]:
    for enum in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = read_if_supported(
                f"read compute-instance profile {enum} of {owner}",
                nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo,
                instance,
                enum,
                pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
            )
        except UnknownGpuError as error:
            if error.code == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                return  # an older driver does not know so high a number
            raise
        if info is not None:
            sm_count = info.multiprocessorCount
            yield _ComputeProfile(info.id, info.sliceCount, info.instanceCount, sm_count)
