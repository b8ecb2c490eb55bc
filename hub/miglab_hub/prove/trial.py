"""What a run works with: the GPUs, those among them that nobody holds, and what it has announced.

Every slice of a run is made at a placement that `Journal` has announced on disk, and is destroyed
where its block ends, however it ends.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from miglab_hub.prove.lines import CannotTry
from miglab_hub.prove.pace import Pace
from miglab_pool.gpu.geometry import Placement, Profile, ProfilePlacement, legal_placements
from miglab_pool.gpu.proof_driver import CallTimes, WatchedProofDriver
from miglab_pool.gpu.readings import GpuError, GpuInfo, InUse, SliceReading
from miglab_pool.state.proof_record import (
    ProofFolder,
    ProofRecord,
    ProofSlice,
    undo_slices,
    with_slices,
    without_slices,
)

RETRY_S = 0.02


class Journal:
    """The record of what a run may have made, written before it is made.

    Args:
        folder: the lab's; None for a run that makes nothing.
        record: the run's, as it is on disk.
    """

    def __init__(self, folder: ProofFolder | None, record: ProofRecord) -> None:
        self._folder = folder
        self.record = record

    def announce(self, *slices: ProofSlice) -> None:
        """Record placements at which slices may lie from now on."""
        self._keep(with_slices(self.record, slices))

    def announce_containers(self) -> None:
        """Record that containers of the run may exist from now on."""
        self._keep(replace(self.record, has_containers=True))

    def withdraw(self, *slices: ProofSlice) -> None:
        """Record that no slice of the run is left at these placements."""
        self._keep(without_slices(self.record, slices))

    def _keep(self, record: ProofRecord) -> None:
        if self._folder is None:
            raise CannotTry("this run changes nothing")
        self._folder.write(record)
        self.record = record


@dataclass(frozen=True)
class ContainerSettings:
    """How the lab starts students' containers.

    Attributes:
        docker_url: the engine.
        image: the students'.
        limits: what a server of a shape may use, as the spawner has it.
        disk_gib: what a container may write; 0 for no limit.
    """

    docker_url: str
    image: str
    limits: Mapping[str, Mapping[str, float]]
    disk_gib: float = 0


@dataclass
class Trial:
    """What the lines are tried with: driver, GPUs, pace and journal.

    Attributes:
        driver: all GPUs of the run.
        infos: each GPU that answers, by UUID, in NVML's order.
        unread: why the others do not, by UUID.
        barred: why a GPU may not be cut, by UUID; those that are not in it may.
        journal: of the run.
        pace: how often what is tried.
        servers: how students' containers are started; None with ``no_servers`` saying why.
        runs_programs: whether a CUDA program of this host may be run on an idle GPU.
        simulated_state: the folder of the simulated machine.
        before: what lay on each GPU at first.
        has_lab: whether the GPUs are a lab's, whose students may use those that are barred.
    """

    driver: WatchedProofDriver
    infos: Mapping[str, GpuInfo]
    unread: Mapping[str, str]
    barred: Mapping[str, str]
    journal: Journal
    pace: Pace
    servers: ContainerSettings | None = None
    no_servers: str = "there is no lab whose containers could be tried"
    runs_programs: bool = False
    simulated_state: Path | None = None
    before: Mapping[str, frozenset[ProofSlice]] = field(default_factory=dict)
    has_lab: bool = True

    @property
    def free(self) -> list[str]:
        """Return the GPUs that may be partitioned.

        Raises:
            CannotTry: there is none.
        """
        free = [uuid for uuid in self.infos if uuid not in self.barred]
        if not free:
            reasons = "; ".join(
                f"{self.label(uuid)}: {reason}" for uuid, reason in self.barred.items()
            )
            raise CannotTry(reasons or "no GPU answers")
        return free

    def label(self, uuid: str) -> str:
        """Return the report's name of a GPU."""
        return f"GPU {self.driver.uuids.index(uuid)}"

    def smallest_place(self, uuid: str) -> ProofSlice:
        """Return a free placement for a GPU's smallest plain profile.

        Raises:
            CannotTry: nothing fits.
            GpuError: the GPU does not answer.
        """
        profiles = self.infos[uuid].geometry.profiles
        plain = [profile for profile in profiles if profile.is_plain]
        for profile in sorted(plain, key=lambda p: (p.size, p.compute_slices)):
            for place in self.free_placements(uuid, profile):
                return ProofSlice(uuid, profile.name, place.start, place.size)
        raise CannotTry(f"{self.label(uuid)} has no room: slices that nobody holds fill it")

    def free_placements(self, uuid: str, profile: Profile) -> list[Placement]:
        """Return the free placements of a profile on a GPU, lowest start first."""
        readings = self.driver.slices(uuid)
        neighbours = [ProfilePlacement(reading.profile, reading.placement) for reading in readings]
        return legal_placements(profile, neighbours)

    def profile(self, place: ProofSlice) -> Profile:
        """Return the profile of an announced placement."""
        return self.infos[place.gpu].geometry.by_name[place.profile]

    @contextmanager
    def announced(self, *places: ProofSlice) -> Iterator[None]:
        """Announce placements, and destroy the slices there at the end of the block."""
        self.journal.announce(*places)
        try:
            yield
        finally:
            undone = ProofRecord(self.journal.record.run, slices=places)
            if not undo_slices(self.driver, undone):
                self.journal.withdraw(*places)

    def needs(self, uuid: str) -> str | None:
        """Return the recovery action that the driver reports; None if it reports none."""
        return self.driver.ask(uuid, lambda d: d.needs(uuid))

    def create(self, place: ProofSlice) -> tuple[SliceReading, CallTimes]:
        """Make a slice at an announced placement.

        Raises:
            GpuError: as the driver's.
        """
        profile, placement = self.profile(place), Placement(place.start, place.size)
        return self.driver.ask(
            place.gpu, lambda d: d.create_timed(place.gpu, profile, placement), changes=True
        )

    def destroy(self, reading: SliceReading) -> CallTimes:
        """Destroy a slice.

        Raises:
            GpuError: as the driver's.
        """
        uuid, gi_id = reading.gpu_uuid, reading.gi_id
        return self.driver.ask(uuid, lambda d: d.destroy_timed(uuid, gi_id), changes=True)

    def destroy_when_unused(self, reading: SliceReading, limit_s: float) -> tuple[float, int]:
        """Destroy a slice as soon as nothing uses it.

        Returns:
            The seconds until then, and how often it was in use.

        Raises:
            InUse: it is still in use after ``limit_s`` seconds.
            GpuError: as the driver's.
        """
        started_at = time.perf_counter()
        refusals = 0
        while True:
            try:
                self.destroy(reading)
                return time.perf_counter() - started_at, refusals
            except InUse:
                refusals += 1
                if time.perf_counter() - started_at > limit_s:
                    raise
                time.sleep(RETRY_S)


def read_gpus(driver: WatchedProofDriver) -> tuple[dict[str, GpuInfo], dict[str, str]]:
    """Return each GPU's facts in NVML's order, and why others have none."""
    infos: dict[str, GpuInfo] = {}
    unread: dict[str, str] = {}
    for uuid in driver.uuids:
        try:
            infos[uuid] = driver.info(uuid)
        except GpuError as error:
            unread[uuid] = str(error)
    return dict(sorted(infos.items(), key=lambda item: item[1].index)), unread


def existing_slices(
    infos: Mapping[str, GpuInfo], slices: Callable[[str], list[SliceReading]]
) -> dict[str, frozenset[ProofSlice]]:
    """Return the slices on each GPU that answers."""
    slices_by_gpu = {}
    for uuid in infos:
        try:
            slices_by_gpu[uuid] = frozenset(map(ProofSlice.of, slices(uuid)))
        except GpuError:
            continue
    return slices_by_gpu
