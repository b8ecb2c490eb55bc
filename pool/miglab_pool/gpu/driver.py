"""The driver: reads GPUs and cuts slices, over pynvml or anything with pynvml's functions.

It decides nothing: where a slice goes and when it is destroyed is the pool's business.  It never
changes the MIG mode.
"""

import contextlib
import ctypes
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pynvml

from miglab_pool.gpu.geometry import Placement, Profile
from miglab_pool.gpu.health import ActivityWatch, XidWatch, read_health
from miglab_pool.gpu.nvml import (
    MIB,
    ComputeInstances,
    call,
    gpu_instances,
    mig_devices,
    read,
    read_geometry,
    read_sm_count,
    read_usage,
)
from miglab_pool.gpu.readings import (
    GpuError,
    GpuInfo,
    GpuLost,
    GpuMissing,
    Health,
    NotFound,
    SliceReading,
    Usage,
    Versions,
    Xid,
)

NO_SUCH_GPU = (
    "Compare gpus.uuids in lab.toml with nvidia-smi -L; if the card is no longer on the bus "
    "(lspci), reboot the host, and restart the pool."
)


class Driver:
    """The GPUs of this host.

    Not thread-safe for writes: one thread creates and destroys, any may read.

    Attributes:
        simulated: whether the GPUs are simulated.
        uuids: of the GPUs in use here.
    """

    longest_call_s = 0.0  # nobody watches its calls: see watched.py

    def __init__(
        self,
        nvml: Any,
        gpu_uuids: Sequence[str] | None = None,
        seen_xids: dict[str, deque[Xid] | None] | None = None,
    ) -> None:
        """Open NVML.

        Args:
            nvml: the module ``pynvml`` or a ``SimulatedNvml``.
            gpu_uuids: the GPUs to use, no other is touched; None = all.
            seen_xids: the Xid faults seen so far, by GPU, to which it adds.

        Raises:
            GpuError: no driver, or a listed GPU cannot be opened.
        """
        self.simulated: bool = getattr(nvml, "simulated", False)
        self._nvml = nvml
        self._known: dict[
            str, GpuInfo
        ] = {}  # what a GPU is; its mode and index are asked each time
        call("open NVML", nvml.nvmlInit)
        try:
            self.uuids = tuple(gpu_uuids) if gpu_uuids is not None else self._all_uuids()
            self._check_listed()
        except GpuError:
            call("close NVML", nvml.nvmlShutdown)
            raise
        self._xids = XidWatch(nvml, seen_xids)
        self._activity = ActivityWatch(nvml)
        self._computes = ComputeInstances(nvml)

    def close(self) -> None:
        """Close NVML; the object cannot be used afterwards."""
        self._activity.close()
        self._xids.close()
        call("close NVML", self._nvml.nvmlShutdown)

    def gpus(self) -> list[GpuInfo]:
        """Every GPU in use here, in NVML's order; see `info`."""
        return sorted((self.info(uuid) for uuid in self.uuids), key=lambda info: info.index)

    def info(self, gpu_uuid: str) -> GpuInfo:
        """What a GPU is; one that was seen and is now lost has its mode unknown.

        Raises:
            GpuError: it cannot be read and never could.
        """
        try:
            gpu = self._handle(gpu_uuid)
            index = call(f"read the index of {gpu_uuid}", self._nvml.nvmlDeviceGetIndex, gpu)
            known = replace(self._known_of(gpu, gpu_uuid), index=index)
            mode = read(f"read the MIG mode of {gpu_uuid}", self._nvml.nvmlDeviceGetMigMode, gpu)
        except GpuLost:
            if gpu_uuid not in self._known:
                raise
            return self._known[gpu_uuid]
        if mode is None:
            return known
        return replace(known, mig=bool(mode[0]), mig_pending=bool(mode[1]))

    def slices(self, gpu_uuid: str) -> list[SliceReading]:
        """Every slice on a GPU, lowest start first, half-made and foreign ones included.

        GPU instances are enumerated per profile: one without a compute instance is invisible
        to a walk over MIG devices.
        """
        gpu = self._handle(gpu_uuid)
        uuids = self._mig_uuids(gpu, gpu_uuid)
        found: list[SliceReading] = []
        for profile in self._known_of(gpu, gpu_uuid).geometry.profiles:
            for instance in gpu_instances(self._nvml, gpu, profile, gpu_uuid):
                found += self._readings(gpu_uuid, profile, instance, uuids)
        return sorted(found, key=lambda reading: (reading.placement, reading.ci_id or 0))

    def create(self, gpu_uuid: str, profile: Profile, placement: Placement) -> SliceReading:
        """Make a slice: a GPU instance at the placement, and one compute instance on all of it.

        Raises:
            NoRoom: the placement is taken.
            GpuError: anything else; if the compute instance failed, the GPU instance is destroyed
                again, or, where even that fails, left to be found by ``slices``.
        """
        gpu = self._handle(gpu_uuid)
        where = f"{profile.name} at {placement} on {gpu_uuid}"
        instance = call(
            f"create the GPU instance {where}",
            self._nvml.nvmlDeviceCreateGpuInstanceWithPlacement,
            gpu,
            profile.profile_id,
            ctypes.byref(pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)),
        )
        try:
            self._computes.create_full(instance, profile, where)
        except GpuError:
            with contextlib.suppress(GpuError):  # left to reconcile if stuck
                call(f"undo {where}", self._nvml.nvmlGpuInstanceDestroy, instance)
            raise
        return self._readings(gpu_uuid, profile, instance, self._mig_uuids(gpu, gpu_uuid))[0]

    def destroy(self, gpu_uuid: str, gi_id: int) -> None:
        """Destroy a slice: its compute instances, then its GPU instance.

        One that is already gone is fine.

        Raises:
            InUse: a process or a leaked handle holds it; compute instances may be gone already.
        """
        gpu = self._handle(gpu_uuid)
        where = f"slice {gi_id} on {gpu_uuid}"
        self._activity.forget(gpu_uuid, gi_id)
        self._xids.forget(gpu_uuid, gi_id)
        with contextlib.suppress(NotFound):
            instance = call(f"find {where}", self._nvml.nvmlDeviceGetGpuInstanceById, gpu, gi_id)
            profiles = self._known_of(gpu, gpu_uuid).geometry.by_id
            self._empty(profiles, instance, where)
            what = f"destroy the GPU instance of {where}"
            call(what, self._nvml.nvmlGpuInstanceDestroy, instance)

    def usages(self, gpu_uuid: str, slices: Collection[SliceReading]) -> dict[SliceReading, Usage]:
        """Memory, processes and activity of slices of one GPU, in one walk over its MIG devices.

        Activity is that since the last call for the slice; unknown in the first.

        Returns:
            By slice: unknown for a half-made one and one that cannot be read; none for one that is
            gone.
        """
        usages = {one: Usage(None, None) for one in slices if one.ci_id is None}
        wanted = {(one.gi_id, one.ci_id): one for one in slices if one.ci_id is not None}
        if not wanted:
            return usages
        gpu = self._handle(gpu_uuid)
        for gi_id, ci_id, handle in mig_devices(self._nvml, gpu, gpu_uuid):
            if (gi_id, ci_id) in wanted:
                usages[wanted[gi_id, ci_id]] = self._usage(gpu, gpu_uuid, gi_id, handle)
        return usages

    def _usage(self, gpu: Any, gpu_uuid: str, gi_id: int, handle: Any) -> Usage:
        try:
            usage = read_usage(self._nvml, handle, f"slice {gi_id} on {gpu_uuid}")
            return replace(usage, activity_pct=self._activity.of_slice(gpu, gpu_uuid, gi_id))
        except GpuError:
            return Usage(None, None)

    def gpu_usage(self, gpu_uuid: str) -> Usage:
        """Memory, processes and activity of a whole GPU."""
        gpu = self._handle(gpu_uuid)
        usage = read_usage(self._nvml, gpu, gpu_uuid)
        return replace(usage, activity_pct=self._activity.of_gpu(gpu, gpu_uuid))

    def versions(self) -> Versions:
        """Which driver the host runs.

        Command line equivalent: the head of ``nvidia-smi``.
        """
        nvml = self._nvml
        cuda = read("read CUDA's version", nvml.nvmlSystemGetCudaDriverVersion)
        return Versions(
            driver=read("read the driver's version", nvml.nvmlSystemGetDriverVersion),
            cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        )

    def health(self, gpu_uuid: str) -> Health:
        """Whether the GPU is well; a lost GPU is an answer here, not an error."""
        return read_health(self._nvml, self._xids, gpu_uuid)

    # -- GPUs ---------------------------------------------------------------------------------

    def _all_uuids(self) -> tuple[str, ...]:
        count = call("count the GPUs", self._nvml.nvmlDeviceGetCount)
        handles = [
            call(f"open GPU {index}", self._nvml.nvmlDeviceGetHandleByIndex, index)
            for index in range(count)
        ]
        return tuple(call("read a GPU's UUID", self._nvml.nvmlDeviceGetUUID, h) for h in handles)

    def _readable_uuids(self) -> Iterator[str]:
        """Those that any GPU here tells; one that is lost keeps the others' from nobody."""
        for index in range(call("count the GPUs", self._nvml.nvmlDeviceGetCount)):
            with contextlib.suppress(GpuError):
                gpu = call(f"open GPU {index}", self._nvml.nvmlDeviceGetHandleByIndex, index)
                yield call("read a GPU's UUID", self._nvml.nvmlDeviceGetUUID, gpu)

    def _check_listed(self) -> None:
        for uuid in self.uuids:
            try:
                self._handle(uuid)
            except NotFound as error:
                uuids = ", ".join(self._readable_uuids()) or "none"
                raise GpuMissing(
                    f"There is no GPU {uuid} on this host; there are: {uuids}. {NO_SUCH_GPU}"
                ) from error
            except GpuLost:
                continue  # it is there, and lost: health() says so

    def _handle(self, gpu_uuid: str) -> Any:
        return call(f"open GPU {gpu_uuid}", self._nvml.nvmlDeviceGetHandleByUUID, gpu_uuid)

    def _known_of(self, gpu: Any, gpu_uuid: str) -> GpuInfo:
        """What a GPU is, asked once, without its mode."""
        if gpu_uuid not in self._known:
            nvml = self._nvml
            index = call(f"read the index of {gpu_uuid}", nvml.nvmlDeviceGetIndex, gpu)
            name = call(f"read the name of {gpu_uuid}", nvml.nvmlDeviceGetName, gpu)
            memory = call(f"read the memory of {gpu_uuid}", nvml.nvmlDeviceGetMemoryInfo, gpu)
            geometry = read_geometry(nvml, gpu, gpu_uuid)
            sm_count = read_sm_count(nvml, gpu, gpu_uuid)
            what = (index, name, memory.total // MIB, sm_count, geometry)
            self._known[gpu_uuid] = GpuInfo(gpu_uuid, *what, mig=None, mig_pending=None)
        return self._known[gpu_uuid]

    # -- slices -------------------------------------------------------------------------------

    def _mig_uuids(self, gpu: Any, gpu_uuid: str) -> dict[tuple[int, int], str]:
        uuids = {}
        for gi_id, ci_id, device in mig_devices(self._nvml, gpu, gpu_uuid):
            what = f"read the UUID of slice {gi_id} on {gpu_uuid}"
            uuids[gi_id, ci_id] = call(what, self._nvml.nvmlDeviceGetUUID, device)
        return uuids

    def _readings(
        self, gpu_uuid: str, profile: Profile, instance: Any, uuids: dict[tuple[int, int], str]
    ) -> list[SliceReading]:
        where = f"a {profile.name} slice on {gpu_uuid}"
        info = call(f"read {where}", self._nvml.nvmlGpuInstanceGetInfo, instance)
        placement = Placement(info.placement.start, info.placement.size)
        computes: list[int | None] = [
            call(f"read {where}", self._nvml.nvmlComputeInstanceGetInfo, compute).id
            for compute in self._computes.of(instance, profile, where)
        ]
        return [
            SliceReading(
                gpu_uuid,
                info.id,
                ci_id,
                None if ci_id is None else uuids.get((info.id, ci_id)),
                profile,
                placement,
            )
            for ci_id in computes or [None]
        ]

    def _empty(self, profiles: Mapping[int, Profile], instance: Any, where: str) -> None:
        """Destroy the compute instances of a GPU instance; one that is already gone is fine."""
        info = call(f"read {where}", self._nvml.nvmlGpuInstanceGetInfo, instance)
        for compute in self._computes.of(instance, profiles[info.profileId], where):
            with contextlib.suppress(NotFound):
                what = f"destroy the compute instance of {where}"
                call(what, self._nvml.nvmlComputeInstanceDestroy, compute)
