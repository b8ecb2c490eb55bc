"""A runner as a container: a student's image without network, home, token and log.

Made like a server's: created, attached to its lease, started; with a server's limits and hardening,
and the labels of its own lease.  Its lines pass over the engine's attach connection, read by one
thread for each runner, so that none of the spawner's is kept waiting.  The engine removes it when
it ends: when the hub dies the connection closes, and with it the runner's input.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from docker.errors import (  # noqa: TID251 - one of the rooms that talk to Docker
    APIError,
    DockerException,
)
from requests import RequestException

from miglab_api.engine import gpu_driver_name
from miglab_spawner.borrower import RESULT_LIMIT, OutputTooLarge, RunnerFailed
from miglab_spawner.containers.gpu_handover import check_container, listing_thread
from miglab_spawner.containers.host_config import SavedLease, container_holder, hard_host_config

#: What a call to the engine raises when it refuses, does not answer, or is away: docker-py wraps
#: some errors of its connection, and not others.
ENGINE_ERRORS = (DockerException, RequestException, OSError)
COMMAND = ("python", "-m", "labkit.measuring.job_server")
HEADER = struct.Struct(">BxxxL")  # of the engine's frames: the stream, the length
STDOUT = 1
READ_AHEAD = 8  # pieces read before somebody takes them; then the runner's output waits
GONE_OR_GOING = (404, 409)  # gone, or on the way
PIECE = 1 << 16

Answer = TypeVar("Answer")

_threads = ThreadPoolExecutor(8, "runs")

#: Of a site's own host configuration, what would give a runner files or a network.
FOREIGN_TO_RUNNERS = frozenset(
    {"binds", "mounts", "volumes_from", "links", "extra_hosts", "port_bindings", "network_mode"}
    | {"dns", "dns_search", "dns_opt", "publish_all_ports", "auto_remove", "log_config"}
)


@dataclass
class ContainerRunner:
    """A `SliceRunner` in a container.

    Args:
        api: docker-py's ``APIClient``.
        image: the student's.
        name: the container's.
        labels: what ties it to its lease.
        host_config: limits and hardening, as for a server.
        grant: the slices that it is to have.
        command: what is run in it.
        user: as for a server; None for the image's own.
    """

    api: Any
    image: str
    name: str
    labels: Mapping[str, str]
    env: Mapping[str, str]
    host_config: Mapping[str, Any]
    grant: SavedLease
    command: Sequence[str] = COMMAND
    user: str | None = None
    _id: str = ""
    _answer: Any = None  # the connection closes when this is collected
    _socket: Any = None
    _pieces: asyncio.Queue[list[bytes] | OutputTooLarge] = field(
        default_factory=lambda: asyncio.Queue(READ_AHEAD)
    )
    _lines: deque[bytes] = field(default_factory=deque)
    _is_over: bool = False

    async def create(self) -> str:
        """Create the container and connect to it; do not start it."""
        self._id = await self._call_engine(self._create)
        await self._call_engine(self._connect)
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read_all, args=(loop,), name="run", daemon=True).start()
        return container_holder(self._id)

    async def start(self) -> None:
        """Start the container, and check that it has its slices."""
        await self._call_engine(lambda: self.api.start(self._id))
        look = partial(check_container, self.api, self._id, self.grant.uuids)
        with listing_thread() as thread:
            await self._call_engine(look, thread)

    async def send(self, order: bytes) -> None:
        """Send a line to its input, from a thread, since a hanging runner does not read."""
        line, loop = order + b"\n", asyncio.get_running_loop()
        is_written: asyncio.Future[None] = loop.create_future()
        threading.Thread(target=self._send, args=(line, loop, is_written), daemon=True).start()
        await is_written

    async def read(self) -> bytes:
        """Return the next line of its output; empty at the end."""
        while not self._lines:
            if self._is_over:
                return b""
            piece = await self._pieces.get()
            if isinstance(piece, OutputTooLarge):
                raise piece
            self._is_over = not piece
            self._lines.extend(piece)
        return self._lines.popleft()

    async def end(self) -> None:
        """Remove the container, running or not; the engine may have removed it already."""
        self._is_over = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._answer.close()
        if self._id:
            with contextlib.suppress(RunnerFailed):  # the pool looks for itself, and removes it
                await self._call_engine(self._remove)
        while not self._pieces.empty():  # the thread that reads may wait for room
            self._pieces.get_nowait()

    # -- on threads ---------------------------------------------------------------------------

    def _create(self) -> str:
        """Create a container without network, log and mounts; return its id."""
        driver = gpu_driver_name(str(self.api.version()["Version"]))
        host_config = {**self.host_config, **hard_host_config(self.grant, driver)}
        host = {k: v for k, v in host_config.items() if k not in FOREIGN_TO_RUNNERS}
        closed = {"network_mode": "none", "log_config": {"type": "none"}, "auto_remove": True}
        container = self.api.create_container(
            self.image,
            list(self.command)[1:],
            name=self.name,
            entrypoint=list(self.command)[:1],
            user=self.user,
            labels=dict(self.labels),
            environment=dict(self.env),
            stdin_open=True,
            healthcheck={"test": ["NONE"]},
            host_config=self.api.create_host_config(**host, **closed),
        )
        return str(container["Id"])

    def _connect(self) -> None:
        self._answer = self.api.attach_socket(self._id, {"stdin": 1, "stdout": 1, "stream": 1})
        self._socket = getattr(self._answer, "_sock", self._answer)
        self._socket.settimeout(None)

    def _send(
        self, line: bytes, loop: asyncio.AbstractEventLoop, is_written: asyncio.Future[None]
    ) -> None:
        failed: RunnerFailed | None = None
        try:
            self._socket.sendall(line)
        except OSError as error:
            failed = RunnerFailed(str(error))
        with contextlib.suppress(RuntimeError):  # the loop is closed: the hub ends
            loop.call_soon_threadsafe(_finish_write, is_written, failed)

    def _remove(self) -> None:
        try:
            self.api.remove_container(self._id, v=True, force=True)
        except APIError as error:
            if error.status_code not in GONE_OR_GOING:
                raise

    def _read_all(self, loop: asyncio.AbstractEventLoop) -> None:
        """Split the output into lines, no faster than they are taken."""
        parts, size = list[bytes](), 0  # of a line that goes on: joined once, however long it is
        with contextlib.suppress(RuntimeError):  # the loop is closed: the hub ends
            while piece := self._read_frame():
                *full_lines, line_start = piece.split(b"\n")
                if full_lines:
                    full_lines[0] = b"".join((*parts, full_lines[0]))
                    parts, size = [], 0
                parts.append(line_start)
                size += len(line_start)
                if size > RESULT_LIMIT:
                    self._pass_on(loop, OutputTooLarge())
                    return
                if new_lines := [line for line in full_lines if line]:
                    self._pass_on(loop, new_lines)
            self._pass_on(loop, [])

    def _pass_on(
        self, loop: asyncio.AbstractEventLoop, piece: list[bytes] | OutputTooLarge
    ) -> None:
        if self._is_over:
            raise RuntimeError("nobody takes any more")
        asyncio.run_coroutine_threadsafe(self._pieces.put(piece), loop).result()

    def _read_frame(self) -> bytes:
        """Return the next piece of standard output; empty at the end."""
        while True:
            head = self._receive_exactly(HEADER.size)
            if not head:
                return b""
            stream, length = HEADER.unpack(head)
            body = self._receive_exactly(length)
            if stream == STDOUT or not body:
                return body

    def _receive_exactly(self, length: int) -> bytes:
        content = bytearray()
        while len(content) < length:
            try:
                piece = self._socket.recv(min(PIECE, length - len(content)))
            except OSError:
                return b""
            if not piece:
                return b""
            content += piece
        return bytes(content)

    async def _call_engine(
        self, call: Callable[[], Answer], threads: ThreadPoolExecutor = _threads
    ) -> Answer:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(threads, partial(call))
        except ENGINE_ERRORS as error:
            raise RunnerFailed(str(error)) from error


def _finish_write(is_written: asyncio.Future[None], failed: RunnerFailed | None) -> None:
    if is_written.done():
        return
    if failed is None:
        is_written.set_result(None)
    else:
        is_written.set_exception(failed)
