"""``POST /hub/api/miglab/runs/:user/:server?shape=…``: measure on a borrowed slice.

For a server's own token.  The body is a job, which the hub does not read; the answer is a stream of
lines (`labkit.run.borrowed` names them) that ends with the job.  Who hangs up gives the job up.
A handler of the hub and not of a service: only the hub can make a container from a student's image
by the spawner's own settings.
"""

import asyncio
import contextlib
from typing import Any

from tornado import web
from tornado.iostream import StreamClosedError

from miglab_api.base import SHAPE_MAX
from miglab_spawner.pool_leases import PoolSpawnerMixin
from miglab_spawner.runs.runner import RESULT_LIMIT
from miglab_spawner.scopes import LEASE_SCOPE
from miglab_spawner.server_handler import ServerHandler


@web.stream_request_body
class RunHandler(ServerHandler):
    """See the module."""

    _run: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Refuse before the first byte of the job is read."""
        await super().prepare()
        self._job = bytearray()
        user_name, server_name = self.path_args
        spawner = self.spawner_of(user_name, server_name, LEASE_SCOPE)
        if not isinstance(spawner, PoolSpawnerMixin) or not spawner.borrows:
            raise web.HTTPError(409, "This server does not borrow: it measures on what it holds.")
        if int(self.request.headers.get("Content-Length", 0)) > RESULT_LIMIT:
            raise web.HTTPError(413, "This job cannot be sent: it is larger than 16 MiB.")
        self._spawner = spawner
        connection: Any = self.request.connection
        connection.set_max_body_size(RESULT_LIMIT)

    def data_received(self, chunk: bytes) -> None:
        """A part of the job."""
        self._job += chunk

    async def post(self, _user_name: str, _server_name: str) -> None:
        """Run one job to its end."""
        shape = self.get_query_argument("shape")[:SHAPE_MAX]
        self.set_header("Content-Type", "application/x-ndjson")
        self._run = asyncio.create_task(
            self._spawner.borrower.run(shape, bytes(self._job), self._say)
        )
        with contextlib.suppress(asyncio.CancelledError, StreamClosedError):
            await self._run
        self.finish()

    def on_connection_close(self) -> None:
        """The student hung up."""
        super().on_connection_close()
        if self._run is not None:
            self._run.cancel()

    async def _say(self, line: bytes) -> None:
        """Pass a line on, as fast as it is taken."""
        self.write(line + b"\n")
        await self.flush()


HANDLERS = [(r"/api/miglab/runs/([^/]+)/([^/]*)", RunHandler)]
