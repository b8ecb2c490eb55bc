"""The handle of each GPU, looked up once and kept until NVML says that it is no longer good.

A lookup by UUID "may initialize additional GPUs as it searches for the target GPU", one by PCI id
does not (nvml.h, ``nvmlDeviceGetHandleByUUID`` and ``nvmlDeviceGetHandleByPciBusId_v2``).  Done by
several threads at once it has taken ten seconds (NVIDIA's dra-driver-nvidia-gpu, ``nvlib.go``),
and with a GPU that hangs it may take for ever.  Decides nothing about GPUs.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pynvml

from miglab_pool.gpu.nvml import call
from miglab_pool.gpu.readings import GpuError

ENDS_HANDLE = frozenset(
    {
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_UNINITIALIZED,
    }
)
"""What NVML answers to a handle that it does not know any more."""
NOT_AT_PCI_ID = frozenset(
    {
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NOT_SUPPORTED,
    }
)


KERNEL_GPUS = Path("/proc/driver/nvidia/gpus")
UUID_LINE = "GPU UUID:"


def pci_ids_of_kernel(folder: Path = KERNEL_GPUS) -> dict[str, str]:
    """Return the GPUs' PCI ids by UUID without a call to NVML, which a hanging GPU could block.

    The driver's module has a folder for each GPU, named by its PCI id, whose file ``information``
    has the line ``GPU UUID: GPU-…`` (driver 580.159.04); ``GPU-????…`` before a GPU was ever used.

    Returns:
        Those that are told; none on a host without the module.
    """
    pci_ids = {}
    for file in folder.glob("*/information"):
        with suppress(OSError):
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            for line in lines:
                if line.startswith(UUID_LINE):
                    pci_ids[line.removeprefix(UUID_LINE).strip()] = file.parent.name
    return pci_ids


class GpuHandles:
    """The handles of one driver.

    Args:
        nvml: the module ``pynvml`` or a ``SimulatedNvml``.
        pci_ids: where each GPU was found so far, by UUID, to which it adds.
    """

    def __init__(self, nvml: Any, pci_ids: dict[str, str]) -> None:
        self._nvml = nvml
        self._pci_ids = pci_ids
        self._handles: dict[str, Any] = {}

    @contextmanager
    def open_gpu(self, gpu_uuid: str) -> Iterator[Any]:
        """Yield the GPU's handle for calls; drop it from the cache if one finds it stale.

        Raises:
            GpuError: the GPU cannot be opened.
        """
        try:
            if gpu_uuid not in self._handles:
                self._handles[gpu_uuid] = self._look_up(gpu_uuid)
            yield self._handles[gpu_uuid]
        except GpuError as error:
            if error.code in ENDS_HANDLE:
                self._handles.pop(gpu_uuid, None)
            raise

    def _look_up(self, gpu_uuid: str) -> Any:
        handle = self._open_at_pci_id(gpu_uuid)
        if handle is not None:
            return handle
        handle = call(f"open GPU {gpu_uuid}", self._nvml.nvmlDeviceGetHandleByUUID, gpu_uuid)
        with suppress(GpuError):  # then it is looked up by UUID next time, too
            task = f"read the PCI id of {gpu_uuid}"
            self._pci_ids[gpu_uuid] = call(task, self._nvml.nvmlDeviceGetPciInfo_v3, handle).busId
        return handle

    def _open_at_pci_id(self, gpu_uuid: str) -> Any | None:
        """Open the GPU at its last known PCI id; None if another GPU, or none, is there now."""
        pci_id = self._pci_ids.get(gpu_uuid)
        if pci_id is None:
            return None
        try:
            task = f"open GPU {gpu_uuid} at PCI id {pci_id}"
            handle = call(task, self._nvml.nvmlDeviceGetHandleByPciBusId, pci_id)
            uuid = call(f"read the UUID of {gpu_uuid}", self._nvml.nvmlDeviceGetUUID, handle)
            if uuid == gpu_uuid:
                return handle
        except GpuError as error:
            if error.code not in NOT_AT_PCI_ID:
                raise
        self._pci_ids.pop(gpu_uuid, None)
        return None
