"""The simulated event sets, which hear of Xid faults, and GPM (activity per slice, Hopper only)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pynvml

from miglab_pool.gpu.simulated import rules
from miglab_pool.gpu.simulated.library import (
    EVENTS,
    GPU,
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
from miglab_pool.gpu.simulated.nvml_gpus import activity_pct
from miglab_pool.gpu.simulated.state import Gpu, Process, XidEvent

EVENT_POLL_S = 0.05
NO_ID = 0xFFFFFFFF
GPM_METRICS = (pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, pynvml.NVML_GPM_METRIC_SM_UTIL)


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
    def create_set(self, made: Any) -> None:
        handle = self._next(EVENTS)
        self._sets[handle] = EventSet(self.file.read().events_ever)
        put_handle(made, handle)

    @exports("nvmlEventSetFree")
    def free_set(self, handle: Any) -> None:
        del self._sets[self._known(handle, self._sets)]

    @exports("nvmlDeviceGetSupportedEventTypes")
    def supported_kinds(self, device: Any, kinds: Any) -> None:
        self.gpu_of(device)
        put(kinds, pynvml.nvmlEventTypeXidCriticalError)

    @exports("nvmlDeviceRegisterEvents")
    def register(self, device: Any, kinds: Any, handle: Any) -> None:
        _, gpu = self.gpu_of(device)
        if number(kinds) & ~pynvml.nvmlEventTypeXidCriticalError:
            refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._sets[self._known(handle, self._sets)].gpus.add(gpu.uuid)

    @exports("nvmlEventSetWait_v2")
    def wait(self, handle: Any, data: Any, timeout_ms: Any) -> None:
        events = self._sets[self._known(handle, self._sets)]
        left_s = number(timeout_ms) / 1000
        while True:
            event = self._next_event(events)
            if event is not None:
                return self._give_event(event, target(data))
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

    def _give_event(self, event: XidEvent, out: Any) -> None:
        uuids = [gpu.uuid for gpu in self.file.read().gpus]
        put_handle(out, handle_of(GPU, uuids.index(event.gpu_uuid)))  # the first field
        out.eventType, out.eventData = pynvml.nvmlEventTypeXidCriticalError, event.xid
        out.gpuInstanceId = out.computeInstanceId = NO_ID

    # -- GPM ----------------------------------------------------------------------------------

    @exports("nvmlGpmQueryDeviceSupport")
    def gpm_support(self, device: Any, answer: Any) -> None:
        target(answer).isSupportedDevice = rules.model_of(self.gpu_of(device)[1]).is_hopper

    @exports("nvmlGpmSampleAlloc")
    def allocate_sample(self, made: Any) -> None:
        handle = self._next(SAMPLE)
        self._samples[handle] = None
        put_handle(made, handle)

    @exports("nvmlGpmSampleFree")
    def free_sample(self, handle: Any) -> None:
        del self._samples[self._known(handle, self._samples)]

    @exports("nvmlGpmSampleGet")
    def sample(self, device: Any, handle: Any) -> None:
        gpu = self._gpm_gpu(device)
        self._samples[self._known(handle, self._samples)] = activity_pct(gpu.processes)

    @exports("nvmlGpmMigSampleGet")
    def sample_slice(self, device: Any, gi_id: Any, handle: Any) -> None:
        gpu = self._gpm_gpu(device)
        if all(instance.gi_id != number(gi_id) for instance in gpu.instances):
            refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        on_slice: list[Process] = [p for p in gpu.processes if p.gi_id == number(gi_id)]
        self._samples[self._known(handle, self._samples)] = activity_pct(on_slice)

    @exports("nvmlGpmMetricsGet")
    def metrics(self, request: Any) -> None:
        out = target(request)
        values = [
            self._samples[self._known(handle, self._samples)]
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

    def _next(self, kind: int) -> int:
        self._serial += 1
        return handle_of(kind, self._serial)

    def _known(self, handle: Any, opened: Mapping[int, Any]) -> int:
        value = handle_of(*split_handle(handle))
        if value not in opened:
            refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return value
