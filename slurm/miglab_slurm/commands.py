"""Running Slurm's commands: never through a shell, never without a time limit.

The one module that starts processes: a site whose hub is on no submit host would replace it.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Any

from miglab_spawner.backends import BackendError, BackendUnreachable

_SILENT = (
    "unable to contact slurm controller", "socket timed out", "connection refused",
    "zero bytes were transmitted", "protocol authentication error", "munge", "connection timed out",
    "communication connection failure", "unable to establish", "slurm backup controller in standby",
    "resource temporarily unavailable", "transport endpoint is not connected",
    "invalid authentication credential",
)  # fmt: skip
GONE_S = 30.0  # what was killed has ended by then, on a busy machine too, or hangs for good
FOR_READING = {"LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s"}
"""What makes the commands' output readable here; a job that inherits it does not want it."""
_PASSED_ON = ("SLURM_CONF", "LANG", "SUDO_ASKPASS")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class CommandFailed(BackendError):
    """A command answered no; the message is what it said."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def clean_environment() -> dict[str, str]:
    """What commands, and so the jobs they submit, get of the hub's environment: no secret in it."""
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    path = ":".join(filter(None, (os.environ.get("MIGLAB_SLURM_PATH", ""), _PATH)))
    return {**passed_on, "PATH": path, **FOR_READING}


async def run(command: Sequence[str], timeout_s: float, stdin: str = "") -> str:
    """Run a command; its output, and the errors of `run_verbosely`."""
    return (await run_verbosely(command, timeout_s, stdin))[0]


async def run_verbosely(
    command: Sequence[str], timeout_s: float, stdin: str = ""
) -> tuple[str, str]:
    """Run a command; its output, and what it says beside it.

    Raises:
        BackendUnreachable: it could not be started, did not end in time, or Slurm is silent.
        CommandFailed: Slurm answered no.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=clean_environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            umask=0o022,  # a job has that of its sbatch, and the hub's keeps students' groups out
        )
    except OSError as error:
        raise BackendUnreachable(f"{command[0]} cannot be run: {error.strerror}") from error
    reading = asyncio.ensure_future(process.communicate(stdin.encode()))
    try:
        async with asyncio.timeout(timeout_s):
            output, errors = await asyncio.shield(reading)
    except TimeoutError:
        raise BackendUnreachable(f"{command[0]} has not ended within {timeout_s:g} s") from None
    finally:
        if not reading.done():
            await _end(process, reading)
    if process.returncode:
        message = errors.decode(errors="replace").strip() or f"exit {process.returncode}"
        is_silent = any(sign in message.lower() for sign in _SILENT)
        raise (
            BackendUnreachable(message) if is_silent else CommandFailed(message, process.returncode)
        )
    return output.decode(errors="replace"), errors.decode(errors="replace")


async def _end(process: asyncio.subprocess.Process, reading: asyncio.Future[Any]) -> None:
    """End a command and what it has started, and read it to the end.

    What is another user's is left to end by itself.
    """
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except PermissionError:
        reading.cancel()
        return
    except ProcessLookupError:
        pass  # it has ended, and is read
    await asyncio.wait({reading}, timeout=GONE_S)
    reading.cancel()


def as_account(run_as: str, account: str) -> list[str]:
    """The words before a command by which it runs as this account."""
    return [part.replace("{username}", account) for part in run_as.split()]
