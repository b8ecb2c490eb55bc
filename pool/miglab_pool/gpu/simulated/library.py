"""Stands in for libnvidia-ml.so.1: what every simulated NVML function shares.

pynvml calls C functions by name and reads their return codes; the classes below this one
(``nvml_*``) have a Python method for each.  pynvml's own code therefore runs unchanged over
the simulated GPUs, with its own types, constants and exceptions.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from miglab_pool.gpu.simulated import rules
from miglab_pool.gpu.simulated.rules import NvmlRefusal
from miglab_pool.gpu.simulated.state import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    MachineState,
    StateError,
    StateFile,
)

F = TypeVar("F", bound=Callable[..., None])

GPU, MIG, INSTANCE, COMPUTE, EVENTS, SAMPLE = range(1, 7)
_HANDLE_BASE = 0x4D49_0000_0000_0000
STUCK_POLL_S = 0.02
_POINTER_SIZE = ctypes.sizeof(ctypes.c_void_p)
_HANDLE_TYPES = (
    pynvml.c_nvmlDevice_t,
    pynvml.c_nvmlGpuInstance_t,
    pynvml.c_nvmlComputeInstance_t,
)


def exports(*names: str) -> Callable[[F], F]:
    """Mark a method as NVML's C function of these names.

    The method returns nothing for success and raises ``NvmlRefusal`` for an error code.
    """

    def mark(method: F) -> F:
        method.__dict__["exported_as"] = names
        return method

    return mark


def handle_of(kind: int, serial: int, first: int = 0, second: int = 0) -> int:
    """An opaque handle.

    Handles of GPUs and slices hold numbers, not objects: a stale one reads whatever has that
    number now, as with the real library.
    """
    return _HANDLE_BASE | kind << 40 | serial << 24 | first << 12 | second


def refuse(code: int) -> None:
    """Answer the call with an error code."""
    raise NvmlRefusal(code)


class Library:
    """The machine behind the functions, the checks every call goes through, and handles."""

    def __init__(
        self,
        folder: Path,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the machine in a folder.

        Args:
            folder: where ``SimulatedMachine.create`` made it.
            sleep: what delays and waits sleep with.
            now: seconds since the host started; every process of it reads the same.
        """
        self.file = StateFile(folder)
        self.sleep = sleep
        self.now = now
        self.opened = 0
        self._calls = threading.local()  # each thread's call: the machine as it found it
        self._functions: dict[str, Callable[..., int]] = {}
        for method_name in dir(type(self)):
            method = getattr(type(self), method_name)
            for name in getattr(method, "exported_as", ()):
                self._functions[name] = self._as_c(name, getattr(self, method_name))

    def __getattr__(self, name: str) -> Callable[..., int]:
        functions: dict[str, Callable[..., int]] = self.__dict__.get("_functions", {})
        if name not in functions:  # pynvml turns it into NVMLError_FunctionNotFound
            raise AttributeError(name)
        return functions[name]

    # -- what every call goes through ---------------------------------------------------------

    def _as_c(self, name: str, method: Callable[..., None]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            try:
                self._check(name, arguments)
                method(*arguments)
            except NvmlRefusal as refusal:
                return refusal.code
            except StateError:
                return int(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
            finally:
                self._calls.machine = None
            return int(pynvml.NVML_SUCCESS)

        return call

    def _check(self, name: str, arguments: tuple[Any, ...]) -> None:
        index = _gpu_index(arguments)
        machine = self._calls.machine = self.wait_for(name, index)
        if not machine.driver_loaded:
            refuse(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        if not self.opened and not name.startswith("nvmlInit"):
            refuse(pynvml.NVML_ERROR_UNINITIALIZED)
        gpu = machine.gpus[index] if index is not None else None
        if gpu is not None and (gpu.lost or gpu.missing):
            refuse(pynvml.NVML_ERROR_GPU_IS_LOST)
        if any(name.startswith(fault.function) for fault in machine.faults):
            self._raise_planned_fault(name, gpu)

    @property
    def machine(self) -> MachineState:
        """The machine as this thread's call found it: a call looks at the file once."""
        found: MachineState | None = getattr(self._calls, "machine", None)
        return self.file.read() if found is None else found

    def wait_for(self, name: str, index: int | None) -> MachineState:
        """The machine, once a call to this function, about this GPU or none, does not hang."""
        while _hangs(machine := self.file.read(), name, index):
            self.sleep(STUCK_POLL_S)
        return machine

    def _raise_planned_fault(self, name: str, gpu: Gpu | None) -> None:
        """Fail as ordered in advance, and count it off."""
        uuid = None if gpu is None else gpu.uuid
        with self.file.change() as machine:
            for fault in machine.faults:
                if name.startswith(fault.function) and fault.gpu_uuid in (None, uuid):
                    fault.times -= 1
                    machine.faults = [f for f in machine.faults if f.times > 0]
                    code = fault.code
                    break
            else:
                return
        refuse(code)

    # -- what handles stand for ---------------------------------------------------------------

    def gpu_of(self, handle: Any, machine: MachineState | None = None) -> tuple[int, Gpu]:
        """The GPU of a GPU's handle, with its index; refuses a MIG device's."""
        kind, index, *_ = split_handle(handle)
        if kind != GPU:
            refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return index, self.gpu_at(index, machine)

    def device_of(self, handle: Any) -> tuple[Gpu, GpuInstance | None, ComputeInstance | None]:
        """The GPU, and for a MIG device's handle the instances, behind a handle."""
        kind, index, mig_index, _ = split_handle(handle)
        if kind != MIG:
            return self.gpu_of(handle)[1], None, None
        gpu = self.gpu_at(index)
        for instance, compute in rules.mig_devices(gpu, self.now()):
            if compute.mig_index == mig_index:
                return gpu, instance, compute
        raise NvmlRefusal(pynvml.NVML_ERROR_NOT_FOUND)

    def mig_of(self, handle: Any) -> tuple[Gpu, GpuInstance, ComputeInstance]:
        """The instances behind a MIG device's handle; refuses a GPU's."""
        gpu, instance, compute = self.device_of(handle)
        if instance is None or compute is None:
            raise NvmlRefusal(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return gpu, instance, compute

    def gpu_at(self, index: int, machine: MachineState | None = None) -> Gpu:
        """The GPU of an index."""
        machine = machine or self.machine
        if index >= len(machine.gpus):
            refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        rules.settle(machine.gpus[index], self.now())
        return machine.gpus[index]

    def instance_of(
        self, handle: Any, machine: MachineState | None = None
    ) -> tuple[int, Gpu, GpuInstance]:
        """The GPU instance behind its handle."""
        kind, index, gi_id, _ = split_handle(handle)
        if kind not in (INSTANCE, COMPUTE):
            refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        gpu = self.gpu_at(index, machine)
        for instance in gpu.instances:
            if instance.gi_id == gi_id:
                return index, gpu, instance
        raise NvmlRefusal(pynvml.NVML_ERROR_NOT_FOUND)

    def compute_of(
        self, handle: Any, machine: MachineState | None = None
    ) -> tuple[int, Gpu, GpuInstance, ComputeInstance]:
        """The compute instance behind its handle."""
        kind, _, _, ci_id = split_handle(handle)
        if kind != COMPUTE:
            refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        index, gpu, instance = self.instance_of(handle, machine)
        for compute in instance.compute:
            if compute.ci_id == ci_id:
                return index, gpu, instance, compute
        raise NvmlRefusal(pynvml.NVML_ERROR_NOT_FOUND)


def split_handle(handle: Any) -> tuple[int, int, int, int]:
    """The kind and the numbers in a handle; kind 0 for one that is not ours."""
    value = handle_number(handle)
    if value >> 48 != _HANDLE_BASE >> 48:
        return 0, 0, 0, 0
    return value >> 40 & 0xFF, value >> 24 & 0xFFFF, value >> 12 & 0xFFF, value & 0xFFF


def _hangs(machine: MachineState, name: str, index: int | None) -> bool:
    """Whether a call to this function, about this GPU or none, does not come back for now."""
    gpu = None if index is None else machine.gpus[index]
    if gpu is not None and gpu.stuck:
        return True
    uuids = (None,) if gpu is None else (None, gpu.uuid)
    return any(name.startswith(hang.function) and hang.gpu_uuid in uuids for hang in machine.hangs)


def _gpu_index(arguments: tuple[Any, ...]) -> int | None:
    """The GPU that a call is about: that of its first argument, if that is such a handle."""
    if not arguments or not isinstance(arguments[0], _HANDLE_TYPES):
        return None
    kind, index, *_ = split_handle(arguments[0])
    return index if kind in (GPU, MIG, INSTANCE, COMPUTE) else None


# -- C arguments that pynvml passes to its library -------------------------------------------------


def number(argument: Any) -> int:
    """An integer argument, given as such or as a ctypes integer."""
    return int(getattr(argument, "value", argument))


def target(reference: Any) -> Any:
    """What ``byref(x)``, a pointer or an array argument refers to; None for a null pointer."""
    if reference is None:
        return None
    if hasattr(reference, "_obj"):  # byref()
        return reference._obj
    return getattr(reference, "contents", reference)


def put(reference: Any, value: float) -> None:
    """Write a number through a reference."""
    target(reference).value = value


def put_handle(reference: Any, handle: int, index: int = 0) -> None:
    """Write an opaque handle through a reference, or into an array of handles."""
    address = ctypes.addressof(target(reference)) + index * _POINTER_SIZE
    ctypes.c_void_p.from_address(address).value = handle


def handle_number(handle: Any) -> int:
    """The number behind an opaque handle; 0 for a null one."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
