"""The program of a runner: takes jobs from its input, a line each, and runs them one by one.

`python -m labkit.measuring.job_server` is started by the hub on slices that were borrowed for a
student's measurements (`labkit.run.borrowed` names the lines).  Nothing is done before the first
line: the hub sends it once the pool knows who holds the slices.  The end of the input is the end of
the runner, whatever runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from labkit.errors import LabError
from labkit.measuring import sharing
from labkit.measuring.place import assign_devices
from labkit.run.borrowed import RESULT_LIMIT
from labkit.run.child import Crew

Say = Callable[[str, Any], None]
END_S = 10.0  # for what runs to be ended
TOO_LARGE = "The result is larger than 16 MiB: return less, a sum or a sample of it."
TURNS_S = 0.5  # between two lines of samples: each passes through the hub, of a whole class at once


def main() -> None:
    """Serve jobs until the input ends."""
    asyncio.run(_serve(_take_stdout()))


async def _serve(say: Say) -> None:
    """Run each job that a line orders; the end of the input, or SIGTERM, ends the running one."""
    loop, orders = asyncio.get_running_loop(), asyncio.StreamReader(limit=RESULT_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    loop.add_signal_handler(signal.SIGTERM, orders.feed_eof)
    running: asyncio.Task[None] | None = None
    while order := await orders.readline():
        if running is not None:
            await running
        running = asyncio.create_task(_run(json.loads(order), say))
    if running is not None:
        running.cancel()
        await asyncio.wait({running}, timeout=END_S)


async def _run(order: Mapping[str, Any], say: Say) -> None:
    """Run one job to its end and report whatever goes wrong; the runner stays for the next job."""
    try:
        with Messages(say) as messages:
            async with _crew_for(order) as crew:
                async for rank, message in crew.messages():
                    messages.add(rank, message)
    except LabError as error:
        say("f", {"kind": type(error).__name__, "message": str(error), "details": error.details})
    except Exception as error:  # the outer frame: an order that cannot be read ends no runner
        sentence = f"The runner could not do this: {type(error).__name__}: {error}"
        say("f", {"kind": "LabError", "message": sentence, "details": ""})
    else:
        say("e", None)


@contextlib.asynccontextmanager
async def _crew_for(order: Mapping[str, Any]) -> AsyncIterator[Crew]:
    """The workers of an order: ranks, or copies that share what is borrowed."""
    job, timeout_s = order["job"], float(order["timeout_s"])
    if copies_order := order.get("copies"):
        copies = sharing.Copies(**{**copies_order, "way": sharing.Way(copies_order["way"])})
        async with sharing.crew_of(job, copies, timeout_s) as crew:
            yield crew
        return
    share_device = bool(job.get("share_device"))
    added, backend = await assign_devices(int(order["ranks"]), share_device=share_device)
    async with Crew({**job, "backend": backend}, added, timeout_s) as crew:
        yield crew


class Messages:
    """Writes what the ranks of a job report: samples in batches, everything else at once.

    Args:
        say: writes a line: its letter and its content.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._turns: dict[int, list[Any]] = {}
        self._flushed_s = -TURNS_S

    def __enter__(self) -> Messages:
        return self

    def __exit__(self, *_: object) -> None:
        """Write the samples that wait, however the job ended."""
        self.flush()

    def add(self, rank: int, message: Mapping[str, Any]) -> None:
        """Write a message; samples wait for others, for at most half a second after the last batch.

        Raises:
            LabError: it is too large.
        """
        value = message.get("value")
        if value is not None and len(json.dumps(value)) > RESULT_LIMIT:
            raise LabError(TOO_LARGE)
        if message["type"] != "turns":
            self.flush()
            self._say("m", [rank, message])
            return
        self._turns.setdefault(rank, []).extend(message["turns"])
        if time.monotonic() - self._flushed_s >= TURNS_S:
            self.flush()

    def flush(self) -> None:
        """Write the samples that wait."""
        for rank, turns in self._turns.items():
            self._say("m", [rank, {"type": "turns", "turns": turns}])
        self._turns, self._flushed_s = {}, time.monotonic()


def _take_stdout() -> Say:
    """Take stdout for our lines and send everything else that is printed to stderr."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def say(letter: str, content: Any) -> None:
        lines.write(letter + json.dumps(content) + "\n")
        lines.flush()

    return say


if __name__ == "__main__":
    main()
