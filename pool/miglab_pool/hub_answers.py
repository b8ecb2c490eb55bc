"""Checks that an answer comes from the hub before it is believed.

A proxy, a login page, or a hub at another path also answers: with a redirect, or with HTML.
"""

from typing import Any
from urllib.parse import urlsplit

import httpx

HUB_PATH = "/hub/"
EXCERPT_LENGTH = 80  # characters of an answer that is no JSON


class HubMisunderstood(ValueError):
    """Something answered that is not the hub's API: what was asked, and what came."""

    def __init__(self, answer: httpx.Response, expected: str) -> None:
        request = answer.request
        received = f"HTTP {answer.status_code}"
        if answer.has_redirect_location:
            received += f" to {answer.headers['Location']}"
        elif text := answer.text.strip():
            received += f", {text[:EXCERPT_LENGTH]!r}"
        super().__init__(
            f"{request.method} {request.url} was answered with {received}, not with {expected}"
        )


def json_body(answer: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of the hub's answer, whether a success or a refusal.

    Raises:
        HubMisunderstood: it is no JSON object.
    """
    try:
        body = None if answer.is_redirect else answer.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise HubMisunderstood(answer, "the JSON of JupyterHub's API")
    return body


def check_change_answer(answer: httpx.Response) -> httpx.Response:
    """Return the answer to a change if it is empty or JSON.

    Raises:
        HubMisunderstood: it is neither, so it is unknown whether the change was made.
    """
    if answer.is_redirect or (answer.content and not answer.is_success):
        json_body(answer)
    return answer


def hub_base_url(answer: httpx.Response) -> str:
    """Return the path below which a hub serves everything, by the redirect of its root.

    Raises:
        HubMisunderstood: no hub answered.
    """
    path: str = urlsplit(answer.headers.get("Location", "")).path
    if not answer.is_redirect or not path.endswith(HUB_PATH):
        raise HubMisunderstood(answer, f"a redirect to JupyterHub's {HUB_PATH}")
    return path.removesuffix(HUB_PATH) + "/"
