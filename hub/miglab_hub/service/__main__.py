"""``python -m miglab_hub.service --config lab.toml``: run the pool service in the foreground.

Exit status: 0 after SIGTERM or SIGINT; 2 with one line on standard error for whatever a person
must mend first (settings, a second service, a damaged ledger, a port in use, no GPUs).
"""

import asyncio
import logging
import os
import socket
import sys

from miglab_hub.service.assembly import ServiceParts, assemble
from miglab_hub.service.process import foreground, locked_sockets, serve_apps
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.gpu.errors import GpuError
from miglab_pool.http.connection_limits import stop_on_signals
from miglab_pool.ledger.file import LedgerError


def main(arguments: list[str] | None = None) -> int:
    """Run until told to stop; returns the exit status."""
    own = (LedgerError, GpuError)
    return foreground("miglab-pool", "Run the pool service.", run, *own, arguments=arguments)


def run(settings: Settings) -> None:
    """Run the service of these settings until told to stop."""
    with locked_sockets(settings) as sockets:
        at_rest = asyncio.run(_serve(assemble(settings), sockets))
    if not at_rest:
        logging.shutdown()
        os._exit(0)  # a driver call hangs in its thread: the interpreter would wait for it for ever


async def _serve(parts: ServiceParts, sockets: tuple[socket.socket, socket.socket]) -> bool:
    stop = asyncio.Event()
    stop_on_signals(stop)
    await parts.runner.start()
    stopping = asyncio.create_task(_close_waits(parts, stop))
    try:
        await serve_apps(parts.management, parts.student, sockets, stop)
    finally:
        stop.set()
        await stopping
        at_rest = await parts.runner.stop()
        await parts.hub.aclose()
        if at_rest:
            parts.close()
    return at_rest


async def _close_waits(parts: ServiceParts, stop: asyncio.Event) -> None:
    """End long-polls and event streams as soon as the service is told to stop."""
    await stop.wait()
    parts.runner.notifier.close()


if __name__ == "__main__":
    sys.exit(main())
