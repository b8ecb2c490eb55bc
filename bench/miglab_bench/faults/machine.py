"""A disk, a network, a clock and databases of the harness's own: the machine's are left alone.

The disk is a small tmpfs, so that the machine's is never full.  Two Docker engines in one network
namespace would rewrite each other's rules: the thread that makes a namespace, and what it starts
from then on, are in it.
"""

import ctypes
import os
import resource
import select
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import SupportsFloat, SupportsIndex

from miglab_hub.settings.lab_toml import Settings
from miglab_pool.ledger.tables import VERSION

DISK_MIB = 64
BLOCKS_BYTES = (1 << 20, 1 << 12, 1)
CLONE_NEWNET = 0x40000000  # sched.h
OLDER = VERSION - 1  # of the ledger's tables: a made-up version, in which a column was missing
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
FAILING = "failing-statement"
LOOPBACK_UP = ("ip", "link", "set", "lo", "up")


class OwnDisk:
    """A tmpfs over a folder; needs root.

    Args:
        folder: to be made.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._filler = folder / "filler"
        options = f"size={DISK_MIB}m,mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)

    def close(self) -> None:
        """Remove it with all that is on it."""
        subprocess.run(["umount", "--lazy", str(self._folder)], check=True)

    def fill(self) -> None:
        """Fill the disk to the last byte."""
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
    """A network namespace in which this thread is until `close`; needs root."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        if self._libc.unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET)")
        subprocess.run(LOOPBACK_UP, check=True)

    def close(self) -> None:
        """Return to the thread's former namespace."""
        if self._libc.setns(self._before, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(self._before)


class OwnClock:
    """The clock of what the harness starts, which `step` moves; needs libfaketime.

    Args:
        folder: where the file lies that says how far it is off.
    """

    def __init__(self, folder: Path) -> None:
        self.is_there = FAKETIME.exists()
        self._file = folder / "clock"
        self._offset_s = 0
        self.step(0)

    def step(self, by_s: int) -> None:
        """Move the clock of every process that has `environment`."""
        self._offset_s += by_s
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{self._offset_s:+d}\n")
        fresh.replace(self._file)

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that is to use this clock."""
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


def sleep_by_select() -> None:
    """Let this process, which goes by such a clock, sleep.

    Python's own asks for an absolute time of the monotonic clock, at which libfaketime 0.9.10
    without a fake monotonic clock answers EINVAL.
    """

    def sleep(seconds: SupportsFloat | SupportsIndex, /) -> None:
        select.select((), (), (), float(seconds))

    time.sleep = sleep


class LabDatabases:
    """The ledger and the hub's database.

    Args:
        settings: of the lab.
        folder: for the ledger's copy; not on the lab's own disk.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._ledger = settings.ledger
        self._hubs = settings.hub_database
        self._home_names = settings.home_names
        self._failing = settings.state / FAILING
        self._copy = folder / "copy.sqlite"

    def fail_commit(self, statement: str) -> None:
        """Let the ledger's next commit of this statement fail, and what it reads after it."""
        self._failing.write_text(statement)

    def allow_commits(self) -> None:
        """Let every commit succeed."""
        self._failing.unlink(missing_ok=True)

    def limit_growth(self, pool: int, extra_bytes: int | None) -> None:
        """Let that process's files grow by ``extra_bytes`` beyond the ledger's log; None: freely.

        What crosses the limit is written in part, and fails.
        """
        log = Path(f"{self._ledger}-wal")
        size = log.stat().st_size if log.exists() else 0
        limit = resource.RLIM_INFINITY if extra_bytes is None else size + extra_bytes
        resource.prlimit(pool, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def back_up(self) -> None:
        """Keep a copy of the ledger as it is now."""
        source, target = sqlite3.connect(self._ledger), sqlite3.connect(self._copy)
        with closing(source), closing(target):
            source.backup(target)

    def restore(self) -> None:
        """Replace the ledger by the copy, while the pool does not run."""
        _remove_log(self._ledger)
        shutil.copy(self._copy, self._ledger)

    def lose_hubs(self) -> None:
        """Delete the hub's database, while the hub does not run.

        Its accounts are made anew, so an operator removes the file that says whose home is whose
        (docs/howto/keep-and-delete-data.md): homes are then found by name.
        """
        _remove_log(self._hubs)
        self._hubs.unlink(missing_ok=True)
        self._home_names.unlink(missing_ok=True)

    def age_ledger(self) -> None:
        """Make the ledger what version `OLDER` left; the pool does not run."""
        with closing(sqlite3.connect(self._ledger)) as ledger, ledger:
            ledger.execute("ALTER TABLE tickets DROP COLUMN since")
            ledger.execute("UPDATE schema_version SET version = ?", (OLDER,))


def _remove_log(database: Path) -> None:
    for log_file in database.parent.glob(f"{database.name}-*"):
        log_file.unlink()
