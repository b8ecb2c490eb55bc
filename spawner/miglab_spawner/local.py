"""MIGLocalSpawner: students' servers and runners as local processes.  No isolation: for trial only.

Needs neither root nor system accounts: every name gets a folder.  A server is started behind a gate
(gate.py), attached to the lease, and let through.  A runner needs no gate: its program does nothing
before its first line, which is sent when the pool has accepted it as the holder.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from escapism import escape
from jupyterhub.spawner import LocalProcessSpawner
from traitlets import Unicode, default

from miglab_api.holders import living_pid, process_holder
from miglab_api.leases import LeaseView
from miglab_spawner import gate, home_size, notebooks_copy
from miglab_spawner.borrower import RESULT_LIMIT, OutputTooLarge, RunnerFailed, SliceRunner
from miglab_spawner.pool_leases import PoolSpawnerMixin
from miglab_spawner.refusals import process_end_message

_SAFE = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_LONGEST_NAME = 200
_KEPT = 100  # of a longer one, so that people recognise it
_PAUSE_S = 0.1
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "OMP_NUM_THREADS", "LAB_QUICK")
_RUNNER = (sys.executable, "-m", "labkit.measuring.job_server")
_RUNNER_END_S = 12.0  # longer than the program takes to end its children


def folder_name(home: str) -> str:
    """Return a safe folder name for a home; different homes get different names."""
    name = str(escape(home, _SAFE, escape_char="-"))
    if len(name) <= _LONGEST_NAME:
        return name
    # No escaped name has two dashes in a row.
    return f"{name[:_KEPT]}--{sha256(home.encode()).hexdigest()}"


class GatedProcessSpawner(LocalProcessSpawner):
    """LocalProcessSpawner whose process waits, as itself, until it is attached to its lease."""

    cmd: list[str]
    shell_cmd: list[str]
    popen_kwargs: dict[str, Any]
    pid: int
    attach: Callable[[str], Awaitable[None]]
    announce_running: Callable[[], Awaitable[None]]

    async def start(self) -> Any:
        """Start a waiting process, attach it to the lease, then let it run or end it."""
        reader, writer = os.pipe()
        try:
            with self._behind_gate(reader):
                address = await super().start()
        except BaseException:
            os.close(writer)
            raise
        finally:
            os.close(reader)
        try:
            await self.attach(process_holder(self.pid))
            os.write(writer, gate.GO)
        finally:
            os.close(writer)
        await self.announce_running()
        return address

    @contextmanager
    def _behind_gate(self, reader: int) -> Iterator[None]:
        """Prefix the base's command, shell or not, with the gate for the time of a call."""
        before = (self.cmd, self.shell_cmd, self.popen_kwargs)
        gate_command = [sys.executable, "-I", "-S", str(gate.__file__)]
        self.popen_kwargs = {**self.popen_kwargs, "stdin": reader}
        if self.shell_cmd:
            self.shell_cmd = [*gate_command, *self.shell_cmd]
        else:
            self.cmd = [*gate_command, *self.cmd]
        try:
            yield
        finally:
            self.cmd, self.shell_cmd, self.popen_kwargs = before


class MIGLocalSpawner(PoolSpawnerMixin, GatedProcessSpawner):
    """Local processes with leases; ``c.JupyterHub.spawner_class = "mig-local"``."""

    homes_dir = Unicode(
        "homes", help="Folder with one home folder for each student; created if missing (0700)."
    ).tag(config=True)

    notebooks_dir = Unicode(
        "",
        help="""Folder whose notebooks are copied into `notebooks` of each home at each start.

        New notebooks are added; an edited one is never overwritten.  If it is empty, nothing is
        copied.
        """,
    ).tag(config=True)

    _is_stopping = False

    @default("cmd")
    def _default_cmd(self) -> list[str]:
        return [sys.executable, "-m", "jupyterhub.singleuser"]

    @default("args")
    def _default_args(self) -> list[str]:
        return ["--allow-root"] if os.geteuid() == 0 else []

    @property
    def home(self) -> Path:
        """Return this user's home folder."""
        return Path(self.homes_dir).absolute() / folder_name(self.home_name)

    async def prepare(self) -> None:
        """Make the home and copy the notebooks."""
        self._is_stopping = False
        await asyncio.to_thread(self._make_home)
        # The hub's own umask is stricter than what students expect of theirs.
        self.popen_kwargs = {**self.popen_kwargs, "cwd": str(self.home), "umask": 0o022}

    async def measure_home(self) -> home_size.HomeUse:
        """Measure the home folder."""
        return await asyncio.to_thread(home_size.measure_folder, self.home, self.home_gib)

    def make_runner(self, lease: LeaseView) -> SliceRunner:
        """Return a runner: a local process beside the student's server."""
        # What any program needs of this process's environment; its secrets are not among it.
        inherited = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        return ProcessRunner({**inherited, **self.runner_env(lease)})

    def make_preexec_fn(self, name: str) -> Callable[[], None] | None:
        """Change no user: every server runs as the hub does."""
        return None

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """Set user, home and shell; no system account is consulted."""
        return {**env, "USER": self.user.name, "HOME": str(self.home), "SHELL": "/bin/bash"}

    async def move_certs(self, paths: dict[str, str]) -> dict[str, str]:
        """Leave certificates where they are, since the server runs as the hub does."""
        return paths

    async def poll(self) -> Any:
        """Poll as LocalProcessSpawner does; after a hub restart, also compare the start time."""
        if self.proc is None and self.pid and self._holder and not living_pid(self._holder):
            self.pid = 0
        status = await super().poll()
        if isinstance(status, int) and status != 0 and not self._is_stopping:
            self._is_stopping = True
            self.show_on_next_spawn_page(process_end_message(status))
        return status

    async def stop(self, now: bool = False) -> None:
        """Stop as LocalProcessSpawner does; a requested end is not reported to the student.

        While waiting there is no process yet, and a signal to pid 0 would go to the hub itself.
        """
        self._is_stopping = True
        if self.pid:
            await super().stop(now)

    async def end_holder(self, holder: str) -> None:
        """Terminate, then kill the process, if it is the one that was attached."""
        for sign, patience_s in (
            (signal.SIGTERM, self.term_timeout),
            (signal.SIGKILL, self.kill_timeout),
        ):
            pid = living_pid(holder)
            if pid:
                os.kill(pid, sign)
            for _ in range(int(patience_s / _PAUSE_S)):
                if not living_pid(holder):
                    return
                await asyncio.sleep(_PAUSE_S)

    def _make_home(self) -> None:
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.notebooks_dir:
            notebooks_copy.copy_new(Path(self.notebooks_dir), self.home / "notebooks")


class ProcessRunner:
    """A `SliceRunner` in a local process.

    Args:
        env: its whole environment; its home is an empty folder of its own.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = dict(env)
        self._process: asyncio.subprocess.Process | None = None
        self._folder = ""

    @property
    def _started_process(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RunnerFailed("the runner was not created")
        return self._process

    async def create(self) -> str:
        """Start the process, which waits for its first line."""
        self._folder = tempfile.mkdtemp(prefix="miglab-run-")
        try:
            self._process = await asyncio.create_subprocess_exec(
                *_RUNNER,
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
        """Do nothing: the first line starts the program."""

    async def send(self, order: bytes) -> None:
        """Send a line to its input."""
        stdin = self._started_process.stdin
        assert stdin is not None
        try:
            stdin.write(order + b"\n")
            await stdin.drain()
        except OSError as error:
            raise RunnerFailed(str(error)) from error

    async def read(self) -> bytes:
        """Return the next line of its output; empty at the end."""
        stdout = self._started_process.stdout
        assert stdout is not None
        try:
            return (await stdout.readline()).rstrip(b"\n")
        except ValueError as error:  # asyncio's word for a line beyond the limit
            raise OutputTooLarge from error

    async def end(self) -> None:
        """Terminate the process with its children, then kill it."""
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await self._wait_or_kill(process)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _wait_or_kill(self, process: asyncio.subprocess.Process) -> None:
        drained = asyncio.create_task(_drain(process))
        try:
            await asyncio.wait_for(process.wait(), _RUNNER_END_S)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        finally:
            drained.cancel()


async def _drain(process: asyncio.subprocess.Process) -> None:
    """Discard output, so that a program that still writes can end."""
    assert process.stdout is not None
    while await process.stdout.read(RESULT_LIMIT):
        pass
