"""How large a home is, and what its owner reads where it is too large.  Pure but for `measured`.

Must not import JupyterHub or Docker.
"""

import os
from collections.abc import Iterable
from pathlib import Path

GIB = 1024**3
KIB = 1024
SHOWN = 3  # of the largest things in a home: enough to know where to begin

Sizes = dict[str, int]
"""Bytes on the disk, by the names in the home."""


def too_large(sizes: Sizes, limit_gib: float) -> str:
    """What the owner is told; empty where the home is within the limit.

    Args:
        sizes: what lies in the home.
        limit_gib: what it may take.
    """
    total = sum(sizes.values())
    if total <= limit_gib * GIB:
        return ""
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:SHOWN]
    named = ", ".join(f"{name} ({size / GIB:.1f} GiB)" for name, size in largest)
    return (
        f"Your files take {total / GIB:.1f} GiB, and this lab allows {limit_gib:g} GiB for each "
        f"student. Start a server without a GPU, delete what you no longer need, and then choose "
        f"this shape again. The largest: {named}."
    )


def sizes_of(printed: str) -> Sizes:
    """What ``du --null`` printed: KiB and a path for each thing in the home.

    Lines that are none are passed over, since file names may be anything.
    """
    found: Sizes = {}
    for entry in printed.split("\0"):
        kib, _, path = entry.strip("\n").partition("\t")
        if kib.isdecimal() and path:
            name = path.rstrip("/").rpartition("/")[2]
            found[name] = found.get(name, 0) + int(kib) * KIB
    return found


def measured(home: Path) -> Sizes:
    """The sizes in a home that this process can read; follows no link."""
    return {entry.name: _size(entry) for entry in _entries(home)}


def _size(entry: os.DirEntry[str]) -> int:
    """With everything below it; what vanishes meanwhile or cannot be read counts nothing."""
    total, waiting = 0, [entry]
    while waiting:
        one = waiting.pop()
        try:
            total += one.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue
        if one.is_dir(follow_symlinks=False):
            waiting += _entries(Path(one.path))
    return total


def _entries(folder: Path) -> Iterable[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return ()
