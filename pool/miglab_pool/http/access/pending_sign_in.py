"""A sign-in under way, kept by the browser that began it: here it costs no memory.

The browser's cookie holds PKCE's verifier and the page to come back to, signed together with the
state that goes to the hub and back.  Nobody but that browser can bring the two together.
"""

import base64
import hmac
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pending:
    """What a sign-in needs at its end.

    Attributes:
        verifier: PKCE's.
        next_url: the page to come back to.
        ends_at: when it is too old, by the clock of `PendingSignIns`.
    """

    verifier: str
    next_url: str
    ends_at: float


class PendingSignIns:
    """Signs and reads the cookies; remembers only the states that have served, until they end.

    Args:
        lives_s: how long a sign-in may take.
        now: the clock, seconds.
    """

    def __init__(self, lives_s: int, now: Callable[[], float] = time.monotonic) -> None:
        self._lives_s = lives_s
        self._now = now
        self._key = secrets.token_bytes(32)
        self._served: dict[str, float] = {}

    def begin(self, verifier: str, next_url: str) -> tuple[str, str]:
        """A new state, and the cookie that belongs to it."""
        state = secrets.token_urlsafe(16)
        said = [verifier, next_url, self._now() + self._lives_s]
        body = base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")
        return state, f"{body}.{self._sign(state, body)}"

    def find(self, state: str, cookie: str) -> Pending | None:
        """The sign-in of that state, if the cookie is its own, in time, and it has not served."""
        body, _, signature = cookie.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(state, body).encode()):
            return None
        pending = Pending(*json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))))
        is_over = pending.ends_at <= self._now() or state in self._served
        return None if is_over else pending

    def serve(self, state: str, pending: Pending) -> None:
        """It has led to a session, and leads to no second."""
        self._served = {s: at for s, at in self._served.items() if at > self._now()}
        self._served[state] = pending.ends_at

    def _sign(self, state: str, body: str) -> str:
        return hmac.new(self._key, f"{state}.{body}".encode(), "sha256").hexdigest()
