"""How a simulated model can be cut, for whoever decides without a GPU: read from one by NVML."""

import tempfile
from functools import cache
from pathlib import Path

from miglab_pool.gpu.geometry import Geometry
from miglab_pool.gpu.nvml import read_geometry
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.simulated.nvml import SimulatedNvml


@cache
def model_geometry(name: str) -> Geometry:
    """The geometry that the driver reads from a GPU of this model.

    Raises:
        ValueError: no model is called so; says which there are.
    """
    with tempfile.TemporaryDirectory(prefix="miglab-model-") as folder:
        SimulatedMachine.create(Path(folder), model=name)
        nvml = SimulatedNvml(Path(folder))
        nvml.nvmlInit()
        return read_geometry(nvml, nvml.nvmlDeviceGetHandleByIndex(0), name)
