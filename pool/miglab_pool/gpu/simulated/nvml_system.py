"""The simulated functions that open the library and find GPUs, and what GPUs are called."""

import ctypes
from pathlib import Path
from typing import Any

import pynvml

from miglab_pool.gpu.simulated import rules
from miglab_pool.gpu.simulated.library import GPU, MIG, Library, exports, handle_of, refuse
from miglab_pool.gpu.simulated.nvml_types import number, put, put_handle, put_text, target
from miglab_pool.gpu.simulated.state import Gpu, MachineState

DRIVER_VERSION = "580.159.04"
NVML_VERSION = "13.580.159.04"
CUDA_VERSION = 13000
FIRST_PCI_BUS = 0x07
ERROR_WORDS: dict[int, str] = {
    value: name.removeprefix("NVML_ERROR_").replace("_", " ").capitalize()
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_")
}


class SystemFunctions(Library):
    """Library, system, and the identity of GPUs."""

    @exports("nvmlInitWithFlags", "nvmlInit_v2")
    def init(self, flags: Any = 0) -> None:
        self.opened += 1

    @exports("nvmlShutdown")
    def shutdown(self) -> None:
        self.opened -= 1

    @exports("nvmlSystemGetDriverVersion")
    def driver_version(self, buffer: Any, length: Any) -> None:
        _text(buffer, DRIVER_VERSION)

    @exports("nvmlSystemGetNVMLVersion")
    def nvml_version(self, buffer: Any, length: Any) -> None:
        _text(buffer, NVML_VERSION)

    @exports("nvmlSystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2")
    def cuda_version(self, version: Any) -> None:
        put(version, CUDA_VERSION)

    @exports("nvmlSystemGetProcessName")
    def process_name(self, pid: Any, buffer: Any, length: Any) -> None:
        try:
            command = Path(f"/proc/{number(pid)}/cmdline").read_bytes().split(b"\0")[0]
        except OSError:
            refuse(pynvml.NVML_ERROR_NOT_FOUND)
        _text(buffer, command.decode(errors="replace")[: len(buffer) - 1])

    # -- finding GPUs -------------------------------------------------------------------------

    @exports("nvmlDeviceGetCount_v2")
    def count(self, count: Any) -> None:
        put(count, len(self.file.read().gpus))

    @exports("nvmlDeviceGetHandleByIndex_v2")
    def by_index(self, index: Any, found: Any) -> None:
        self._give(self.file.read(), number(index), found)

    @exports("nvmlDeviceGetHandleByUUID")
    def by_uuid(self, uuid: Any, found: Any) -> None:
        wanted = (uuid.value or b"").decode(errors="replace")
        machine = self.file.read()
        for index, gpu in enumerate(machine.gpus):
            if gpu.uuid == wanted:
                return self._give(machine, index, found)
        for index, gpu in enumerate(machine.gpus if wanted.startswith("MIG-") else ()):
            rules.settle(gpu, self.now())
            for instance, compute in rules.mig_devices(gpu, self.now()):
                if rules.mig_uuid(gpu, instance.gi_id, compute.ci_id) == wanted:
                    return put_handle(found, handle_of(MIG, index, compute.mig_index))
        return refuse(pynvml.NVML_ERROR_NOT_FOUND)

    @exports("nvmlDeviceGetHandleByPciBusId_v2")
    def by_pci(self, bus_id: Any, found: Any) -> None:
        wanted = (bus_id.value or b"").decode(errors="replace").upper()
        machine = self.file.read()
        for index in range(len(machine.gpus)):
            if pci_bus_id(index) == wanted or pci_bus_id(index)[4:] == wanted:
                return self._give(machine, index, found)
        return refuse(pynvml.NVML_ERROR_NOT_FOUND)

    def _give(self, machine: MachineState, index: int, found: Any) -> None:
        if not 0 <= index < len(machine.gpus):
            refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if machine.gpus[index].lost:
            refuse(pynvml.NVML_ERROR_GPU_IS_LOST)
        put_handle(found, handle_of(GPU, index))

    # -- what they are ------------------------------------------------------------------------

    @exports("nvmlDeviceGetName")
    def name(self, device: Any, buffer: Any, length: Any) -> None:
        gpu, instance, _ = self.device_of(device)
        name = rules.model_of(gpu).gpu_name
        if instance is not None:
            name = f"{name} MIG {rules.profile_of(gpu, instance.profile_id).name}"
        _text(buffer, name)

    @exports("nvmlDeviceGetUUID")
    def uuid(self, device: Any, buffer: Any, length: Any) -> None:
        gpu, instance, compute = self.device_of(device)
        if instance is None or compute is None:
            _text(buffer, gpu.uuid)
        else:
            _text(buffer, rules.mig_uuid(gpu, instance.gi_id, compute.ci_id))

    @exports("nvmlDeviceGetIndex")
    def index(self, device: Any, answer: Any) -> None:
        _, _, compute = self.device_of(device)
        put(answer, self.gpu_of(device)[0] if compute is None else compute.mig_index)

    @exports("nvmlDeviceGetMinorNumber")
    def minor_number(self, device: Any, answer: Any) -> None:
        put(answer, self.gpu_of(device)[0])

    @exports("nvmlDeviceGetSerial")
    def serial(self, device: Any, buffer: Any, length: Any) -> None:
        index, _ = self.gpu_of(device)
        _text(buffer, f"13{index:011d}")

    @exports("nvmlDeviceGetPciInfo_v3")
    def pci_info(self, device: Any, info: Any) -> None:
        index, gpu = self.gpu_of(device)
        out = target(info)
        out.domain, out.bus, out.device = 0, FIRST_PCI_BUS + index, 0
        out.pciDeviceId = rules.model_of(gpu).pci_device_id
        out.busId, out.busIdLegacy = pci_bus_id(index), pci_bus_id(index)[4:]

    @exports("nvmlDeviceGetCudaComputeCapability")
    def compute_capability(self, device: Any, major: Any, minor: Any) -> None:
        capability = rules.model_of(self.device_of(device)[0]).compute_capability
        put(major, capability[0])
        put(minor, capability[1])

    @exports("nvmlDeviceGetNumGpuCores")
    def cores(self, device: Any, answer: Any) -> None:
        model = rules.model_of(self.gpu_of(device)[1])
        put(answer, model.sm_count * (128 if model.is_hopper else 64))

    @exports("nvmlDeviceGetBrand")
    def brand(self, device: Any, answer: Any) -> None:
        self.device_of(device)
        put(answer, pynvml.NVML_BRAND_NVIDIA)

    @exports("nvmlDeviceGetArchitecture")
    def architecture(self, device: Any, answer: Any) -> None:
        is_hopper = rules.model_of(self.device_of(device)[0]).is_hopper
        put(
            answer,
            pynvml.NVML_DEVICE_ARCH_HOPPER if is_hopper else pynvml.NVML_DEVICE_ARCH_AMPERE,
        )

    @exports("nvmlDeviceGetPersistenceMode", "nvmlDeviceGetDisplayMode")
    def persistence_mode(self, device: Any, answer: Any) -> None:
        self.gpu_of(device)
        put(answer, pynvml.NVML_FEATURE_ENABLED)

    @exports("nvmlDeviceGetDisplayActive")
    def display_active(self, device: Any, answer: Any) -> None:
        self.gpu_of(device)
        put(answer, pynvml.NVML_FEATURE_DISABLED)

    @exports("nvmlDeviceGetComputeMode")
    def compute_mode(self, device: Any, answer: Any) -> None:
        self.gpu_of(device)
        put(answer, pynvml.NVML_COMPUTEMODE_DEFAULT)

    @exports("nvmlDeviceGetFieldValues")
    def field_values(self, device: Any, count: Any, values: Any) -> None:
        _, gpu = self.gpu_of(device)
        for value in target(values)[: number(count)]:
            _fill_field(value, gpu)


def pci_bus_id(index: int) -> str:
    """Where the GPU of an index sits."""
    return f"00000000:{FIRST_PCI_BUS + index:02X}:00.0"


def error_string(code: Any) -> bytes:
    """What ``nvmlErrorString`` returns; the one function that answers no code."""
    return ERROR_WORDS.get(number(code), f"Unknown error {number(code)}").encode()


def _fill_field(value: Any, gpu: Gpu) -> None:
    """One field value; each has a return code of its own."""
    if value.fieldId != pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED:
        value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
        return
    value.nvmlReturn = pynvml.NVML_SUCCESS
    value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    value.value.uiVal = rules.model_of(gpu).is_hopper


def _text(buffer: ctypes.Array[ctypes.c_char], text: str) -> None:
    if not put_text(buffer, text):
        refuse(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
