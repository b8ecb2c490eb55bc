"""What both services are as processes: a command line, a lock, two listeners, an exit status."""

import argparse
import asyncio
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import HTTPConnection

from miglab_hub.settings.lab_toml import Settings, SettingsError, load
from miglab_pool.http.access.auth import bearer
from miglab_pool.http.access.hub_tokens import HubTokens
from miglab_pool.http.connection_limits import (
    management_limits,
    raise_descriptor_limit,
    students_limits,
)
from miglab_pool.http.listeners import PortInUseError, bind, listener, serve
from miglab_pool.state.lock import AlreadyRunning, PoolLock

OFTEN = ("uvicorn.error", "tornado.application", "miglab_pool.http.access.hub_tokens")
EXPECTED = (SettingsError, AlreadyRunning, PortInUseError, OSError)
MANAGEMENT_KEY = "addresses.pool_bind or lab.port"
STUDENT_KEY = "addresses.student_bind or lab.port"


class OnceAMinute(logging.Filter):
    """Passes a warning that strangers can cause once a minute, by its words before their values."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._next_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is written."""
        if record.levelno > logging.ERROR or record.exc_info:
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
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    for name in OFTEN:
        logging.getLogger(name).addFilter(OnceAMinute())
    try:
        run(load(options.config))
    except errors as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    return 0


@contextmanager
def locked_sockets(settings: Settings) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The lab's lock, and the sockets for management and for students.

    Raises:
        AlreadyRunning: another service of this lab runs.
        PortInUseError: something else listens there.
    """
    with (
        PoolLock(settings.pool_lock),
        bind(settings.pool_bind, settings.pool_port, MANAGEMENT_KEY) as management,
        bind(settings.student_bind, settings.student_port, STUDENT_KEY) as student,
    ):
        yield management, student


async def serve_apps(
    management: FastAPI,
    student: FastAPI,
    sockets: tuple[socket.socket, socket.socket],
    stop: asyncio.Event,
) -> None:
    """Serve both, each within its limits, until ``stop`` is set."""
    descriptors = raise_descriptor_limit()
    tokens: HubTokens = student.state.tokens

    def known_server(request: HTTPConnection) -> str | None:
        return tokens.known(bearer(request))

    listeners = (
        listener(management, management_limits(descriptors, management.state.sign_in.known)),
        listener(student, students_limits(descriptors, known_server)),
    )
    await serve(list(zip(listeners, sockets, strict=True)), stop)
