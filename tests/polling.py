"""Waiting for what other tasks or processes bring about."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


async def until(true: Callable[[], Any], what: str, within_s: float = 180.0) -> Any:
    """Give way to the other tasks until something is true, or will be once it is awaited.

    Returns:
        What was true.

    Raises:
        TimeoutError: it is not true in time; says `what` was waited for.
    """
    try:
        async with asyncio.timeout(within_s):
            while True:
                found = true()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise TimeoutError(f"not within {within_s:g} s: {what}") from None
