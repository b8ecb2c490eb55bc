"""Whether this process may create and destroy slices: not who it is, but what it can open."""

from pathlib import Path

from miglab_hub.mig_capability import CAPABILITY, NODES, missing_rights
from miglab_pool.worker.health_findings import HealthFinding, fine, wrong

ON_HOST = f"nvidia-modprobe -f {CAPABILITY}"


def examine_mig_rights(capability: Path = CAPABILITY, nodes: Path = NODES) -> HealthFinding:
    """Examine the right to create slices, by opening the same files as NVML.

    Args:
        capability: the driver's file about the right to configure.
        nodes: the folder of the capabilities' device nodes.
    """
    why_not = missing_rights(capability, nodes)
    if not why_not:
        return fine("permissions", "slices can be created and destroyed")
    remedy = (
        "in a container: see that the engine does not use CDI, then ./lab production restart; "
        f"on the host: run the pool as root, and `{ON_HOST}`"
    )
    return wrong("permissions", f"no slice can be created or destroyed: {why_not}", remedy)
