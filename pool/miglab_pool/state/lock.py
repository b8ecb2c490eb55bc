"""One pool service at a time, and one a GPU: locks taken before ledger or NVML are touched."""

import contextlib
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

GPU_LOCKS = Path("/run/lock")


class AlreadyRunning(Exception):
    """Another process holds the lock; the message names it and says what to do."""


class FileLock:
    """An ``flock`` on a file; the kernel drops it when the process dies, however it dies.

    Args:
        path: the lock file; made if missing, never removed.

    Raises:
        AlreadyRunning: another process has it.
        OSError: the file can be neither opened nor made.
    """

    mode: ClassVar[int] = 0o600
    holder: ClassVar[str] = "A pool service"
    advice: ClassVar[str] = "Stop that one first, or give this lab a state_dir of its own."

    def __init__(self, path: Path) -> None:
        self._fd = self._open(path)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            refusal = self._refusal(path)
            os.close(self._fd)
            raise AlreadyRunning(refusal) from None
        self._write_holder()

    def release(self) -> None:
        """Let go; calling it twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.release()

    def _refusal(self, path: Path) -> str:
        number = os.read(self._fd, 32).decode("ascii", "replace").strip() or "unknown"
        return f"{self.holder} (process {number}) already holds {path}. {self.advice}"

    def _write_holder(self) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def _open(self, path: Path) -> int:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:  # where anybody may make files, the kernel lets nobody "make" what is another's
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self.mode)
            with contextlib.suppress(PermissionError):  # somebody else was quicker
                os.fchmod(fd, self.mode)
            return fd


class PoolLock(FileLock):
    """Keeps a second pool service off a state folder."""


class LedgerLock(FileLock):
    """Keeps a second pool service off a ledger by whatever path it comes: a link, another mount.

    SQLite's own locks are of another kind and do not meet this one, but they end when their process
    closes the file by any descriptor: release this lock after the ledger has been closed.

    Args:
        path: the ledger, which is there; nothing is written to it.
    """

    def _refusal(self, path: Path) -> str:
        return (
            f"{self.holder} already uses the ledger {path}, perhaps by another path: a hard or "
            f"symbolic link, or another mount. {self.advice}"
        )

    def _write_holder(self) -> None:
        """The file is the ledger itself."""

    def _open(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


class LabLock(FileLock):
    """Keeps a second `./lab up`, and what needs the lab to stand still, off a state folder."""

    holder = "./lab up"


class GpuLock(FileLock):
    """Keeps the pool services of two labs off the same GPU; of whichever user they are."""

    mode = 0o666
    advice = "Two labs list the same GPU: take it out of gpus.uuids of one of them."


def lock_gpus(folder: Path, uuids: Iterable[str]) -> contextlib.ExitStack:
    """Take the lock of each GPU; closing what is returned lets go of all.

    Args:
        folder: where the locks of these GPUs lie, for all labs: `GPU_LOCKS` for real ones.
        uuids: of the GPUs.

    Raises:
        AlreadyRunning: another service has one of them.
        OSError: the folder cannot be written.
    """
    with contextlib.ExitStack() as locks:
        for uuid in uuids:
            locks.enter_context(GpuLock(folder / f"miglab-{uuid}.lock"))
        return locks.pop_all()
