"""Waits for a server that was just started to listen, and saves where it will before.

JupyterHub asks a new server for its first answer after pauses that grow and are random: one that
listens after 1.4 s is noticed a second later on average, and for one in twenty 2.8 s later.
"""

import asyncio
from typing import Any

from jupyterhub.spawner import Spawner

PAUSE_S = 0.05
ATTEMPT_S = 1.0


def host_and_port(address: Any) -> tuple[str, int] | None:
    """Return where a server listens, from what a spawner's `start` returned; None if unknown.

    JupyterHub's own spawners and DockerSpawner return host and port.
    """
    if isinstance(address, tuple) and len(address) == 2 and address[1]:
        return str(address[0] or "127.0.0.1"), int(address[1])
    return None


def save_place(spawner: Spawner, host: str, port: int) -> None:
    """Save now what JupyterHub saves after ``start()``: a hub that dies finds the server."""
    if spawner.orm_spawner is not None and spawner.server is not None:
        spawner.server.ip, spawner.server.port = host, port
        spawner.orm_spawner.state = spawner.get_state()
        spawner.user.db.commit()


async def wait_until_listening(host: str, port: int, within_s: float) -> bool:
    """Return whether something accepts connections there, once it does or the time is over."""
    now = asyncio.get_running_loop().time
    ends_at = now() + within_s
    while True:
        if await is_listening(host, port, ATTEMPT_S):
            return True
        if now() >= ends_at:
            return False
        await asyncio.sleep(PAUSE_S)


async def is_listening(host: str, port: int, within_s: float) -> bool:
    """Return whether something accepts a connection there, within so long."""
    try:
        async with asyncio.timeout(within_s):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, ValueError, TimeoutError):  # ValueError: no such host can be
        return False
    writer.close()
    return True
