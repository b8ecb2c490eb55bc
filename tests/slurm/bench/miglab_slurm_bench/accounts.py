"""Unix accounts whose names a directory has, and no `useradd` would make: for this process alone.

They are in a copy of /etc/passwd that is mounted over it in a mount namespace of this thread, so
neither the machine nor another process of it sees them.
"""

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PASSWD = Path("/etc/passwd")
FIRST_UID = 61200
CLONE_NEWNS = 0x00020000


@contextmanager
def accounts_of_a_directory(names: Sequence[str]) -> Iterator[None]:
    """For the time of the block, this thread and what it starts know accounts of these names."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "no mount namespace can be made")
    try:
        with tempfile.NamedTemporaryFile("w", prefix="miglab-passwd-") as copy:
            lines = (
                f"{name}:x:{uid}:100::/nonexistent:/bin/sh"
                for uid, name in enumerate(names, FIRST_UID)
            )
            copy.write(PASSWD.read_text() + "".join(f"{line}\n" for line in lines))
            copy.flush()
            os.chmod(copy.name, 0o644)  # noqa: PTH101 -- an open file
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            subprocess.run(["mount", "--bind", copy.name, str(PASSWD)], check=True)
            yield
    finally:
        libc.setns(before, CLONE_NEWNS)
        os.close(before)
