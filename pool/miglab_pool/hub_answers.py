"""What the hub answers, looked at before it is believed.

A proxy, a login page, or a hub at another path answer too: with a redirect, or with HTML.
"""

from typing import Any
from urllib.parse import urlsplit

import httpx

HUB_PATH = "/hub/"
SHOWN = 80  # characters of an answer that is no JSON


class HubMisunderstood(ValueError):
    """Something answered that is not the hub's API: what was asked, and what came."""

    def __init__(self, answer: httpx.Response, expected: str) -> None:
        request = answer.request
        received = f"HTTP {answer.status_code}"
        if answer.has_redirect_location:
            received += f" to {answer.headers['Location']}"
        elif text := answer.text.strip():
            received += f", {text[:SHOWN]!r}"
        super().__init__(
            f"{request.method} {request.url} was answered with {received}, not with {expected}"
        )


def json_of(answer: httpx.Response) -> dict[str, Any]:
    """The JSON object that the hub answers, be it what was asked for or a refusal.

    Raises:
        HubMisunderstood: it is none.
    """
    try:
        body = None if answer.is_redirect else answer.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise HubMisunderstood(answer, "the JSON of JupyterHub's API")
    return body


def done(answer: httpx.Response) -> httpx.Response:
    """The answer to a change: nothing, or JSON.

    Raises:
        HubMisunderstood: it is neither, so nobody knows whether anything was done.
    """
    if answer.is_redirect or (answer.content and not answer.is_success):
        json_of(answer)
    return answer


def base_url_in(answer: httpx.Response) -> str:
    """The path below which a hub serves everything, by where its root sends whoever asks.

    Raises:
        HubMisunderstood: it is no hub that answers.
    """
    path: str = urlsplit(answer.headers.get("Location", "")).path
    if not answer.is_redirect or not path.endswith(HUB_PATH):
        raise HubMisunderstood(answer, f"a redirect to JupyterHub's {HUB_PATH}")
    return path.removesuffix(HUB_PATH) + "/"
