"""Workers out of the fork server: starting one, its streams, and how it ended.

The server is started with the first worker and again should it be gone.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from labkit.errors import ChildKilled

LENGTH = struct.Struct("!I")  # before a request; four file descriptors come with it
STATUS = struct.Struct("!i")  # a process id, and how a worker ended
LINE_LIMIT = 1 << 26
START_S = 600.0  # 20 runners that import torch on two cores took more than two minutes
SPIN_BRIEFLY = {"GOMP_SPINCOUNT": "10000"}
"""Threads that wait for each other spin for about 0.2 ms, then sleep.  As OpenMP has it they spin
for many times that on cores which others need: at load 9 on two cores a small training step took
124 ms so and 4 ms with this.  On 32 idle cores it made no difference."""


class ForkServer:
    """This process's fork server; one at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The server's process, while there is one."""
        return self._process.pid if self._process else None

    def fork(self, env: Mapping[str, str], streams: tuple[int, int, int, int]) -> int:
        """Start a worker with this environment and these file descriptors.

        Returns:
            Its process id, which is also its session's.

        Raises:
            ChildKilled: no server could be started, or it died twice.
        """
        with self._lock:
            for _ in range(2):  # a server that had nothing to do for long has ended
                with contextlib.suppress(OSError):
                    if found := self._ask(env, streams):
                        return found
                self._close()
        raise ChildKilled("The process that starts children ended; run the cell again.")

    def _ask(self, env: Mapping[str, str], streams: tuple[int, int, int, int]) -> int:
        requests = self._requests or self._start(env)
        body = json.dumps({"env": dict(env), "folder": str(Path.cwd())}).encode()
        socket.send_fds(requests, [LENGTH.pack(len(body))], list(streams))
        requests.sendall(body)
        answer = requests.recv(STATUS.size, socket.MSG_WAITALL)
        return int(STATUS.unpack(answer)[0]) if answer else 0

    def _start(self, env: Mapping[str, str]) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(START_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "labkit.run.fork_server", str(theirs.fileno())],
                env={**SPIN_BRIEFLY, **env, "CUDA_VISIBLE_DEVICES": ""},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # the kernel's stop button is not for it
            )
        self._requests = ours
        return ours

    def _close(self) -> None:
        """End the server; workers that are alive end with this process."""
        if self._requests is not None:
            self._requests.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._requests = self._process = None

    def close(self) -> None:
        """End it, when this process ends."""
        with self._lock:
            self._close()


SERVER = ForkServer()
atexit.register(SERVER.close)


class ForkedWorker:
    """A running worker; made by `start`.

    Attributes:
        pid: its process, session and process group.
        returncode: as `subprocess` has it, once it is known.
        stdout: its messages, a JSON object a line.
        stderr: all else that it prints.
    """

    def __init__(self) -> None:
        self.pid = 0
        self.returncode: int | None = None
        self.stdout, self.stderr, self._status = (
            asyncio.StreamReader(limit=LINE_LIMIT) for _ in range(3)
        )
        self._transports: list[Any] = []
        self._ending: asyncio.Task[int] | None = None

    @classmethod
    async def start(cls, env: Mapping[str, str]) -> ForkedWorker:
        """Fork one with this environment, in this process's folder."""
        worker = cls()
        with _pipes() as (theirs, ours):
            await worker._connect(ours)
            forking = asyncio.ensure_future(asyncio.to_thread(SERVER.fork, env, theirs))
            try:
                worker.pid = await asyncio.shield(forking)
            except asyncio.CancelledError:  # the thread still holds the pipes
                worker.pid = await forking
                worker.kill()
                worker.close()
                raise
        return worker

    async def _connect(self, ends: list[int]) -> None:
        """Hand our ends of the pipes to the loop: stdin first, then what is read."""
        loop = asyncio.get_running_loop()
        stdin, *read = (ends.pop(0) for _ in range(4))
        writing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(stdin, "wb", 0))
        self._transports.append(writing)
        for stream, end in zip((self.stdout, self.stderr, self._status), read, strict=True):
            protocol = functools.partial(asyncio.StreamReaderProtocol, stream)
            reading, _ = await loop.connect_read_pipe(protocol, os.fdopen(end, "rb", 0))
            self._transports.append(reading)
        self._ending = asyncio.create_task(self._end())

    async def _end(self) -> int:
        said = await self._status.read(STATUS.size)
        self.returncode = int(STATUS.unpack(said)[0]) if said else -signal.SIGKILL
        return self.returncode

    def send(self, line: bytes) -> None:
        """Write to its stdin, which stays open: when it closes, the worker ends."""
        self._transports[0].write(line)

    async def wait(self) -> int:
        """Wait until it has ended, and say how."""
        assert self._ending is not None, "a worker is made by `start`"
        return await asyncio.shield(self._ending)

    def kill(self) -> None:
        """End it and what it started."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Give the streams back; a worker that is alive then ends."""
        if self._ending is not None:
            self._ending.cancel()
        for transport in self._transports:
            transport.close()


@contextlib.contextmanager
def _pipes() -> Iterator[tuple[tuple[int, int, int, int], list[int]]]:
    """Four pipes: the worker's ends, closed afterwards, and ours, closed if nobody took them."""
    stdin, *read = (os.pipe() for _ in range(4))
    theirs = (stdin[0], *(one[1] for one in read))
    ours = [stdin[1], *(one[0] for one in read)]
    try:
        yield theirs, ours  # type: ignore[misc]
    finally:
        for end in (*theirs, *ours):
            os.close(end)
