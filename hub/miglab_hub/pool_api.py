"""The command line's way to the pool service: HTTP, as the operator or as a person.

With a hub API token (``--token-file`` or ``JUPYTERHUB_API_TOKEN``) one is the person of that token;
without, the operator of this host, by the secret in the lab's state folder.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx

from miglab_hub import lab_secrets
from miglab_hub.errors import RefusedError, SilentError, StartError
from miglab_hub.settings.lab_toml import load

TIMEOUT_S = 60.0
STREAM_TIMEOUT_S = 90.0  # a stream says something every 15 s
TOKEN_VARIABLE = "JUPYTERHUB_API_TOKEN"  # noqa: S105 -- a variable's name


class PoolApi:
    """The pool's management API; a context manager that closes its connections.

    Args:
        url: the API's address, up to and without ``/api``.
        token: whose name we come in.
        transport: for tests.
    """

    called, refused = "the pool service", ""

    def __init__(self, url: str, token: str, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.Client(
            base_url=f"{self.url}/api",
            headers={"Authorization": f"Bearer {token}"},
            timeout=TIMEOUT_S,
            trust_env=False,
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Call the pool and return its answer; None and empty query values are left out.

        Raises:
            SilentError: the service does not answer.
            RefusedError: it refuses; the message is the service's.
        """
        try:
            params = {name: value for name, value in query.items() if value not in (None, "")}
            answer = self._client.request(method, path, json=body, params=params)
        except httpx.HTTPError as error:
            raise self._silent_error(error) from error
        return self._parse_answer(answer)

    def events(self, path: str) -> Iterator[Any]:
        """Yield the data of a stream of server-sent events.

        Raises:
            SilentError: the service does not answer, or ended the stream.
            RefusedError: it refuses.
        """
        try:
            with self._client.stream("GET", path, timeout=STREAM_TIMEOUT_S) as answer:
                if answer.is_error:
                    answer.read()
                    self._parse_answer(answer)
                for line in answer.iter_lines():
                    if line.startswith("data:"):
                        yield json.loads(line.removeprefix("data:"))
        except httpx.HTTPError as error:
            raise self._silent_error(error) from error
        raise SilentError(f"the pool service at {self.url} ended the stream: watch again")

    def _silent_error(self, error: httpx.HTTPError) -> SilentError:
        return SilentError(
            f"{self.called} at {self.url} does not answer ({error}): is the lab running?"
        )

    def _parse_answer(self, answer: httpx.Response) -> Any:
        try:
            body = answer.json()
        except ValueError:
            raise SilentError(
                f"{self.url} is not {self.called}: HTTP {answer.status_code}"
            ) from None
        if answer.is_error:
            message = self.refused + body.get("message", f"HTTP {answer.status_code}")
            if way_on := body.get("way_on"):
                message += f" To go ahead, add --{way_on} REASON."
            raise RefusedError(message, body.get("reason", ""), answer.status_code)
        return body


def connect(config: Path | None, url: str | None = None, token_file: Path | None = None) -> PoolApi:
    """Return a client of the pool that the options and lab.toml name.

    Args:
        config: lab.toml; None for the one the environment names, else the one here.
        url: the pool's address; None for the one lab.toml implies.
        token_file: a file with a hub API token; None for the environment's, else the secret.

    Raises:
        StartError: a file cannot be read.
        SettingsError: lab.toml cannot be used.
    """
    token = _read(token_file, "--token-file") if token_file else os.environ.get(TOKEN_VARIABLE)
    if url is not None and token:
        return PoolApi(url, token)
    settings = load(config)
    origin = (
        f"without --token-file or {TOKEN_VARIABLE}, this lab's secret (--config names another lab)"
    )
    return PoolApi(url or settings.pool_url, token or _read(settings.pool_secret, origin))


def _read(file: Path, role: str) -> str:
    try:
        return lab_secrets.read(file)
    except OSError as error:
        raise StartError(f"{role} cannot be read: {file}: {error.strerror}") from error
