"""Two listeners in one process, which start together and end together."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from functools import partial

import uvicorn
from fastapi import FastAPI

from miglab_pool.http.connection_limits import ConnectionLimits, LimitedProtocol

GRACE_S = 5
KEEP_ALIVE_S = 75  # longer than any client's (httpx: 5 s): who closes first must be who asks


class PortInUseError(Exception):
    """Another program listens there; the message names the address and the key to change."""


class Listener(uvicorn.Server):
    """A server that leaves the process's signals to whoever runs several of them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def bind(host: str, port: int, key: str) -> socket.socket:
    """Take an address before anything else is opened.

    Raises:
        PortInUseError: it cannot be taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets that name their protocol; without it the body of each
    # answer waits 40 ms for the acknowledgement of its head (measured; CPython 3.11 to 3.14).
    taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
        taken.listen(1024)
    except OSError as error:
        taken.close()
        raise PortInUseError(
            f"{host}:{port} cannot be listened on ({error.strerror}): stop what listens there, "
            f"or change {key}"
        ) from error
    return taken


def listener(app: FastAPI, limits: ConnectionLimits | None = None) -> Listener:
    """A server for one application; the hub's proxy says which scheme the browser used.

    Args:
        app: the application.
        limits: of its connections; None for a limit of time alone.
    """
    limits = limits or ConnectionLimits()
    config = uvicorn.Config(
        app,
        http=partial(LimitedProtocol, limits),  # type: ignore[arg-type]
        backlog=limits.at_once,
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    return Listener(config)


async def serve(pairs: list[tuple[Listener, socket.socket]], stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set or one of the listeners ends."""
    running = [asyncio.create_task(one.serve(sockets=[taken])) for one, taken in pairs]
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({*running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    for one, _ in pairs:
        one.should_exit = True
    await asyncio.gather(*running)


def stop_on_signals(stop: asyncio.Event) -> None:
    """SIGTERM and SIGINT end the service, without haste."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
