"""The pool's management API as the operator asks it, though the pool may be away at any time."""

from collections.abc import Callable
from typing import Any

import httpx

from miglab_bench.harness.student import CheckFailed
from miglab_hub import lab_secrets
from miglab_hub.settings.lab_toml import Settings

BOUND_S = 240.0
"""For everything that must come in the end: for a very busy machine, it is no measurement."""


class PoolOperator:
    """Asks with the lab's own secret.

    Args:
        settings: of the lab.
        client: to ask with.
        wait: waits until something is so, for at most so many seconds; what it waits for.
    """

    def __init__(
        self,
        settings: Settings,
        client: httpx.Client,
        wait: Callable[[Callable[[], bool], float, str], None],
    ) -> None:
        self._settings = settings
        self._client = client
        self._wait = wait

    def ask(self, method: str, path: str, **body: Any) -> httpx.Response | None:
        """The pool's answer, also a refusal; None if there is none to be had now."""
        try:
            headers = {"Authorization": f"Bearer {lab_secrets.read(self._settings.pool_secret)}"}
            url = f"{self._settings.pool_url}/api{path}"
            answer = self._client.request(method, url, headers=headers, json=body or None)
        except (httpx.TransportError, OSError):
            return None
        return None if answer.status_code >= 500 else answer

    def get(self, path: str) -> Any:
        """What the pool says; None if it says nothing now."""
        answer = self.ask("GET", path)
        return None if answer is None or answer.is_error else answer.json()

    def must_ask(self, path: str) -> httpx.Response:
        """The pool's answer, also a refusal, as soon as there is one: silence is none.

        Raises:
            CheckFailed: it never answers.
        """
        answers: list[httpx.Response] = []

        def has_answered() -> bool:
            answer = self.ask("GET", path)
            answers.extend([] if answer is None else [answer])
            return answer is not None

        self._wait(has_answered, BOUND_S, f"an answer about {path}")
        return answers[-1]

    def must_get(self, path: str) -> Any:
        """What the pool says.

        Raises:
            CheckFailed: it never answers, or refuses.
        """
        answer = self.must_ask(path)
        if answer.is_error:
            raise CheckFailed(f"GET {path} gave HTTP {answer.status_code}: {answer.text}")
        return answer.json()
