"""What a simulated machine looks like from outside, as plain values: ``miglab sim show``."""

from typing import Any

from miglab_pool.gpu.simulated import rules
from miglab_pool.gpu.simulated.state import ComputeInstance, Gpu, GpuInstance, MachineState


def describe(machine: MachineState, now: float) -> dict[str, Any]:
    """The machine as plain values.

    Args:
        machine: its settled state (``SimulatedMachine.state()``).
        now: seconds since the host started.
    """
    return {
        "driver_loaded": machine.driver_loaded,
        "may_configure": machine.may_configure,
        "boots": machine.boots,
        "faults": [f"{fault.function} ×{fault.times}" for fault in machine.faults],
        "hangs": [
            " ".join((hang.function or "all", *([hang.gpu_uuid] if hang.gpu_uuid else [])))
            for hang in machine.hangs
        ],
        "gpus": [_gpu(index, gpu, now) for index, gpu in enumerate(machine.gpus)],
    }


def _gpu(index: int, gpu: Gpu, now: float) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "mig": gpu.mig,
        "mig_pending": gpu.mig_pending,
        "lost": gpu.lost,
        "stuck": gpu.stuck,
        "ecc_errors": gpu.ecc_errors,
        "slices": [
            _slice(gpu, instance, compute, now)
            for instance in sorted(gpu.instances, key=lambda i: i.start)
            for compute in (*instance.compute, *([] if instance.compute else [None]))
        ],
        "processes": [
            {"pid": p.pid, "memory_mib": p.memory_mib, "gi_id": p.gi_id, "ci_id": p.ci_id}
            for p in gpu.processes
        ],
    }


def _slice(
    gpu: Gpu, instance: GpuInstance, compute: ComputeInstance | None, now: float
) -> dict[str, Any]:
    return {
        "profile": rules.profile_of(gpu, instance.profile_id).name,
        "start": instance.start,
        "size": instance.size,
        "gi_id": instance.gi_id,
        "ci_id": None if compute is None else compute.ci_id,
        "uuid": None if compute is None else rules.mig_uuid(gpu, instance.gi_id, compute.ci_id),
        "state": _state(instance, compute, now),
        "leaked_handles": instance.leaked,
    }


def _state(instance: GpuInstance, compute: ComputeInstance | None, now: float) -> str:
    parts: list[GpuInstance | ComputeInstance] = [instance, *([compute] if compute else [])]
    if any(part.gone_at is not None for part in parts):
        return "destroying"
    if not all(rules.is_past(part.ready_at, now) for part in parts):
        return "making"
    return "half-made" if compute is None else "ready"
