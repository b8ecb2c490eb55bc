"""Run a job on a slice that is borrowed for it: in a runner of the hub's, which is gone afterwards.

The same messages as of `labkit.run.child.Crew`, from further away.  The hub waits in the queue for
the slice and starts the runner; source, arguments and results pass through it as lines.  Each
line's first letter says what it is:

| letter | from | what follows it, as JSON |
|---|---|---|
| `q` | hub | the queue: `{"shape", "ahead", "likely_s", "high_s"}` |
| `g` | hub | what was granted: `{"shape", "slices", "lease", "runner"}` |
| `m` | runner | a rank and its message |
| `e` | runner | the job is over |
| `f` | runner | why the job failed: `{"kind", "message", "details"}` |
| `r` | hub | why there is no result: `{"reason", "message"}` |
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import importlib.util
import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from labkit import errors
from labkit.records import Borrowed, from_data

QUEUE, GRANTED, MESSAGE, END, FAILED, REFUSED = b"qgmefr"
RESULT_LIMIT = 16 << 20
CONNECT_S = 30.0
MOMENT_S = 5.0  # a shorter wait is not counted: the estimate may have run out already
CUT_OFF = (
    "The hub ended this measurement: it was restarted, or cannot be reached. "
    "Run the cell again; the slice has gone back."
)

Message = dict[str, Any]
ON_CPU = "cpu"
"""In place of a shape: the container's CPU, whatever the server holds or its course lends."""

waits: ContextVar[Callable[[str], None]] = ContextVar("waits", default=lambda sentence: None)
"""Called with a sentence when a measurement waits for its slice."""


def lent_shapes(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The shapes that measurements of this server can borrow, the usual one first."""
    return tuple(json.loads(environ.get("MIGLAB_BORROW") or "[]"))


def shape_to_borrow(on: str | None, environ: Mapping[str, str], ranks: int = 1) -> str | None:
    """The shape to borrow; None where this server measures on what it holds, or on its CPU.

    Several ranks borrow a slice each where the course lends so many of the usual shape.

    Raises:
        WrongArgument: a shape was asked for that is not lent here.
    """
    shapes = lent_shapes(environ)
    if on == ON_CPU:
        return None
    if on is None:
        several = f"{ranks}x{shapes[0]}" if shapes else ""
        return several if several in shapes else next(iter(shapes), None)
    if not shapes:
        raise errors.WrongArgument(
            f'`on="{on}"` borrows a slice, and this server measures on what it holds. Start it as '
            "“Borrow a slice when measuring”, where your course offers that."
        )
    if on not in shapes:
        raise errors.WrongArgument(f'`on="{on}"`: your course lends {", ".join(shapes)}.')
    return on


class BorrowedCrew:
    """The workers of one job in a runner, with the same interface as `Crew`.

    Args:
        job: as for `Crew`.
        ranks: how many workers.
        shape: what to borrow.
        timeout_s: how long the job may take once it has its slice.
        copies: how they share what is borrowed (`labkit.measuring.sharing.Copies`); None for ranks.
    """

    def __init__(
        self,
        job: Mapping[str, Any],
        ranks: int,
        shape: str,
        timeout_s: float,
        copies: Mapping[str, Any] | None = None,
    ) -> None:
        self._shape = shape
        self._functions = job["functions"]
        order = {"job": job, "ranks": ranks, "timeout_s": timeout_s, "copies": copies}
        self._order = json.dumps(order).encode()
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._connection: http.client.HTTPConnection | None = None
        self._began = 0.0

    async def __aenter__(self) -> BorrowedCrew:
        refuse_own_files(self._functions)
        if len(self._order) > RESULT_LIMIT:
            raise errors.Unsendable("The functions and arguments are larger than 16 MiB together.")
        self._began = time.monotonic()
        self._connection = _connect(os.environ)
        reader = threading.Thread(
            target=self._read, args=(asyncio.get_running_loop(), self._connection), daemon=True
        )
        reader.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Hang up: the hub ends a job that nobody waits for, and gives its slice back."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            try:
                connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return

    async def messages(self) -> AsyncIterator[tuple[int, Message]]:
        """What the ranks say, and how the job waits, until it is over.

        Raises:
            LabError: as of `Crew`; and where the slice or the runner did not come, or went.
        """
        while line := await self._lines.get():
            letter, content = line[0], json.loads(line[1:] or b"null")
            if letter == MESSAGE:
                yield content[0], content[1]
            elif letter == QUEUE:
                waits.get()(sentence := describe_queue(content))
                yield 0, {"type": "stage", "stage": sentence}
            elif letter == GRANTED:
                waits.get()(f"Your {content['shape']} is here. The measurement is starting.")
                waited_s = round(time.monotonic() - self._began, 1)
                granted = replace(from_data(Borrowed, content), waited_s=waited_s)
                yield 0, {"type": "borrowed", "borrowed": granted}
            elif letter == FAILED:
                kind = getattr(errors, content["kind"], errors.LabError)
                raise kind(content["message"], details=content["details"])
            elif letter == REFUSED:
                raise errors.NotBorrowed(content["message"])
            elif letter == END:
                return
        raise errors.NotBorrowed(CUT_OFF)

    def _read(
        self, loop: asyncio.AbstractEventLoop, connection: http.client.HTTPConnection
    ) -> None:
        """On a thread: ask, and hand on what comes, line by line; an empty one is the end."""

        def hand_on(line: bytes) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._lines.put_nowait, line)

        try:
            self._ask(connection, hand_on)
        except (OSError, http.client.HTTPException, ValueError):
            pass  # said by the end of the lines
        finally:
            connection.close()
            hand_on(b"")

    def _ask(
        self, connection: http.client.HTTPConnection, hand_on: Callable[[bytes], None]
    ) -> None:
        path = _path(os.environ, self._shape)
        token = os.environ.get("JUPYTERHUB_API_TOKEN", "")
        headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
        connection.request("POST", path, self._order, headers)
        assert connection.sock is not None
        connection.sock.settimeout(None)  # a wait in the queue is as long as it is
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            refusal = json.loads(response.read(RESULT_LIMIT))
            hand_on(b"r" + json.dumps({"message": str(refusal["message"])}).encode())
            return
        while line := response.readline():
            if stripped := line.rstrip(b"\n"):
                hand_on(stripped)


def _connect(environ: Mapping[str, str]) -> http.client.HTTPConnection:
    hub = urlsplit(environ.get("JUPYTERHUB_API_URL", ""))
    kind = http.client.HTTPSConnection if hub.scheme == "https" else http.client.HTTPConnection
    return kind(hub.netloc, timeout=CONNECT_S)


def _path(environ: Mapping[str, str], shape: str) -> str:
    hub = urlsplit(environ.get("JUPYTERHUB_API_URL", ""))
    names = (environ.get(f"JUPYTERHUB_{name}", "") for name in ("USER", "SERVER_NAME"))
    server = "/".join(quote(name, safe="") for name in names)
    return f"{hub.path.rstrip('/')}/miglab/runs/{server}?{urlencode({'shape': shape})}"


def describe_queue(queue: Mapping[str, Any]) -> str:
    """Describe how a job waits: "1g.5gb: 3 ahead, about 20 s"."""
    ahead, likely_s = queue.get("ahead"), queue.get("likely_s")
    parts = [f"{ahead} ahead" if ahead else "being made for you" if ahead is None else "next"]
    parts += [_describe_wait(likely_s, queue.get("high_s"))] if likely_s is not None else []
    return f"{queue['shape']}: {', '.join(parts)}"


def _describe_wait(likely_s: float, high_s: float | None) -> str:
    if likely_s < MOMENT_S:
        return "a few seconds"
    unit_s, unit = (1, "s") if likely_s < 100 else (60, "min")
    if likely_s == high_s:
        return f"at most {math.ceil(likely_s / unit_s)} {unit}"
    return f"about {round(likely_s / unit_s)} {unit}"


def refuse_own_files(functions: Mapping[str, Any], home: Path | None = None) -> None:
    """Refuse a job that needs a module of the home folder: a runner has none of these files.

    Args:
        functions: as `labkit.run.jobs.make_job` packs them.
        home: the home folder.

    Raises:
        Unsendable: naming function, module and file.
    """
    home_folder = (home or Path.home()).resolve()
    for function, packed in functions.items():
        for module in packed["modules"]:
            file = _file_of(module)
            if file is not None and _is_users_file(file, home_folder):
                raise errors.Unsendable(
                    f"`{function}` uses `{module}`, which is your own file {file.name}: the runner "
                    "that measures on a borrowed slice has none of your files. Define in a cell "
                    "what it needs."
                )


def _file_of(module: str) -> Path | None:
    spec = importlib.util.find_spec(module.partition(".")[0])
    locations = [spec.origin] if spec and spec.has_location and spec.origin else []
    locations += list((spec and spec.submodule_search_locations) or ())
    return Path(locations[0]).resolve() if locations else None


def _is_users_file(file: Path, home: Path) -> bool:
    """Whether a file lies in the home folder and is no part of Python."""
    pythons = (Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix))
    return file.is_relative_to(home) and not any(file.is_relative_to(folder) for folder in pythons)
