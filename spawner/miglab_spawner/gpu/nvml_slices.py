"""Walks the slices of one GPU through NVML: GPU instances, compute instances, MIG devices.

Plumbing of ``nvml.py``.  Must not decide anything.
"""

import ctypes
from collections.abc import Iterator
from typing import Any

import pynvml

from . import errors
from .geometry import Profile
from .nvml_call import call, read
from .readings import ProcessReading, Usage

MIB = 1 << 20


def gpu_instances(nvml: Any, gpu: Any, profile: Profile, where: str) -> list[Any]:
    """Handles of the GPU instances of one profile, also those without a compute instance."""
    count = ctypes.c_uint(profile.max_count)
    found = (pynvml.c_nvmlGpuInstance_t * profile.max_count)()
    what = f"list the {profile.name} slices of {where}"
    call(what, nvml.nvmlDeviceGetGpuInstances, gpu, profile.profile_id, found, ctypes.byref(count))
    return list(found[: count.value])


def compute_instances(nvml: Any, instance: Any, where: str) -> list[Any]:
    """Handles of every compute instance of a GPU instance, whatever its profile."""
    found: list[Any] = []
    for info in compute_profiles(nvml, instance, where):
        count = ctypes.c_uint(info.instanceCount)
        handles = (pynvml.c_nvmlComputeInstance_t * max(info.instanceCount, 1))()
        call(
            f"list the compute instances of {where}",
            nvml.nvmlGpuInstanceGetComputeInstances,
            instance,
            info.id,
            handles,
            ctypes.byref(count),
        )
        found += handles[: count.value]
    return found


def compute_profiles(nvml: Any, instance: Any, where: str) -> Iterator[Any]:
    """The compute-instance profiles that a GPU instance can have."""
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    for enum in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = read(
                f"read compute-instance profile {enum} of {where}",
                nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo,
                instance,
                enum,
                shared,
            )
        except errors.UnknownGpuError as error:
            if isinstance(error.__cause__, pynvml.NVMLError_InvalidArgument):
                return  # an older driver does not know so high a number
            raise
        if info is not None:
            yield info


def create_full_compute_instance(nvml: Any, instance: Any, profile: Profile, where: str) -> None:
    """Give the whole GPU instance to one compute instance."""
    for info in compute_profiles(nvml, instance, where):
        if info.sliceCount == profile.compute_slices:
            call(
                f"create the compute instance of {where}",
                nvml.nvmlGpuInstanceCreateComputeInstance,
                instance,
                info.id,
            )
            return
    raise errors.NotSupported(
        f"{where} has no compute-instance profile of {profile.compute_slices} slices; "
        "update the NVIDIA driver."
    )


def mig_devices(nvml: Any, gpu: Any, where: str) -> Iterator[tuple[int, int, Any]]:
    """Every MIG device as (GPU-instance id, compute-instance id, handle).

    Indices are sparse: the walk goes to the greatest count and steps over the holes.
    """
    most = read(f"count the MIG devices of {where}", nvml.nvmlDeviceGetMaxMigDeviceCount, gpu)
    for index in range(most or 0):
        try:
            device = call(
                f"open MIG device {index} of {where}",
                nvml.nvmlDeviceGetMigDeviceHandleByIndex,
                gpu,
                index,
            )
            gi_id = call(f"read MIG device {index}", nvml.nvmlDeviceGetGpuInstanceId, device)
            ci_id = call(f"read MIG device {index}", nvml.nvmlDeviceGetComputeInstanceId, device)
        except (errors.NotFound, errors.NotSupported):
            continue
        yield gi_id, ci_id, device


def read_usage(nvml: Any, device: Any, where: str) -> Usage:
    """Memory and processes of a GPU or MIG device."""
    memory = read(f"read the memory of {where}", nvml.nvmlDeviceGetMemoryInfo, device)
    return Usage(
        memory_used_mib=None if memory is None else memory.used // MIB,
        processes=_processes(nvml, device, where),
    )


def _processes(nvml: Any, device: Any, where: str) -> tuple[ProcessReading, ...] | None:
    compute = read(
        f"list the processes of {where}", nvml.nvmlDeviceGetComputeRunningProcesses, device
    )
    if compute is None:
        return None
    graphics = read(
        f"list the graphics processes of {where}",
        nvml.nvmlDeviceGetGraphicsRunningProcesses,
        device,
    )
    by_pid = {process.pid: process for process in [*(graphics or []), *compute]}
    return tuple(
        ProcessReading(pid, None if p.usedGpuMemory is None else p.usedGpuMemory // MIB)
        for pid, p in sorted(by_pid.items())
    )
