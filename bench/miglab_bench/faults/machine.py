"""A clock, a disk and a network of the harness's own, so that the machine's are left alone.

The wall clock is libfaketime's, for the processes that the harness starts.  The disk is a small
tmpfs, so that the machine's is never full.  Two Docker engines in one network namespace would
rewrite each other's rules: the thread that makes a namespace, and what it starts from then on, are
in it.
"""

import ctypes
import os
import subprocess
from pathlib import Path

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
DISK_MIB = 64
BLOCKS_BYTES = (1 << 20, 1 << 12, 1)
CLONE_NEWNET = 0x40000000  # sched.h
LOOPBACK_UP = ("ip", "link", "set", "lo", "up")


class OwnClock:
    """The machine's clock until `step` moves it; not there without libfaketime.

    Args:
        folder: where the file lies that says how far it is off.
    """

    def __init__(self, folder: Path) -> None:
        self.is_there = FAKETIME.exists()
        self._file = folder / "clock"
        self._offset_s = 0
        self.step(0)

    def step(self, by_s: int) -> None:
        """Set it by so much, for every process that has `environment`."""
        self._offset_s += by_s
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{self._offset_s:+d}\n")
        fresh.replace(self._file)

    def environment(self) -> dict[str, str]:
        """What a process needs to go by it."""
        if not self.is_there:
            return {}
        return {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "NO_FAKE_STAT": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            # For glibc before 2.24; with a newer one each wait for Python's lock would spin.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }


class OwnDisk:
    """A tmpfs over a folder; not there without root, and then nothing is ever full.

    Args:
        folder: empty.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._filler = folder / "filler"
        options = f"size={DISK_MIB}m,mode=0700"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        is_mounted = (
            not os.geteuid() and not subprocess.run(command, capture_output=True).returncode
        )
        self.is_there = is_mounted

    def close(self) -> None:
        """Remove it with all that is on it."""
        if self.is_there:
            subprocess.run(["umount", "--lazy", str(self._folder)], check=True)

    def fill(self) -> None:
        """Leave no byte on it."""
        with self._filler.open("wb", buffering=0) as filler:
            for size in BLOCKS_BYTES:
                has_room = True
                while has_room:
                    try:
                        filler.write(bytes(size))
                    except OSError:
                        has_room = False

    def free(self) -> None:
        """Make room again."""
        self._filler.unlink(missing_ok=True)


class OwnNetwork:
    """From here to `close` this thread is in a network namespace of its own; needs root."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        if self._libc.unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET)")
        subprocess.run(LOOPBACK_UP, check=True)

    def close(self) -> None:
        """Go back to where the thread was."""
        if self._libc.setns(self._before, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(self._before)
