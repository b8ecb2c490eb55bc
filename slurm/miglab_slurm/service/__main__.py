"""``python -m miglab_slurm.service --config lab.toml``: run the service in the foreground.

Exit status: 0 after SIGTERM or SIGINT; 2 with one line on standard error for whatever a person
must mend first.  A Slurm that is silent is no reason to end.
"""

import asyncio
import socket
import sys

from miglab_hub.service.process import foreground, locked_sockets, serve_apps
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.http.listeners import stop_on_signals
from miglab_slurm.lab import on_slurm
from miglab_slurm.service.assembly import SlurmParts, assemble_on_slurm


def main(arguments: list[str] | None = None) -> int:
    """Run until told to stop; returns the exit status."""
    return foreground("miglab-slurm", "Run the service on Slurm.", run, arguments=arguments)


def run(settings: Settings) -> None:
    """Run the service of these settings until told to stop."""
    with locked_sockets(settings) as sockets:
        asyncio.run(_serve(assemble_on_slurm(on_slurm(settings)), sockets))


async def _serve(parts: SlurmParts, sockets: tuple[socket.socket, socket.socket]) -> None:
    stop = asyncio.Event()
    stop_on_signals(stop)
    parts.runner.start()
    try:
        await serve_apps(parts.management, parts.student, sockets, stop)
    finally:
        await parts.runner.stop()
        await parts.hub.aclose()


if __name__ == "__main__":
    sys.exit(main())
