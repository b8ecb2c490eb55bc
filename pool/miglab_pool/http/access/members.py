"""Asks the hub who is in a course's group, when somebody looks at the class."""

import logging
import time
from collections.abc import Awaitable, Callable
from urllib.parse import quote

import httpx

log = logging.getLogger(__name__)
BELIEVED_S = 60.0
Members = Callable[[str], Awaitable[frozenset[str] | None]]


async def nobody_says(_course: str) -> frozenset[str] | None:
    """Where there is no hub to ask."""
    return None


class CourseMembers:
    """See the module.

    Args:
        hub: its API, as a service that may read groups.
        now: seconds that never jump.
    """

    def __init__(self, hub: httpx.AsyncClient, now: Callable[[], float] = time.monotonic) -> None:
        self._hub, self._now = hub, now
        self._known: dict[str, tuple[float, frozenset[str]]] = {}

    async def of(self, course: str) -> frozenset[str] | None:
        """Who is in it; what the hub said last while it is silent, None if it never said."""
        until, members = self._known.get(course, (0.0, None))
        if members is not None and until > self._now():
            return members
        try:
            answer = await self._hub.get(f"/groups/{quote(course, safe='')}")
            users = [] if answer.status_code == 404 else answer.raise_for_status().json()["users"]
        except (httpx.HTTPError, KeyError, ValueError) as error:
            log.warning("the hub does not say who is in %s: %s", course, error)
            return members
        self._known[course] = (self._now() + BELIEVED_S, frozenset(users))
        return self._known[course][1]
