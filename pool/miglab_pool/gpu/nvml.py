"""Calls to NVML with typed errors, and readings of one GPU: MIG devices, usage, geometry.

A GPU's geometry comes from NVML too, so that any MIG card serves without a table here.  Decides
nothing: which slice is made or destroyed, and when, is not known here.
"""

import ctypes
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

import pynvml

from miglab_pool.gpu.geometry import Engines, Geometry, Profile, with_engines
from miglab_pool.gpu.readings import (
    DriverMissing,
    GpuError,
    GpuLost,
    InUse,
    NoRoom,
    NotFound,
    NotPermitted,
    NotSupported,
    ProcessReading,
    UnknownGpuError,
    Usage,
)

T = TypeVar("T")
MIB, GIB = 1 << 20, 1 << 30
NEWER_PROFILES = 16  # asked for beyond those that pynvml knows: the driver may be newer
# CUDA cores per SM by compute capability (CUDA C++ programming guide, arithmetic throughput).
CORES_PER_SM = {(8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128, (12, 0): 128}

# What NVIDIA's names add for variants of a profile (go-nvlib, ``NewMigProfile``).
_SUFFIXES = {
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME: "+me.all",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME: "+me.all",
}
_ADVICE: dict[int, tuple[type[GpuError], str]] = {
    pynvml.NVML_ERROR_NO_PERMISSION: (
        NotPermitted,
        "run the pool service as root, or give it read access to the MIG configuration capability "
        "(/proc/driver/nvidia/capabilities/mig/config)",
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: (
        GpuLost,
        "the GPU has fallen off the bus: look for Xid lines in the kernel log, then reset the GPU "
        "or reboot the host",
    ),
    pynvml.NVML_ERROR_RESET_REQUIRED: (
        GpuLost,
        "the GPU needs a reset: drain it, then nvidia-smi --gpu-reset or reboot the host",
    ),
    pynvml.NVML_ERROR_IN_USE: (
        InUse,
        "something still uses it: a process (nvidia-smi shows it) or a monitoring client that "
        "holds it open (dcgm, a metrics exporter); stop that and try again",
    ),
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: (
        NoRoom,
        "the placement is taken; read the GPU's slices again before deciding anew",
    ),
    pynvml.NVML_ERROR_NOT_FOUND: (
        NotFound,
        "it does not exist (any more); read the GPU's slices again",
    ),
    pynvml.NVML_ERROR_NOT_SUPPORTED: (
        NotSupported,
        "this GPU cannot do that in its present mode (is MIG on? nvidia-smi -i GPU -q -d MIG)",
    ),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (
        NotSupported,
        "the installed driver is too old for that; driver 525 or newer has it",
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        DriverMissing,
        "the NVIDIA driver is not loaded: modprobe nvidia, or reboot after an installation",
    ),
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        DriverMissing,
        "libnvidia-ml.so.1 is not there: install the NVIDIA driver, or use simulated GPUs",
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        DriverMissing,
        "the driver was updated under a running kernel module: reboot the host",
    ),
    pynvml.NVML_ERROR_UNINITIALIZED: (
        DriverMissing,
        "NVML is not open: the driver object was closed",
    ),
}
_OTHER = (UnknownGpuError, "look at the kernel log (dmesg | grep -i nvrm)")


def call(task: str, function: Callable[..., T], *args: Any) -> T:
    """Call NVML.

    Args:
        task: what is being done and on what, to follow "Could not ".
        function: the NVML function.
        args: its arguments.

    Raises:
        GpuError: the type that fits NVML's error, with what to do about it.
    """
    try:
        return function(*args)
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError) as error:
        raise _typed_error(task, error) from error


def _typed_error(task: str, error: Exception) -> GpuError:
    """The `GpuError` for an error of pynvml, which has a class for each code that it knows."""
    name = type(error).__name__
    # pynvml raises a mismatch, which has no code, in place of FUNCTION_NOT_FOUND
    code = getattr(error, "value", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    kind, advice = _ADVICE.get(code, _OTHER)
    answer = f"{name} {code}" if name == "NVMLError" else name
    failure = kind(f"Could not {task} ({answer}): {advice}.")
    failure.code = code
    return failure


def read_if_supported(task: str, function: Callable[..., T], *args: Any) -> T | None:
    """Call NVML for a reading that a GPU may not have.

    Returns:
        The reading, or None if this GPU or driver does not support it.

    Raises:
        GpuError: any other failure.
    """
    try:
        return call(task, function, *args)
    except NotSupported:
        return None


# -- what is on a GPU -----------------------------------------------------------------------------


def mig_devices(nvml: Any, gpu: Any, owner: str) -> Iterator[tuple[int, int, Any]]:
    """Every MIG device as (GPU-instance id, compute-instance id, handle).

    Indices are sparse: the walk goes to the greatest count and steps over the holes.
    """
    limit = read_if_supported(
        f"count the MIG devices of {owner}", nvml.nvmlDeviceGetMaxMigDeviceCount, gpu
    )
    for index in range(limit or 0):
        try:
            device = call(
                f"open MIG device {index} of {owner}",
                nvml.nvmlDeviceGetMigDeviceHandleByIndex,
                gpu,
                index,
            )
            gi_id = call(f"read MIG device {index}", nvml.nvmlDeviceGetGpuInstanceId, device)
            ci_id = call(f"read MIG device {index}", nvml.nvmlDeviceGetComputeInstanceId, device)
        except (NotFound, NotSupported):
            continue
        yield gi_id, ci_id, device


def read_usage(nvml: Any, device: Any, owner: str) -> Usage:
    """Memory and processes of a GPU or MIG device."""
    memory = read_if_supported(f"read the memory of {owner}", nvml.nvmlDeviceGetMemoryInfo, device)
    return Usage(
        memory_used_mib=None if memory is None else memory.used // MIB,
        processes=_processes(nvml, device, owner),
    )


def _processes(nvml: Any, device: Any, owner: str) -> tuple[ProcessReading, ...] | None:
    compute = read_if_supported(
        f"list the processes of {owner}", nvml.nvmlDeviceGetComputeRunningProcesses, device
    )
    if compute is None:
        return None
    graphics = read_if_supported(
        f"list the graphics processes of {owner}",
        nvml.nvmlDeviceGetGraphicsRunningProcesses,
        device,
    )
    by_pid = {process.pid: process for process in [*(graphics or []), *compute]}
    return tuple(
        ProcessReading(pid, None if p.usedGpuMemory is None else p.usedGpuMemory // MIB)
        for pid, p in sorted(by_pid.items())
    )


def read_geometry(nvml: Any, gpu: Any, owner: str) -> Geometry:
    """How the GPU can be cut; without profiles if it has no MIG.

    NVML answers with MIG off too (seen on an H200, driver 580).

    Args:
        nvml: the module ``pynvml`` or a ``SimulatedNvml``.
        gpu: the GPU's handle.
        owner: the GPU's UUID, for messages.
    """
    profiles = []
    for enum in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT + NEWER_PROFILES):
        info = _profile_info(nvml, gpu, enum, owner)
        if info is not None:
            engines = Engines(info.decoderCount, info.encoderCount, info.jpegCount, info.ofaCount)
            profiles.append((_profile(nvml, gpu, enum, info, owner), engines))
    ends = [start + profile.size for profile, _ in profiles for start in profile.starts]
    return _shared(Geometry(max(ends, default=0), with_engines(profiles)))


@lru_cache(maxsize=64)
def _shared(geometry: Geometry) -> Geometry:
    """One object for all GPUs that are cut alike, so that a lab's few geometries count as few."""
    return geometry


def read_sm_count(nvml: Any, gpu: Any, owner: str) -> int | None:
    """Streaming multiprocessors of the whole GPU; None where it cannot be told."""
    cores = read_if_supported(f"count the cores of {owner}", nvml.nvmlDeviceGetNumGpuCores, gpu)
    capability = read_if_supported(
        f"read the compute capability of {owner}", nvml.nvmlDeviceGetCudaComputeCapability, gpu
    )
    if cores is None or capability is None or tuple(capability) not in CORES_PER_SM:
        return None
    return int(cores) // CORES_PER_SM[tuple(capability)]


def read_pci_ids(nvml: Any, gpu: Any, owner: str) -> tuple[int | None, int | None]:
    """PCI ids of the device and of its subsystem; None where NVML does not tell, or says 0."""
    pci = read_if_supported(f"read the PCI ids of {owner}", nvml.nvmlDeviceGetPciInfo, gpu)
    return (None, None) if pci is None else (pci.pciDeviceId or None, pci.pciSubSystemId or None)


def profile_name(info: Any, total_bytes: int, enum: int) -> str:
    """The profile's name, made up as NVIDIA does where an old driver does not tell it.

    The memory in the name is the share of the GPU in eighths, of the GPU's whole GiB
    (NVIDIA go-nvlib, ``getMigMemorySizeGB``).
    """
    name = getattr(info, "name", "")
    if name:
        return str(name).removeprefix("MIG ")
    eighths = math.ceil(info.memorySizeMB * MIB / total_bytes * 8)
    gigabytes = round(eighths / 8 * math.ceil(total_bytes / GIB))
    return f"{info.sliceCount}g.{gigabytes}gb{_SUFFIXES.get(enum, '')}"


def _profile_info(nvml: Any, gpu: Any, enum: int, owner: str) -> Any | None:
    task = f"read GPU-instance profile {enum} of {owner}"
    for version in (2, 1):  # drivers before 510 know version 1 alone
        try:
            return nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, enum, version)
        except pynvml.NVMLError_FunctionNotFound:
            continue
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            return None  # this card lacks it, or this driver does not know so high a number
        except pynvml.NVMLError:
            return call(task, nvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, enum, version)
    return None


def _profile(nvml: Any, gpu: Any, enum: int, info: Any, owner: str) -> Profile:
    starts, size = _placements(nvml, gpu, info.id, owner)
    total = call(f"read the memory of {owner}", nvml.nvmlDeviceGetMemoryInfo, gpu).total
    return Profile(
        name=profile_name(info, total, enum),
        profile_id=info.id,
        enum=enum,
        compute_slices=info.sliceCount,
        size=size,
        sm_count=info.multiprocessorCount,
        memory_mib=info.memorySizeMB,
        max_count=info.instanceCount,
        starts=starts,
    )


def _placements(nvml: Any, gpu: Any, profile_id: int, owner: str) -> tuple[tuple[int, ...], int]:
    """Every legal start, and the size; NVML gives the static list, not what is free."""
    task = f"read the placements of profile {profile_id} of {owner}"
    count = ctypes.c_uint()
    ask = nvml.nvmlDeviceGetGpuInstancePossiblePlacements
    call(task, ask, gpu, profile_id, None, ctypes.byref(count))
    placements = (pynvml.c_nvmlGpuInstancePlacement_t * max(count.value, 1))()
    call(task, ask, gpu, profile_id, placements, ctypes.byref(count))
    starts_and_sizes = sorted(
        (placement.start, placement.size) for placement in placements[: count.value]
    )
    if not starts_and_sizes:
        raise NotSupported(f"{owner} has no placement for profile {profile_id}.")
    return tuple(start for start, _ in starts_and_sizes), starts_and_sizes[0][1]
