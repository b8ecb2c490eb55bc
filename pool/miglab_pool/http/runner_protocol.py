"""What a route may ask of the runner, which runs decisions and queries on its own threads.

A route never holds the pool itself.  It hands the runner a function of the pool, and names, by a
protocol of its own room, the part of the pool that the function uses: `RunnerOf[ReservationsPool]`.
The applications provide the runner.  So no route imports what is put together from all subjects.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from miglab_api.gpus import PoolSnapshot
from miglab_api.tickets import TicketView

T = TypeVar("T")
PoolPart = TypeVar("PoolPart", covariant=True)
LONGEST_POLL_S = 30.0  # a request that waits for a change is answered by then


class Notifier:
    """A version number that can be waited on, from one event loop.

    Attributes:
        version: the newest version that was announced.
        waiting: how many tasks wait now.
        closed: True once the service stops; every wait then ends at once.
    """

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.waiting = 0
        self.closed = False
        self._changed = asyncio.Event()

    def wake(self, version: int) -> None:
        """Announce a version; waiters wake only if it is another one."""
        if version != self.version:
            self.version = version
            self._ring()

    def close(self) -> None:
        """End every wait, now and later."""
        self.closed = True
        self._ring()

    async def beyond(self, seen_version: int, timeout_s: float) -> int:
        """Wait until the version is not ``seen_version``, for ``timeout_s`` seconds at most.

        Returns:
            The version now; still ``seen_version`` if the time passed or the service stops.
        """
        if self.version == seen_version and not self.closed and timeout_s > 0:
            await self._rest(timeout_s)
        return self.version

    async def _rest(self, timeout_s: float) -> None:
        self.waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            self.waiting -= 1

    def _ring(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()


class Counters(Protocol):
    """The service's counters of what happens in requests."""

    def count_wait(self, shape: str, wait_s: float) -> None:
        """Count a wait that ended with a lease, seconds."""

    def reclaimed(self, kind: str) -> None:
        """Count a lease that was reclaimed; ``kind`` is a `WarningKind`."""

    def count_refusal(self, reason: str) -> None:
        """Count a refusal."""


class RunnerOf(Protocol[PoolPart]):
    """Runs what routes do with a part of the pool."""

    @property
    def notifier(self) -> Notifier:
        """Wakes whoever waits for a change of the pool."""

    @property
    def metrics(self) -> Counters:
        """The service's counters."""

    async def decide(self, decision: Callable[[PoolPart], T]) -> T:
        """Run a decision, with no other at the same time, and announce its change."""

    async def query_view(self, question: Callable[[PoolPart], T]) -> T:
        """Answer a query from the pool's view alone; no decision waits for it."""

    async def query_ledger(self, question: Callable[[PoolPart], T]) -> T:
        """Answer a query from the ledger's file alone; it may take long."""

    async def name_of(self, user_id: str, name: str) -> str:
        """Return the pool's name for a user whom the hub called ``name``."""

    async def snapshot(self) -> PoolSnapshot:
        """Return the pool's snapshot, made once for each version for all requests."""

    async def waiting(self) -> Mapping[int, TicketView]:
        """Return the waiting tickets of the snapshot, by number."""
