"""One pool service at a time: an exclusive lock, taken before ledger or NVML are touched."""

import fcntl
import os
from pathlib import Path
from types import TracebackType


class AlreadyRunning(Exception):
    """Another process holds the lock; the message names it and says what to do."""


class PoolLock:
    """An ``flock`` on a file; the kernel drops it when the process dies, however it dies.

    Args:
        path: the lock file; made if missing, never removed.

    Raises:
        AlreadyRunning: another process has it.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._fd, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise AlreadyRunning(
                f"A pool service (process {holder}) already holds {path}. "
                "Stop that one first, or give this lab a state_dir of its own."
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go; calling it twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "PoolLock":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.release()
