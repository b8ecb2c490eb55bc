"""What a check starts as a process of its own: its free ports, and its log."""

import fcntl
import os
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Process = subprocess.Popen[bytes]
TAIL_LINES = 30
PORTS = 5
PORT_RANGE = range(20000, 32000, 10)
"""Below those that Linux hands out by itself, for connections too: between the look and the start,
or while a part is down for a moment, nobody gets one of these by chance."""

_folders: set[Path] = set()
_given: set[int] = set()
_reserved: list[int] = []


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


class NoFreePorts(Exception):
    """All are taken."""


def free_ports(count: int = PORTS) -> int:
    """The first of some free ports in a row, at most ten: this process's until it ends."""
    candidates = list(PORT_RANGE)
    secrets.SystemRandom().shuffle(candidates)
    for first in candidates:
        if _are_free(range(first, first + count)) and _reserve(first):
            return first
    raise NoFreePorts(f"no {count} free ports in a row")


def _are_free(ports: range) -> bool:
    try:
        for port in ports:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


def _reserve(first: int) -> bool:
    """Lock a byte of one file for all: two processes that look at the same time see both free."""
    if first in _given:  # a process is not locked out by itself
        return False
    if not _reserved:
        file = Path(tempfile.gettempdir()) / f"miglab-ports-{os.getuid()}"
        _reserved.append(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    try:
        fcntl.lockf(_reserved[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, first)
    except OSError:
        return False
    _given.add(first)
    return True
