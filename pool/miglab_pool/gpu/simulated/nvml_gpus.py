"""The simulated functions that open the library, find GPUs, and tell what these are and do.

On a MIG device, and on a GPU with MIG on, utilisation is NOT_SUPPORTED: unknown, not zero.  What a
slice does is told by GPM alone, on Hopper; of Xid faults the event sets hear.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pynvml

from miglab_pool.gpu.simulated import rules
from miglab_pool.gpu.simulated.library import (
    EVENTS,
    GPU,
    MIG,
    SAMPLE,
    Library,
    exports,
    handle_of,
    number,
    put,
    put_handle,
    refuse,
    split_handle,
    target,
)
from miglab_pool.gpu.simulated.state import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    MachineState,
    Process,
    XidEvent,
)

DRIVER_VERSION = "580.159.04"
CUDA_VERSION = 13000
MIB = 1 << 20
IDLE_POWER_SHARE = 0.14
NOT_TOLD = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
NOT_SIMULATED = (
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetDecoderUtilization",
    "nvmlDeviceGetDisplayActive",
    "nvmlDeviceGetDriverModel_v2",
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetFanSpeed",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetTemperatureV",
)
"""What nvitop and gpustat put on their screens beside; they show it as unknown."""
ERROR_WORDS: dict[int, str] = {
    value: name.removeprefix("NVML_ERROR_").replace("_", " ").capitalize()
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_")
}
EVENT_POLL_S = 0.05
NO_ID = 0xFFFFFFFF
GPM_METRICS = (pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, pynvml.NVML_GPM_METRIC_SM_UTIL)


class GpuFunctions(Library):
    """Library, system, and single GPUs: their identity, and what changes while they are used."""

    @exports("nvmlInitWithFlags")
    def init(self, flags: Any = 0) -> None:
        self.opened += 1

    @exports("nvmlShutdown")
    def shutdown(self) -> None:
        self.opened -= 1

    @exports("nvmlSystemGetDriverVersion")
    def driver_version(self, buffer: Any, length: Any) -> None:
        _text(buffer, DRIVER_VERSION)

    @exports("nvmlSystemGetCudaDriverVersion")
    def cuda_version(self, version: Any) -> None:
        put(version, CUDA_VERSION)

    # -- finding GPUs -------------------------------------------------------------------------

    @exports("nvmlDeviceGetCount_v2")
    def count(self, count: Any) -> None:
        put(count, len(_present(self.file.read())))

    @exports("nvmlDeviceGetHandleByIndex_v2")
    def by_index(self, index: Any, device_ref: Any) -> None:
        machine = self.file.read()
        present = _present(machine)
        if not 0 <= number(index) < len(present):
            refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        self._write_gpu_handle(machine, present[number(index)], device_ref)

    @exports("nvmlDeviceGetHandleByUUID")
    def by_uuid(self, uuid: Any, device_ref: Any) -> None:
        text = (uuid.value or b"").decode(errors="replace")
        machine = self.file.read()
        for index in _present(machine):
            self._open_on_search(index)
            if machine.gpus[index].uuid == text:
                return self._write_gpu_handle(machine, index, device_ref)
        for index, gpu in enumerate(machine.gpus if text.startswith("MIG-") else ()):
            rules.settle(gpu, self.now())
            for instance, compute in rules.mig_devices(gpu, self.now()):
                if rules.mig_uuid(gpu, instance.gi_id, compute.ci_id) == text:
                    return put_handle(device_ref, handle_of(MIG, index, compute.mig_index))
        return refuse(pynvml.NVML_ERROR_NOT_FOUND)

    def _open_on_search(self, index: int) -> None:
        """A search by UUID opens every GPU on its way, also one that is slow or hangs."""
        machine = self.wait_for("nvmlDeviceGetHandleByUUID", index)
        if machine.delays.search_gpu_s > 0:
            self.sleep(machine.delays.search_gpu_s)

    @exports("nvmlDeviceGetHandleByPciBusId_v2")
    def by_pci_id(self, pci_id: Any, device_ref: Any) -> None:
        text = (pci_id.value or b"").decode(errors="replace").upper()
        for index in _present(self.file.read()):
            if pci_id_of(index) == text:
                machine = self.wait_for("nvmlDeviceGetHandleByPciBusId_v2", index)
                return self._write_gpu_handle(machine, index, device_ref)
        return refuse(pynvml.NVML_ERROR_NOT_FOUND)

    def _write_gpu_handle(self, machine: MachineState, index: int, device_ref: Any) -> None:
        if machine.gpus[index].lost:
            refuse(pynvml.NVML_ERROR_GPU_IS_LOST)
        put_handle(device_ref, handle_of(GPU, index))

    # -- what they are ------------------------------------------------------------------------

    @exports("nvmlDeviceGetPciInfo_v3")
    def pci_info(self, device: Any, info: Any) -> None:
        index, gpu = self.gpu_of(device)
        out = target(info)
        out.pciDeviceId = int(rules.model_of(gpu).pci_device_id, 16)
        out.domain, out.bus, out.device = 0, index, 0
        out.busId = pci_id_of(index).encode()
        out.busIdLegacy = out.busId[4:]

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
        if compute is not None:
            return put(answer, compute.mig_index)
        return put(answer, _present(self.machine).index(self.gpu_of(device)[0]))

    @exports("nvmlDeviceGetCudaComputeCapability")
    def compute_capability(self, device: Any, major: Any, minor: Any) -> None:
        capability = rules.model_of(self.device_of(device)[0]).compute_capability
        put(major, capability[0])
        put(minor, capability[1])

    @exports("nvmlDeviceGetNumGpuCores")
    def cores(self, device: Any, answer: Any) -> None:
        model = rules.model_of(self.gpu_of(device)[1])
        put(answer, model.sm_count * (128 if model.is_hopper else 64))

    @exports("nvmlDeviceGetFieldValues")
    def field_values(self, device: Any, count: Any, values: Any) -> None:
        _, gpu = self.gpu_of(device)
        for value in target(values)[: number(count)]:
            _fill_field(value, gpu)

    # -- what changes while they are used -----------------------------------------------------

    @exports("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")
    def memory(self, device: Any, info: Any) -> None:
        gpu, instance, compute = self.device_of(device)
        total_mib = rules.model_of(gpu).memory_mib
        if instance is not None:
            total_mib = rules.profile_of(gpu, instance.profile_id).memory_mib
        used_mib = sum(p.memory_mib or 0 for p in _processes(gpu, instance, compute))
        out = target(info)
        out.total, out.used = total_mib * MIB, used_mib * MIB
        out.free = max(total_mib - used_mib, 0) * MIB
        if hasattr(out, "reserved"):
            out.reserved = 0

    @exports("nvmlDeviceGetBAR1MemoryInfo")  # nvitop 1.7.2 does not take "unknown" of a slice
    def bar1(self, device: Any, info: Any) -> None:
        gpu, _, _ = self.device_of(device)
        out = target(info)
        out.bar1Total = out.bar1Free = 2 * rules.model_of(gpu).memory_mib * MIB
        out.bar1Used = 0

    @exports("nvmlDeviceGetComputeRunningProcesses_v3")
    def processes(self, device: Any, count: Any, records: Any) -> None:
        gpu, instance, compute = self.device_of(device)
        running = _processes(gpu, instance, compute)
        room = number(target(count))
        put(count, len(running))
        if running and (records is None or room < len(running)):
            refuse(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        for out, process in zip(target(records) or (), running, strict=False):
            _fill_process(out, process)

    @exports("nvmlDeviceGetGraphicsRunningProcesses_v3")
    def other_processes(self, device: Any, count: Any, records: Any) -> None:
        self.device_of(device)
        put(count, 0)

    @exports("nvmlDeviceGetUtilizationRates")
    def utilization(self, device: Any, info: Any) -> None:
        gpu = self._without_mig(device)
        out = target(info)
        out.gpu = out.memory = round(activity_pct(gpu.processes))

    @exports("nvmlDeviceGetTemperature")
    def temperature(self, device: Any, sensor: Any, answer: Any) -> None:
        put(answer, self.device_of(device)[0].temperature_c)

    @exports("nvmlDeviceGetPowerUsage")
    def power(self, device: Any, answer: Any) -> None:
        _, gpu = self.gpu_of(device)
        share = IDLE_POWER_SHARE + (1 - IDLE_POWER_SHARE) * activity_pct(gpu.processes) / 100
        put(answer, round(rules.model_of(gpu).power_limit_w * 1000 * share))

    @exports("nvmlDeviceGetTotalEccErrors")
    def ecc_errors(self, device: Any, kind: Any, counter: Any, answer: Any) -> None:
        gpu, _, _ = self.device_of(device)
        is_uncorrected = number(kind) == pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        put(answer, gpu.ecc_errors if is_uncorrected else 0)

    @exports(*NOT_SIMULATED)
    def not_simulated(self, *arguments: Any) -> None:
        refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def _without_mig(self, device: Any) -> Gpu:
        """The GPU, unless MIG is on: then such a reading does not exist."""
        gpu, _, _ = self.device_of(device)
        if gpu.mig:
            refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return gpu


def _present(machine: MachineState) -> list[int]:
    """Where the GPUs are in the machine that NVML enumerates, in the order of its index."""
    return [number for number, gpu in enumerate(machine.gpus) if not gpu.missing]


def pci_id_of(index: int) -> str:
    """Where a GPU is: domain, bus, device and function, as NVML writes it."""
    return f"00000000:{index:02X}:00.0"


def error_string(code: Any) -> bytes:
    """What ``nvmlErrorString`` returns; the one function that answers no code."""
    return ERROR_WORDS.get(number(code), f"Unknown error {number(code)}").encode()


def activity_pct(processes: list[Process]) -> float:
    """How busy these processes keep what they run on, in percent."""
    return min(sum(process.activity_pct for process in processes), 100.0)


def _processes(
    gpu: Gpu, instance: GpuInstance | None, compute: ComputeInstance | None
) -> list[Process]:
    if instance is None or compute is None:
        return gpu.processes
    return rules.processes_of(gpu, instance.gi_id, compute.ci_id)


def _fill_process(out: Any, process: Process) -> None:
    out.pid = process.pid
    out.usedGpuMemory = NOT_TOLD if process.memory_mib is None else process.memory_mib * MIB
    out.gpuInstanceId = 0xFFFFFFFF if process.gi_id is None else process.gi_id
    out.computeInstanceId = 0xFFFFFFFF if process.ci_id is None else process.ci_id


def _fill_field(value: Any, gpu: Gpu) -> None:
    """One field value; each has a return code of its own."""
    values = {
        pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED: rules.model_of(gpu).is_hopper,
        pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: gpu.recovery_action,
    }
    if value.fieldId not in values:
        value.nvmlReturn = pynvml.NVML_ERROR_INVALID_ARGUMENT  # so an H100, driver 580.159.04
        return
    value.nvmlReturn = pynvml.NVML_SUCCESS
    value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    value.value.uiVal = values[value.fieldId]


def _text(buffer: ctypes.Array[ctypes.c_char], text: str) -> None:
    data = text.encode()
    if len(data) + 1 > len(buffer):
        refuse(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    buffer.value = data


@dataclass
class EventSet:
    """The GPUs that one event set listens to, and the last event it was given."""

    last: int
    gpus: set[str] = field(default_factory=set)


class EventFunctions(Library):
    """Event sets and GPM samples; both belong to the process that opened them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """As ``Library``."""
        super().__init__(*arguments, **options)
        self._sets: dict[int, EventSet] = {}
        self._samples: dict[int, float | None] = {}
        self._serial = 0

    @exports("nvmlEventSetCreate")
    def create_set(self, set_ref: Any) -> None:
        handle = self._new_handle(EVENTS)
        self._sets[handle] = EventSet(self.file.read().events_ever)
        put_handle(set_ref, handle)

    @exports("nvmlEventSetFree")
    def free_set(self, handle: Any) -> None:
        del self._sets[self._check_handle(handle, self._sets)]

    @exports("nvmlDeviceGetSupportedEventTypes")
    def supported_kinds(self, device: Any, kinds: Any) -> None:
        self.gpu_of(device)
        put(kinds, pynvml.nvmlEventTypeXidCriticalError)

    @exports("nvmlDeviceRegisterEvents")
    def register(self, device: Any, kinds: Any, handle: Any) -> None:
        _, gpu = self.gpu_of(device)
        if number(kinds) & ~pynvml.nvmlEventTypeXidCriticalError:
            refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._sets[self._check_handle(handle, self._sets)].gpus.add(gpu.uuid)

    @exports("nvmlEventSetWait_v2")
    def wait(self, handle: Any, data: Any, timeout_ms: Any) -> None:
        events = self._sets[self._check_handle(handle, self._sets)]
        left_s = number(timeout_ms) / 1000
        while True:
            event = self._next_event(events)
            if event is not None:
                return self._write_event(event, target(data))
            if left_s <= 0:
                return refuse(pynvml.NVML_ERROR_TIMEOUT)
            pause_s = min(EVENT_POLL_S, left_s)
            self.sleep(pause_s)
            left_s -= pause_s

    def _next_event(self, events: EventSet) -> XidEvent | None:
        for event in self.file.read().events:
            if event.number > events.last:
                events.last = event.number
                if event.gpu_uuid in events.gpus:
                    return event
        return None

    def _write_event(self, event: XidEvent, out: Any) -> None:
        uuids = [gpu.uuid for gpu in self.file.read().gpus]
        put_handle(out, handle_of(GPU, uuids.index(event.gpu_uuid)))  # the first field
        out.eventType, out.eventData = pynvml.nvmlEventTypeXidCriticalError, event.xid
        out.gpuInstanceId = NO_ID if event.gi_id is None else event.gi_id
        out.computeInstanceId = NO_ID if event.ci_id is None else event.ci_id

    # -- GPM ----------------------------------------------------------------------------------

    @exports("nvmlGpmQueryDeviceSupport")
    def gpm_support(self, device: Any, answer: Any) -> None:
        target(answer).isSupportedDevice = rules.model_of(self.gpu_of(device)[1]).is_hopper

    @exports("nvmlGpmSampleAlloc")
    def allocate_sample(self, sample_ref: Any) -> None:
        handle = self._new_handle(SAMPLE)
        self._samples[handle] = None
        put_handle(sample_ref, handle)

    @exports("nvmlGpmSampleFree")
    def free_sample(self, handle: Any) -> None:
        del self._samples[self._check_handle(handle, self._samples)]

    @exports("nvmlGpmSampleGet")
    def sample(self, device: Any, handle: Any) -> None:
        gpu = self._gpm_gpu(device)
        self._samples[self._check_handle(handle, self._samples)] = activity_pct(gpu.processes)

    @exports("nvmlGpmMigSampleGet")
    def sample_slice(self, device: Any, gi_id: Any, handle: Any) -> None:
        gpu = self._gpm_gpu(device)
        if all(instance.gi_id != number(gi_id) for instance in gpu.instances):
            refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        on_slice = [p for p in gpu.processes if p.gi_id == number(gi_id)]
        self._samples[self._check_handle(handle, self._samples)] = activity_pct(on_slice)

    @exports("nvmlGpmMetricsGet")
    def metrics(self, request: Any) -> None:
        out = target(request)
        values = [
            self._samples[self._check_handle(handle, self._samples)]
            for handle in (out.sample1, out.sample2)
        ]
        for index in range(out.numMetrics):
            metric = out.metrics[index]
            if metric.metricId not in GPM_METRICS or None in values:
                metric.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
                continue
            metric.nvmlReturn = pynvml.NVML_SUCCESS
            metric.value = sum(value or 0.0 for value in values) / 2

    def _gpm_gpu(self, device: Any) -> Gpu:
        _, gpu = self.gpu_of(device)
        if not rules.model_of(gpu).is_hopper:
            refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return gpu

    # -- handles ------------------------------------------------------------------------------

    def _new_handle(self, kind: int) -> int:
        self._serial += 1
        return handle_of(kind, self._serial)

    def _check_handle(self, handle: Any, opened: Mapping[int, Any]) -> int:
        value = handle_of(*split_handle(handle))
        if value not in opened:
            refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return value
