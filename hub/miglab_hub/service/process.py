"""What both services are as processes: a command line, a lock, two listeners, an exit status.

A service reaches the hub by its own secrets.
"""

import argparse
import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from fastapi import FastAPI
from starlette.requests import HTTPConnection

from miglab_api.plain_text import one_line
from miglab_api.scopes import SERVICE
from miglab_hub import lab_secrets
from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import Settings, load
from miglab_pool.http.access.auth import bearer_token
from miglab_pool.http.access.hub_tokens import HubAccess, HubTokens
from miglab_pool.http.connection_limits import (
    PortInUseError,
    bind,
    listener,
    management_limits,
    raise_descriptor_limit,
    serve,
    student_limits,
)
from miglab_pool.reclaim.policy import Rules
from miglab_pool.state.lock import AlreadyRunning, PoolLock

OFTEN = (
    "uvicorn.error",
    "tornado.application",
    "miglab_pool.http.access.hub_tokens",
    "miglab_pool.http.access.hub_address",
    "miglab_pool.applications.student_app",
)
EXPECTED = (StartError, AlreadyRunning, PortInUseError, OSError)
MANAGEMENT_KEY = "addresses.pool_bind or lab.port"
STUDENT_KEY = "addresses.student_bind or lab.port"
HUB_TIMEOUT_S = 30.0
PRIVATE = 0o077  # the umask: ledger, backups and logs are the lab's own, whoever starts it


class OneLineFormatter(logging.Formatter):
    """Writes each message as one printable line: a student's reason forges no line of the log.

    A traceback of the lab's own keeps its lines.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- logging's name
        """Return the line of a record."""
        return one_line(super().formatMessage(record))


class RepeatFilter(logging.Filter):
    """Passes each kind of warning that strangers can cause at most once a minute.

    It belongs on a handler: a logger is the process's, and keeps its filters for ever.

    Args:
        loggers: the names of those whose warnings strangers can cause.
        now: seconds that never jump.
    """

    def __init__(
        self, loggers: Collection[str] = OFTEN, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._loggers = frozenset(loggers)
        self._now = now
        self._next_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written."""
        is_strangers = record.name in self._loggers
        if not is_strangers or record.levelno > logging.ERROR or record.exc_info:
            return True
        is_due = self._next_at.get(str(record.msg), 0.0) <= self._now()
        if is_due:
            self._next_at = {text: at for text, at in self._next_at.items() if at > self._now()}
            self._next_at[str(record.msg)] = self._now() + 60.0
        return is_due


def foreground(
    program: str,
    description: str,
    run: Callable[[Settings], None],
    *expected: type[Exception],
    arguments: list[str] | None = None,
) -> int:
    """Run a service until it is told to stop; returns the exit status.

    Args:
        program: what its errors begin with.
        description: for ``--help``.
        run: runs it with the settings of the file that the command line names.
        expected: errors of its own that a person must mend, and that one line tells.
        arguments: the command line; None: this process's own.
    """
    errors: tuple[type[Exception], ...] = (*EXPECTED, *expected)
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--config", type=Path, default=None, help="lab.toml")
    options = parser.parse_args(arguments)
    handler = logging.StreamHandler()
    handler.addFilter(RepeatFilter())
    handler.setFormatter(OneLineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
    umask_before = os.umask(PRIVATE)
    try:
        run(load(options.config))
    except errors as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    finally:
        os.umask(umask_before)
    return 0


@contextmanager
def locked_sockets(settings: Settings) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Take the lab's lock and open the sockets for management and students.

    Raises:
        AlreadyRunning: another service of this lab runs.
        PortInUseError: something else listens there.
    """
    with (
        PoolLock(settings.pool_lock),
        bind(settings.addresses.pool_bind, settings.pool_port, MANAGEMENT_KEY) as management,
        bind(settings.student_bind, settings.student_port, STUDENT_KEY) as student,
    ):
        yield management, student


async def serve_apps(
    management: FastAPI,
    student: FastAPI,
    sockets: tuple[socket.socket, socket.socket],
    stop: asyncio.Event,
) -> None:
    """Serve both applications, each within its limits, until ``stop`` is set."""
    descriptors = raise_descriptor_limit()
    tokens: HubTokens = student.state.tokens

    def server_of_request(request: HTTPConnection) -> str | None:
        return tokens.known_name(bearer_token(request))

    listeners = (
        listener(management, management_limits(descriptors, management.state.sign_in.known_payer)),
        listener(student, student_limits(descriptors, server_of_request)),
    )
    await serve(list(zip(listeners, sockets, strict=True)), stop)


def access_rules(settings: Settings) -> Rules:
    """Return the access rules of [reclaim] and [lab]."""
    return Rules(
        limits=settings.reclaim,
        shows_holders=not settings.has_simulated_gpus,
        reads_slices=not settings.is_on_slurm,
        ends_come_anyway=settings.is_on_slurm,
        maintenance=settings.maintenance_windows,
    )


def read_private_file(path: Path) -> str:
    """Return a secret from a file that only its owner may read.

    Raises:
        OSError: it cannot be read, or others may read it.
    """
    if path.stat().st_mode & 0o077:
        raise PermissionError(
            f"{path} can be read by others: delete it (it is made anew), or chmod 600"
        )
    return lab_secrets.read(path)


def make_access(settings: Settings, cache_s: int = 30) -> HubAccess:
    """Return how the service reaches the hub, and as whom."""
    return HubAccess(
        api_url=settings.hub_api_url,
        hub_prefix=f"{settings.lab.base_url}hub/",
        prefix=settings.service_prefix,
        service=SERVICE,
        token=read_private_file(settings.service_token),
        cache_s=cache_s,
        hub_origin=settings.lab.subdomain_host,
        origin=settings.service_origin,
    )


def hub_client(access: HubAccess) -> httpx.AsyncClient:
    """Return a client of the hub's API, with the service's token."""
    return httpx.AsyncClient(
        base_url=access.api_url,
        headers={"Authorization": f"token {access.token}"},
        timeout=HUB_TIMEOUT_S,
        trust_env=False,
    )
