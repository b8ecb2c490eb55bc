"""What the GPU's own sensors say while something is timed: clock, power, temperature, busy share.

Read through NVML in the child, between blocks of calls and never inside a time (a reading took
0.04 ms on an H200); a task that times nothing itself is read once, when it is over. A slice has no
sensors of its own: they are its GPU's, and the busy share, which NVML does not know for slices, is
left out.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

Reading = dict[str, float]


class Sensors:
    """One device's sensors; `read` answers nothing where there are none.

    Args:
        uuid: of the GPU or the slice this process measures on; None has no sensors.
    """

    def __init__(self, uuid: str | None) -> None:
        self._nvml: Any = None
        self._gpu: Any = None
        self._is_slice = bool(uuid and uuid.startswith("MIG-"))
        self.series: dict[str, list[float]] = {}
        if uuid:
            self._open(uuid)

    def _open(self, uuid: str) -> None:
        try:
            import pynvml  # noqa: TID251  labkit reads the sensors of the device it measures on
        except ImportError:
            return
        name = uuid if uuid.startswith(("MIG-", "GPU-")) else f"GPU-{uuid}"
        try:
            pynvml.nvmlInit()
            found = pynvml.nvmlDeviceGetHandleByUUID(name)
            if self._is_slice:
                found = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(found)
        except pynvml.NVMLError:
            return
        self._nvml, self._gpu = pynvml, found

    def read(self) -> None:
        """Take one reading of everything this device answers to."""
        if self._nvml is None:
            return
        nvml, gpu = self._nvml, self._gpu
        asked: dict[str, Callable[[], float]] = {
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(gpu, 0),
        }
        if not self._is_slice:
            asked["busy_pct"] = lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu
        for name, ask in asked.items():
            try:
                self.series.setdefault(name, []).append(round(float(ask()), 1))
            except nvml.NVMLError:
                continue

    def summary(self) -> dict[str, Any]:
        """Lowest and highest of each; the busy share as its last reading, once it has settled."""
        found: dict[str, Any] = {
            name: [min(values), max(values)] for name, values in self.series.items() if values
        }
        if self.series.get("busy_pct"):
            found["busy_pct"] = self.series["busy_pct"][-1]
        return found


@functools.cache
def own_sensors(torch: Any) -> Sensors:
    """The sensors of the device this process measures on: one series, whoever reads them."""
    if not torch.cuda.is_available():
        return Sensors(None)
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    own = str(getattr(torch.cuda.get_device_properties(0), "uuid", "")) or None
    return Sensors(chosen if chosen.startswith("MIG-") else own)
