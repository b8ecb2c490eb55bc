"""Lets any number of waiters sleep until something changed."""

import asyncio

LONGEST_POLL_S = 30.0  # who waits for news is answered by then, changed or not


class Notifier:
    """A version number that can be waited on, from one event loop.

    Attributes:
        version: the newest version that was announced.
        waiting: how many wait now.
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

    async def beyond(self, seen: int, timeout_s: float) -> int:
        """Wait until the version is another than ``seen``, for ``timeout_s`` seconds at most.

        Returns:
            The version now; equal to ``seen`` if the time passed first or the service stops.
        """
        if self.version == seen and not self.closed and timeout_s > 0:
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
