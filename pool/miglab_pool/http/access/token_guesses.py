"""Keeps guessed tokens from the hub: what cannot be one of its tokens, and peers that guess much.

The hub answers one question at a time.  A container that asks with thousands of invented tokens
would be heard before the servers that report.
"""

import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from miglab_pool.http.access.auth import HubTokens
from miglab_pool.http.connection_limits import is_shared
from miglab_pool.http.errors import DeniedError

A_MINUTE = 20
WINDOW_S = 60.0
_MADE_BY_THE_HUB = re.compile(r"[0-9a-f]{32}")  # JupyterHub 6: `utils.new_token`


class ServerTokens(HubTokens):
    """Asks the hub about tokens that it may have made: each server's is one of those."""

    async def owner(self, token: str) -> dict[str, Any] | None:
        """As the base class; None at once for what has another form."""
        return await super().owner(token) if _MADE_BY_THE_HUB.fullmatch(token) else None


class Guesses:
    """Unknown tokens that each peer has sent in the current minute.

    Args:
        a_minute: how many before it is heard no more until the minute is over.
        is_shared: whether an address stands for many, and is always heard.
        now: the clock, seconds.
    """

    def __init__(
        self,
        a_minute: int = A_MINUTE,
        is_shared: Callable[[str], bool] = is_shared,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._a_minute = a_minute
        self._is_shared = is_shared
        self._now = now
        self._began_at = now()
        self._counts: Counter[str] = Counter()

    def check(self, peer: str) -> None:
        """Hear the peer, unless it guesses.

        Raises:
            DeniedError: 429 ``too-often``.
        """
        if self._now() - self._began_at >= WINDOW_S:
            self._began_at, self._counts = self._now(), Counter()
        if self._counts[peer] >= self._a_minute and not self._is_shared(peer):
            raise DeniedError(
                429, "too-often", "Too many unknown tokens came from here. Wait a minute."
            )

    def count(self, peer: str) -> None:
        """The peer has sent an unknown token."""
        self._counts[peer] += 1
