"""What the hardware is and does.

geometry.py    profiles, placements, what still fits; pure
shapes.py      what a lease asks for, in words; pure
readings.py    what is read from a GPU
errors.py      what can go wrong
nvml.py        the driver: reads GPUs and cuts slices (nvml_*.py and health.py are its parts)
simulated.py   simulated GPUs with pynvml's functions (sim_*.py are its parts)
"""

from collections.abc import Sequence
from pathlib import Path

import pynvml

from miglab_pool.gpu.driver import Driver

__all__ = ["Driver", "open_gpus"]


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
    if simulated_state is None:
        return Driver(pynvml, gpu_uuids)
    from miglab_pool.gpu.simulated.nvml import SimulatedNvml  # a real lab never loads it

    return Driver(SimulatedNvml(simulated_state), gpu_uuids)
