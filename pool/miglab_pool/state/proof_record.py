"""A run of `miglab prove`: the lock that it holds, and the record of what it may leave behind.

Both are in the lab's state folder, where the pool and the next run read them.  While a run holds
the lock, the GPUs in the record are under proof, and nobody else uses them.  The kernel releases
the lock when the run dies; the pool or the next run then undoes what the record names.

A placement is announced in the record before a slice is created there, and only if it is free: so
a slice that is there afterwards is the run's, until the record is deleted.
"""

import json
import os
import secrets
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

from miglab_pool.gpu.geometry import Placement
from miglab_pool.gpu.readings import GpuError, SliceReading, UnknownGpuError
from miglab_pool.state.lock import AlreadyRunning, FileLock

LOCK, RECORD = "prove.lock", "prove.json"
UNDER_PROOF = "miglab prove is at work on it; leases are given again when that ends"


class ProofLock(FileLock):
    """Keeps a second `miglab prove` off a state folder, and tells the pool that one runs."""

    holder = "miglab prove"
    advice = "Wait until it ends."


class ProofRecordError(Exception):
    """The record cannot be read; the message says what to do."""


@dataclass(frozen=True, order=True)
class ProofSlice:
    """A slice that a run may have created.

    Attributes:
        gpu: the GPU's UUID.
        profile: the slice's.
        start: its first memory slice.
        size: how many memory slices.
    """

    gpu: str
    profile: str
    start: int
    size: int

    @property
    def placement(self) -> Placement:
        """Where it lies."""
        return Placement(self.start, self.size)

    @classmethod
    def of(cls, reading: SliceReading) -> Self:
        """A slice that NVML shows."""
        place = reading.placement
        return cls(reading.gpu_uuid, reading.profile.name, place.start, place.size)


@dataclass(frozen=True)
class ProofRecord:
    """The record of a run.

    Attributes:
        run: names the run, and its containers by their label; no other run gets it.
        gpus: the UUIDs of the GPUs under proof.
        slices: where slices of the run may lie.
        has_containers: whether containers of the run may exist.
    """

    run: str
    gpus: tuple[str, ...] = ()
    slices: tuple[ProofSlice, ...] = ()
    has_containers: bool = False


class SliceDriver(Protocol):
    """The part of the driver that `undo_slices` needs."""

    @property
    def uuids(self) -> tuple[str, ...]:
        """The GPUs in use here."""

    def slices(self, gpu_uuid: str, /) -> list[SliceReading]:
        """Every slice on a GPU."""

    def destroy(self, gpu_uuid: str, /, gi_id: int) -> None:
        """Destroy a slice."""


class ProofFolder:
    """The lock and the record in a state folder.

    Args:
        state: the lab's state folder.
    """

    def __init__(self, state: Path) -> None:
        self._lock, self._record = state / LOCK, state / RECORD

    def lock(self) -> ProofLock:
        """Take the lock.

        Raises:
            AlreadyRunning: a run holds it.
            OSError: the folder cannot be written.
        """
        return ProofLock(self._lock)

    @property
    def is_used(self) -> bool:
        """Whether any run ever took the lock here."""
        return self._lock.exists()

    @property
    def is_running(self) -> bool:
        """Whether a run holds the lock; it is taken for an instant, so ask one at a time.

        Raises:
            OSError: the lock cannot be opened.
        """
        if not self.is_used:
            return False
        try:
            self.lock().release()
        except AlreadyRunning:
            return True
        return False

    def read(self) -> ProofRecord | None:
        """The record of the run that lives or that died; None if the last one undid everything.

        Raises:
            ProofRecordError: it cannot be read.
        """
        try:
            return _record_of(json.loads(self._record.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ProofRecordError(
                f"{self._record} cannot be read ({type(error).__name__}), so slices of an earlier "
                "miglab prove may be left: destroy those by hand, then delete the file."
            ) from error

    def write(self, record: ProofRecord) -> None:
        """Keep the record, on disk before this returns.

        Raises:
            OSError: the folder cannot be written.
        """
        unfinished = self._record.with_name(f"{RECORD}.new")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(asdict(record), stream)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(self._record)
        self._keep_folder()

    def delete(self) -> None:
        """Delete the record of a run that is over and left nothing."""
        self._record.unlink(missing_ok=True)
        self._keep_folder()

    def _keep_folder(self) -> None:
        descriptor = os.open(self._record.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def new_record(gpus: Iterable[str]) -> ProofRecord:
    """The record of a run that begins on these GPUs."""
    return ProofRecord(secrets.token_hex(8), tuple(gpus))


def with_slices(record: ProofRecord, slices: Iterable[ProofSlice]) -> ProofRecord:
    """The record with these placements added.  Pure."""
    return replace(record, slices=tuple(sorted({*record.slices, *slices})))


def restricted_to_gpus(record: ProofRecord, gpus: Collection[str]) -> ProofRecord:
    """The record of these GPUs alone, whose containers are gone.  Pure."""
    slices = tuple(place for place in record.slices if place.gpu in gpus)
    return ProofRecord(record.run, tuple(sorted(gpus)), slices)


def without_slices(record: ProofRecord, slices: Collection[ProofSlice]) -> ProofRecord:
    """The record without these placements.  Pure."""
    return replace(record, slices=tuple(place for place in record.slices if place not in slices))


def undo_slices(
    driver: SliceDriver, record: ProofRecord, spared: Collection[ProofSlice] = ()
) -> dict[str, list[GpuError]]:
    """Destroy the slices at the placements of a record.

    Args:
        driver: the GPUs.
        record: of a run that is over, or is about to be.
        spared: slices that are somebody else's all the same.

    Returns:
        Why slices may still lie there, by GPU; no entry for a GPU that is clear.
    """
    places = set(record.slices) - set(spared)
    gpus = sorted({place.gpu for place in record.slices})
    problems = {gpu: list(_undo_on(driver, gpu, places)) for gpu in gpus}
    return {gpu: errors for gpu, errors in problems.items() if errors}


def _undo_on(driver: SliceDriver, gpu: str, places: Collection[ProofSlice]) -> Iterator[GpuError]:
    """Destroy a GPU's slices at these places; one that stays keeps no other."""
    if gpu not in driver.uuids:
        yield UnknownGpuError(f"{gpu} is not among the GPUs given to miglab any more")
        return
    try:
        readings = driver.slices(gpu)
    except GpuError as error:
        yield error
        return
    for reading in readings:
        if ProofSlice.of(reading) in places:
            try:
                driver.destroy(gpu, reading.gi_id)
            except GpuError as error:
                yield error


def _record_of(values: dict[str, Any]) -> ProofRecord:
    slices = tuple(ProofSlice(**place) for place in values["slices"])
    gpus = tuple(map(str, values["gpus"]))
    return ProofRecord(str(values["run"]), gpus, slices, bool(values["has_containers"]))
