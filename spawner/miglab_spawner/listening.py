"""Waits for a server that was just started to listen.

JupyterHub asks a new server for its first answer after pauses that grow and are random: one that
listens after 1.4 s is noticed a second later on average, and for one in twenty 2.8 s later.
"""

import asyncio
from typing import Any
from urllib.parse import urlsplit

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.1
ATTEMPT_S = 1.0
GROWTH = 1.3


def host_and_port(address: Any) -> tuple[str, int] | None:
    """Return where a server listens, from what a spawner's `start` returned; None if unknown."""
    if isinstance(address, str):
        url = urlsplit(address)
        return (url.hostname, url.port) if url.hostname and url.port else None
    if isinstance(address, tuple) and len(address) == 2 and address[1]:
        return str(address[0] or "127.0.0.1"), int(address[1])
    return None


async def wait_until_listening(host: str, port: int, within_s: float) -> bool:
    """Return whether something accepts connections there, once it does or the time is over."""
    pause_s = FIRST_PAUSE_S
    try:
        async with asyncio.timeout(within_s):
            while not await _accepts(host, port):
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * GROWTH, LONGEST_PAUSE_S)
    except TimeoutError:
        return False
    return True


async def _accepts(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(ATTEMPT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
