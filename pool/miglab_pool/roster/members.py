"""Asks the hub who is in a course, when its class is read.

A course is a group of the hub.  The default course has no group: it is the course of all users who
are in no other and teach none.
"""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

import httpx

from miglab_pool.course_roles import RoleBook, student_courses
from miglab_pool.hub_answers import HubMisunderstood, json_body

log = logging.getLogger(__name__)

BELIEVED_S = 60.0
PAGE_SIZE = 200  # the most users that JupyterHub lists in one answer (api_page_max_limit)
PAGINATED = {"Accept": "application/jupyterhub-pagination+json"}
Members = Callable[[str], Awaitable[frozenset[str] | None]]


async def unknown_members(_course: str) -> frozenset[str] | None:
    """Return that the members are unknown, where there is no hub to ask."""
    return None


class CourseMembers:
    """Asks the hub, and keeps its answer for a minute.

    Args:
        hub: the hub's API, as a service that may read groups and list users with their groups.
        book: the lab's courses and who teaches them.
        default_course: the course of users who are in no other.
        now: seconds that never jump.
    """

    def __init__(
        self,
        hub: httpx.AsyncClient,
        book: RoleBook,
        default_course: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hub, self._book, self._default_course, self._now = hub, book, default_course, now
        self._known: dict[str, tuple[float, frozenset[str]]] = {}

    async def of(self, course: str) -> frozenset[str] | None:
        """Return the members of a course: while the hub is silent, the last known or None."""
        until, members = self._known.get(course, (0.0, None))
        if members is not None and until > self._now():
            return members
        try:
            users = await self._group(course)
            if course == self._default_course:
                users |= {user["name"] async for user in self._users() if self._is_in_default(user)}
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            log.warning("the hub does not say who is in %s: %s", course, error)
            return members
        self._known[course] = (self._now() + BELIEVED_S, users)
        return users

    async def _group(self, course: str) -> frozenset[str]:
        """Return the members of a course's group; none if there is no such group."""
        answer = await self._hub.get(f"/groups/{quote(course, safe='')}")
        body = json_body(answer)
        is_group = answer.status_code != httpx.codes.NOT_FOUND
        return frozenset(body["users"]) if is_group else frozenset()

    async def _users(self) -> AsyncIterator[Mapping[str, Any]]:
        """Yield all users of the hub; KeyError if it does not list them."""
        offset: int | None = 0
        while offset is not None:
            page = {"offset": offset, "limit": PAGE_SIZE}
            answer = await self._hub.get("/users", params=page, headers=PAGINATED)
            body = json_body(answer)
            for user in body["items"]:
                yield user
            next_page = body["_pagination"]["next"]
            if next_page and next_page["offset"] <= offset:
                raise HubMisunderstood(answer, "the page of users after it")
            offset = next_page and next_page["offset"]

    def _is_in_default(self, user: Mapping[str, Any]) -> bool:
        """Return whether a user is a student of the default course, and teaches none."""
        name, groups = user["name"], frozenset(user["groups"])
        is_staff = (
            user["admin"]
            or name in self._book.admins
            or self._book.courses_instructed(name, groups, in_all=False)
            or self._book.courses_assisted(name, groups)
        )
        courses = student_courses(groups, self._book.courses, self._default_course)
        return not is_staff and self._default_course in courses
