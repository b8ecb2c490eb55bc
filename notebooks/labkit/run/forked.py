"""Workers out of multiprocessing's fork server: what they say and print, and how they ended.

The server has imported torch, which takes seconds; a fork takes milliseconds.  It never starts CUDA
(a CUDA context does not survive a fork) and runs nothing of a student's.  It ends with this
process, or when nothing has been asked for a while, and is started again with the next worker.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any

from labkit.errors import ChildKilled
from labkit.run import worker

Message = dict[str, Any]
CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["numpy", "torch", "torch.distributed", "torch._dynamo", "labkit.run.worker"]
MESSAGE_LIMIT = 1 << 26
LAST_WORDS_S = 1.0
TRIES = 5
NO_SERVER = "The process that starts children ended; run the cell again."
IDLE_S = 600.0
SPIN_BRIEFLY = "10000"
"""Threads that wait for each other spin for about 0.2 ms, then sleep.  As OpenMP has it they spin
for many times that on cores which others need: at load 9 on two cores a small training step took
124 ms so and 4 ms with this.  On 32 idle cores it made no difference."""
TOO_LONG = {
    "type": "error",
    "kind": "LabError",
    "message": "The result is too large to be sent home: return less, a sum or a sample of it.",
    "said": True,
}


class ForkedWorker:
    """A process that does one job.

    Args:
        env: its environment.
        job: what it does.
        hear: is told, from threads, each message, each line printed as `{"type": "print"}`, and
            None at the end.
    """

    def __init__(
        self, env: Mapping[str, str], job: Mapping[str, Any], hear: Callable[[Message | None], None]
    ) -> None:
        self._hear = hear
        self._messages, theirs = CONTEXT.Pipe()
        self._prints, printed = CONTEXT.Pipe(duplex=False)
        self._theirs = (theirs, printed)
        self._process = CONTEXT.Process(
            target=worker.main, args=(theirs, printed, dict(env), str(Path.cwd()), job), daemon=True
        )

    def start(self) -> None:
        """Start it; takes as long as importing torch where there is no server yet.

        Raises:
            ChildKilled: it could not be started.
        """
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_BRIEFLY)  # read by the server, with torch
        CONTEXT.set_forkserver_preload(PRELOADED)
        vars(sys.modules["__main__"]).setdefault("__spec__", None)  # a notebook may have none
        with _IDLE.lock:
            self._fork()
        for end in self._theirs:
            end.close()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _fork(self) -> None:
        for left in reversed(range(TRIES)):
            try:
                return self._process.start()
            except (OSError, EOFError) as error:  # a server that dies is soon seen to be dead
                if not left:
                    raise ChildKilled(NO_SERVER) from error
                time.sleep(0.1)

    def _read(self) -> None:
        """On a thread: its messages, until it has ended."""
        while self._messages in connection.wait([self._messages, self._process.sentinel]):
            try:
                self._hear(json.loads(self._messages.recv_bytes(MESSAGE_LIMIT)))
            except EOFError:
                break
            except OSError:  # a longer one
                self._hear(TOO_LONG)
                break
        connection.wait([self._process.sentinel])
        with _IDLE.lock:  # how it ended can be read once
            self._process.join()
        self._listener.join(LAST_WORDS_S)
        self._hear(None)

    def _listen(self) -> None:
        """On a thread: what it prints."""
        with os.fdopen(os.dup(self._prints.fileno()), errors="replace") as lines:
            for line in lines:
                self._hear({"type": "print", "text": line.rstrip()})

    @property
    def returncode(self) -> int | None:
        """As `subprocess` has it, once it has ended."""
        return self._process.exitcode

    def end(self, within_s: float) -> None:
        """End it and what it started; it may have been started or not."""
        if self._process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()  # it may not have a group of its own yet
            self._reader.join(within_s)
        for end in (self._messages, self._prints, *self._theirs):
            end.close()
        _IDLE.begin()


class _IdleServer:
    """Ends the fork server when nothing has been asked for a while: torch holds 300 MiB there."""

    def __init__(self) -> None:
        self.lock, self._timer = threading.Lock(), threading.Timer(IDLE_S, self._end)

    def begin(self) -> None:
        """Count anew from now."""
        self._timer.cancel()
        self._timer = threading.Timer(IDLE_S, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        with self.lock:
            if not multiprocessing.active_children():
                forkserver._forkserver._stop()  # type: ignore[attr-defined]


_IDLE = _IdleServer()
