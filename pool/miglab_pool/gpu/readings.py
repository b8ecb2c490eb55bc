"""What comes back from a GPU: readings, and what can go wrong, as types.

In a reading ``None`` is *unknown*, never zero and never idle.  An error's message says what failed,
on what, and what to do next.
"""

from dataclasses import dataclass

from miglab_pool.gpu.geometry import Geometry, Placement, Profile
from miglab_pool.gpu.xids import XidScope, scope_of


@dataclass(frozen=True)
class GpuInfo:
    """A GPU.

    Attributes:
        uuid: NVML's UUID, ``GPU-…``.
        index: NVML's index; it may change at a reboot, the UUID does not.
        name: the model, in NVIDIA's words.
        memory_mib: memory of the whole GPU, MiB.
        sm_count: streaming multiprocessors of the whole GPU; None where NVML does not tell.
        geometry: how it can be cut; without profiles if it has no MIG.
        mig: whether MIG is on; None = the GPU has no MIG, or it cannot be read now.
        mig_pending: the mode it will have after its next reset.
        pci_device_id: which card it is, 0xDDDDVVVV with device and vendor; None: NVML does not
            tell.
        pci_subsystem_id: which board of that card, packed in the same way.
    """

    uuid: str
    index: int
    name: str
    memory_mib: int
    sm_count: int | None
    geometry: Geometry
    mig: bool | None
    mig_pending: bool | None
    pci_device_id: int | None = None
    pci_subsystem_id: int | None = None


@dataclass(frozen=True)
class Versions:
    """What the host runs; None where it does not tell.

    Attributes:
        driver: of NVIDIA's driver, such as ``580.159.04``.
        cuda: the newest CUDA that this driver serves, such as ``13.0``.
    """

    driver: str | None = None
    cuda: str | None = None


@dataclass(frozen=True)
class SliceReading:
    """A slice that exists on a GPU, whoever made it.

    Attributes:
        gpu_uuid: the GPU it is on.
        gi_id: NVML's GPU-instance id; not tied to where the slice lies, and used again.
        ci_id: NVML's compute-instance id; None = a half-made or half-destroyed slice.
        uuid: ``MIG-…``, which may repeat after re-creation; None for a half-made one.
        profile: what was cut.
        placement: where it lies.
    """

    gpu_uuid: str
    gi_id: int
    ci_id: int | None
    uuid: str | None
    profile: Profile
    placement: Placement


@dataclass(frozen=True)
class ProcessReading:
    """A process on a slice or GPU; ``memory_mib`` is None where NVML does not tell."""

    pid: int
    memory_mib: int | None


@dataclass(frozen=True)
class Usage:
    """Who uses a slice or GPU, how much memory, and how much it computes; None = not known.

    Attributes:
        activity_pct: the share of its SMs, or of the time, that was busy lately; None where the
            hardware does not tell it, which is never the same as nothing.
    """

    memory_used_mib: int | None
    processes: tuple[ProcessReading, ...] | None
    activity_pct: float | None = None


@dataclass(frozen=True)
class Xid:
    """A fault that the driver reported.

    Attributes:
        number: NVIDIA's.
        gi_id: the GPU instance that it came from; None = of no slice, or one that is gone.
        ci_id: the compute instance; None = not told.
    """

    number: int
    gi_id: int | None = None
    ci_id: int | None = None

    @property
    def scope(self) -> XidScope:
        """What it concerns."""
        return scope_of(self.number)


@dataclass(frozen=True)
class Health:
    """How a GPU is.

    Attributes:
        ok: False = needs an operator, None = cannot be told.
        ecc_errors: uncorrected memory errors since the last reset.
        xids: Xid faults seen since the driver object was opened, oldest first, application
            faults among them; None = this GPU does not report them.
        temperature_c: of the GPU, °C.
        power_w: drawn by the GPU, W.
        lost: the GPU has fallen off the bus or needs a reset.
        reason: what is wrong and what to do; empty when all is well.
        needs: what the driver itself says that the card needs before it is used again, such as
            ``a GPU reset``; empty: nothing; None: it does not tell.
    """

    ok: bool | None
    ecc_errors: int | None
    xids: tuple[Xid, ...] | None
    temperature_c: int | None
    power_w: float | None
    lost: bool
    reason: str
    needs: str | None = None


# -- what can go wrong ----------------------------------------------------------------------------


class GpuError(Exception):
    """A GPU, or the driver, did not do what was asked.

    Attributes:
        code: what NVML answered; None if it is not NVML that failed.
    """

    code: int | None = None


class NotPermitted(GpuError):
    """The process may not cut GPUs: it lacks root or the MIG configuration capability."""


class GpuLost(GpuError):
    """The GPU has fallen off the bus or needs a reset; nothing on it can be read."""


class GpuMissing(GpuLost):
    """The driver lists no such GPU: it is not on the bus, or its UUID is misspelt."""


class GpuHung(GpuError):
    """A driver call has not come back in time; what it did, or will do, is not known."""


class InUse(GpuError):
    """Something still uses the slice: a process, a compute instance, a leaked handle."""


class NoRoom(GpuError):
    """NVML finds no room at the placement, and nothing was created: read the GPU's slices again."""


class SliceStillListed(GpuError):
    """NVML says that a slice is destroyed, and lists it all the same."""


class NotFound(GpuError):
    """What was named does not exist (any more)."""


class SliceGone(NotFound):
    """The GPU answers, and the slice that was named is not on it (any more)."""


class NotSupported(GpuError):
    """This GPU, or this driver, cannot do or cannot read that."""


class DriverMissing(GpuError):
    """There is no NVIDIA driver, or it does not answer."""


class UnknownGpuError(GpuError):
    """NVML failed in a way for which there is no better name; the message has NVML's words."""
