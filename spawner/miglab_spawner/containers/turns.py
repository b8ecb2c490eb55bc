"""Starts of containers take turns: of many that share few cores, most are then ready earlier."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class StartTurns:
    """So many at once, first come first served.

    A turn ends with its work, or before if that takes long: one that hangs delays the next by
    `longest_s` and nobody by more.

    Args:
        at_once: how many turns there are.
        longest_s: seconds after which a turn ends though its work does not.
    """

    def __init__(self, at_once: int, longest_s: float) -> None:
        self._at_once, self._longest_s = at_once, longest_s
        self._free: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it for as long as the block lasts."""
        loop = asyncio.get_running_loop()
        if self._free is None or self._loop is not loop:  # it belongs to the loop it is used on
            self._free, self._loop = asyncio.Semaphore(self._at_once), loop
        free = self._free
        await free.acquire()
        held = [free]

        def end() -> None:
            if held:
                held.pop().release()

        early = loop.call_later(self._longest_s, end)
        try:
            yield
        finally:
            early.cancel()
            end()
