"""What the hardware is and does.

geometry.py    profiles, placements, what still fits; pure
shapes.py      what a lease asks for, in words; pure
readings.py    what is read from a GPU
errors.py      what can go wrong
driver.py      what a driver can do: the protocol
nvml/          the driver: reads GPUs, creates and destroys slices
watched.py     a driver whose calls cannot hang, one worker for each GPU
simulated/     simulated GPUs with pynvml's functions
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pynvml

from miglab_pool.gpu.driver import Driver
from miglab_pool.gpu.watched import WatchedDriver

__all__ = ["Driver", "open_gpus", "open_watched"]


def open_gpus(
    *, simulated_state: Path | None = None, gpu_uuids: Sequence[str] | None = None
) -> Driver:
    """Open the GPUs.

    Args:
        simulated_state: the folder of a simulated machine; None = this host's real GPUs.
        gpu_uuids: the GPUs to use; None = all there are.

    Raises:
        GpuError: there is no driver, or a listed GPU is not there.
    """
    return Driver(_nvml(simulated_state), gpu_uuids)


def open_watched(
    *, simulated_state: Path | None, gpu_uuids: Sequence[str] | None, limit_s: float
) -> WatchedDriver:
    """The GPUs, each call to them watched; nothing is asked of them yet.

    Args:
        simulated_state: the folder of a simulated machine; None = this host's real GPUs.
        gpu_uuids: the GPUs to use; None = all those of a simulated machine.
        limit_s: how long a call may take.

    Raises:
        GpuError: there is no such simulated machine.
    """
    nvml = _nvml(simulated_state)
    machine = None if simulated_state is None else nvml.library.file.read()
    there = [gpu.uuid for gpu in machine.gpus] if machine else ()
    return WatchedDriver(
        lambda gpus, seen: Driver(nvml, gpus, seen),
        gpu_uuids or there,
        simulated=simulated_state is not None,
        limit_s=limit_s,
    )


def _nvml(simulated_state: Path | None) -> Any:
    if simulated_state is None:
        return pynvml
    from miglab_pool.gpu.simulated.nvml import SimulatedNvml  # a real lab never loads it

    return SimulatedNvml(simulated_state)
