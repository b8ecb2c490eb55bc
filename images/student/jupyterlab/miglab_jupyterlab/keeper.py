"""The loop of the server extension: look, tell the pool, keep its answer, tell the open tabs.

Everything here runs on the server's event loop and only waits; the one thing that takes time, the
process table, is read in a thread.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from miglab_jupyterlab.pool import Answer, Pool, PoolRefused, PoolSilent
from miglab_jupyterlab.readings import process_cpu_s, read
from miglab_jupyterlab.signals import Ages, signals
from miglab_jupyterlab.state import Known, pause_s, shown
from miglab_jupyterlab.tabs import OpenTabs

NO_LEASE = 404

Listener = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Pace:
    """How often the pool is asked, seconds: usually, while warned, and at the longest."""

    usual_s: float = 15.0
    warned_s: float = 5.0
    longest_s: float = 60.0


class Keeper:
    """What this server knows about its lease.

    Args:
        pool: the student listener; None: there is none, and nothing is ever sent.
        shape: what was leased, by the spawner's word; ``cpu`` for no slice.
        settings: the web application's settings, where the managers are.
        pace: how often to ask.
        clock: monotonic seconds.
        log: where it is said, once each time, that the pool is silent or answers again.
    """

    def __init__(
        self,
        pool: Pool | None,
        shape: str,
        settings: Mapping[str, Any],
        pace: Pace,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tabs = OpenTabs()
        self._pool, self._pace, self._clock, self._log = pool, pace, clock, log
        self._settings = settings
        self._known = Known(shape=shape)
        self._ages = Ages()
        self._listeners: set[Listener] = set()
        self._task: asyncio.Task[None] | None = None

    # -- for the handlers ---------------------------------------------------------------------

    @property
    def is_on(self) -> bool:
        """Whether there is a pool to ask and a slice to ask about."""
        return self._pool is not None and self._known.shape != "cpu"

    def shown(self) -> dict[str, Any]:
        """How the lease stands, for a front end."""
        return shown(self._known, self._clock())

    def told(self, tab: object, said: Mapping[str, Any]) -> None:
        """A tab reported."""
        self.tabs.told(tab, said, self._clock())

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with `shown` now and after each round."""
        self._listeners.add(listener)
        listener(self.shown())

    def unlisten(self, listener: Listener) -> None:
        """No more calls."""
        self._listeners.discard(listener)

    async def act(self, what: str, by_s: float = 0.0) -> dict[str, Any]:
        """Extend, stay or release, for whoever pressed the button; all tabs are told.

        Raises:
            PoolRefused: the pool said no, and why.
            PoolSilent: it did not answer.
        """
        if self._pool is None:
            raise PoolRefused(NO_LEASE, "unknown-lease", "This server holds no GPU slice.")
        pool = self._pool
        acts: dict[str, Callable[[], Awaitable[Answer]]] = {
            "extend": lambda: pool.extend(by_s),
            "stay": pool.stay,
            "release": pool.release,
        }
        self._hear(await acts[what]())
        self._tell()
        return self.shown()

    # -- the loop -----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; nothing happens where there is no pool or no slice."""
        if self.is_on and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End the loop."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._pool is not None:
            self._pool.close()

    async def _run(self) -> None:
        pace = self._pace
        while True:
            try:
                await self.round()
                self._tell()
            except Exception:  # a loop's outer frame: the next round may go well
                self._log.exception("miglab: a look at this server failed")
            await asyncio.sleep(pause_s(self._known, pace.usual_s, pace.warned_s, pace.longest_s))

    async def round(self) -> None:
        """Look, tell the pool, and keep what it answers."""
        assert self._pool is not None
        cpu_s = await asyncio.to_thread(process_cpu_s)
        now = self._clock()
        reading = read(self._settings, cpu_s)
        body = signals(reading, self.tabs.summary(now), self._ages, now)
        try:
            self._hear(await self._pool.signals(body))
        except PoolSilent as silence:
            self._no_news("silent", str(silence))
        except PoolRefused as refusal:
            if refusal.status == NO_LEASE:
                self._known = self._known.has_none(refusal.message)
            else:
                self._no_news("refused", refusal.message)

    def _hear(self, answer: Answer) -> None:
        if self._known.problem:
            self._log.info("miglab: the pool answers again")
        self._known = self._known.heard(answer.lease, answer.pool_at, self._clock())

    def _no_news(self, problem: str, why: str) -> None:
        if self._known.problem != problem:
            self._log.warning("miglab: the pool is %s: %s", problem, why)
        self._known = self._known.no_news(problem)

    def _tell(self) -> None:
        now = self.shown()
        for listener in tuple(self._listeners):
            listener(now)
