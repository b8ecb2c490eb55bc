"""Whether a GPU is well: Xid faults, memory errors, lost or not.  Reads only."""

from collections import deque
from typing import Any

import pynvml

from miglab_pool.gpu import errors
from miglab_pool.gpu.nvml.call import call, read
from miglab_pool.gpu.readings import Health, Versions

# Xids raised by a faulty application, not by a faulty GPU: graphics exception (13), MMU fault
# (31), stopped (43), preemptive cleanup (45), video exception (68), context-switch time-out
# (109).  The list is that of NVIDIA's k8s-device-plugin (internal/rm/health.go).
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
MOST_XIDS_KEPT = 64


class XidWatch:
    """Collects Xid faults of the GPUs it was asked about, from the time it was first asked.

    Each GPU has an event set of its own: reading one never asks another GPU anything.

    Args:
        nvml: as for the driver.
        seen: the faults seen so far, by GPU, to which it adds; None for a GPU that tells none.
    """

    def __init__(self, nvml: Any, seen: dict[str, deque[int] | None] | None = None) -> None:
        self._nvml = nvml
        self._events: dict[str, Any] = {}
        self._seen = {} if seen is None else seen

    def xids(self, gpu: Any, gpu_uuid: str) -> tuple[int, ...] | None:
        """Faults of the GPU so far, oldest first; None if it does not report them."""
        if gpu_uuid not in self._events:
            self._events[gpu_uuid] = self._watch(gpu)
            if self._events[gpu_uuid] is None:
                self._seen.setdefault(gpu_uuid, None)
            elif self._seen.get(gpu_uuid) is None:
                self._seen[gpu_uuid] = deque(maxlen=MOST_XIDS_KEPT)
        self._drain(gpu_uuid)
        return self.known(gpu_uuid)

    def known(self, gpu_uuid: str) -> tuple[int, ...] | None:
        """What has been seen of a GPU that cannot be asked any more."""
        seen = self._seen.get(gpu_uuid)
        return None if seen is None else tuple(seen)

    def close(self) -> None:
        """Give the event sets back."""
        for events in self._events.values():
            if events is not None:
                call("close the event set", self._nvml.nvmlEventSetFree, events)
        self._events.clear()

    def _watch(self, gpu: Any) -> Any:
        """An event set that hears of this GPU's faults; None if it tells none."""
        events = read("open an event set", self._nvml.nvmlEventSetCreate)
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
        except (errors.NotSupported, errors.NotPermitted, errors.UnknownGpuError):
            call("close the event set", self._nvml.nvmlEventSetFree, events)
            return None
        return events

    def _drain(self, gpu_uuid: str) -> None:
        events, seen = self._events[gpu_uuid], self._seen[gpu_uuid]
        while events is not None and seen is not None:
            try:
                event = self._nvml.nvmlEventSetWait_v2(events, 0)
            except (pynvml.NVMLError_Timeout, pynvml.NVMLError_GpuIsLost):
                return
            seen.append(int(event.eventData))


def read_health(nvml: Any, watch: XidWatch, gpu_uuid: str) -> Health:
    """How the GPU is.  A lost GPU, or one that cannot be read, is an answer and not an error."""
    try:
        gpu = call(f"open GPU {gpu_uuid}", nvml.nvmlDeviceGetHandleByUUID, gpu_uuid)
        return _read(nvml, watch, gpu, gpu_uuid)
    except errors.GpuLost as error:
        return Health(False, None, watch.known(gpu_uuid), None, None, True, str(error))
    except errors.GpuError as error:
        return Health(None, None, watch.known(gpu_uuid), None, None, False, str(error))


def read_versions(nvml: Any) -> Versions:
    """Which driver the host runs.

    Command line equivalent: the head of ``nvidia-smi``.
    """
    cuda = read("read CUDA's version", nvml.nvmlSystemGetCudaDriverVersion)
    return Versions(
        driver=read("read the driver's version", nvml.nvmlSystemGetDriverVersion),
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
    )


def judge(ecc_errors: int | None, xids: tuple[int, ...] | None) -> tuple[bool | None, str]:
    """Whether such a GPU is well, and what to do if not.

    Returns:
        False with advice for a fault of the GPU; None where neither faults nor memory errors can
        be read; True otherwise.
    """
    faults = sorted({xid for xid in xids or () if xid not in APPLICATION_XIDS})
    if faults:
        names = ", ".join(str(xid) for xid in faults)
        return False, (
            f"Xid {names}: a fault of the GPU or its driver; drain it, look the number up in "
            "NVIDIA's Xid catalogue, reset the GPU."
        )
    if ecc_errors:
        return False, (
            f"{ecc_errors} uncorrected memory errors: drain the GPU and reset it; if they come "
            "back, have it replaced."
        )
    if ecc_errors is None and xids is None:
        return None, "This GPU reports neither Xid faults nor memory errors."
    return True, ""


def _read(nvml: Any, watch: XidWatch, gpu: Any, gpu_uuid: str) -> Health:
    ecc_errors = read(
        f"read the memory errors of {gpu_uuid}",
        nvml.nvmlDeviceGetTotalEccErrors,
        gpu,
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
    )
    temperature_c = read(
        f"read the temperature of {gpu_uuid}",
        nvml.nvmlDeviceGetTemperature,
        gpu,
        pynvml.NVML_TEMPERATURE_GPU,
    )
    power_mw = read(f"read the power of {gpu_uuid}", nvml.nvmlDeviceGetPowerUsage, gpu)
    xids = watch.xids(gpu, gpu_uuid)
    ok, reason = judge(ecc_errors, xids)
    power_w = None if power_mw is None else power_mw / 1000
    return Health(ok, ecc_errors, xids, temperature_c, power_w, False, reason)
