"""How large a home is, and what its owner reads where it is too large.

Pure but for `measure_folder`.

Must not import JupyterHub or Docker.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

GIB = 1024**3
KIB = 1024
LARGEST_SHOWN = 3  # of the largest things in a home: enough to know where to begin
FILES_PER_GIB = 65_536  # the inodes that ext4 has for a GiB: a disk runs out of both together
ADVICE = (
    "Start a server without a GPU, delete what you no longer need, and then choose this shape "
    "again."
)
NOT_MEASURED = (
    "Your files could not be measured in time, so you get no GPU yet. Try again; if it stays so, "
    f"there may be too many of them. {ADVICE}"
)


@dataclass(frozen=True)
class HomeUse:
    """What lies in a home.

    Attributes:
        size: bytes on the disk.
        files: files, folders and links; not counted beyond the first that is too many.
        largest: what takes most in the home itself, with its bytes; known where it is too large.
    """

    size: int = 0
    files: int = 0
    largest: tuple[tuple[str, int], ...] = ()


def max_files(limit_gib: float) -> int:
    """Return how many files a home of this limit may hold."""
    return int(limit_gib * FILES_PER_GIB)


def size_problem(use: HomeUse, limit_gib: float) -> str:
    """Return what exceeds the limit, for the owner; empty if nothing does.

    Args:
        use: what lies in the home.
        limit_gib: what it may take.
    """
    files_allowed = max_files(limit_gib)
    if use.files > files_allowed:
        return (
            f"You have more than {files_allowed:,} files and folders, and this lab allows no more "
            f"for each student. {ADVICE} In a terminal, `du --inodes -d1 ~` counts them by folder."
        )
    if use.size <= limit_gib * GIB:
        return ""
    largest = ", ".join(f"{name} ({size / GIB:.1f} GiB)" for name, size in use.largest)
    return (
        f"Your files take {use.size / GIB:.1f} GiB, and this lab allows {limit_gib:g} GiB for each "
        f"student. {ADVICE}" + (f" The largest: {largest}." if largest else "")
    )


def parse_use(printed: str) -> HomeUse | None:
    """Parse the output of a measuring container; None if it is incomplete.

    A line with the number of files and the KiB; after it, where that is too much, a line for each
    of the largest, KiB and path, whose names may be anything but a line's end.
    """
    first, *largest_lines = printed.split("\n")
    files, _, kib = first.partition(" ")
    if not (files.isdecimal() and kib.isdecimal()):
        return None
    cut = [line.partition("\t./") for line in largest_lines]
    largest = [(name, int(size) * KIB) for size, _, name in cut if name and size.isdecimal()]
    return HomeUse(int(kib) * KIB, int(files), tuple(largest[:LARGEST_SHOWN]))


def measure_folder(home: str | os.PathLike[str], limit_gib: float) -> HomeUse:
    """Measure a folder that this process can read; links are not followed.

    What vanishes meanwhile or cannot be read counts nothing.
    """
    files_allowed, files = max_files(limit_gib), 0
    sizes = Counter[str]()
    waiting = [(os.fspath(home), "")]
    while waiting and files <= files_allowed:
        folder, top = waiting.pop()
        for entry in islice(_entries(folder), files_allowed + 1 - files):
            files += 1
            with suppress(OSError):
                sizes[top or entry.name] += entry.stat(follow_symlinks=False).st_blocks * 512
            if entry.is_dir(follow_symlinks=False):
                waiting.append((entry.path, top or entry.name))
    return HomeUse(sizes.total(), files, tuple(sizes.most_common(LARGEST_SHOWN)))


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        yield from entries
