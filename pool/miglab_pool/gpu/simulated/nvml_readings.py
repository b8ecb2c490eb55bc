"""The simulated readings: memory, processes, utilisation, temperature, power, errors.

On a MIG device, and on a GPU with MIG on, utilisation is NOT_SUPPORTED: unknown, not zero.
"""

from typing import Any

import pynvml

from miglab_pool.gpu.simulated import rules
from miglab_pool.gpu.simulated.library import Library, exports, refuse
from miglab_pool.gpu.simulated.nvml_types import number, put, target
from miglab_pool.gpu.simulated.state import ComputeInstance, Gpu, GpuInstance, Process

MIB = 1 << 20
IDLE_POWER_SHARE = 0.14
CLOCK_MHZ = {
    pynvml.NVML_CLOCK_GRAPHICS: 1410,
    pynvml.NVML_CLOCK_SM: 1410,
    pynvml.NVML_CLOCK_MEM: 1215,
    pynvml.NVML_CLOCK_VIDEO: 1275,
}
NOT_TOLD = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value


class ReadingFunctions(Library):
    """What changes while a GPU is used."""

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

    @exports("nvmlDeviceGetBAR1MemoryInfo")
    def bar1(self, device: Any, info: Any) -> None:
        gpu, _, _ = self.device_of(device)
        out = target(info)
        out.bar1Total = out.bar1Free = 2 * rules.model_of(gpu).memory_mib * MIB
        out.bar1Used = 0

    @exports("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
    def processes(self, device: Any, count: Any, found: Any) -> None:
        gpu, instance, compute = self.device_of(device)
        running = _processes(gpu, instance, compute)
        room = number(target(count))
        put(count, len(running))
        if running and (found is None or room < len(running)):
            refuse(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        for out, process in zip(target(found) or (), running, strict=False):
            _fill_process(out, process)

    @exports(
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v2",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    )
    def other_processes(self, device: Any, count: Any, found: Any) -> None:
        self.device_of(device)
        put(count, 0)

    @exports("nvmlDeviceGetUtilizationRates")
    def utilization(self, device: Any, info: Any) -> None:
        gpu = self._without_mig(device)
        out = target(info)
        out.gpu = out.memory = round(activity_pct(gpu.processes))

    @exports("nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization")
    def codec_utilization(self, device: Any, answer: Any, period_us: Any) -> None:
        self._without_mig(device)
        put(answer, 0)
        put(period_us, 167_000)

    @exports("nvmlDeviceGetProcessUtilization")
    def process_utilization(self, device: Any, samples: Any, count: Any, since: Any) -> None:
        self._without_mig(device)
        refuse(pynvml.NVML_ERROR_NOT_FOUND)  # no sample since then, as NVML says it

    @exports("nvmlDeviceGetTemperature")
    def temperature(self, device: Any, sensor: Any, answer: Any) -> None:
        put(answer, self.device_of(device)[0].temperature_c)

    @exports("nvmlDeviceGetTemperatureV")
    def temperature_v(self, device: Any, info: Any) -> None:
        target(info).temperature = self.device_of(device)[0].temperature_c

    @exports("nvmlDeviceGetPowerUsage")
    def power(self, device: Any, answer: Any) -> None:
        _, gpu = self.gpu_of(device)
        share = IDLE_POWER_SHARE + (1 - IDLE_POWER_SHARE) * activity_pct(gpu.processes) / 100
        put(answer, round(rules.model_of(gpu).power_limit_w * 1000 * share))

    @exports("nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetEnforcedPowerLimit")
    def power_limit(self, device: Any, answer: Any) -> None:
        put(answer, rules.model_of(self.gpu_of(device)[1]).power_limit_w * 1000)

    @exports("nvmlDeviceGetPerformanceState")
    def performance_state(self, device: Any, answer: Any) -> None:
        self.device_of(device)
        put(answer, pynvml.NVML_PSTATE_0)

    @exports("nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo")
    def clock(self, device: Any, kind: Any, answer: Any) -> None:
        self.device_of(device)
        if number(kind) not in CLOCK_MHZ:
            refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        put(answer, CLOCK_MHZ[number(kind)])

    @exports("nvmlDeviceGetEccMode")
    def ecc_mode(self, device: Any, current: Any, pending: Any) -> None:
        self.gpu_of(device)
        put(current, 1)
        put(pending, 1)

    @exports("nvmlDeviceGetTotalEccErrors")
    def ecc_errors(self, device: Any, kind: Any, counter: Any, answer: Any) -> None:
        gpu, _, _ = self.device_of(device)
        is_uncorrected = number(kind) == pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        put(answer, gpu.ecc_errors if is_uncorrected else 0)

    @exports(
        "nvmlDeviceGetFanSpeed",
        "nvmlDeviceGetFanSpeed_v2",
        "nvmlDeviceGetDriverModel",
        "nvmlDeviceGetDriverModel_v2",
        "nvmlDeviceGetPcieThroughput",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetBoardPartNumber",
        "nvmlDeviceGetTemperatureThreshold",
    )
    def not_on_this_card(self, *arguments: Any) -> None:
        refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def _without_mig(self, device: Any) -> Gpu:
        """The GPU, unless MIG is on: then such a reading does not exist."""
        gpu, _, _ = self.device_of(device)
        if gpu.mig:
            refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return gpu


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
