"""``python -m miglab_hub.slurm_service --config lab.toml``: run the service in the foreground.

Exit status: 0 after SIGTERM or SIGINT; 2 with one line on standard error for whatever a person
must mend first.  A Slurm that is silent is no reason to end.
"""

import argparse
import asyncio
import logging
import socket
import sys
from pathlib import Path

from miglab_hub.settings.lab_toml import Settings, SettingsError, load
from miglab_hub.slurm_service.assembly import SlurmParts, assemble_on_slurm
from miglab_pool.http.connection_limits import (
    management_limits,
    raise_descriptor_limit,
    students_limits,
)
from miglab_pool.http.listeners import PortInUseError, bind, listener, serve, stop_on_signals
from miglab_pool.state.lock import AlreadyRunning, PoolLock

EXPECTED = (SettingsError, AlreadyRunning, PortInUseError, OSError)


def main(arguments: list[str] | None = None) -> int:
    """Run until told to stop; returns the exit status."""
    parser = argparse.ArgumentParser(prog="miglab-slurm", description="Run the service on Slurm.")
    parser.add_argument("--config", type=Path, default=None, help="lab.toml")
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        run(load(options.config))
    except EXPECTED as error:
        print(f"miglab-slurm: {error}", file=sys.stderr)
        return 2
    return 0


def run(settings: Settings) -> None:
    """Run the service of these settings until told to stop."""
    bound, student_bound = settings.pool_bind, settings.student_bind
    with (
        PoolLock(settings.pool_lock),
        bind(bound, settings.pool_port, "addresses.pool_bind or lab.port") as management,
        bind(student_bound, settings.student_port, "addresses.student_bind or lab.port") as student,
    ):
        asyncio.run(_serve(assemble_on_slurm(settings), [management, student]))


async def _serve(parts: SlurmParts, sockets: list[socket.socket]) -> None:
    stop = asyncio.Event()
    stop_on_signals(stop)
    descriptors = raise_descriptor_limit()
    servers = [
        listener(parts.management, management_limits(descriptors)),
        listener(parts.student, students_limits(descriptors)),
    ]
    parts.runner.start()
    try:
        await serve(list(zip(servers, sockets, strict=True)), stop)
    finally:
        await parts.runner.stop()
        await parts.hub.aclose()


if __name__ == "__main__":
    sys.exit(main())
