"""Whether a GPU is well, and how busy it and its slices are.  Reads only.

A slice's activity is told by GPM alone, on Hopper and later: between two samples of the same slice
lies the time that a reading is about.  So the first reading of a slice is unknown.  A whole GPU
with MIG off tells its utilisation on older cards too.  DCGM is not asked: its Python bindings come
with its host engine, in no package of their own, and a client of it can hold a slice's handle,
which then cannot be destroyed.
"""

import contextlib
import math
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

import pynvml

from miglab_pool.gpu.handles import GpuHandles
from miglab_pool.gpu.nvml import call, read_if_supported
from miglab_pool.gpu.readings import (
    GpuError,
    GpuLost,
    Health,
    NotFound,
    NotPermitted,
    NotSupported,
    UnknownGpuError,
    Xid,
)
from miglab_pool.gpu.xids import XidScope

MOST_XIDS_KEPT = 64
NO_ID = 0xFFFFFFFF  # of an event that belongs to no slice (nvml.h, nvmlEventData_t)
NEEDS = {
    pynvml.NVML_GPU_RECOVERY_ACTION_NONE: "",
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "a GPU reset",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "a reboot of the host",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "its peer-to-peer traffic to end",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "a GPU reset once nothing runs on it",
    pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: "its IMEX domain to be recovered",
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: "a reset of its PCIe bus",
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: "a reboot of the host",
}
"""The driver's recovery action, field 230 (nvml.h, nvmlDeviceGpuRecoveryAction_t), in words."""
HOW_TO_RESET = (
    "When no server is on it any more, stop the pool, run nvidia-smi --gpu-reset -i with its UUID "
    "(or reboot the host), and start the pool again"
)
# The larger of both counts: the share of SMs that were busy, and of the time in which anything ran.
METRICS = (pynvml.NVML_GPM_METRIC_SM_UTIL, pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL)
Key = tuple[str, int | None]  # a GPU's UUID and a GPU-instance id; None for the whole GPU


class XidWatch:
    """Collects the Xid faults of GPUs, for each from the first call about it.

    Each GPU has an event set of its own: reading one never asks another GPU anything.

    Args:
        nvml: as for the driver.
        seen: the faults seen so far, by GPU, to which it adds; None for a GPU that tells none.
    """

    def __init__(self, nvml: Any, faults: dict[str, deque[Xid] | None] | None = None) -> None:
        self._nvml = nvml
        self._events: dict[str, Any] = {}
        self._faults = {} if faults is None else faults

    def xids(self, gpu: Any, gpu_uuid: str) -> tuple[Xid, ...] | None:
        """Faults of the GPU so far, oldest first; None if it does not report them (now)."""
        if gpu_uuid not in self._events:
            self._events[gpu_uuid] = self._watch(gpu)
            if self._events[gpu_uuid] is None:
                self._faults.setdefault(gpu_uuid, None)
            elif self._faults.get(gpu_uuid) is None:
                self._faults[gpu_uuid] = deque(maxlen=MOST_XIDS_KEPT)
        return self.faults_so_far(gpu_uuid) if self._drain(gpu_uuid) else None

    def forget(self, gpu_uuid: str, gi_id: int) -> None:
        """Detach a slice's faults from its id, which another slice may get once it is destroyed."""
        if self._events.get(gpu_uuid) is not None:
            with contextlib.suppress(GpuError):
                self._drain(gpu_uuid)
        xids = self._faults.get(gpu_uuid) or deque()
        for position, xid in enumerate(xids):
            xids[position] = Xid(xid.number) if xid.gi_id == gi_id else xid

    def faults_so_far(self, gpu_uuid: str) -> tuple[Xid, ...] | None:
        """The faults recorded so far, without asking the GPU; None if it does not report any."""
        faults = self._faults.get(gpu_uuid)
        return None if faults is None else tuple(faults)

    def close(self) -> None:
        """Free the event sets."""
        for events in self._events.values():
            if events is not None:
                call("close the event set", self._nvml.nvmlEventSetFree, events)
        self._events.clear()

    def _free_event_set(self, gpu_uuid: str) -> None:
        events = self._events.pop(gpu_uuid)
        with contextlib.suppress(GpuError):
            call("close the event set", self._nvml.nvmlEventSetFree, events)

    def _watch(self, gpu: Any) -> Any:
        """Register an event set for the GPU's faults; None if the GPU does not report them."""
        events = read_if_supported("open an event set", self._nvml.nvmlEventSetCreate)
        if events is None:
            return None
        try:
            call(
                "watch for Xid faults",
                self._nvml.nvmlDeviceRegisterEvents,
                gpu,
                pynvml.nvmlEventTypeXidCriticalError,
                events,
            )
        except (NotSupported, NotPermitted, UnknownGpuError):
            call("close the event set", self._nvml.nvmlEventSetFree, events)
            return None
        return events

    def _drain(self, gpu_uuid: str) -> bool:
        """Record all pending events; False if the wait failed, so that nothing is known.

        Raises:
            GpuLost: NVML says so in answer to the wait.
        """
        events, faults = self._events[gpu_uuid], self._faults[gpu_uuid]
        while events is not None and faults is not None:
            task = f"wait for Xid faults of {gpu_uuid}"
            try:
                event = call(task, self._nvml.nvmlEventSetWait_v2, events, 0)
            except GpuError as error:
                if error.code == pynvml.NVML_ERROR_TIMEOUT:
                    return True
                self._free_event_set(gpu_uuid)  # the next look opens another
                if isinstance(error, GpuLost):
                    raise
                return False
            faults.append(xid_of(event))
        return True


def read_health(nvml: Any, watch: XidWatch, handles: GpuHandles, gpu_uuid: str) -> Health:
    """How the GPU is.  A lost GPU, or one that cannot be read, is an answer and not an error."""
    try:
        with handles.open_gpu(gpu_uuid) as gpu:
            return _read(nvml, watch, gpu, gpu_uuid)
    except GpuLost as error:
        return Health(False, None, watch.faults_so_far(gpu_uuid), None, None, True, str(error))
    except GpuError as error:
        return Health(None, None, watch.faults_so_far(gpu_uuid), None, None, False, str(error))


def judge(
    ecc_errors: int | None, xids: tuple[Xid, ...] | None, needs: str | None
) -> tuple[bool | None, str]:
    """Judge whether a GPU is well, and say what to do if it is not.

    The driver's recovery action decides; if the driver does not report it, the faults decide.
    After Xid 95 all counters may read 0 while the driver asks for a reset, and after a contained
    error it may ask for nothing.

    Returns:
        False with advice for a fault of the GPU; None where neither faults nor memory errors can
        be read; True otherwise.
    """
    if needs is not None:
        reason = f"The driver says that this GPU needs {needs}. {HOW_TO_RESET}."
        return not needs, reason if needs else ""
    if fault := faults_in_words(xids or ()):
        return False, fault
    if ecc_errors:
        return False, (
            f"{ecc_errors} uncorrected memory errors: drain the GPU and reset it; if they come "
            "back, have it replaced."
        )
    if ecc_errors is None and xids is None:
        return None, "This GPU reports neither Xid faults nor memory errors."
    return True, ""


def _read(nvml: Any, watch: XidWatch, gpu: Any, gpu_uuid: str) -> Health:
    ecc_errors = read_if_supported(
        f"read the memory errors of {gpu_uuid}",
        nvml.nvmlDeviceGetTotalEccErrors,
        gpu,
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
    )
    temperature_c = read_if_supported(
        f"read the temperature of {gpu_uuid}",
        nvml.nvmlDeviceGetTemperature,
        gpu,
        pynvml.NVML_TEMPERATURE_GPU,
    )
    power_mw = read_if_supported(f"read the power of {gpu_uuid}", nvml.nvmlDeviceGetPowerUsage, gpu)
    xids = watch.xids(gpu, gpu_uuid)
    needs = read_needs(nvml, gpu, gpu_uuid)
    ok, reason = judge(ecc_errors, xids, needs)
    power_w = None if power_mw is None else power_mw / 1000
    return Health(ok, ecc_errors, xids, temperature_c, power_w, False, reason, needs)


def read_needs(nvml: Any, gpu: Any, gpu_uuid: str) -> str | None:
    """Return the driver's recovery action for the GPU; empty: none needed; None: not reported.

    Drivers that do not know the field answer INVALID_ARGUMENT beside it (seen on an H100).

    Command line equivalent: ``nvidia-smi -q``, "GPU Recovery Action".
    """
    field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    try:
        values = read_if_supported(
            f"read the recovery action of {gpu_uuid}", nvml.nvmlDeviceGetFieldValues, gpu, [field]
        )
    except UnknownGpuError:
        return None
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    action = int(values[0].value.uiVal)
    return NEEDS.get(action, f"recovery action {action}, which this miglab does not know")


def faults_in_words(xids: Iterable[Xid]) -> str:
    """The card's own faults among these, and what to do; empty: there is none."""
    numbers = sorted({xid.number for xid in xids if xid.scope is XidScope.CARD})
    if not numbers:
        return ""
    return (
        f"Xid {', '.join(map(str, numbers))}: a fault of the GPU or its driver; look the number up "
        f"in NVIDIA's Xid catalogue. {HOW_TO_RESET}."
    )


def xid_of(event: Any) -> Xid:
    """The fault of an NVML event."""
    gi_id, ci_id = (
        None if number == NO_ID else int(number)
        for number in (event.gpuInstanceId, event.computeInstanceId)
    )
    return Xid(int(event.eventData), gi_id, ci_id)


class ActivityWatch:
    """Keeps the last sample of each slice; any thread may ask."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._guard = threading.Lock()
        self._supported: dict[str, bool] = {}
        self._last: dict[Key, Any] = {}

    def of_slice(self, gpu: Any, gpu_uuid: str, gi_id: int) -> float | None:
        """Activity in percent since the last call for this slice; None if unknown (yet)."""
        with self._guard:
            return self._since_last(gpu, (gpu_uuid, gi_id))

    def of_gpu(self, gpu: Any, gpu_uuid: str) -> float | None:
        """Activity of a whole GPU in percent; with MIG on, only GPM reports it."""
        with self._guard:
            if self._has_gpm(gpu, gpu_uuid):
                return self._since_last(gpu, (gpu_uuid, None))
        task = f"read the utilisation of {gpu_uuid}"
        rates = read_if_supported(task, self._nvml.nvmlDeviceGetUtilizationRates, gpu)
        return None if rates is None else float(rates.gpu)

    def forget(self, gpu_uuid: str, gi_id: int) -> None:
        """Free a slice's sample before it is destroyed; another slice may get its id."""
        with self._guard:
            self._drop((gpu_uuid, gi_id))

    def close(self) -> None:
        """Free every sample."""
        with self._guard:
            for key in list(self._last):
                self._drop(key)

    def _has_gpm(self, gpu: Any, gpu_uuid: str) -> bool:
        if gpu_uuid not in self._supported:
            task = f"ask {gpu_uuid} for GPM"
            try:
                answer = read_if_supported(task, self._nvml.nvmlGpmQueryDeviceSupport, gpu)
            except UnknownGpuError:
                return False
            self._supported[gpu_uuid] = answer is not None and bool(answer.isSupportedDevice)
        return self._supported[gpu_uuid]

    def _since_last(self, gpu: Any, key: Key) -> float | None:
        if not self._has_gpm(gpu, key[0]):
            return None
        before = self._last.pop(key, None)
        try:
            after = self._last[key] = self._sample(gpu, key)
            return self._activity_between(before, after) if None not in (before, after) else None
        finally:
            self._free(before)

    def _sample(self, gpu: Any, key: Key) -> Any:
        """Take a sample now; None if the GPU does not give one."""
        gpu_uuid, gi_id = key
        task = f"sample the activity of {gpu_uuid}{'' if gi_id is None else f', slice {gi_id}'}"
        sample = call(task, self._nvml.nvmlGpmSampleAlloc)
        try:
            if gi_id is None:
                return call(task, self._nvml.nvmlGpmSampleGet, gpu, sample)
            return call(task, self._nvml.nvmlGpmMigSampleGet, gpu, gi_id, sample)
        except (NotSupported, NotPermitted, NotFound, UnknownGpuError):
            self._free(sample)
            return None

    def _activity_between(self, before: Any, after: Any) -> float | None:
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(METRICS)
        for index, metric in enumerate(METRICS):
            request.metrics[index].metricId = metric
        request.sample1, request.sample2 = before, after
        try:
            answer = call("work out an activity", self._nvml.nvmlGpmMetricsGet, request)
        except GpuError:
            return None
        metrics = [answer.metrics[index] for index in range(len(METRICS))]
        return max((metric.value for metric in metrics if _is_share(metric)), default=None)

    def _drop(self, key: Key) -> None:
        self._free(self._last.pop(key, None))

    def _free(self, sample: Any) -> None:
        if sample is not None:
            call("free an activity sample", self._nvml.nvmlGpmSampleFree, sample)


def _is_share(metric: Any) -> bool:
    """Whether it is a percentage: between samples of two slices with one id it can be anything."""
    is_told = metric.nvmlReturn == pynvml.NVML_SUCCESS
    return is_told and math.isfinite(metric.value) and 0 <= metric.value <= 100
