"""Calls NVML and turns its errors into ours.

Must not know slices: which calls are made, in which order, is ``nvml.py``'s.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from miglab_pool.gpu import errors

T = TypeVar("T")

_ADVICE: dict[int, tuple[type[errors.GpuError], str]] = {
    pynvml.NVML_ERROR_NO_PERMISSION: (
        errors.NotPermitted,
        "run the pool service as root, or give it read access to the MIG configuration capability "
        "(/proc/driver/nvidia/capabilities/mig/config)",
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: (
        errors.GpuLost,
        "the GPU has fallen off the bus: look for Xid lines in the kernel log, then reset the GPU "
        "or reboot the host",
    ),
    pynvml.NVML_ERROR_RESET_REQUIRED: (
        errors.GpuLost,
        "the GPU needs a reset: drain it, then nvidia-smi --gpu-reset or reboot the host",
    ),
    pynvml.NVML_ERROR_IN_USE: (
        errors.InUse,
        "something still uses it: a process (nvidia-smi shows it) or a monitoring client that "
        "holds it open (dcgm, a metrics exporter); stop that and try again",
    ),
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: (
        errors.NoRoom,
        "the placement is taken; read the GPU's slices again before deciding anew",
    ),
    pynvml.NVML_ERROR_NOT_FOUND: (
        errors.NotFound,
        "it does not exist (any more); read the GPU's slices again",
    ),
    pynvml.NVML_ERROR_NOT_SUPPORTED: (
        errors.NotSupported,
        "this GPU cannot do that in its present mode (is MIG on? nvidia-smi -i GPU -q -d MIG)",
    ),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (
        errors.NotSupported,
        "the installed driver is too old for that; driver 525 or newer has it",
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        errors.DriverMissing,
        "the NVIDIA driver is not loaded: modprobe nvidia, or reboot after an installation",
    ),
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        errors.DriverMissing,
        "libnvidia-ml.so.1 is not there: install the NVIDIA driver, or use simulated GPUs",
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        errors.DriverMissing,
        "the driver was updated under a running kernel module: reboot the host",
    ),
    pynvml.NVML_ERROR_UNINITIALIZED: (
        errors.DriverMissing,
        "NVML is not open: the driver object was closed",
    ),
}
_OTHER = (errors.UnknownGpuError, "look at the kernel log (dmesg | grep -i nvrm)")


def call(what: str, function: Callable[..., T], *args: Any) -> T:
    """Call NVML.

    Args:
        what: what is being done and on what, to follow "Could not ".
        function: the NVML function.
        args: its arguments.

    Raises:
        GpuError: the type that fits NVML's error, with what to do about it.
    """
    try:
        return function(*args)
    except pynvml.NVMLError as error:
        kind, advice = _ADVICE.get(error.value, _OTHER)
        raise kind(f"Could not {what} ({type(error).__name__}): {advice}.") from error


def read(what: str, function: Callable[..., T], *args: Any) -> T | None:
    """Call NVML for a reading that a GPU may not have.

    Returns:
        The reading, or None if this GPU or driver does not support it.

    Raises:
        GpuError: any other failure.
    """
    try:
        return call(what, function, *args)
    except errors.NotSupported:
        return None
