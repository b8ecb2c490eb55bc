"""Waiting for what other tasks or processes bring about."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


async def until(condition: Callable[[], Any], description: str, within_s: float = 180.0) -> Any:
    """Give way to the other tasks until a condition holds; what it returns may be awaitable.

    Args:
        condition: returns something true when it holds.
        description: what is waited for, for the message of a time-out.
        within_s: seconds after which the wait is given up.

    Returns:
        What the condition returned.

    Raises:
        TimeoutError: the condition did not hold in time.
    """
    try:
        async with asyncio.timeout(within_s):
            while True:
                result = condition()
                if inspect.isawaitable(result):
                    result = await result
                if result:
                    return result
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise TimeoutError(f"not within {within_s:g} s: {description}") from None
