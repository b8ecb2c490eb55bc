"""``python -m miglab_slurm.service --config lab.toml``: run the service in the foreground.

Exit status: 0 after SIGTERM or SIGINT; 2 with one line on standard error for whatever a person
must mend first.  A Slurm that is silent is no reason to end.
"""

import asyncio
import socket
import sys
import time

from miglab_hub import lab_secrets
from miglab_hub.service.process import (
    access_rules,
    foreground,
    hub_client,
    locked_sockets,
    make_access,
    read_private_file,
    serve_apps,
)
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.applications.student_app import student_app
from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.access.hub_address import HubAddress
from miglab_pool.http.access.hub_tokens import SERVER_TOKEN, HubTokens
from miglab_pool.http.connection_limits import stop_on_signals
from miglab_pool.reclaim.activity import SignalBoard
from miglab_pool.reclaim.round import Reclaimer
from miglab_pool.reclaim.server_stopper import ServerStopper
from miglab_slurm.lab import SlurmSettings, on_slurm
from miglab_slurm.reader import SlurmReader
from miglab_slurm.service.page import management_app
from miglab_slurm.service.runner import SlurmRunner
from miglab_slurm.submissions import Submissions

STUDENT_CACHE_S = 10


def main(arguments: list[str] | None = None) -> int:
    """Run until told to stop; returns the exit status."""
    return foreground("miglab-slurm", "Run the service on Slurm.", run, arguments=arguments)


def run(settings: Settings) -> None:
    """Run the service of these settings until told to stop."""
    with locked_sockets(settings) as sockets:
        asyncio.run(_serve(on_slurm(settings), sockets))


async def _serve(settings: SlurmSettings, sockets: tuple[socket.socket, socket.socket]) -> None:
    """One reader, one reclaimer, two applications."""
    lab_secrets.make_all(settings)
    access = make_access(settings)
    hub = hub_client(access)
    board = SignalBoard(settings.reclaim.cpu_busy_pct)
    submissions = Submissions(settings.slurm_jobs, settings.lab_id)
    runner = SlurmRunner(
        settings,
        SlurmReader(submissions, settings.slurm_site, sweeps=False),
        Reclaimer(access_rules(settings), board),
        ServerStopper(hub, time.time),
    )
    sign_in = SignIn(access, read_private_file(settings.pool_secret), settings.role_book())
    server_tokens = HubTokens(make_access(settings, STUDENT_CACHE_S), SERVER_TOKEN)
    student = student_app(
        runner,
        server_tokens,
        board,
        courses=settings.courses,
        default_course=settings.servers.default_course,
    )
    management = management_app(settings, runner, sign_in)
    stop = asyncio.Event()
    stop_on_signals(stop)
    address = HubAddress(hub, access, (sign_in.move, server_tokens.move))
    rounds = asyncio.gather(runner.run(), address.follow())
    try:
        await serve_apps(management, student, sockets, stop)
    finally:
        rounds.cancel()
        await asyncio.gather(rounds, return_exceptions=True)
        await runner.reader.close()
        await hub.aclose()


if __name__ == "__main__":
    sys.exit(main())
