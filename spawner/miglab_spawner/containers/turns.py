"""Starts of containers take turns: where many share few cores, most are then ready earlier."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class StartTurns:
    """At most `at_once` turns at a time, first come, first served.

    A turn ends with its work, or before if that takes long; and who has waited long begins without
    one.  However many hang, nobody is delayed by more than `longest_wait_s`.

    Args:
        at_once: how many turns there are.
        longest_s: seconds after which a turn ends though its work does not.
        longest_wait_s: seconds after which nobody waits any longer.
    """

    def __init__(self, at_once: int, longest_s: float, longest_wait_s: float) -> None:
        self._at_once, self._longest_s, self._longest_wait_s = at_once, longest_s, longest_wait_s
        self._free: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it for as long as the block lasts."""
        loop = asyncio.get_running_loop()
        if self._free is None or self._loop is not loop:  # it belongs to the loop it is used on
            self._free, self._loop = asyncio.Semaphore(self._at_once), loop
        free = self._free
        acquired: list[asyncio.Semaphore] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(self._longest_wait_s):
                await free.acquire()
                acquired.append(free)

        def end() -> None:
            if acquired:
                acquired.pop().release()

        early = loop.call_later(self._longest_s, end)
        try:
            yield
        finally:
            early.cancel()
            end()
