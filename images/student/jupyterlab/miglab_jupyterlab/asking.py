"""Clients of pool and hub, which authenticate with this server's own token."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse

# Not the other side's word on this server: it restarts, waits, or has too much to do (429).
SILENT_CODES = frozenset({429, 500, 502, 503, 504})
NO_ANSWER = 599  # tornado's
DATE_S = 1.0  # the header is rounded down; never promise more time than there is


class PoolSilent(Exception):
    """No answer, or none that can be read; who was asked may be restarting."""


class PoolRefused(Exception):
    """The pool or the hub has refused.

    Attributes:
        status: of the HTTP answer.
        reason: the word for it.
        message: the same for people.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass(frozen=True)
class Answer:
    """The JSON of an answer, and when the sender's clock says it was sent, s since the epoch."""

    body: Mapping[str, Any]
    answered_at: float


class ApiClient:
    """A client of the pool or the hub.

    Args:
        url: where it listens.
        token: the server's ``JUPYTERHUB_API_TOKEN``.
        patience_s: how long one answer may take.
    """

    def __init__(self, url: str, token: str, patience_s: float) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._patience_s = patience_s
        self._client: AsyncHTTPClient | None = None  # it belongs to the event loop it is made on

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()

    async def get(self, path: str) -> Answer:
        """Send a GET request and return the answer; raises as `post`."""
        return await self._send("GET", path)

    async def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Send a POST request and return the answer.

        Raises:
            PoolRefused: it was refused.
            PoolSilent: no answer that can be read.
        """
        return await self._send("POST", path, json.dumps(body))

    async def _send(self, method: str, path: str, body: str | None = None) -> Answer:
        request = HTTPRequest(
            self._url + path,
            method=method,
            headers=self._headers,
            body=body,
            connect_timeout=self._patience_s,
            request_timeout=self._patience_s,
            follow_redirects=False,
        )
        self._client = self._client or AsyncHTTPClient(force_instance=True)
        try:
            response = await self._client.fetch(request, raise_error=False)
        except OSError as error:  # tornado's own errors are in the response
            raise PoolSilent(str(error)) from error
        return _answer_of(response)


class HubClient(ApiClient):
    """The hub's API, at ``JUPYTERHUB_API_URL``.

    Args:
        url: where it listens.
        token: the server's own.
        patience_s: how long one answer may take.
        user: whose server this is.
        server: its name; empty for the default one.
    """

    def __init__(self, url: str, token: str, patience_s: float, user: str, server: str) -> None:
        super().__init__(url, token, patience_s)
        self._server_path = f"{quote(user, safe='')}/{quote(server, safe='')}"

    async def choices(self) -> dict[str, Any]:
        """Return the slices that this server can ask for; raises as `choose`."""
        return dict((await self.get(f"/miglab/choose/{self._server_path}")).body)

    async def choose(self, choice: str, *, only_if_free: bool) -> None:
        """Join the queue for a slice while this server runs without one.

        Args:
            choice: the ``value`` of one of the `choices`.
            only_if_free: whether to be refused instead of waiting.

        Raises:
            PoolRefused: it was refused; nothing was changed.
            PoolSilent: the hub did not answer.
        """
        body = {"choice": choice, "only_if_free": only_if_free}
        await self.post(f"/miglab/choose/{self._server_path}", body)

    async def move(self, shape: str = "") -> str:
        """Take the offer and restart this server with it; or with this shape, which is ``cpu``.

        Returns:
            The path of the hub's page that leads to the new server.

        Raises:
            PoolRefused: nothing is offered (any more); nothing was stopped.
            PoolSilent: the hub did not answer.
        """
        path = f"/miglab/move/{self._server_path}"
        url = (await self.post(path, {"shape": shape} if shape else {})).body.get("url")
        if not isinstance(url, str) or not url.startswith("/"):
            raise PoolSilent("the hub's answer names no page")
        return url


def _answer_of(response: HTTPResponse) -> Answer:
    """Return the answer of a response, or raise what went wrong."""
    if response.code in SILENT_CODES or response.code == NO_ANSWER:
        raise PoolSilent(f"HTTP {response.code}: {response.error}")
    try:
        body = json.loads(response.body)
        if response.code not in (200, 202):
            raise PoolRefused(response.code, str(body.get("reason", "no")), str(body["message"]))
        answered_at = parsedate_to_datetime(response.headers["Date"]).timestamp()
        return Answer(dict(body), answered_at + DATE_S)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PoolSilent(f"HTTP {response.code} with an answer that makes no sense") from error
