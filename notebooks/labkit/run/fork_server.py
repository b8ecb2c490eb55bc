"""The fork server: one process that has imported torch, and forks a worker for every job.

Importing torch takes seconds, a fork milliseconds. What only some jobs need is imported when there
is nothing to do, so that the first job need not wait for it. This process never starts CUDA (a CUDA
context does not survive a fork) and runs nothing of a student's; it ends with the notebook's
kernel, or when nothing has been asked for a while. What torch reads while it is imported
(PYTORCH_CUDA_ALLOC_CONF) is that of the kernel when the first job was sent.

`python -m labkit.run.fork_server FD` serves requests on a Unix socket: the length of a JSON object
`{"env", "folder"}` with four file descriptors (stdin, stdout, stderr, status), then the object. The
new worker answers with its process id; when it has ended, its status is written to the fourth.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
import warnings
from typing import Any

from labkit.run.forked import LENGTH, STATUS

IDLE_S = 600.0
PRELOADED = ("numpy", "torch", "torch.distributed", "labkit.run.worker")
LATER = ("torch._dynamo",)  # what optimizers import: as long again as torch, so it delays no job
SETTLE_S = 2.0  # nothing was asked and nothing measured for so long: what comes later is imported


def main() -> None:
    """Import, then serve until the notebook is gone or has asked nothing for a while."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    for name in PRELOADED:
        _import(name)
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    ForkLoop(requests).serve()


def _import(name: str) -> None:
    with contextlib.suppress(Exception):  # the worker imports it again, and says why it cannot
        importlib.import_module(name)


class ForkLoop:
    """Forks workers and reports how they ended."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._statuses: dict[int, int] = {}
        self._later = list(LATER)
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake)

    def serve(self) -> None:
        """Take requests and deaths as they come."""
        while True:
            watched: list[Any] = [self._requests, self._woken]
            may_import = bool(self._later) and not self._statuses
            ready, _, _ = select.select(watched, [], [], SETTLE_S if may_import else IDLE_S)
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._reap()
            if self._requests in ready and not self._take():
                return
            if not ready and may_import:
                _import(self._later.pop(0))
            elif not ready and not self._statuses:
                return

    def _take(self) -> bool:
        """One request; False when the notebook is gone."""
        head, given, _, _ = socket.recv_fds(self._requests, LENGTH.size, 4)
        if not head:
            return False
        job = json.loads(_exactly(self._requests, LENGTH.unpack(head)[0]))
        pid = os.fork()
        if pid == 0:
            self._become_worker(given, job)
        *streams, status = given
        for stream in streams:
            os.close(stream)
        self._statuses[pid] = status
        return True

    def _reap(self) -> None:
        for pid, status in list(self._statuses.items()):
            found, ended = os.waitpid(pid, os.WNOHANG)
            if found:
                with contextlib.suppress(BrokenPipeError):
                    os.write(status, STATUS.pack(os.waitstatus_to_exitcode(ended)))
                os.close(status)
                del self._statuses[pid]

    def _become_worker(self, given: list[int], job: dict[str, Any]) -> None:
        """In the new process: its own session, streams, folder and environment; never returns."""
        code = 1
        try:
            os.setsid()  # so that what the student's code starts is ended with it
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for place, stream in enumerate(given[:3]):
                os.dup2(stream, place)
            self._requests.sendall(STATUS.pack(os.getpid()))
            for held in (*given, self._woken, self._wake, *self._statuses.values()):
                os.close(held)
            self._requests.close()
            code = work(job)
        finally:
            os._exit(code)


def work(job: dict[str, Any]) -> int:
    """What a worker does that was started by `python -m labkit.run.worker`."""
    os.environ.clear()
    os.environ.update(job["env"])
    os.chdir(job["folder"])
    random.seed()
    from labkit.run import worker

    status = worker.main()
    sys.stderr.flush()
    return status


def _exactly(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = source.recv(count - len(found))
        if not part:
            raise EOFError("the notebook was gone in the middle of a request")
        found += part
    return found


if __name__ == "__main__":
    main()
