"""A runner as a local process: what trials have.  No isolation, like the servers beside it.

The program does nothing before its first line, which is sent when the pool has accepted it as the
holder: that is the gate.
"""

import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping

from miglab_api.holders import process_holder
from miglab_spawner.runs.borrower import RESULT_LIMIT, RunnerFailed, TooMuchSaid

COMMAND = (sys.executable, "-m", "labkit.measuring.job_server")
END_S = 12.0  # longer than the program takes to end its children


class ProcessRunner:
    """See `SliceRunner`.

    Args:
        env: its whole environment; its home is an empty folder of its own.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = dict(env)
        self._process: asyncio.subprocess.Process | None = None
        self._folder = ""

    @property
    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RunnerFailed("the runner was not created")
        return self._process

    async def create(self) -> str:
        """The process exists; it waits for its first line."""
        self._folder = tempfile.mkdtemp(prefix="miglab-run-")
        try:
            self._process = await asyncio.create_subprocess_exec(
                *COMMAND,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=RESULT_LIMIT,
                cwd=self._folder,
                env={**self._env, "HOME": self._folder},
                start_new_session=True,
            )
            return process_holder(self._process.pid)
        except OSError as error:
            raise RunnerFailed(str(error)) from error

    async def start(self) -> None:
        """Nothing: its first line starts it."""

    async def send(self, order: bytes) -> None:
        """One line to its input."""
        stdin = self._running.stdin
        assert stdin is not None
        try:
            stdin.write(order + b"\n")
            await stdin.drain()
        except OSError as error:
            raise RunnerFailed(str(error)) from error

    async def read(self) -> bytes:
        """One line of its output."""
        stdout = self._running.stdout
        assert stdout is not None
        try:
            return (await stdout.readline()).rstrip(b"\n")
        except ValueError as error:  # asyncio's word for a line beyond the limit
            raise TooMuchSaid from error

    async def end(self) -> None:
        """Ask it to end, with its children, then make it."""
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await self._gone(process)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _gone(self, process: asyncio.subprocess.Process) -> None:
        drained = asyncio.create_task(_drain(process))
        try:
            await asyncio.wait_for(process.wait(), END_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        finally:
            drained.cancel()


async def _drain(process: asyncio.subprocess.Process) -> None:
    """Read on, so that a program that writes can end."""
    assert process.stdout is not None
    while await process.stdout.read(RESULT_LIMIT):
        pass
