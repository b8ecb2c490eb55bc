"""Simulated GPUs with pynvml's functions, over a state that processes share.

pynvml is a thin layer over a C library: it loads ``libnvidia-ml.so.1`` into a module variable and
calls its functions by name.  Here that library is replaced and nothing else, so that types,
constants, exceptions, version fall-backs and two-call protocols are pynvml's own.

    SimulatedNvml(folder)   an object used like the module pynvml, beside a real pynvml
    replace_library(folder) puts it under the module pynvml itself, for programs that import it

So a Python program written against pynvml runs over simulated GPUs unchanged.  The functions about
MIG are written here: mode, profiles, life cycle of instances, MIG devices.
"""

import runpy
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

import pynvml

from miglab_pool.gpu.simulated import rules
from miglab_pool.gpu.simulated.library import (
    COMPUTE,
    GPU,
    INSTANCE,
    MIG,
    Library,
    exports,
    handle_of,
    number,
    put,
    put_handle,
    refuse,
    target,
)
from miglab_pool.gpu.simulated.nvml_gpus import (
    EventFunctions,
    GpuFunctions,
    error_string,
    pci_id_of,
)
from miglab_pool.gpu.simulated.state import MachineState


class MigFunctions(Library):
    """Mode, profiles and life cycle."""

    @exports("nvmlDeviceGetMigMode")
    def get_mode(self, device: Any, current: Any, pending: Any) -> None:
        _, gpu = self.gpu_of(device)
        put(current, gpu.mig)
        put(pending, gpu.mig_pending)

    @exports("nvmlDeviceSetMigMode")
    def set_mode(self, device: Any, mode: Any, activation: Any) -> None:
        with self.file.change() as machine:
            _, gpu = self.gpu_of(device, machine)
            status = rules.set_mig_mode(machine, gpu, bool(number(mode)))
        put(activation, status)

    # -- profiles -----------------------------------------------------------------------------

    @exports("nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstanceProfileInfoV")
    def profile_info(self, device: Any, enum: Any, info: Any) -> None:
        _, gpu = self.gpu_of(device)
        if not 0 <= number(enum) < pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT:
            refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        for profile in rules.model_of(gpu).profiles:
            if profile.enum == number(enum):
                return _fill_profile(target(info), profile)
        refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)

    @exports("nvmlDeviceGetGpuInstancePossiblePlacements_v2")
    def placements(self, device: Any, profile_id: Any, places: Any, count: Any) -> None:
        _, gpu = self.gpu_of(device)
        profile = rules.profile_of(gpu, number(profile_id))
        _fill_placements(places, profile.starts, profile.size)
        put(count, len(profile.starts))

    @exports("nvmlDeviceGetGpuInstanceRemainingCapacity")
    def remaining(self, device: Any, profile_id: Any, count: Any) -> None:
        _, gpu = self.gpu_of(device)
        put(count, rules.remaining(gpu, rules.profile_of(gpu, number(profile_id))))

    # -- GPU instances ------------------------------------------------------------------------

    @exports("nvmlDeviceCreateGpuInstance")
    def create_instance(self, device: Any, profile_id: Any, instance_ref: Any) -> None:
        self._create(device, number(profile_id), None, instance_ref)

    @exports("nvmlDeviceCreateGpuInstanceWithPlacement")
    def create_instance_at(
        self, device: Any, profile_id: Any, place: Any, instance_ref: Any
    ) -> None:
        placement = target(place)
        self._create(device, number(profile_id), (placement.start, placement.size), instance_ref)

    def _create(
        self, device: Any, profile_id: int, place: tuple[int, int] | None, instance_ref: Any
    ) -> None:
        with self._change_with_delay("create_gpu_instance_s") as machine:
            index, gpu = self.gpu_of(device, machine)
            instance = rules.create_gpu_instance(machine, gpu, profile_id, place, self.now())
        put_handle(instance_ref, handle_of(INSTANCE, index, instance.gi_id))

    @exports("nvmlGpuInstanceDestroy")
    def destroy_instance(self, handle: Any) -> None:
        with self._change_with_delay("destroy_gpu_instance_s") as machine:
            _, gpu, instance = self.instance_of(handle, machine)
            rules.destroy_gpu_instance(machine, gpu, instance, self.now())

    @exports("nvmlDeviceGetGpuInstances")
    def list_instances(self, device: Any, profile_id: Any, instance_refs: Any, count: Any) -> None:
        index, gpu = self.gpu_of(device)
        rules.profile_of(gpu, number(profile_id))
        instances = [i for i in gpu.instances if i.profile_id == number(profile_id)]
        for place, instance in enumerate(instances):
            put_handle(instance_refs, handle_of(INSTANCE, index, instance.gi_id), place)
        put(count, len(instances))

    @exports("nvmlDeviceGetGpuInstanceById")
    def instance_by_id(self, device: Any, gi_id: Any, instance_ref: Any) -> None:
        index, gpu = self.gpu_of(device)
        if all(instance.gi_id != number(gi_id) for instance in gpu.instances):
            refuse(pynvml.NVML_ERROR_NOT_FOUND)
        put_handle(instance_ref, handle_of(INSTANCE, index, number(gi_id)))

    @exports("nvmlGpuInstanceGetInfo")
    def instance_info(self, handle: Any, info: Any) -> None:
        index, _, instance = self.instance_of(handle)
        out = target(info)
        put_handle(out, handle_of(GPU, index))  # the handle is the structure's first field
        out.id, out.profileId = instance.gi_id, instance.profile_id
        out.placement.start, out.placement.size = instance.start, instance.size

    # -- compute instances --------------------------------------------------------------------

    @exports(
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
        "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    )
    def compute_profile_info(self, handle: Any, enum: Any, engines: Any, info: Any) -> None:
        _, gpu, instance = self.instance_of(handle)
        if not 0 <= number(enum) < pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT or number(engines):
            refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if number(enum) not in rules.COMPUTE_SLICES:
            refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
        slices = rules.compute_slices_of(gpu, instance, number(enum))
        out = target(info)
        out.id, out.sliceCount = number(enum), slices
        out.instanceCount = rules.profile_of(gpu, instance.profile_id).compute_slices // slices
        out.multiprocessorCount = rules.compute_sm_count(gpu, instance, number(enum))

    @exports("nvmlGpuInstanceCreateComputeInstance")
    def create_compute(self, handle: Any, profile_id: Any, compute_ref: Any) -> None:
        with self._change_with_delay("create_compute_instance_s") as machine:
            index, gpu, instance = self.instance_of(handle, machine)
            profile, now = number(profile_id), self.now()
            compute = rules.create_compute_instance(machine, gpu, instance, profile, now)
        put_handle(compute_ref, handle_of(COMPUTE, index, instance.gi_id, compute.ci_id))

    @exports("nvmlComputeInstanceDestroy")
    def destroy_compute(self, handle: Any) -> None:
        with self._change_with_delay("destroy_compute_instance_s") as machine:
            _, gpu, instance, compute = self.compute_of(handle, machine)
            rules.destroy_compute_instance(machine, gpu, instance, compute, self.now())

    @exports("nvmlGpuInstanceGetComputeInstances")
    def list_compute(self, handle: Any, profile_id: Any, compute_refs: Any, count: Any) -> None:
        index, _, instance = self.instance_of(handle)
        computes = [c for c in instance.compute if c.profile_id == number(profile_id)]
        for place, compute in enumerate(computes):
            put_handle(
                compute_refs, handle_of(COMPUTE, index, instance.gi_id, compute.ci_id), place
            )
        put(count, len(computes))

    @exports("nvmlComputeInstanceGetInfo_v2")
    def compute_info(self, handle: Any, info: Any) -> None:
        index, _, instance, compute = self.compute_of(handle)
        out = target(info)
        put_handle(out, handle_of(GPU, index))
        put_handle(out, handle_of(INSTANCE, index, instance.gi_id), 1)
        out.id, out.profileId = compute.ci_id, compute.profile_id
        out.placement.start, out.placement.size = compute.start, compute.size

    # -- MIG devices --------------------------------------------------------------------------

    @exports("nvmlDeviceIsMigDeviceHandle")
    def is_mig(self, device: Any, answer: Any) -> None:
        put(answer, self.device_of(device)[1] is not None)

    @exports("nvmlDeviceGetGpuInstanceId")
    def gi_id(self, device: Any, answer: Any) -> None:
        put(answer, self.mig_of(device)[1].gi_id)

    @exports("nvmlDeviceGetComputeInstanceId")
    def ci_id(self, device: Any, answer: Any) -> None:
        put(answer, self.mig_of(device)[2].ci_id)

    @exports("nvmlDeviceGetMaxMigDeviceCount")
    def max_mig_devices(self, device: Any, count: Any) -> None:
        _, gpu = self.gpu_of(device)
        put(count, rules.model_of(gpu).compute_slices if gpu.mig else 0)

    @exports("nvmlDeviceGetMigDeviceHandleByIndex")
    def mig_by_index(self, device: Any, index: Any, device_ref: Any) -> None:
        gpu_index, gpu = self.gpu_of(device)
        if number(index) >= rules.model_of(gpu).compute_slices:
            refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        listed_until = self.now() - self.machine.delays.list_mig_device_s
        indices = {compute.mig_index for _, compute in rules.mig_devices(gpu, listed_until)}
        if number(index) not in indices:
            refuse(pynvml.NVML_ERROR_NOT_FOUND)
        put_handle(device_ref, handle_of(MIG, gpu_index, number(index)))

    @contextmanager
    def _change_with_delay(self, delay: str) -> Iterator[MachineState]:
        """Change the machine, and take as long as its `Delays` say, outside the file's lock."""
        with self.file.change() as machine:
            yield machine
        if (delay_s := getattr(machine.delays, delay)) > 0:
            self.sleep(delay_s)


def _fill_placements(places: Any, starts: Sequence[int], size: int) -> None:
    if places is None:  # the first of two calls: only the count is asked
        return
    for place, start in zip(target(places), starts, strict=False):
        place.start, place.size = start, size


def _fill_profile(out: Any, profile: rules.CardProfile) -> None:
    engines = profile.engines
    out.id, out.isP2pSupported = profile.profile_id, 0
    out.sliceCount, out.instanceCount = profile.compute_slices, profile.max_count
    out.multiprocessorCount, out.copyEngineCount = profile.sm_count, engines.copy
    out.decoderCount, out.encoderCount = engines.decoders, engines.encoders
    out.jpegCount, out.ofaCount = engines.jpeg, engines.ofa
    out.memorySizeMB = profile.memory_mib
    if hasattr(out, "name"):
        out.name = f"MIG {profile.name}".encode()


class SimulatedLibrary(GpuFunctions, MigFunctions, EventFunctions, Library):
    """Every simulated NVML function, by its C name."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """As ``Library``."""
        super().__init__(*arguments, **options)
        self._functions["nvmlErrorString"] = error_string  # type: ignore[assignment]


class SimulatedNvml:
    """Used like the module ``pynvml``; every function, type and constant of it is there.

    Attributes:
        simulated: True; the module pynvml has no such attribute.
    """

    simulated = True

    def __init__(
        self,
        folder: Path,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the machine in a folder; as with the real one, ``nvmlInit`` comes first."""
        self.library = SimulatedLibrary(Path(folder), sleep, now)
        self._names = _bind(self.library)

    @property
    def pci_ids(self) -> dict[str, str]:
        """Where the GPUs are, by UUID, in their order, as a real host's kernel says."""
        gpus = self.library.file.read().gpus
        return {gpu.uuid: pci_id_of(index) for index, gpu in enumerate(gpus)}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_names"][name]
        except KeyError:
            raise AttributeError(f"pynvml has no {name}") from None


def replace_library(folder: Path) -> None:
    """Put the simulated GPUs under the module pynvml of this process."""
    pynvml.nvmlLib = SimulatedLibrary(Path(folder))
    pynvml._nvmlGetFunctionPointer_cache.clear()


def _bind(library: Library) -> dict[str, Any]:
    """All names of pynvml, its functions bound to another library.

    Each function is the same code with other globals; the wrappers that convert text hold the
    function they wrap in a closure, which is bound likewise.
    """
    names: dict[str, Any] = dict(vars(pynvml))
    rebound: dict[FunctionType, FunctionType] = {}

    def bound(value: Any) -> Any:
        if not isinstance(value, FunctionType) or value.__globals__ is not vars(pynvml):
            return value
        if value not in rebound:
            cells = tuple(CellType(bound(cell.cell_contents)) for cell in value.__closure__ or ())
            rebound[value] = FunctionType(
                value.__code__, names, value.__name__, value.__defaults__, cells or None
            )
            rebound[value].__doc__ = value.__doc__
            rebound[value].__kwdefaults__ = value.__kwdefaults__
        return rebound[value]

    names.update({name: bound(value) for name, value in vars(pynvml).items()})
    names.update(
        nvmlLib=library,
        _nvmlLib_refcount=0,
        _nvmlGetFunctionPointer_cache={},
        libLoadLock=threading.Lock(),
    )
    return names


def run_program(program: Sequence[str], folder: Path) -> None:
    """Run a program in this process, with the simulated library under its pynvml.

    Programs that it starts in turn see the real library.

    Args:
        program: ``-m MODULE``, a Python file, or a command installed beside this interpreter or
            on the path; then its arguments.
        folder: the simulated machine.

    Raises:
        LookupError: there is no such program, or it is not Python.
    """
    name, *arguments = program
    if name == "-m":
        if not arguments:
            raise LookupError("-m needs the name of a module.")
        replace_library(folder)
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    path = _find_program(name)
    replace_library(folder)
    sys.argv = [str(path), *arguments]
    runpy.run_path(str(path), run_name="__main__")


def _find_program(name: str) -> Path:
    beside = Path(sys.executable).parent / name
    file = next((p for p in (Path(name), beside) if p.is_file()), None)
    on_path = shutil.which(name)
    path = file or (Path(on_path) if on_path else None)
    if path is None:
        raise LookupError(
            f"There is no program {name}; give -m MODULE, a Python file or a command."
        )
    first = path.read_bytes()[:200].split(b"\n")[0]
    if path.suffix != ".py" and b"python" not in first:
        raise LookupError(f"{path} is not a Python program.")
    return path
