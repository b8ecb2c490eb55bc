"""Asks the pool's student listener, as this server: its own token, and nothing else is sent."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse

# Not the pool's word on this lease: it restarts, waits for the hub, or has too much to do (429).
SILENT_CODES = frozenset({429, 500, 502, 503, 504})
NO_ANSWER = 599  # tornado's
DATE_S = 1.0  # the header is rounded down; never promise more time than there is


class PoolError(Exception):
    """The base of all: what came of asking the pool."""


class PoolSilent(PoolError):
    """No answer, or none that can be read; the pool may be restarting."""


class PoolRefused(PoolError):
    """The pool said no.

    Attributes:
        status: of the HTTP answer.
        reason: the pool's word for it.
        message: the same for people.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass(frozen=True)
class Answer:
    """A ``LeaseView`` as JSON, and the pool's clock when it said so, seconds since the epoch."""

    lease: Mapping[str, Any]
    pool_at: float


class Pool:
    """The student listener.

    Args:
        url: ``MIGLAB_API``.
        token: the server's ``JUPYTERHUB_API_TOKEN``.
        patience_s: how long one answer may take.
    """

    def __init__(self, url: str, token: str, patience_s: float) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._patience_s = patience_s
        self._client: AsyncHTTPClient | None = None  # it belongs to the event loop it is made on

    def close(self) -> None:
        """No more questions."""
        if self._client is not None:
            self._client.close()

    async def signals(self, body: Mapping[str, Any]) -> Answer:
        """Tell how the server is used."""
        return await self._post("/api/lease/signals", body)

    async def extend(self, by_s: float) -> Answer:
        """Ask for more time."""
        return await self._post("/api/lease/extend", {"by_s": by_s})

    async def stay(self) -> Answer:
        """Say that somebody is here."""
        return await self._post("/api/lease/stay", {})

    async def release(self) -> Answer:
        """Give the slice back; the server is stopped."""
        return await self._post("/api/lease/release", {"reason": "released in JupyterLab"})

    async def _post(self, path: str, body: Mapping[str, Any]) -> Answer:
        request = HTTPRequest(
            self._url + path,
            method="POST",
            headers=self._headers,
            body=json.dumps(body),
            connect_timeout=self._patience_s,
            request_timeout=self._patience_s,
            follow_redirects=False,
        )
        self._client = self._client or AsyncHTTPClient(force_instance=True)
        try:
            response = await self._client.fetch(request, raise_error=False)
        except OSError as error:  # tornado's own errors are in the response
            raise PoolSilent(str(error)) from error
        return _read(response)


def _read(response: HTTPResponse) -> Answer:
    """The answer, or what went wrong as an error."""
    if response.code in SILENT_CODES or response.code == NO_ANSWER:
        raise PoolSilent(f"HTTP {response.code}: {response.error}")
    try:
        body = json.loads(response.body)
        if response.code != 200:
            raise PoolRefused(response.code, str(body["reason"]), str(body["message"]))
        said_at = parsedate_to_datetime(response.headers["Date"]).timestamp()
        return Answer(dict(body), said_at + DATE_S)
    except (ValueError, KeyError, TypeError) as error:
        raise PoolSilent(f"HTTP {response.code} with an answer that is not the pool's") from error
