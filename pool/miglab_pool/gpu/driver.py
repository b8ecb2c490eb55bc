"""The driver: reads GPUs and cuts slices, over pynvml or anything with pynvml's functions.

It decides nothing: where a slice goes and when it is destroyed is the pool's business.  It never
changes the MIG mode.
"""

import contextlib
import ctypes
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pynvml

from miglab_pool.gpu.geometry import Geometry, Placement, Profile, ProfilePlacement
from miglab_pool.gpu.handles import GpuHandles
from miglab_pool.gpu.health import ActivityWatch, XidWatch, read_health
from miglab_pool.gpu.instances import (
    ComputeInstances,
    gpu_instances,
    instance_infos,
    profile_of,
)
from miglab_pool.gpu.nvml import (
    MIB,
    call,
    mig_devices,
    read_geometry,
    read_if_supported,
    read_pci_ids,
    read_sm_count,
    read_usage,
)
from miglab_pool.gpu.readings import (
    GpuError,
    GpuInfo,
    GpuLost,
    GpuMissing,
    Health,
    InUse,
    NotFound,
    SliceGone,
    SliceReading,
    SliceStillListed,
    UnknownGpuError,
    Usage,
    Versions,
    Xid,
)

NO_SUCH_GPU = (
    "Compare gpus.uuids in lab.toml with nvidia-smi -L; if the card is no longer on the bus "
    "(lspci), reboot the host, and restart the pool."
)

UNCUT_IN_USE = (
    "a program uses the GPU itself.  While a GPU with MIG on has no slice, nothing may run on it: "
    "end what `nvidia-smi` or `lsof /dev/nvidia*` shows there (a CUDA program, Nsight, an exporter "
    "with CUDA); the slice is created then"
)


@dataclass(frozen=True)
class DriverMemory:
    """What one driver object learnt about the GPUs, for its successor, should its calls hang.

    Attributes:
        xids: the Xid faults seen; None for a GPU that tells none.
        pci_ids: where the GPU was found.
    """

    xids: dict[str, deque[Xid] | None] = field(default_factory=dict)
    pci_ids: dict[str, str] = field(default_factory=dict)


class Driver:
    """The GPUs of this host.

    Not thread-safe for writes: one thread creates and destroys, any may read.

    Attributes:
        simulated: whether the GPUs are simulated.
        uuids: of the GPUs in use here.
    """

    longest_call_s, is_hung = 0.0, False  # its calls are not watched: see watched.py

    def __init__(
        self,
        nvml: Any,
        gpu_uuids: Sequence[str] | None = None,
        memory: DriverMemory | None = None,
    ) -> None:
        """Open NVML.  A listed GPU that fails is no error: each later call about it says so.

        Args:
            nvml: the module ``pynvml`` or a ``SimulatedNvml``.
            gpu_uuids: the GPUs to use, no other is touched; None = all that answer.
            memory: what earlier drivers learnt, to which this one adds.

        Raises:
            GpuError: there is no driver, or a listed GPU is not on this host.
        """
        memory = memory or DriverMemory()
        self.simulated: bool = getattr(nvml, "simulated", False)
        self._nvml = nvml
        self._infos: dict[str, GpuInfo] = {}  # what a GPU is; its mode and index are asked anew
        self._handles = GpuHandles(nvml, memory.pci_ids)
        call("open NVML", nvml.nvmlInit)
        try:
            self.uuids = tuple(gpu_uuids) if gpu_uuids is not None else self._all_uuids()
            self._check_listed()
        except GpuError:
            call("close NVML", nvml.nvmlShutdown)
            raise
        self._xids = XidWatch(nvml, memory.xids)
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
            GpuError: it cannot be read and never could, or it has a MIG mode and no profile is
                listed: such a GPU must not pass for one that cannot do MIG.
        """
        task = f"read the MIG mode of {gpu_uuid}"
        try:
            with self._handles.open_gpu(gpu_uuid) as gpu:
                index = call(f"read the index of {gpu_uuid}", self._nvml.nvmlDeviceGetIndex, gpu)
                info = replace(self._read_info_once(gpu, gpu_uuid), index=index)
                mode = read_if_supported(task, self._nvml.nvmlDeviceGetMigMode, gpu)
        except GpuLost:
            if gpu_uuid not in self._infos:
                raise
            return self._infos[gpu_uuid]
        if mode is None:
            return info
        if not info.geometry.profiles:  # which it lists with MIG off, too
            self._infos.pop(gpu_uuid, None)  # it is asked again
            raise UnknownGpuError(f"{gpu_uuid} can do MIG, and NVML lists no profile of it.")
        return replace(info, mig=bool(mode[0]), mig_pending=bool(mode[1]))

    def slices(self, gpu_uuid: str) -> list[SliceReading]:
        """Every slice on a GPU, lowest start first, half-made and foreign ones included.

        GPU instances are enumerated per profile: one without a compute instance is invisible
        to a walk over MIG devices.  That walk alone shows one whose profile NVML does not list.
        """
        readings: list[SliceReading] = []
        with self._handles.open_gpu(gpu_uuid) as gpu:
            uuids = self._mig_uuids(gpu, gpu_uuid)
            geometry = self._read_info_once(gpu, gpu_uuid).geometry
            for profile in geometry.profiles:
                for instance in gpu_instances(self._nvml, gpu, profile, gpu_uuid):
                    readings += self._readings(gpu_uuid, profile, instance, uuids)
            gi_ids = {gi_id for gi_id, _ in uuids} - {reading.gi_id for reading in readings}
            for profile, instance in self._unlisted_instances(gpu, gpu_uuid, geometry, gi_ids):
                readings += self._readings(gpu_uuid, profile, instance, uuids)
        return sorted(readings, key=lambda reading: (reading.placement, reading.ci_id or 0))

    def placements(self, gpu_uuid: str) -> list[Placement]:
        """Where GPU instances of listed profiles lie, half-made and foreign ones included.

        A fifth of the calls of `slices`, for whoever asks no more than whether there is room.
        """
        nvml, placements = self._nvml, []
        with self._handles.open_gpu(gpu_uuid) as gpu:
            geometry = self._read_info_once(gpu, gpu_uuid).geometry
            for info in instance_infos(nvml, gpu, geometry, gpu_uuid):
                placements.append(Placement(info.placement.start, info.placement.size))
        return placements

    def create(self, gpu_uuid: str, profile: Profile, placement: Placement) -> SliceReading:
        """Make a slice: a GPU instance at the placement, and one compute instance on all of it.

        Returns:
            What was made; without a UUID if NVML does not list its MIG device (yet).

        Raises:
            NoRoom: the placement is taken.
            GpuError: anything else; if the compute instance failed, the GPU instance is destroyed
                again, or, where even that fails, left to be found by ``slices``.
        """
        slice_name = f"{profile.name} at {placement} on {gpu_uuid}"
        with self._handles.open_gpu(gpu_uuid) as gpu:
            instance = self._create_instance(gpu, profile, placement, slice_name)
            try:
                self._computes.create_full(instance, profile, slice_name)
            except GpuError:
                with contextlib.suppress(GpuError):  # left to reconcile if stuck
                    call(f"undo {slice_name}", self._nvml.nvmlGpuInstanceDestroy, instance)
                raise
            info = call(f"read {slice_name}", self._nvml.nvmlGpuInstanceGetInfo, instance)
            uuids = self._mig_uuids(gpu, gpu_uuid, info.id)
            return self._readings(gpu_uuid, profile, instance, uuids)[0]

    def destroy(self, gpu_uuid: str, gi_id: int, expected: ProfilePlacement | None = None) -> None:
        """Destroy a slice: its compute instances, then its GPU instance; then look whether it went.

        One that is already gone is fine, unless one is expected.

        Args:
            gpu_uuid: the GPU's UUID.
            gi_id: the slice's, which NVML gives again once a slice is gone.
            expected: the slice that is meant; None: whatever has the id.

        Raises:
            SliceGone: the expected slice is gone; what has its id now is left alone.
            InUse: a process or a leaked handle holds it; compute instances may be gone already.
            SliceStillListed: NVML says that it is destroyed, and goes on listing it.
        """
        nvml, slice_name = self._nvml, f"slice {gi_id} on {gpu_uuid}"
        if expected is not None:
            self._check_is_there(gpu_uuid, gi_id, expected)
        with contextlib.suppress(GpuError):  # what cannot be freed is not what is to be destroyed
            self._activity.forget(gpu_uuid, gi_id)
        self._xids.forget(gpu_uuid, gi_id)
        with self._handles.open_gpu(gpu_uuid) as gpu:
            geometry = self._read_info_once(gpu, gpu_uuid).geometry
            with contextlib.suppress(NotFound):
                task, find = f"find {slice_name}", nvml.nvmlDeviceGetGpuInstanceById
                instance = call(task, find, gpu, gi_id)
                self._destroy_compute_instances(geometry, instance, slice_name)
                call(f"destroy all of {slice_name}", nvml.nvmlGpuInstanceDestroy, instance)
            if gi_id in {info.id for info in instance_infos(nvml, gpu, geometry, gpu_uuid)}:
                raise SliceStillListed(
                    f"NVML said that it destroyed {slice_name}, and still lists it: its placement "
                    "stays closed, and destroying it is tried again; if it stays, reset the GPU "
                    "or reboot the host."
                )

    def usages(self, gpu_uuid: str, slices: Collection[SliceReading]) -> dict[SliceReading, Usage]:
        """Memory, processes and activity of slices of one GPU, in one walk over its MIG devices.

        Activity is that since the last call for the slice; unknown in the first.

        Returns:
            By slice: unknown for a half-made one and one that cannot be read; none for one that is
            gone.
        """
        usages = {reading: Usage(None, None) for reading in slices if reading.ci_id is None}
        readable = {
            (reading.gi_id, reading.ci_id): reading
            for reading in slices
            if reading.ci_id is not None
        }
        if not readable:
            return usages
        with self._handles.open_gpu(gpu_uuid) as gpu:
            for gi_id, ci_id, device in mig_devices(self._nvml, gpu, gpu_uuid):
                if (gi_id, ci_id) in readable:
                    usages[readable[gi_id, ci_id]] = self._usage(gpu, gpu_uuid, gi_id, device)
        return usages

    def _usage(self, gpu: Any, gpu_uuid: str, gi_id: int, handle: Any) -> Usage:
        try:
            usage = read_usage(self._nvml, handle, f"slice {gi_id} on {gpu_uuid}")
            return replace(usage, activity_pct=self._activity.of_slice(gpu, gpu_uuid, gi_id))
        except GpuError:
            return Usage(None, None)

    def gpu_usage(self, gpu_uuid: str) -> Usage:
        """Memory, processes and activity of a whole GPU."""
        with self._handles.open_gpu(gpu_uuid) as gpu:
            usage = read_usage(self._nvml, gpu, gpu_uuid)
            return replace(usage, activity_pct=self._activity.of_gpu(gpu, gpu_uuid))

    def versions(self) -> Versions:
        """Which driver the host runs.

        Command line equivalent: the head of ``nvidia-smi``.
        """
        nvml = self._nvml
        cuda = read_if_supported("read CUDA's version", nvml.nvmlSystemGetCudaDriverVersion)
        return Versions(
            driver=read_if_supported("read the driver's version", nvml.nvmlSystemGetDriverVersion),
            cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        )

    def health(self, gpu_uuid: str) -> Health:
        """Whether the GPU is well; a lost GPU is an answer here, not an error."""
        return read_health(self._nvml, self._xids, self._handles, gpu_uuid)

    # -- GPUs ---------------------------------------------------------------------------------

    def _all_uuids(self) -> tuple[str, ...]:
        """The UUIDs of the GPUs that answer; one that does not is left out."""
        uuids = []
        for index in range(call("count the GPUs", self._nvml.nvmlDeviceGetCount)):
            with contextlib.suppress(GpuError):
                gpu = call(f"open GPU {index}", self._nvml.nvmlDeviceGetHandleByIndex, index)
                uuids.append(call(f"read GPU {index}'s UUID", self._nvml.nvmlDeviceGetUUID, gpu))
        return tuple(uuids)

    def _check_listed(self) -> None:
        for uuid in self.uuids:
            try:
                with self._handles.open_gpu(uuid):
                    pass
            except NotFound as error:
                present = ", ".join(self._all_uuids()) or "none"
                raise GpuMissing(
                    f"There is no GPU {uuid} on this host; there are: {present}. {NO_SUCH_GPU}"
                ) from error
            except GpuError:
                continue  # it may well be there: each call about it says what is wrong

    def _read_info_once(self, gpu: Any, gpu_uuid: str) -> GpuInfo:
        """A GPU's facts without its MIG mode, read once and then cached."""
        if gpu_uuid not in self._infos:
            nvml = self._nvml
            index = call(f"read the index of {gpu_uuid}", nvml.nvmlDeviceGetIndex, gpu)
            name = call(f"read the name of {gpu_uuid}", nvml.nvmlDeviceGetName, gpu)
            memory = call(f"read the memory of {gpu_uuid}", nvml.nvmlDeviceGetMemoryInfo, gpu)
            geometry = read_geometry(nvml, gpu, gpu_uuid)
            sm_count = read_sm_count(nvml, gpu, gpu_uuid)
            facts = (index, name, memory.total // MIB, sm_count, geometry)
            ids = read_pci_ids(nvml, gpu, gpu_uuid)
            self._infos[gpu_uuid] = GpuInfo(gpu_uuid, *facts, None, None, *ids)
        return self._infos[gpu_uuid]

    # -- slices -------------------------------------------------------------------------------

    def _create_instance(self, gpu: Any, profile: Profile, place: Placement, name: str) -> Any:
        task = f"create the GPU instance {name}"
        create = self._nvml.nvmlDeviceCreateGpuInstanceWithPlacement
        at = ctypes.byref(pynvml.c_nvmlGpuInstancePlacement_t(place.start, place.size))
        try:
            return call(task, create, gpu, profile.profile_id, at)
        except InUse as error:
            raise InUse(f"Could not {task} (NVMLError_InUse): {UNCUT_IN_USE}.") from error

    def _check_is_there(self, gpu_uuid: str, gi_id: int, expected: ProfilePlacement) -> None:
        """Look whether a GPU instance is the one expected, by its profile and placement.

        The list is asked first: what it shows is there, whether or not it is found by its id.

        Raises:
            SliceGone: there is none with that id, or another has it.
        """
        nvml, task = self._nvml, f"find slice {gi_id} on {gpu_uuid}"
        with self._handles.open_gpu(gpu_uuid) as gpu:
            geometry = self._read_info_once(gpu, gpu_uuid).geometry
            listed = {info.id: info for info in instance_infos(nvml, gpu, geometry, gpu_uuid)}
            try:
                if (info := listed.get(gi_id)) is None:
                    instance = call(task, nvml.nvmlDeviceGetGpuInstanceById, gpu, gi_id)
                    info = call(task, nvml.nvmlGpuInstanceGetInfo, instance)
            except NotFound as error:
                raise SliceGone(str(error)) from error
            profile = profile_of(geometry, info)
        placement = Placement(info.placement.start, info.placement.size)
        if (profile.name, placement) != (expected.profile.name, expected.placement):
            raise SliceGone(f"{expected.profile.name} at {expected.placement} is gone: {task}.")

    def _mig_uuids(
        self, gpu: Any, gpu_uuid: str, only: int | None = None
    ) -> dict[tuple[int, int], str]:
        """The UUIDs of the MIG devices, by GPU instance and compute instance; of one, or of all."""
        uuids = {}
        for gi_id, ci_id, device in mig_devices(self._nvml, gpu, gpu_uuid):
            if only in (None, gi_id):
                task = f"read the UUID of slice {gi_id} on {gpu_uuid}"
                uuids[gi_id, ci_id] = call(task, self._nvml.nvmlDeviceGetUUID, device)
        return uuids

    def _readings(
        self, gpu_uuid: str, profile: Profile, instance: Any, uuids: dict[tuple[int, int], str]
    ) -> list[SliceReading]:
        slice_name = f"a {profile.name} slice on {gpu_uuid}"
        info = call(f"read {slice_name}", self._nvml.nvmlGpuInstanceGetInfo, instance)
        placement = Placement(info.placement.start, info.placement.size)
        computes: list[int | None] = [
            call(f"read {slice_name}", self._nvml.nvmlComputeInstanceGetInfo, compute).id
            for compute in self._computes.handles(instance, profile, slice_name)
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

    def _unlisted_instances(
        self, gpu: Any, gpu_uuid: str, geometry: Geometry, gi_ids: Iterable[int]
    ) -> Iterator[tuple[Profile, Any]]:
        """Yield those GPU instances with these ids whose profile the GPU does not list."""
        nvml = self._nvml
        for gi_id in gi_ids:
            task = f"find slice {gi_id} on {gpu_uuid}"
            with contextlib.suppress(NotFound):  # a MIG device is listed longer than it is there
                instance = call(task, nvml.nvmlDeviceGetGpuInstanceById, gpu, gi_id)
                info = call(task, nvml.nvmlGpuInstanceGetInfo, instance)
                if info.profileId not in geometry.by_id:
                    yield profile_of(geometry, info), instance

    def _destroy_compute_instances(
        self, geometry: Geometry, instance: Any, slice_name: str
    ) -> None:
        """Destroy the compute instances of a GPU instance; one that is already gone is fine."""
        info = call(f"read {slice_name}", self._nvml.nvmlGpuInstanceGetInfo, instance)
        for compute in self._computes.handles(instance, profile_of(geometry, info), slice_name):
            with contextlib.suppress(NotFound):
                task = f"destroy the compute instance of {slice_name}"
                call(task, self._nvml.nvmlComputeInstanceDestroy, compute)
