"""Browser sessions, in memory: a restart of the service signs everybody in anew, unseen."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass


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
