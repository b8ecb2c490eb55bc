"""A small disk of the harness's own for the lab's state, so that the machine's is never full."""

import os
import subprocess
from pathlib import Path

SIZE_MIB = 64
BLOCKS_BYTES = (1 << 20, 1 << 12, 1)


class OwnDisk:
    """A tmpfs over a folder; not there without root, and then nothing is ever full.

    Args:
        folder: empty.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._filler = folder / "filler"
        options = f"size={SIZE_MIB}m,mode=0700"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        is_mounted = (
            not os.geteuid() and not subprocess.run(command, capture_output=True).returncode
        )
        self.is_there = is_mounted

    def close(self) -> None:
        """Remove it with all that is on it."""
        if self.is_there:
            subprocess.run(["umount", "--lazy", str(self._folder)], check=True)

    def fill(self) -> None:
        """Leave no byte on it."""
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
