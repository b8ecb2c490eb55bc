"""The models of GPU that can be simulated, and the rules by which one is cut.

The models' tables are in ``models.json``, as NVIDIA publishes them.  The rules are pure: a state, a
time and a wish in, a new state out.  Every refusal is a ``NvmlRefusal`` with NVML's error code.
Sources and what was checked against hardware: docs/explanation/mig.md.

What fits on a card is worked out here from those tables alone, by counting memory slices and
engines: the pool decides by rules of its own, and a test plays the two against each other.
"""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files

import pynvml
from pydantic import TypeAdapter

from miglab_pool.gpu.simulated.state import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    MachineState,
    Process,
    XidEvent,
)

ALIASES = {"A30": "A30-24GB", "H100": "H100-80GB", "H200": "H200-141GB", "A100": "A100-40GB"}

# GPU-instance ids by size: not tied to where the instance lies, the lowest free is not the first
# given, and a freed one is given again.
GI_IDS = {8: (0,), 4: (2, 1), 2: (3, 5, 4, 6), 1: (9, 7, 8, 11, 12, 13, 14, 10)}
GI_IDS_A30 = {4: (0,), 2: (2, 1), 1: (5, 3, 4, 6)}

# Compute-instance profiles: NVML's enum is also the id; slices it takes.
ONE_SLICE_REV1, SEVEN_SLICES_NVL = 7, 8
COMPUTE_SLICES = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, ONE_SLICE_REV1: 1, SEVEN_SLICES_NVL: 7}
MOST_EVENTS_KEPT = 256
# What the driver says a card needs after an Xid: column "Immediate Action" of NVIDIA's Xid catalog.
RESETS = frozenset({46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158})
REBOOTS = frozenset({79})
LONGEST_DELAY_S = 3600.0
NAMESPACE = uuid.UUID("5a3f1d0e-6f0c-5a0b-9f6e-3f6d69676c61")


@dataclass(frozen=True)
class CardEngines:
    """Fixed-function engines of one profile."""

    copy: int
    decoders: int
    jpeg: int
    ofa: int
    encoders: int = 0

    @property
    def media(self) -> tuple[int, int, int, int]:
        """Those of which a GPU instance takes its own: decoders, encoders, JPEG, OFA."""
        return self.decoders, self.encoders, self.jpeg, self.ofa


@dataclass(frozen=True)
class CardProfile:
    """A GPU-instance profile as NVML describes it; ``start`` and ``size`` count memory slices."""

    name: str
    profile_id: int
    enum: int
    compute_slices: int
    size: int
    sm_count: int
    memory_mib: int
    max_count: int
    starts: tuple[int, ...]
    engines: CardEngines


@dataclass(frozen=True)
class Model:
    """A model of GPU.

    Attributes:
        key: what the command line calls it, ``A100-40GB``.
        gpu_name: what NVML calls it.
        pci_device_id: device and vendor, ``0xDDDDVVVV``.
        memory_mib: memory of the whole GPU, MiB.
        sm_count: streaming multiprocessors of the whole GPU.
        compute_capability: major, minor.
        power_limit_w: board power, W.
        is_hopper: changes MIG mode without a reset, and has GPM.
        compute_slices: 7, or 4 on an A30.
        profiles: how it can be cut, in NVML's order.
    """

    key: str
    gpu_name: str
    pci_device_id: str
    memory_mib: int
    sm_count: int
    compute_capability: tuple[int, int]
    power_limit_w: int
    is_hopper: bool
    compute_slices: int
    profiles: tuple[CardProfile, ...]

    @property
    def largest(self) -> CardProfile:
        """The profile that has all that MIG gives out of the GPU."""
        return max(self.profiles, key=lambda profile: profile.size)


@cache
def models() -> dict[str, Model]:
    """Every model by key."""
    text = files(__package__).joinpath("models.json").read_text(encoding="utf-8")
    facts = json.loads(text)["models"]
    records = {key: {"key": key, **of_model} for key, of_model in facts.items()}
    return TypeAdapter(dict[str, Model]).validate_python(records)


def model_named(name: str) -> Model:
    """The model of that name or alias.

    Raises:
        ValueError: there is none; says which there are.
    """
    normalized = name.strip().upper()
    key = ALIASES.get(normalized, normalized)
    if key not in models():
        raise ValueError(f"No simulated GPU is called {name!r}; there are: {', '.join(models())}.")
    return models()[key]


class NvmlRefusal(Exception):
    """A call that NVML answers with an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def model_of(gpu: Gpu) -> Model:
    """The GPU's model."""
    return models()[gpu.model]


def profile_of(gpu: Gpu, profile_id: int) -> CardProfile:
    """The profile of that NVML id."""
    for profile in model_of(gpu).profiles:
        if profile.profile_id == profile_id:
            return profile
    raise NvmlRefusal(pynvml.NVML_ERROR_INVALID_ARGUMENT)


def mig_uuid(gpu: Gpu, gi_id: int, ci_id: int) -> str:
    """Name-derived, hence the same again for a slice made anew under the same ids."""
    return _mig_uuid(gpu.uuid, gi_id, ci_id)


@lru_cache(maxsize=8192)  # each reading of a slice asks; a GPU has a few dozen
def _mig_uuid(gpu_uuid: str, gi_id: int, ci_id: int) -> str:
    return f"MIG-{uuid.uuid5(NAMESPACE, f'{gpu_uuid}/{gi_id}/{ci_id}')}"


def settle(gpu: Gpu, now: float) -> None:
    """Remove what has finished being destroyed."""
    if all(
        instance.gone_at is None and all(compute.gone_at is None for compute in instance.compute)
        for instance in gpu.instances
    ):
        return
    for instance in gpu.instances:
        instance.compute = [c for c in instance.compute if not is_past(c.gone_at, now)]
    gpu.instances = [i for i in gpu.instances if not is_past(i.gone_at, now)]


def free_starts(gpu: Gpu, profile: CardProfile) -> list[int]:
    """Where a GPU instance can be made beside all others, those being made or destroyed included.

    Its memory slices are free, and enough of the GPU's media engines are left: NVIDIA's tables give
    an A100 one OFA and one JPEG engine, which is why it has one ``+me`` instance at most.
    """
    occupied = {slice_ for i in gpu.instances for slice_ in range(i.start, i.start + i.size)}
    together = [profile, *(profile_of(gpu, instance.profile_id) for instance in gpu.instances)]
    needs = [sum(kind) for kind in zip(*(p.engines.media for p in together), strict=True)]
    totals = model_of(gpu).largest.engines.media
    if any(need > total for need, total in zip(needs, totals, strict=True)):
        return []
    return [s for s in profile.starts if occupied.isdisjoint(range(s, s + profile.size))]


def remaining(gpu: Gpu, profile: CardProfile) -> int:
    """How many more of a profile fit."""
    starts = free_starts(gpu, profile)
    existing = sum(instance.profile_id == profile.profile_id for instance in gpu.instances)
    return min(len(starts), profile.max_count - existing)


def create_gpu_instance(
    machine: MachineState, gpu: Gpu, profile_id: int, place: tuple[int, int] | None, now: float
) -> GpuInstance:
    """Make a GPU instance, at a place (start, size) or where the driver likes.

    The driver likes the highest start.  That is a model of it: it gives what is known of the real
    one, that 19,19,14,9 fails at the last and 9,19,14,19 does not.
    """
    may_configure(machine, gpu)
    profile = profile_of(gpu, profile_id)
    starts = free_starts(gpu, profile)
    if place is not None:
        if place not in [(start, profile.size) for start in profile.starts]:
            raise NvmlRefusal(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        starts = [start for start in starts if start == place[0]]
    if not starts:
        raise NvmlRefusal(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
    if gpu.processes and not gpu.instances:  # nothing may run on a GPU that is to be cut first
        raise NvmlRefusal(pynvml.NVML_ERROR_IN_USE)
    ready_at = now + machine.delays.create_gpu_instance_s
    instance = GpuInstance(
        _free_gi_id(gpu, profile.size), profile_id, max(starts), profile.size, ready_at=ready_at
    )
    gpu.instances.append(instance)
    return instance


def destroy_gpu_instance(
    machine: MachineState, gpu: Gpu, instance: GpuInstance, now: float
) -> None:
    """Destroy a GPU instance that nothing uses any more."""
    may_configure(machine, gpu)
    users = [p for p in gpu.processes if p.gi_id == instance.gi_id]
    if instance.compute or users or instance.leaked or _is_busy(instance, now):
        raise NvmlRefusal(pynvml.NVML_ERROR_IN_USE)
    instance.gone_at = now + machine.delays.destroy_gpu_instance_s
    settle(gpu, now)


def create_compute_instance(
    machine: MachineState,
    gpu: Gpu,
    instance: GpuInstance,
    profile_id: int,
    now: float,
) -> ComputeInstance:
    """Make a compute instance on a part of a GPU instance, lowest free slices first."""
    may_configure(machine, gpu)
    slices = compute_slices_of(gpu, instance, profile_id)
    if profile_id == SEVEN_SLICES_NVL:  # told of, and not to be had
        raise NvmlRefusal(pynvml.NVML_ERROR_NOT_SUPPORTED)
    if _is_busy(instance, now):
        raise NvmlRefusal(pynvml.NVML_ERROR_IN_USE)
    places = compute_starts(gpu, instance, slices)
    if not places:
        raise NvmlRefusal(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
    compute = ComputeInstance(
        ci_id=_lowest_free({c.ci_id for c in instance.compute}),
        profile_id=profile_id,
        start=places[0],
        size=slices,
        mig_index=_lowest_free({c.mig_index for i in gpu.instances for c in i.compute}),
        ready_at=now + machine.delays.create_compute_instance_s,
    )
    instance.compute.append(compute)
    return compute


def destroy_compute_instance(
    machine: MachineState, gpu: Gpu, instance: GpuInstance, compute: ComputeInstance, now: float
) -> None:
    """Destroy a compute instance on which no process runs."""
    may_configure(machine, gpu)
    ids = (instance.gi_id, compute.ci_id)
    if any((p.gi_id, p.ci_id) == ids for p in gpu.processes) or _is_busy(compute, now):
        raise NvmlRefusal(pynvml.NVML_ERROR_IN_USE)
    compute.gone_at = now + machine.delays.destroy_compute_instance_s
    settle(gpu, now)


def compute_slices_of(gpu: Gpu, instance: GpuInstance, profile_id: int) -> int:
    """Compute slices of a compute-instance profile, if the GPU instance has room for it empty."""
    gi_slices = profile_of(gpu, instance.profile_id).compute_slices
    slices = COMPUTE_SLICES.get(profile_id)
    if slices is None:
        raise NvmlRefusal(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    is_missing = (
        slices > gi_slices
        or (slices == 3 and gi_slices == 4)
        or (profile_id == ONE_SLICE_REV1 and not has_spare_sms(gpu, instance))
        or (profile_id == SEVEN_SLICES_NVL and model_of(gpu).is_hopper)
    )
    if is_missing:
        raise NvmlRefusal(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return slices


def compute_sm_count(gpu: Gpu, instance: GpuInstance, profile_id: int) -> int:
    """SMs of a compute-instance profile: its slices', or with ``1_SLICE_REV1`` all there are."""
    slices = compute_slices_of(gpu, instance, profile_id)
    profile = profile_of(gpu, instance.profile_id)
    if has_spare_sms(gpu, instance) and profile_id != ONE_SLICE_REV1:
        return _plain(gpu).sm_count
    return profile.sm_count * slices // profile.compute_slices


def has_spare_sms(gpu: Gpu, instance: GpuInstance) -> bool:
    """Whether it is a 1g with more SMs than a slice has: from Hopper on that of double memory."""
    profile = profile_of(gpu, instance.profile_id)
    return profile.compute_slices == 1 and profile.sm_count > _plain(gpu).sm_count


def _plain(gpu: Gpu) -> CardProfile:
    """The profile of one slice."""
    return next(profile for profile in model_of(gpu).profiles if profile.enum == 0)


def compute_starts(gpu: Gpu, instance: GpuInstance, slices: int) -> list[int]:
    """Where a compute instance of so many slices still fits."""
    gi_slices = profile_of(gpu, instance.profile_id).compute_slices
    occupied = {s for c in instance.compute for s in range(c.start, c.start + c.size)}
    return [
        start
        for start in range(0, gi_slices - slices + 1, slices)
        if occupied.isdisjoint(range(start, start + slices))
    ]


def set_mig_mode(machine: MachineState, gpu: Gpu, mode: bool) -> int:
    """Ask for a MIG mode; the mode is pending until it is activated.

    Returns:
        NVML's activation status: success, IN_USE while anything uses the GPU, RESET_REQUIRED
        on cards before Hopper.
    """
    if not machine.may_configure:
        raise NvmlRefusal(pynvml.NVML_ERROR_NO_PERMISSION)
    gpu.mig_pending = mode
    if mode == gpu.mig:
        return int(pynvml.NVML_SUCCESS)
    if gpu.processes or gpu.instances:
        return int(pynvml.NVML_ERROR_IN_USE)
    if not model_of(gpu).is_hopper:
        return int(pynvml.NVML_ERROR_RESET_REQUIRED)
    gpu.mig = mode
    return int(pynvml.NVML_SUCCESS)


def reset(gpu: Gpu) -> None:
    """Reset a GPU: what is on it is gone, faults are cleared, and a pending mode becomes current.

    From Hopper on the driver holds the mode and no memory of the card does: it is off afterwards.
    """
    if model_of(gpu).is_hopper:
        gpu.mig_pending = False
    gpu.mig = gpu.mig_pending
    gpu.instances, gpu.processes = [], []
    gpu.lost = gpu.stuck = False
    gpu.ecc_errors = gpu.recovery_action = 0


def raise_xid(
    machine: MachineState, gpu: Gpu, xid: int, gi_id: int | None = None, ci_id: int | None = None
) -> None:
    """Record a fault for every event set that listens; some make the card ask for a reset."""
    machine.events_ever += 1
    machine.events.append(XidEvent(machine.events_ever, gpu.uuid, xid, gi_id, ci_id))
    del machine.events[:-MOST_EVENTS_KEPT]
    if xid in REBOOTS:
        gpu.recovery_action = pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT
    elif xid in RESETS:
        gpu.recovery_action = pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET


def may_configure(machine: MachineState, gpu: Gpu) -> None:
    """Refuse if MIG is off or the caller may not cut GPUs."""
    if not gpu.mig:
        raise NvmlRefusal(pynvml.NVML_ERROR_NOT_SUPPORTED)
    if not machine.may_configure:
        raise NvmlRefusal(pynvml.NVML_ERROR_NO_PERMISSION)


def mig_devices(gpu: Gpu, now: float) -> Iterator[tuple[GpuInstance, ComputeInstance]]:
    """Every MIG device: a compute instance that is ready, with its GPU instance."""
    for instance in gpu.instances:
        for compute in instance.compute:
            if is_past(compute.ready_at, now):
                yield instance, compute


def processes_of(gpu: Gpu, gi_id: int, ci_id: int) -> list[Process]:
    """The processes on one MIG device."""
    return [p for p in gpu.processes if (p.gi_id, p.ci_id) == (gi_id, ci_id)]


def _free_gi_id(gpu: Gpu, size: int) -> int:
    ids = GI_IDS if model_of(gpu).largest.size == 8 else GI_IDS_A30
    used = {instance.gi_id for instance in gpu.instances}
    return next(gi_id for gi_id in ids[size] if gi_id not in used)


def _lowest_free(used: set[int]) -> int:
    return next(number for number in range(len(used) + 1) if number not in used)


def _is_busy(instance: GpuInstance | ComputeInstance, now: float) -> bool:
    return not is_past(instance.ready_at, now) or instance.gone_at is not None


def is_past(moment: float | None, now: float) -> bool:
    """Whether a moment has come; one further ahead than any delay is of before a restart."""
    return moment is not None and not now < moment <= now + LONGEST_DELAY_S
