"""Where the processes that a check has started write their logs: a failing test shows the ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TAIL_LINES = 30

_folders: set[Path] = set()


@contextmanager
def logs_below(folder: Path) -> Iterator[None]:
    """For the time of the block, `log_ends` has the logs below this folder too."""
    _folders.add(folder)
    try:
        yield
    finally:
        _folders.discard(folder)


def log_ends() -> list[tuple[str, str]]:
    """A title and the last lines of each log of what runs now."""
    found = []
    for log in sorted(log for folder in _folders for log in folder.rglob("*.log")):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        found.append((f"end of {log.name}", "\n".join(lines[-TAIL_LINES:])))
    return found
