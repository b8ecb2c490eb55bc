"""A wall clock of the harness's own, by libfaketime, for the processes that the harness starts."""

import select
import time
from pathlib import Path
from typing import SupportsFloat, SupportsIndex

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


class OwnClock:
    """The machine's clock until `step` moves it; not there without libfaketime.

    Args:
        folder: where the file lies that says how far it is off.
    """

    def __init__(self, folder: Path) -> None:
        self.is_there = FAKETIME.exists()
        self._file = folder / "clock"
        self._offset_s = 0
        self.step(0)

    def step(self, by_s: int) -> None:
        """Set it by so much, for every process that has `environment`."""
        self._offset_s += by_s
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{self._offset_s:+d}\n")
        fresh.replace(self._file)

    def environment(self) -> dict[str, str]:
        """What a process needs to go by it."""
        if not self.is_there:
            return {}
        return {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "NO_FAKE_STAT": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            # For glibc before 2.24; with a newer one each wait for Python's lock would spin.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }


def sleep_by_select() -> None:
    """Let this process, which goes by such a clock, sleep.

    Python's own asks for an absolute time of the monotonic clock, at which libfaketime 0.9.10
    without a fake monotonic clock answers EINVAL.
    """

    def sleep(seconds: SupportsFloat | SupportsIndex, /) -> None:
        select.select((), (), (), float(seconds))

    time.sleep = sleep
