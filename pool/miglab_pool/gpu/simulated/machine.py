"""Makes a simulated machine, loads it and breaks it: what ``miglab sim`` and the tests use."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any

import pynvml

from miglab_pool.gpu.simulated import rules
from miglab_pool.gpu.simulated.state import (
    ComputeInstance,
    Delays,
    Fault,
    Gpu,
    GpuInstance,
    Hang,
    MachineState,
    Process,
    StateFile,
)

DEFAULT_XID = 79
MOST_GPUS = 256


class Break(StrEnum):
    """Ways to break a machine; ``OK`` repairs what reset and reboot would."""

    LOST = "lost"
    MISSING = "missing"
    STUCK = "stuck"
    XID = "xid"
    ECC = "ecc"
    LEAK = "leak"
    NO_PERMISSION = "no-permission"
    NO_DRIVER = "no-driver"
    FAIL = "fail"
    HANG = "hang"
    OK = "ok"


def error_code(name: str) -> int:
    """NVML's error code of a name: ``IN_USE``, ``NVML_ERROR_IN_USE``, or ``SUCCESS``.

    Raises:
        ValueError: there is no such error; names those there are.
    """
    codes = {
        constant.removeprefix("NVML_ERROR_"): int(value)
        for constant, value in vars(pynvml).items()
        if constant.startswith("NVML_ERROR_")
    } | {"SUCCESS": int(pynvml.NVML_SUCCESS)}
    error = name.strip().upper().replace("-", "_").removeprefix("NVML_ERROR_")
    if error not in codes:
        raise ValueError(f"NVML has no error {name!r}; there are: {', '.join(sorted(codes))}.")
    return codes[error]


class SimulatedMachine:
    """A simulated machine, from the outside: its operator, its students' processes, its faults."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.monotonic) -> None:
        """Open the machine in a folder; ``create`` makes one."""
        self.folder = Path(folder)
        self._file = StateFile(self.folder)
        self._now = now

    @classmethod
    def create(
        cls,
        folder: Path,
        gpus: int = 1,
        model: str = "A100-40GB",
        mig: bool = True,
        delays: Delays | None = None,
        seed: str | None = None,
        models: Sequence[str] = (),
    ) -> "SimulatedMachine":
        """Make a machine.

        Args:
            folder: where its state lives; made if need be.
            gpus: how many GPUs.
            model: of each GPU.
            mig: whether MIG is on.
            delays: how long acts take; none if not given.
            seed: what GPU UUIDs are derived from; the folder's full path if not given, so that
                two machines have different ones and the same machine has the same ones again.
            models: of the GPUs one by one, in place of ``gpus`` and ``model``.

        Raises:
            FileExistsError: a machine lives in that folder already.
            ValueError: no such model, or no sensible number of GPUs.
        """
        keys = [rules.model_named(name).key for name in models or [model] * gpus]
        if not 1 <= len(keys) <= MOST_GPUS:
            raise ValueError(f"A simulated machine has 1 to {MOST_GPUS} GPUs, not {len(keys)}.")
        root = uuid.uuid5(rules.NAMESPACE, seed or str(Path(folder).resolve()))
        gpu_states = [
            Gpu(f"GPU-{uuid.uuid5(root, str(index))}", key, mig, mig)
            for index, key in enumerate(keys)
        ]
        machine = cls(folder)
        machine._file.create(MachineState(gpu_states, delays or Delays()))
        return machine

    def state(self) -> MachineState:
        """Everything about it, now; not to be changed."""
        state = self._file.read()
        for gpu in state.gpus:
            rules.settle(gpu, self._now())
        return state

    @property
    def boots(self) -> int:
        """How often it was started, this time included; no GPU is looked at for it."""
        return self._file.read().boots

    def view(self) -> dict[str, Any]:
        """The machine as plain values: GPUs with their slices, processes and faults."""
        return _describe(self.state(), self._now())

    # -- processes ----------------------------------------------------------------------------

    def add_process(
        self, on_uuid: str, pid: int, memory_mib: int | None, activity_pct: float = 0.0
    ) -> None:
        """Run a process on a slice or GPU, or change one that runs there.

        Args:
            on_uuid: ``MIG-…`` of a slice, or ``GPU-…`` of a GPU with MIG off.
            pid: its process id.
            memory_mib: GPU memory it holds, MiB; None = NVML does not tell.
            activity_pct: how busy it keeps the slice; only GPM can see it.

        Raises:
            LookupError: there is no such slice or GPU.
        """
        with self._file.change() as state:
            gpu, gi_id, ci_id = self._find(state, on_uuid)
            ids = (gi_id, ci_id)
            other_processes = [
                p for p in gpu.processes if (p.pid, (p.gi_id, p.ci_id)) != (pid, ids)
            ]
            gpu.processes = [*other_processes, Process(pid, memory_mib, gi_id, ci_id, activity_pct)]

    def remove_process(self, pid: int) -> None:
        """End a process wherever it runs.

        Raises:
            LookupError: no such process.
        """
        with self._file.change() as state:
            before = sum(len(gpu.processes) for gpu in state.gpus)
            for gpu in state.gpus:
                gpu.processes = [p for p in gpu.processes if p.pid != pid]
            if before == sum(len(gpu.processes) for gpu in state.gpus):
                raise LookupError(f"No process {pid} runs on a simulated GPU.")

    # -- faults -------------------------------------------------------------------------------

    def break_gpu(
        self, kind: Break | str, gpu_uuid: str | None = None, xid: int = DEFAULT_XID
    ) -> None:
        """Break a GPU (the first, if none is named) in one of the ways of ``Break``.

        An Xid may come from a slice: then ``gpu_uuid`` is that slice's, ``MIG-…``.
        ``no-permission`` and ``no-driver`` concern the whole machine; ``leak`` adds a handle to
        every slice of the GPU, which blocks its destruction; ``fail`` and ``hang`` have methods
        of their own.

        Raises:
            LookupError: there is no such GPU.
            ValueError: there is no such way.
        """
        kind = Break(kind)
        with self._file.change() as state:
            if kind is Break.XID and gpu_uuid is not None:
                gpu, gi_id, ci_id = self._find(state, gpu_uuid)
                rules.raise_xid(state, gpu, xid, gi_id, ci_id)
            else:
                _break(state, self._gpu(state, gpu_uuid), kind, xid)

    def fail_next(
        self, function: str, code: int, times: int = 1, gpu_uuid: str | None = None
    ) -> None:
        """Let the next calls of an NVML function fail.

        Args:
            function: its name, or the beginning of it: ``nvmlComputeInstanceDestroy``.
            code: NVML's error code, for example ``pynvml.NVML_ERROR_IN_USE``; with ``NVML_SUCCESS``
                a call does nothing and says that it did it.
            times: how many calls.
            gpu_uuid: only calls about this GPU; None = any.
        """
        with self._file.change() as state:
            state.faults.append(Fault(function, code, times, gpu_uuid))

    def hang(self, function: str = "", gpu_uuid: str | None = None) -> None:
        """Let the calls of an NVML function not come back until ``break_gpu("ok")`` or a reboot.

        Args:
            function: its name, or the beginning of it; empty: every function, opening the
                library included.
            gpu_uuid: only calls about this GPU; None = whatever they are about.
        """
        with self._file.change() as state:
            state.hangs.append(Hang(function, gpu_uuid))

    # -- the operator -------------------------------------------------------------------------

    def set_mig(self, on: bool, gpu_uuid: str | None = None) -> None:
        """Change the MIG mode as an operator does, with a reset; refused while in use.

        Raises:
            RuntimeError: slices or processes are on the GPU.
        """
        with self._file.change() as state:
            for gpu in state.gpus:
                if gpu_uuid not in (None, gpu.uuid):
                    continue
                if gpu.instances or gpu.processes:
                    raise RuntimeError(f"{gpu.uuid} is in use; its MIG mode cannot change now.")
                gpu.mig_pending = on
                rules.reset(gpu)
                gpu.mig = gpu.mig_pending = on  # on Hopper the change comes after the reset

    def set_delays(self, delays: Delays) -> None:
        """Change how long acts take."""
        with self._file.change() as state:
            state.delays = delays

    def reboot(self) -> None:
        """Reboot: instances, processes and faults of the moment are gone, and on Hopper the mode.

        A GPU that is missing stays so: it is broken.
        """
        with self._file.change() as state:
            state.boots += 1
            state.events, state.faults, state.hangs = [], [], []
            state.driver_loaded = True
            for gpu in state.gpus:
                rules.reset(gpu)

    # -- finding things -----------------------------------------------------------------------

    def _gpu(self, state: MachineState, gpu_uuid: str | None) -> Gpu:
        for gpu in state.gpus:
            if gpu_uuid in (None, gpu.uuid):
                return gpu
        raise LookupError(f"There is no simulated GPU {gpu_uuid}.")

    def _find(self, state: MachineState, on_uuid: str) -> tuple[Gpu, int | None, int | None]:
        for gpu in state.gpus:
            if gpu.uuid == on_uuid:
                return gpu, None, None
            rules.settle(gpu, self._now())
            for instance, compute in rules.mig_devices(gpu, self._now()):
                if rules.mig_uuid(gpu, instance.gi_id, compute.ci_id) == on_uuid:
                    return gpu, instance.gi_id, compute.ci_id
        raise LookupError(f"There is no simulated slice or GPU {on_uuid}.")


def _break(state: MachineState, gpu: Gpu, kind: Break, xid: int) -> None:
    match kind:
        case Break.LOST:
            gpu.lost = True
            rules.raise_xid(state, gpu, DEFAULT_XID)
        case Break.MISSING | Break.STUCK:
            setattr(gpu, kind.value, True)
        case Break.XID:
            rules.raise_xid(state, gpu, xid)
        case Break.ECC:
            gpu.ecc_errors += 1
        case Break.LEAK:
            for instance in gpu.instances:
                instance.leaked += 1
        case Break.NO_PERMISSION:
            state.may_configure = False
        case Break.NO_DRIVER:
            state.driver_loaded = False
        case Break.OK:
            _repair(state, gpu)
        case _:
            raise ValueError(f"{kind.value!r} has a method of its own: fail_next() or hang().")


def _repair(state: MachineState, gpu: Gpu) -> None:
    gpu.lost = gpu.missing = gpu.stuck = False
    gpu.ecc_errors = gpu.recovery_action = 0
    for instance in gpu.instances:
        instance.leaked = 0
    state.may_configure = state.driver_loaded = True
    state.faults, state.hangs = [], []


def _describe(machine: MachineState, now: float) -> dict[str, Any]:
    return {
        "driver_loaded": machine.driver_loaded,
        "may_configure": machine.may_configure,
        "boots": machine.boots,
        "faults": [f"{fault.function} ×{fault.times}" for fault in machine.faults],
        "hangs": [
            " ".join((hang.function or "all", *([hang.gpu_uuid] if hang.gpu_uuid else [])))
            for hang in machine.hangs
        ],
        "gpus": [_describe_gpu(index, gpu, now) for index, gpu in enumerate(machine.gpus)],
    }


def _describe_gpu(index: int, gpu: Gpu, now: float) -> dict[str, Any]:
    slices = [
        _describe_slice(gpu, instance, compute, now)
        for instance in sorted(gpu.instances, key=lambda i: i.start)
        for compute in (*instance.compute, *([] if instance.compute else [None]))
    ]
    description = asdict(gpu)
    del description["instances"], description["temperature_c"]
    return {"index": index, **description, "slices": slices}


def _describe_slice(
    gpu: Gpu, instance: GpuInstance, compute: ComputeInstance | None, now: float
) -> dict[str, Any]:
    return {
        "profile": rules.profile_of(gpu, instance.profile_id).name,
        "start": instance.start,
        "size": instance.size,
        "gi_id": instance.gi_id,
        "ci_id": None if compute is None else compute.ci_id,
        "uuid": None if compute is None else rules.mig_uuid(gpu, instance.gi_id, compute.ci_id),
        "state": _state_of(instance, compute, now),
        "leaked_handles": instance.leaked,
    }


def _state_of(instance: GpuInstance, compute: ComputeInstance | None, now: float) -> str:
    parts: list[GpuInstance | ComputeInstance] = [instance, *([compute] if compute else [])]
    if any(part.gone_at is not None for part in parts):
        return "destroying"
    if not all(rules.is_past(part.ready_at, now) for part in parts):
        return "making"
    return "half-made" if compute is None else "ready"
