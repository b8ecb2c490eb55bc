"""The GPUs the contract suite runs over: every simulated model, MIG on and off, and the real ones.

Imports nothing but pytest, pynvml and the GPU layer, so that the suite can be run on a GPU machine
that has no more than these:

    PYTHONPATH=pool:api python3 -m pytest -c /dev/null --rootdir=. --confcutdir=tests/gpu \
        -p no:cacheprovider --import-mode=importlib -m gpu -rA tests/gpu
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from miglab_pool.gpu.driver import Driver
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.simulated.nvml import SimulatedNvml
from miglab_pool.gpu.simulated.rules import models

SIMULATED = [f"{model}, MIG {mode}" for model in models() for mode in ("on", "off")]


@pytest.fixture(params=[*SIMULATED, pytest.param("real", marks=pytest.mark.gpu)])
def nvml(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Something used like pynvml, opened; the real one is only ever read."""
    library = pynvml if request.param == "real" else _simulated(request.param, tmp_path)
    try:
        library.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded) as error:
        pytest.skip(f"no NVIDIA driver here: {type(error).__name__}")
    yield library
    library.nvmlShutdown()


@pytest.fixture
def gpu(nvml: Any) -> Any:
    """The handle of the first GPU."""
    return nvml.nvmlDeviceGetHandleByIndex(0)


@pytest.fixture
def driver(nvml: Any) -> Iterator[Driver]:
    """The driver over all GPUs."""
    opened = Driver(nvml)
    yield opened
    opened.close()


def _simulated(param: str, folder: Path) -> SimulatedNvml:
    model, mode = param.split(", MIG ")
    SimulatedMachine.create(folder, gpus=2, model=model, mig=mode == "on")
    return SimulatedNvml(folder)
