"""How busy slices and GPUs are, where the hardware tells it.  Plumbing of ``nvml.py``; reads only.

A slice's activity is told by GPM alone, on Hopper and later: between two samples of the same slice
lies the time that a reading is about.  So the first reading of a slice is unknown.  A whole GPU
with MIG off tells its utilisation on older cards too.  DCGM is not asked: its Python bindings come
with its host engine, in no package of their own, and a client of it can hold a slice's handle,
which then cannot be destroyed.
"""

import math
import threading
from typing import Any

import pynvml

from miglab_pool.gpu import errors
from miglab_pool.gpu.nvml.call import call, read

# The larger of both counts: the share of SMs that were busy, and of the time in which anything ran.
METRICS = (pynvml.NVML_GPM_METRIC_SM_UTIL, pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL)

Key = tuple[str, int | None]  # a GPU's UUID and a GPU-instance id; None for the whole GPU


class ActivityWatch:
    """Keeps the last sample of each slice; any thread may ask."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._guard = threading.Lock()
        self._supported: dict[str, bool] = {}
        self._last: dict[Key, Any] = {}

    def of_slice(self, gpu: Any, gpu_uuid: str, gi_id: int) -> float | None:
        """Percent since this slice was asked after last; None where it is not known (yet)."""
        with self._guard:
            return self._since_last(gpu, (gpu_uuid, gi_id))

    def of_gpu(self, gpu: Any, gpu_uuid: str) -> float | None:
        """Percent of a whole GPU; with MIG on only GPM could tell it."""
        with self._guard:
            if self._has_gpm(gpu, gpu_uuid):
                return self._since_last(gpu, (gpu_uuid, None))
        what = f"read the utilisation of {gpu_uuid}"
        rates = read(what, self._nvml.nvmlDeviceGetUtilizationRates, gpu)
        return None if rates is None else float(rates.gpu)

    def forget(self, gpu_uuid: str, gi_id: int) -> None:
        """The slice is about to go: another may get its id, and nothing of it may be held."""
        with self._guard:
            self._drop((gpu_uuid, gi_id))

    def close(self) -> None:
        """Give every sample back."""
        with self._guard:
            for key in list(self._last):
                self._drop(key)

    def _has_gpm(self, gpu: Any, gpu_uuid: str) -> bool:
        if gpu_uuid not in self._supported:
            what = f"ask {gpu_uuid} for GPM"
            try:
                answer = read(what, self._nvml.nvmlGpmQueryDeviceSupport, gpu)
            except errors.UnknownGpuError:
                return False
            self._supported[gpu_uuid] = answer is not None and bool(answer.isSupportedDevice)
        return self._supported[gpu_uuid]

    def _since_last(self, gpu: Any, key: Key) -> float | None:
        if not self._has_gpm(gpu, key[0]):
            return None
        before = self._last.pop(key, None)
        try:
            after = self._last[key] = self._sample(gpu, key)
            return self._between(before, after) if None not in (before, after) else None
        finally:
            self._free(before)

    def _sample(self, gpu: Any, key: Key) -> Any:
        """A sample of now; None if there is none to be had."""
        gpu_uuid, gi_id = key
        what = f"sample the activity of {gpu_uuid}{'' if gi_id is None else f', slice {gi_id}'}"
        made = call(what, self._nvml.nvmlGpmSampleAlloc)
        try:
            if gi_id is None:
                return call(what, self._nvml.nvmlGpmSampleGet, gpu, made)
            return call(what, self._nvml.nvmlGpmMigSampleGet, gpu, gi_id, made)
        except (errors.NotSupported, errors.NotPermitted, errors.NotFound, errors.UnknownGpuError):
            self._free(made)
            return None

    def _between(self, before: Any, after: Any) -> float | None:
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(METRICS)
        for index, metric in enumerate(METRICS):
            request.metrics[index].metricId = metric
        request.sample1, request.sample2 = before, after
        try:
            answer = call("work out an activity", self._nvml.nvmlGpmMetricsGet, request)
        except errors.GpuError:
            return None
        told = [answer.metrics[index] for index in range(len(METRICS))]
        return max((one.value for one in told if _is_share(one)), default=None)

    def _drop(self, key: Key) -> None:
        self._free(self._last.pop(key, None))

    def _free(self, sample: Any) -> None:
        if sample is not None:
            call("free an activity sample", self._nvml.nvmlGpmSampleFree, sample)


def _is_share(metric: Any) -> bool:
    """Whether it is a percentage: between samples of two slices with one id it can be anything."""
    is_told = metric.nvmlReturn == pynvml.NVML_SUCCESS
    return is_told and math.isfinite(metric.value) and 0 <= metric.value <= 100
