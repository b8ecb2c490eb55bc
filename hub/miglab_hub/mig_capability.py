"""The driver's capability to configure MIG, and whether this process can open it.

NVIDIA's driver asks for a capability: whoever configures MIG opens the device node that
``/proc/driver/nvidia/capabilities/mig/config`` names.  CAP_SYS_ADMIN stands for that capability
(MIG user guide, "Device Nodes and Capabilities"), but to fill a GPU instance the driver wants the
instance's own node opened as well (open-gpu-kernel-modules, gpu_instance_subscription.c), and a
container was given all these nodes or none.
"""

import os
import re
import stat
from pathlib import Path

CAPABILITY = Path("/proc/driver/nvidia/capabilities/mig/config")
NODES = Path("/dev/nvidia-caps")
_MINOR = re.compile(r"^DeviceFileMinor:\s*(\d+)$", re.MULTILINE)


def missing_rights(capability: Path = CAPABILITY, nodes: Path = NODES) -> str:
    """Return why the files that MIG needs cannot be opened; empty if they can.

    Args:
        capability: the driver's file about the right to configure.
        nodes: the folder of the capabilities' device nodes.
    """
    try:
        text = capability.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"{capability}: {error.strerror}"
    minor = _MINOR.search(text)
    if minor is None:
        return f"{capability} names no device"
    return _open_problem(nodes / f"nvidia-cap{minor[1]}", int(minor[1]))


def _open_problem(node: Path, minor: int) -> str:
    try:
        opened = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return f"{node}: {error.strerror}"
    try:
        device = os.fstat(opened)
    finally:
        os.close(opened)
    is_it = stat.S_ISCHR(device.st_mode) and os.minor(device.st_rdev) == minor
    return "" if is_it else f"{node} is not the device {minor} of the driver"
