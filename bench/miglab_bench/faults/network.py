"""A network of the harness's own: its engine's firewall and its ports touch nobody else's.

Two Docker engines in one network namespace would rewrite each other's rules.  The thread that
makes the namespace, and what it starts from then on, are in it.
"""

import ctypes
import os
import subprocess

CLONE_NEWNET = 0x40000000  # sched.h
LOOPBACK_UP = ("ip", "link", "set", "lo", "up")


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
