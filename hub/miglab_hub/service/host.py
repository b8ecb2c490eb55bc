"""Runs the synchronous pool inside an asyncio process.

Decisions (ledger only, fast) run one at a time on one thread; everything that may call NVML runs on
another single thread.  Snapshots are answered from memory.  Nothing here decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from miglab_spawner.messages import PoolSnapshot

from .metrics import Metrics
from .waker import Waker

if TYPE_CHECKING:
    from miglab_spawner.pool.pool import Act, Pool

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Times:
    """How often the pool looks after itself, seconds.

    Attributes:
        turn_s: between two turns when nothing else causes one.
        reconcile_s: between two comparisons of ledger, GPUs and holders.
        sample_s: between two readings of the slices' memory and processes.
        stop_s: how long the service, when it ends, waits for a GPU call under way.
    """

    turn_s: float = 1.0
    reconcile_s: float = 15.0
    sample_s: float = 5.0
    stop_s: float = 10.0


class PoolHost:
    """The one way to the pool for everything in this process.

    Attributes:
        waker: wakes whoever waits for a change; its version is the pool's.
        metrics: what is counted on the way.
    """

    def __init__(
        self,
        pool: Pool,
        metrics: Metrics,
        times: Times | None = None,
        after_turn: Callable[[PoolHost], Awaitable[None]] | None = None,
    ) -> None:
        self.waker = Waker()
        self.metrics = metrics
        self._pool = pool
        self._times = times or Times()
        self._after_turn = after_turn
        self._decisions = ThreadPoolExecutor(1, "miglab-decide")
        self._gpu = ThreadPoolExecutor(1, "miglab-gpu")
        self._snapshot: tuple[int, PoolSnapshot] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def decide(self, decision: Callable[[Pool], T]) -> T:
        """Run a decision of the pool, alone, and wake whoever waits for what it changed.

        Raises:
            Refused: what the pool refuses.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._decisions, decision, self._pool)
        finally:
            self.waker.wake(self._pool.version)

    async def snapshot(self) -> PoolSnapshot:
        """The pool now, from memory unless it changed since."""
        kept = self._snapshot
        if kept is not None and kept[0] == self._pool.version:
            return kept[1]
        return await self.decide(self._take_snapshot)

    def _take_snapshot(self, pool: Pool) -> PoolSnapshot:
        version = pool.version
        if self._snapshot is None or self._snapshot[0] != version:
            self._snapshot = (version, pool.snapshot())
        return self._snapshot[1]

    async def act(self) -> bool:
        """Do the next act on the GPUs, if there is one.

        Returns:
            Whether there was one.
        """
        act = await self.decide(lambda pool: pool.next_act())
        if act is None:
            return False
        started = perf_counter()
        await self.on_gpu_thread(lambda pool: _perform(pool, act))
        self.metrics.act_s.labels(act.kind).observe(perf_counter() - started)
        return True

    async def on_gpu_thread(self, work: Callable[[Pool], T]) -> T:
        """Run what may call NVML or wait for Docker on its own thread, one piece at a time.

        The pool's turns, on the other thread, see for themselves how long a call takes, and mark
        the GPU of a stuck one unknown.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._gpu, work, self._pool)
        finally:
            self.waker.wake(self._pool.version)

    async def start(self) -> None:
        """Compare ledger, GPUs and holders once, then start the timers."""
        await self.on_gpu_thread(lambda pool: pool.reconcile())
        await self.decide(lambda pool: pool.turn())
        for loop in (self._turn_loop, self._act_loop, self._reconcile_loop, self._sample_loop):
            self._tasks.append(asyncio.create_task(loop(), name=loop.__name__))

    async def stop(self) -> bool:
        """End the timers and every wait.

        Returns:
            Whether both threads are at rest; False if a call is stuck and was left behind.
        """
        self.waker.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        last = asyncio.get_running_loop().run_in_executor(self._gpu, lambda: None)
        done, _ = await asyncio.wait({last}, timeout=self._times.stop_s)
        self._gpu.shutdown(wait=False, cancel_futures=True)
        self._decisions.shutdown(wait=False, cancel_futures=True)
        return bool(done)

    async def _turn_loop(self) -> None:
        while not self.waker.closed:
            seen = await self._guard("turn", self._turn)
            await self.waker.beyond(seen or self.waker.version, self._times.turn_s)

    async def _turn(self) -> int:
        """One turn; returns the version it left, so that nothing after it is overlooked."""
        version = await self.decide(_turn)
        if self._after_turn is not None:
            await self._after_turn(self)
        return version

    async def _act_loop(self) -> None:
        while not self.waker.closed:
            seen = self.waker.version
            if not await self._guard("act", self.act):
                await self.waker.beyond(seen, self._times.turn_s)

    async def _reconcile_loop(self) -> None:
        await self._every(self._times.reconcile_s, "reconcile", lambda pool: pool.reconcile())

    async def _sample_loop(self) -> None:
        await self._every(self._times.sample_s, "sample", lambda pool: pool.sample())

    async def _every(self, period_s: float, what: str, work: Callable[[Pool], object]) -> None:
        while not self.waker.closed:
            await asyncio.sleep(period_s)
            await self._guard(what, lambda: self.on_gpu_thread(work))

    async def _guard(self, what: str, step: Callable[[], Awaitable[T]]) -> T | None:
        """The outer frame of every loop: one failed round is logged, the next is tried."""
        try:
            return await step()
        except Exception:
            log.exception("%s failed; tried again", what)
            self.metrics.failed_rounds.labels(what).inc()
            await asyncio.sleep(self._times.turn_s)
            return None


def _turn(pool: Pool) -> int:
    pool.turn()
    return pool.version


def _perform(pool: Pool, act: Act) -> None:
    pool.perform(act)
