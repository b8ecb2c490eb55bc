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
_own_ports: set[int] = set()
_reserved: list[int] = []


@contextmanager
def logs_below(folder: Path) -> Iterator[None]:
    """Let `log_ends` include the logs below this folder until the block ends."""
    _folders.add(folder)
    try:
        yield
    finally:
        _folders.discard(folder)


def log_ends(*folders: Path) -> list[tuple[str, str]]:
    """Return a title and the last lines of each log below these folders, or of what runs now."""
    log_tails = []
    for log in sorted(log for folder in folders or _folders for log in folder.rglob("*.log")):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        log_tails.append((f"end of {log.name}", "\n".join(lines[-TAIL_LINES:])))
    return log_tails


def start(
    log: Path, command: Sequence[str], env: Mapping[str, str], **popen_options: Any
) -> Process:
    """Start a process without input that appends its output to a log.

    Args:
        log: the file.
        command: program and arguments.
        env: added to this process's environment.
        popen_options: further arguments of `subprocess.Popen`.
    """
    with log.open("ab") as log_file:
        return subprocess.Popen(
            command,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            **popen_options,
        )


class NoFreePorts(Exception):
    """No port of the range is free."""


def free_ports(count: int = PORTS) -> int:
    """Reserve some consecutive ports, at most ten, for this process; return the first."""
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
    if first in _own_ports:  # a process is not locked out by itself
        return False
    if not _reserved:
        file = Path(tempfile.gettempdir()) / f"miglab-ports-{os.getuid()}"
        _reserved.append(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    try:
        fcntl.lockf(_reserved[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, first)
    except OSError:
        return False
    _own_ports.add(first)
    return True
