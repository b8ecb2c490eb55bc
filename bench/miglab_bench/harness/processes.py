"""What a check starts as a process of its own, and its log: a failing test shows the ends."""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Process = subprocess.Popen[bytes]
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


def log_ends(*folders: Path) -> list[tuple[str, str]]:
    """A title and the last lines of each log below these folders; else of what runs now."""
    found = []
    for log in sorted(log for folder in folders or _folders for log in folder.rglob("*.log")):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        found.append((f"end of {log.name}", "\n".join(lines[-TAIL_LINES:])))
    return found


def start(log: Path, command: Sequence[str], env: Mapping[str, str], **more: Any) -> Process:
    """Start a process that reads nothing and appends what it says to a log.

    Args:
        log: the file.
        command: program and arguments.
        env: added to this process's environment.
        more: of `subprocess.Popen`.
    """
    with log.open("ab") as said:
        return subprocess.Popen(
            command,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            **more,
        )
