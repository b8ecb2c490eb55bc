"""What a request to the hub may send before the hub knows whose it is.

tornado reads up to 100 MB of a body, for as long as it takes, before any handler runs, and keeps
it in memory: a few connections of strangers would fill the host.  So all routes of the hub, also
JupyterHub's own, read a little, in little time; more only for a user or a token that the hub knows.
"""

from collections.abc import Awaitable
from typing import Any

from jupyterhub.apihandlers.base import APIHandler
from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerRequest,
    RequestStartLine,
    ResponseStartLine,
)

STRANGERS_BYTES, STRANGERS_S = 64 * 1024, 10.0
KNOWN_BYTES, KNOWN_S = 104_857_600, 3600.0  # tornado's, and longer than any proxy waits


def install() -> None:
    """Limit the servers that this process makes from now on."""
    HTTPServer.configure(LimitedServer, max_body_size=STRANGERS_BYTES, body_timeout=STRANGERS_S)


class LimitedServer(HTTPServer):
    """Reads more of a request only once it knows whose it is."""

    def start_request(self, server_conn: object, request_conn: Any) -> HTTPMessageDelegate:
        """Look at the head of each request."""
        delegate = super().start_request(server_conn, request_conn)
        return HeadReader(delegate, self.request_callback, request_conn)


class HeadReader(HTTPMessageDelegate):
    """Passes a request on; lifts the limits of its connection for whom the hub knows."""

    def __init__(self, delegate: HTTPMessageDelegate, app: Any, connection: Any) -> None:
        self._delegate, self._app, self._connection = delegate, app, connection
        self.data_received = delegate.data_received  # type: ignore[method-assign]
        self.finish = delegate.finish  # type: ignore[method-assign]
        self.on_connection_close = delegate.on_connection_close  # type: ignore[method-assign]

    async def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> None:
        """Whose request it is decides what is read of it."""
        known = False
        if _is_long(headers):
            known = await self._is_known(start_line, headers)
        self._connection.set_max_body_size(KNOWN_BYTES if known else STRANGERS_BYTES)
        self._connection.set_body_timeout(KNOWN_S if known else STRANGERS_S)
        passed: Awaitable[None] | None = self._delegate.headers_received(start_line, headers)
        if passed is not None:
            await passed

    async def _is_known(self, start_line: Any, headers: HTTPHeaders) -> bool:
        request = HTTPServerRequest(
            connection=self._connection, start_line=start_line, headers=headers
        )
        return await APIHandler(self._app, request).get_current_user() is not None


def _is_long(headers: HTTPHeaders) -> bool:
    """Whether a body is, or may be, longer than a stranger's."""
    length = headers.get("Content-Length", "0").partition(",")[0].strip()
    return "Transfer-Encoding" in headers or not length.isdecimal() or int(length) > STRANGERS_BYTES
