"""Waiting for what other tasks or processes bring about."""

import asyncio
from collections.abc import Callable


async def until(true: Callable[[], object], what: str, within_s: float = 180.0) -> None:
    """Give way to the other tasks until something is true.

    Raises:
        TimeoutError: it is not true in time; says `what` was waited for.
    """
    try:
        async with asyncio.timeout(within_s):
            while not true():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise TimeoutError(f"not within {within_s:g} s: {what}") from None
