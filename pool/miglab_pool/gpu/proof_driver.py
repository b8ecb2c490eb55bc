"""The driver as `miglab prove` asks it: each NVML call timed, and questions the pool never asks.

The pool's own code makes and destroys the slices; below it, a layer as thin as a call times every
NVML function by its name.  Nothing here decides whether an answer is right.
"""

import contextlib
import ctypes
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import pynvml

from miglab_pool.gpu.driver import Driver
from miglab_pool.gpu.geometry import Geometry, Placement, Profile
from miglab_pool.gpu.health import read_needs, xid_of
from miglab_pool.gpu.nvml import call, mig_devices, read_if_supported
from miglab_pool.gpu.readings import GpuError, SliceReading, Xid
from miglab_pool.gpu.watched import WatchedDriver, open_gpus

T = TypeVar("T")

NOT_THERE = 99  # no GPU instance gets so high an id
PARTS = {
    "nvmlDeviceGetHandleByUUID": "lookup",
    "nvmlDeviceGetHandleByPciBusId": "lookup_by_pci",
    "nvmlDeviceCreateGpuInstance": "create_gi",
    "nvmlDeviceCreateGpuInstanceWithPlacement": "create_gi",
    "nvmlGpuInstanceCreateComputeInstance": "create_ci",
    "nvmlComputeInstanceDestroy": "destroy_ci",
    "nvmlGpuInstanceDestroy": "destroy_gi",
    "nvmlDeviceGetMaxMigDeviceCount": "walk",
    "nvmlDeviceGetMigDeviceHandleByIndex": "walk",
    "nvmlDeviceGetGpuInstanceId": "walk",
    "nvmlDeviceGetComputeInstanceId": "walk",
}
"""What a call of an NVML function is counted as; every other one is part of the total alone."""


@dataclass(frozen=True)
class CallTimes:
    """How long one operation of the driver took.

    Attributes:
        total_s: all of it, seconds.
        parts_s: the NVML calls in it, by the names in `PARTS`, seconds.
    """

    total_s: float
    parts_s: Mapping[str, float]


class TimedNvml:
    """NVML, or the simulated one, with every call counted and timed.

    Args:
        nvml: the module ``pynvml`` or a ``SimulatedNvml``.
        calls: to which every call is added, by the function's name.
    """

    def __init__(self, nvml: Any, calls: Counter[str]) -> None:
        self.simulated: bool = getattr(nvml, "simulated", False)
        self._nvml = nvml
        self._calls = calls
        self._parts_s: defaultdict[str, float] = defaultdict(float)

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._nvml, name)
        if not callable(function) or isinstance(function, type):
            return function

        def timed(*args: Any, **options: Any) -> Any:
            started_at = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self._calls[name] += 1
                if name in PARTS:
                    self._parts_s[PARTS[name]] += time.perf_counter() - started_at

        return timed

    def time(self, operation: Callable[[], T]) -> tuple[T, CallTimes]:
        """Run an operation; return its result, and how long it and its NVML calls took."""
        self._parts_s.clear()
        started_at = time.perf_counter()
        result = operation()
        return result, CallTimes(time.perf_counter() - started_at, dict(self._parts_s))


class ProofDriver(Driver):
    """The pool's driver with times, and with the questions of a proof.

    Attributes:
        calls: how often each NVML function was called.
    """

    def __init__(
        self, nvml: Any, gpu_uuids: Sequence[str], memory: Any, calls: Counter[str]
    ) -> None:
        """As `Driver`."""
        self._timed = TimedNvml(nvml, calls)
        self._listening: Any = None
        super().__init__(self._timed, gpu_uuids, memory)

    def close(self) -> None:
        """Free the event set, then close NVML as `Driver` does."""
        if self._listening is not None:
            self._listening = call(
                "close the event set", self._timed.nvmlEventSetFree, self._listening
            )
        super().close()

    # -- the pool's operations, timed ---------------------------------------------------------

    def create_timed(
        self, gpu_uuid: str, profile: Profile, placement: Placement
    ) -> tuple[SliceReading, CallTimes]:
        """As `Driver.create`."""
        return self._timed.time(lambda: self.create(gpu_uuid, profile, placement))

    def destroy_timed(self, gpu_uuid: str, gi_id: int) -> CallTimes:
        """As `Driver.destroy`."""
        return self._timed.time(lambda: self.destroy(gpu_uuid, gi_id))[1]

    def look_up(self, gpu_uuid: str) -> CallTimes:
        """Open the GPU by its UUID and by its PCI address, and walk over its MIG devices."""

        def open_both_ways() -> None:
            gpu = call(f"open GPU {gpu_uuid}", self._timed.nvmlDeviceGetHandleByUUID, gpu_uuid)
            pci = read_if_supported(
                f"read the address of {gpu_uuid}", self._timed.nvmlDeviceGetPciInfo, gpu
            )
            if pci is not None:
                open_by_pci = self._timed.nvmlDeviceGetHandleByPciBusId
                read_if_supported(f"open {gpu_uuid} by its address", open_by_pci, pci.busId)
            for _ in mig_devices(self._timed, gpu, gpu_uuid):
                pass

        return self._timed.time(open_both_ways)[1]

    # -- what the pool does not ask -----------------------------------------------------------

    def needs(self, gpu_uuid: str) -> str | None:
        """What the driver wants an operator to do; see `read_needs`."""
        return read_needs(self._timed, self._open(gpu_uuid), gpu_uuid)

    def create_anywhere(self, gpu_uuid: str, profile: Profile) -> tuple[int, Placement]:
        """Make a GPU instance, without a compute instance, where the driver likes.

        Returns:
            Its id, and where it lies.
        """
        gpu = self._open(gpu_uuid)
        action = f"create a {profile.name} GPU instance on {gpu_uuid}"
        instance = call(action, self._timed.nvmlDeviceCreateGpuInstance, gpu, profile.profile_id)
        info = call(
            f"read a GPU instance of {gpu_uuid}", self._timed.nvmlGpuInstanceGetInfo, instance
        )
        return int(info.id), Placement(info.placement.start, info.placement.size)

    def refusals(self, reading: SliceReading) -> dict[str, str]:
        """What NVML answers to four operations that cannot be carried out.

        Args:
            reading: a slice that may be used for it, and may be gone afterwards.

        Returns:
            The name of NVML's error, or ``SUCCESS``, by what was tried.
        """
        gpu, nvml = self._open(reading.gpu_uuid), self._timed
        lookup = nvml.nvmlDeviceGetGpuInstanceById
        instance = call(f"find a slice of {reading.gpu_uuid}", lookup, gpu, reading.gi_id)
        occupied = reading.placement
        illegal = Placement(occupied.start, occupied.size + 1)
        return {
            "create at a taken placement": self._refusal_of_create(gpu, reading.profile, occupied),
            "create at a placement the profile lacks": self._refusal_of_create(
                gpu, reading.profile, illegal
            ),
            "find a GPU instance that is not there": _error_of(lookup, gpu, NOT_THERE),
            "destroy a GPU instance with a compute instance": _error_of(
                nvml.nvmlGpuInstanceDestroy, instance
            ),
        }

    def listen(self, gpu_uuid: str) -> None:
        """Hear of the GPU's Xid events from now on; see `next_xid`.

        Raises:
            GpuError: it does not tell them.
        """
        gpu, nvml = self._open(gpu_uuid), self._timed
        self._listening = call("open an event set", nvml.nvmlEventSetCreate)
        kinds = pynvml.nvmlEventTypeXidCriticalError
        call("watch for Xid faults", nvml.nvmlDeviceRegisterEvents, gpu, kinds, self._listening)

    def next_xid(self, limit_s: float) -> Xid | None:
        """The next Xid event since `listen`; None if none comes in time."""
        try:
            event = self._timed.nvmlEventSetWait_v2(self._listening, int(1000 * limit_s))
        except pynvml.NVMLError_Timeout:
            return None
        return xid_of(event)

    def _open(self, gpu_uuid: str) -> Any:
        return call(f"open GPU {gpu_uuid}", self._timed.nvmlDeviceGetHandleByUUID, gpu_uuid)

    def _refusal_of_create(self, gpu: Any, profile: Profile, placement: Placement) -> str:
        """Try to create an instance and return NVML's answer; if it succeeds, it is undone."""
        place = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        try:
            instance = self._timed.nvmlDeviceCreateGpuInstanceWithPlacement(
                gpu, profile.profile_id, ctypes.byref(place)
            )
        except pynvml.NVMLError as error:
            return error_name(error)
        with contextlib.suppress(pynvml.NVMLError):
            self._timed.nvmlGpuInstanceDestroy(instance)
        return "SUCCESS"


class WatchedProofDriver(WatchedDriver):
    """The GPUs of a proof, each with a `ProofDriver` on a thread of its own.

    Attributes:
        calls: how often each NVML function was called, of all GPUs together.
    """

    calls: Counter[str]

    def ask(
        self, gpu_uuid: str, question: Callable[[ProofDriver], T], *, changes: bool = False
    ) -> T:
        """Ask a GPU's driver on that GPU's thread.

        Raises:
            GpuHung: the call has not come back.
            GpuError: what the driver says.
        """
        work = cast(Callable[[Driver], T], question)
        return self._gpus[gpu_uuid].run(work, changes=changes)


def open_for_proof(
    *, simulated_state: Path | None, gpu_uuids: Sequence[str] | None, limit_s: float
) -> WatchedProofDriver:
    """Open the GPUs for a proof.

    Args:
        simulated_state: the folder of a simulated machine; None for this host's real GPUs.
        gpu_uuids: the GPUs to use; None for all.
        limit_s: how long a call may take.

    Raises:
        GpuError: there is no driver.
    """
    if gpu_uuids is None:
        every_gpu = open_gpus(simulated_state=simulated_state)
        gpu_uuids = every_gpu.uuids
        every_gpu.close()
    calls: Counter[str] = Counter()
    nvml = _nvml(simulated_state)
    driver = WatchedProofDriver(
        lambda gpus, memory: ProofDriver(nvml, gpus, memory, calls),
        gpu_uuids,
        simulated=simulated_state is not None,
        limit_s=limit_s,
    )
    driver.calls = calls
    return driver


def error_name(error: BaseException | None) -> str:
    """NVML's name of an error, ``IN_USE``; for another error, that of its type."""
    if isinstance(error, pynvml.NVMLError):
        codes: dict[int, str] = {
            int(value): name.removeprefix("NVML_ERROR_")
            for name, value in vars(pynvml).items()
            if name.startswith("NVML_ERROR_")
        }
        return codes.get(int(error.value), f"code {error.value}")
    cause = error.__cause__ if isinstance(error, GpuError) else None
    return type(error).__name__ if cause is None else error_name(cause)


def simulated_geometry(gpu_name: str) -> Geometry | None:
    """How the simulated card of this name can be cut; None if there is none.

    Raises:
        ImportError: what the simulation needs is not installed.
    """
    from miglab_pool.gpu.simulated.geometry import model_geometry  # a real lab never loads it
    from miglab_pool.gpu.simulated.rules import models

    names = (name for name, model in models().items() if model.gpu_name == gpu_name)
    return next(map(model_geometry, names), None)


def _error_of(function: Callable[..., Any], *args: Any) -> str:
    try:
        function(*args)
    except pynvml.NVMLError as error:
        return error_name(error)
    return "SUCCESS"


def _nvml(simulated_state: Path | None) -> Any:
    if simulated_state is None:
        return pynvml
    from miglab_pool.gpu.simulated.nvml import SimulatedNvml

    return SimulatedNvml(simulated_state)
