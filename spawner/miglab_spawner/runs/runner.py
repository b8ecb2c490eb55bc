"""What a borrowed slice is used by, as `Borrower` sees it: a program that takes jobs, line by line.

labkit's `job_server` is that program, and `labkit.run.borrowed` names the lines.  Whoever passes
them on reads their first letter and nothing else: what a student's code says is not unpacked here.
"""

from collections.abc import AsyncIterator
from typing import Protocol

QUEUE, GRANTED, REFUSED = b"q", b"g", b"r"
MESSAGE, END, FAILED = b"m", b"e", b"f"
LAST = frozenset({END, FAILED})

RESULT_LIMIT = 16 << 20
"""Bytes that one job may send, all its lines together, and that its order may have."""


class TooMuchSaid(Exception):
    """A job said more than `RESULT_LIMIT`."""


class RunnerFailed(Exception):
    """The runner could not be made or reached; the message is for the log."""


class SliceRunner(Protocol):
    """One program on borrowed slices.  Every method but `end` may raise `RunnerFailed`."""

    async def create(self) -> str:
        """Make it without starting anything of a student's; returns the holder's name."""

    async def start(self) -> None:
        """Start it, once the pool has accepted its holder."""

    async def send(self, order: bytes) -> None:
        """Give it a job: one line."""

    async def read(self) -> bytes:
        """The next line, without its end; empty once the runner has ended.

        Raises:
            TooMuchSaid: a line is longer than `RESULT_LIMIT`.
        """

    async def end(self) -> None:
        """End it, whatever it does; already gone is fine."""


async def lines(runner: SliceRunner) -> AsyncIterator[bytes]:
    """What the runner says, until it has ended.

    Raises:
        TooMuchSaid: all together are longer than `RESULT_LIMIT`.
    """
    said = 0
    while line := await runner.read():
        said += len(line)
        if said > RESULT_LIMIT:
            raise TooMuchSaid
        yield line
