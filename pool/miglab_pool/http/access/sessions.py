"""Sign-ins under way, and the sessions of browsers.

A sign-in under way is kept by the browser that began it: here it costs no memory.  The browser's
cookie holds PKCE's verifier and the page to come back to, signed together with the state that goes
to the hub and back: nobody but that browser can bring the two together.  Sessions are in memory: a
restart of the service signs everybody in anew, unseen.
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


@dataclass(frozen=True, slots=True)
class Session:
    """One signed-in browser.

    Attributes:
        person: whose it is.
        token: the hub token that OAuth gave; never leaves this process.
        xsrf: what a write of this session must carry.
        ends_at: when it ends, by the clock of `Sessions`.
    """

    person: str
    token: str
    xsrf: str
    ends_at: float


class Sessions:
    """A bounded set of sessions; the oldest goes when it is full, of one person first.

    Args:
        lives_s: how long a session lives.
        limit: how many there may be.
        each: how many a person may have, so that nobody's sign-ins sign others out.
        now: the clock, seconds.
    """

    def __init__(
        self,
        lives_s: int = 12 * 3600,
        limit: int = 10_000,
        each: int = 32,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lives_s = lives_s
        self._limit = limit
        self._each = each
        self._now = now
        self._sessions: dict[str, Session] = {}

    def open(self, person: str, token: str) -> str:
        """A new session; returns the cookie's value."""
        own = [name for name, session in self._sessions.items() if session.person == person]
        for name in own[: max(0, len(own) - self._each + 1)]:
            del self._sessions[name]
        while len(self._sessions) >= self._limit:
            del self._sessions[next(iter(self._sessions))]
        name = secrets.token_urlsafe(32)
        xsrf = secrets.token_urlsafe(32)
        self._sessions[name] = Session(person, token, xsrf, self._now() + self.lives_s)
        return name

    def get(self, name: str) -> Session | None:
        """The session of that cookie; None if there is none or it has ended."""
        session = self._sessions.get(name)
        if session is not None and session.ends_at <= self._now():
            del self._sessions[name]
            return None
        return session
