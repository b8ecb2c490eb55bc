"""Free ports for what is started on this machine, where nobody else takes them meanwhile."""

import fcntl
import os
import secrets
import socket
import tempfile
from pathlib import Path

PORTS = 5
PORT_RANGE = range(20000, 32000, 10)
"""Below those that Linux hands out by itself, for connections too: between the look and the start,
or while a part is down for a moment, nobody gets one of these by chance."""

_given: set[int] = set()
_reserved: list[int] = []


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
