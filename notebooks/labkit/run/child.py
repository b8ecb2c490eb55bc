"""The workers of a job: started, heard, and ended when done, told, or too slow.

The same path for one process or several; each comes out of multiprocessing's fork server. A child
inherits this process's environment; only additions are passed. Nothing here imports torch: the
notebook's kernel holds no CUDA context.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any, TypeVar

from labkit import errors
from labkit.run import source, worker

T = TypeVar("T")
Message = dict[str, Any]
LAST_WORDS = 40
END_S = 5.0
PACKAGE_ROOT = str(Path(__file__).parents[2])
CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["numpy", "torch", "torch.distributed", "torch._dynamo", "labkit.run.worker"]
MESSAGE_LIMIT = 1 << 26
LAST_WORDS_S = 1.0
TRIES = 5  # to start a worker
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


class Crew:
    """The workers of one job and what they say, in the order it arrives.

    Args:
        job: what `labkit.run.worker` shall do; rank, rendezvous and time limit are filled in here.
        added: per rank, what its environment gets on top of this process's.
        timeout_s: after this the children are ended and `ChildTimeout` is raised.
    """

    def __init__(
        self, job: Mapping[str, Any], added: Sequence[Mapping[str, str]], timeout_s: float
    ) -> None:
        self._job, self._added, self._timeout_s = job, added, timeout_s
        self._queue: asyncio.Queue[tuple[int, Message | None]] = asyncio.Queue()
        self._workers: list[_ForkedWorker] = []
        self._stages = ["starting"] * len(added)
        self._last_lines: list[list[str]] = [[] for _ in added]
        self._folder = Path()

    async def __aenter__(self) -> Crew:
        self._folder = Path(tempfile.mkdtemp(prefix="labkit-"))  # 0700: the rendezvous is ours
        loop = asyncio.get_running_loop()
        starting = asyncio.ensure_future(asyncio.to_thread(self._start, loop))
        try:
            await asyncio.shield(starting)
        except BaseException:
            await asyncio.wait({starting})  # what a thread has begun must be there to be ended
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """On a thread, since the first worker may have to wait until torch is imported."""
        for rank, added in enumerate(self._added):
            env, hear = child_env(os.environ, added), partial(self._hear, loop, rank)
            self._workers.append(_ForkedWorker(env, self._job_for(rank), hear))
            self._workers[-1].start()

    def _hear(self, loop: asyncio.AbstractEventLoop, rank: int, message: Message | None) -> None:
        """From a worker's threads."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            loop.call_soon_threadsafe(self._take, rank, message)

    def _take(self, rank: int, message: Message | None) -> None:
        if message is not None and message["type"] == "print":
            self._last_lines[rank] = [*self._last_lines[rank], message["text"]][-LAST_WORDS:]
        self._queue.put_nowait((rank, message))

    def _job_for(self, rank: int) -> dict[str, Any]:
        return {
            **self._job,
            "rank": rank,
            "world": len(self._added),
            "rendezvous": str(self._folder / "rendezvous"),
            "timeout_s": self._timeout_s,
        }

    async def messages(self) -> AsyncIterator[tuple[int, Message]]:
        """What the ranks say, until all are done.

        Raises:
            LabError: a rank failed, died, or time was over; what came before was already handed
                out.
        """
        ends = time.monotonic() + self._timeout_s
        open_ranks = set(range(len(self._workers)))
        while open_ranks:
            try:
                rank, message = await asyncio.wait_for(
                    self._queue.get(), max(0.01, ends - time.monotonic())
                )
            except TimeoutError:
                raise self._timeout_error(open_ranks) from None
            if message is None:
                if rank in open_ranks:
                    raise self._killed_error(rank)
                continue  # it was done, and left before the others were
            if message["type"] == "error":
                raise self._reported_error(rank, message)
            if message["type"] == "stage":
                self._stages[rank] = message["stage"]
            if message["type"] == "done":
                open_ranks.discard(rank)
            yield rank, message

    def _timeout_error(self, ranks: set[int]) -> errors.ChildTimeout:
        stages = ", ".join(f"rank {rank}: {self._stages[rank]}" for rank in sorted(ranks))
        several = (
            " A rank that waits for another which never comes hangs like this: "
            "let every rank make the same collective calls in the same order."
        )
        hint = several if len(self._added) > 1 else ""
        return errors.ChildTimeout(
            f"Not finished after {self._timeout_s:g} s and ended ({stages}).{hint} "
            "Make the work smaller, or raise timeout_s.",
            details=self._printed_lines(),
        )

    def _killed_error(self, rank: int) -> errors.LabError:
        code = self._workers[rank].returncode or 0
        ending = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        guess = (
            " It was killed: most often the container's memory was full."
            if code == -signal.SIGKILL
            else ""
        )
        return errors.ChildKilled(
            f"The child process of rank {rank} ended without a word ({ending}) "
            f"while {self._stages[rank]}.{guess} "
            "The notebook itself is unharmed; run the cell again.",
            details=self._printed_lines(),
        )

    def _reported_error(self, rank: int, message: Message) -> errors.LabError:
        details = message.get("trace", "")
        if message.get("said"):
            return getattr(errors, message["kind"], errors.LabError)(
                message["message"], details=details
            )
        if source.is_out_of_memory(message["kind"], message["message"]):
            return errors.OutOfMemory(source.out_of_memory_sentence(message), details=details)
        several = f", rank {rank} of {len(self._added)}" if len(self._added) > 1 else ""
        sentence = source.error_sentence(message, f"in the child process{several}")
        return errors.StudentError(sentence, details=details)

    def _printed_lines(self) -> str:
        return "\n".join(
            f"[rank {rank}] {line}" for rank, lines in enumerate(self._last_lines) for line in lines
        )

    async def _end(self) -> None:
        """End every child and what it started, and remove the private folder."""
        ending = (asyncio.to_thread(worker.end, END_S) for worker in self._workers)
        await asyncio.gather(*ending)
        shutil.rmtree(self._folder, ignore_errors=True)


def child_env(environ: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with additions; ranks meet on loopback and can import labkit."""
    env = {**environ, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", **added}
    paths = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
    env["PYTHONPATH"] = os.pathsep.join(
        [*paths, *([] if PACKAGE_ROOT in paths else [PACKAGE_ROOT])]
    )
    return env


def run_blocking(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end from ordinary code, also where the notebook's own loop runs.

    An interrupt (the kernel's stop button) cancels it, so that its children are ended, and is then
    raised.
    """
    cancel: concurrent.futures.Future[Callable[[], Any]] = concurrent.futures.Future()

    async def run() -> T:
        task, loop = asyncio.ensure_future(make()), asyncio.get_running_loop()
        cancel.set_result(partial(loop.call_soon_threadsafe, task.cancel))
        return await task

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(asyncio.run, run())
        try:
            return future.result()
        except KeyboardInterrupt:
            cancel.result()()
            with contextlib.suppress(concurrent.futures.CancelledError, asyncio.CancelledError):
                return future.result()
            raise


class _ForkedWorker:
    """A process that does one job, with what it says and prints.

    The server that it is forked from has imported torch, which takes seconds; a fork takes
    milliseconds. It never starts CUDA (a CUDA context does not survive a fork) and runs nothing of
    a student's. It ends with this process, or when nothing has been asked for a while, and is
    started again with the next worker.

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
        for tries_left in reversed(range(TRIES)):
            try:
                return self._process.start()
            except (OSError, EOFError) as error:  # a server that dies is soon seen to be dead
                if not tries_left:
                    raise errors.ChildKilled(
                        "The process that starts children ended; run the cell again."
                    ) from error
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
