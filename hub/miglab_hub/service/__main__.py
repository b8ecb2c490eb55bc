"""``python -m miglab_hub.service --config lab.toml``: run the pool service in the foreground.

Exit status: 0 after SIGTERM or SIGINT; 2 with one line on standard error for whatever a person
must mend first (settings, a second service, a damaged ledger, a port in use, no GPUs).
"""

import argparse
import asyncio
import logging
import os
import socket
import sys
from pathlib import Path

from miglab_hub.errors import StartError
from miglab_hub.service.assembly import ServiceParts, assemble
from miglab_hub.settings.lab_toml import Settings, SettingsError, load
from miglab_pool.gpu.errors import GpuError
from miglab_pool.http.connection_limits import (
    management_limits,
    raise_descriptor_limit,
    students_limits,
)
from miglab_pool.http.listeners import PortInUseError, bind, listener, serve, stop_on_signals
from miglab_pool.ledger.file import LedgerError
from miglab_pool.state.lock import AlreadyRunning, PoolLock

EXPECTED = (
    SettingsError,
    StartError,
    AlreadyRunning,
    LedgerError,
    PortInUseError,
    GpuError,
    OSError,
)


def main(arguments: list[str] | None = None) -> int:
    """Run until told to stop; returns the exit status."""
    parser = argparse.ArgumentParser(prog="miglab-pool", description="Run the pool service.")
    parser.add_argument("--config", type=Path, default=None, help="lab.toml")
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        return run(load(options.config))
    except EXPECTED as error:
        print(f"miglab-pool: {error}", file=sys.stderr)
        return 2


def run(settings: Settings) -> int:
    """Run the service of these settings until told to stop; returns the exit status."""
    pool_bind, student_bind = settings.pool_bind, settings.student_bind
    with (
        PoolLock(settings.pool_lock),
        bind(pool_bind, settings.pool_port, "addresses.pool_bind or lab.port") as management,
        bind(student_bind, settings.student_port, "addresses.student_bind or lab.port") as student,
    ):
        at_rest = asyncio.run(_serve(assemble(settings), [management, student]))
    if not at_rest:
        logging.shutdown()
        os._exit(0)  # a driver call hangs in its thread: the interpreter would wait for it for ever
    return 0


async def _serve(parts: ServiceParts, sockets: list[socket.socket]) -> bool:
    stop = asyncio.Event()
    stop_on_signals(stop)
    descriptors = raise_descriptor_limit()
    servers = [
        listener(parts.management, management_limits(descriptors)),
        listener(parts.student, students_limits(descriptors)),
    ]
    await parts.runner.start()
    stopping = asyncio.create_task(_close_waits(parts, stop))
    try:
        await serve(list(zip(servers, sockets, strict=True)), stop)
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
