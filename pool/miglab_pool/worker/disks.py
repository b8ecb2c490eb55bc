"""The file systems that the lab writes to: how full they are, and when nothing new may begin."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from miglab_pool.worker.health_findings import HealthFinding, fine_or_wrong, wrong

LEDGER = "ledger"
LOW_PCT = 95.0  # from here on staff are told
LEAST_FREE_BYTES = 64 << 20  # below it a file system is full, or below a hundredth of a small one
RECOVERY = 2  # a full file system has room again when so many times as much is free
MAKE_ROOM = (
    "remove old backups and images (docker image prune), or enlarge it; see docs/howto/gpu-host.md"
)
FULL = (
    "The lab's disk is full. Running servers go on, and slices are still freed. Grants resume by "
    "themselves as soon as the lab's operator has made room."
)


@dataclass(frozen=True, slots=True)
class DiskUse:
    """A file system that the lab writes to.

    Attributes:
        holds: what of the lab lies there: ``ledger``, ``logs``, ``homes``.
        folder: one that lies there.
        used_pct: of the room, or of the number of files if that is closer to its limit.
        free_bytes: what may still be written without the right to the superuser's reserve.
        size_bytes: of all of it.
        problem: why nothing is known; empty: it is.
    """

    holds: tuple[str, ...]
    folder: Path
    used_pct: float = 0.0
    free_bytes: int = 0
    size_bytes: int = 0
    problem: str = ""

    @property
    def is_low(self) -> bool:
        """Whether staff have to make room."""
        return not self.problem and self.used_pct >= LOW_PCT

    def is_full(self, *, was_full: bool) -> bool:
        """Whether nothing new may begin; what is unknown is not called full.

        Args:
            was_full: whether it was at the last reading: then it takes more room to be well again.
        """
        least = min(LEAST_FREE_BYTES, self.size_bytes // 100) * (RECOVERY if was_full else 1)
        return not self.problem and (self.free_bytes < least or self.used_pct >= 100.0)

    @property
    def words(self) -> str:
        """How it is, in words for staff."""
        contents = " and ".join(self.holds)
        if self.problem:
            return f"disk of the {contents}: unknown: {self.problem}"
        free_gib = self.free_bytes / 2**30
        return f"disk of the {contents}: {self.used_pct:.0f} % used, {free_gib:.1f} GiB free"


def read_disks(folders: Mapping[str, Path]) -> list[DiskUse]:
    """Each file system once.

    Args:
        folders: by what lies there; one that is not there yet stands for its nearest parent.
    """
    names_by_device: dict[int | str, list[str]] = {}
    for name, folder in folders.items():
        names_by_device.setdefault(_device(folder), []).append(name)
    return [_read(tuple(names), folders[names[0]]) for names in names_by_device.values()]


def of_disks(disks: Sequence[DiskUse], least_free_bytes: float) -> Iterator[HealthFinding]:
    """What doctor says of them.

    Args:
        disks: as they are now.
        least_free_bytes: that a lab needs to go on for a while.
    """
    for disk in disks:
        observation = f"{disk.words}, in {disk.folder}"
        if disk.problem:
            yield wrong("disk", observation, "mount it, or make it readable to the lab's user")
        else:
            has_room = not disk.is_low and disk.free_bytes >= least_free_bytes
            yield fine_or_wrong("disk", has_room, observation, MAKE_ROOM)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _device(folder: Path) -> int | str:
    try:
        return _existing(folder).stat().st_dev
    except OSError:
        return str(folder)  # unknown, and so like no other


def _read(holds: tuple[str, ...], folder: Path) -> DiskUse:
    try:
        state = os.statvfs(_existing(folder))
    except OSError as error:
        return DiskUse(holds, folder, problem=error.strerror or str(error))
    used = _used_pct(state.f_blocks, state.f_bfree, state.f_bavail)
    used_files = _used_pct(state.f_files, state.f_ffree, state.f_favail)
    unit = state.f_frsize
    return DiskUse(
        holds, folder, max(used, used_files), state.f_bavail * unit, state.f_blocks * unit
    )


def _used_pct(total: int, free: int, available: int) -> float:
    """As df counts it: of what is used and what is to be had, without the superuser's reserve."""
    used = total - free
    return 100.0 * used / (used + available) if used + available else 0.0
