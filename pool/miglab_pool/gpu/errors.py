"""What can go wrong with a GPU, as types.  Must not import anything.

Every message says what failed, on what, and what to do next.
"""


class GpuError(Exception):
    """A GPU, or the driver, did not do what was asked."""


class NotPermitted(GpuError):
    """The process may not cut GPUs: it lacks root or the MIG configuration capability."""


class GpuLost(GpuError):
    """The GPU has fallen off the bus or needs a reset; nothing on it can be read."""


class GpuHung(GpuError):
    """A driver call has not come back in time; what it did, or will do, is not known."""


class InUse(GpuError):
    """Something still uses the slice: a process, a compute instance, a leaked handle."""


class NoRoom(GpuError):
    """The placement is taken: the caller's picture of the GPU is old, read it again."""


class NotFound(GpuError):
    """What was named does not exist (any more)."""


class NotSupported(GpuError):
    """This GPU, or this driver, cannot do or cannot read that."""


class DriverMissing(GpuError):
    """There is no NVIDIA driver, or it does not answer."""


class UnknownGpuError(GpuError):
    """NVML failed in a way for which there is no better name; the message has NVML's words."""
