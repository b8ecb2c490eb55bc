"""Asks the hub who is in a course, when its class is read.

A course is a group of the hub.  The default course has no group: it is the course of all users who
are in no other and teach none.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx

from miglab_pool.course_roles import RoleBook, student_courses
from miglab_pool.hub_answers import HubMisunderstood, json_body

log = logging.getLogger(__name__)

BELIEVED_S = 60.0
FAILURE_BELIEVED_S = 10.0  # every open page asks again after as long
PAGE_SIZE = 200  # the most users that JupyterHub lists in one answer (api_page_max_limit)
PAGINATED = {"Accept": "application/jupyterhub-pagination+json"}


class CourseMembership(NamedTuple):
    """Who is in a course, as far as the hub says.

    Attributes:
        users: the members that are known.
        is_complete: whether these are all.
    """

    users: frozenset[str] = frozenset()
    is_complete: bool = False


Members = Callable[[str], Awaitable[CourseMembership]]


async def unknown_members(_course: str) -> CourseMembership:
    """Return that the members are unknown, where there is no hub to ask."""
    return CourseMembership()


class CourseMembers:
    """Asks the hub, and keeps its answer for a minute.

    All who read a class at once share one round of requests; a failed one is not repeated for
    `FAILURE_BELIEVED_S`.

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
        self._known: dict[str, tuple[float, CourseMembership]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def of(self, course: str) -> CourseMembership:
        """Return the members of a course.

        If the hub does not name them all, the last complete answer, or else those whom it names.
        """
        async with self._locks[course]:
            until, known = self._known.get(course, (self._now(), CourseMembership()))
            if until > self._now():
                return known
            answered = await self._ask(course)
            believed_s = BELIEVED_S if answered.is_complete else FAILURE_BELIEVED_S
            believed = answered if answered.is_complete or not known.is_complete else known
            self._known[course] = (self._now() + believed_s, believed)
            return believed

    async def _ask(self, course: str) -> CourseMembership:
        users: frozenset[str] = frozenset()
        try:
            users = await self._group(course)
            if course == self._default_course:
                users |= await self._users_in_default()
        except (httpx.HTTPError, HubMisunderstood) as error:
            log.warning("the hub does not say who is in %s: %s", course, error)
            return CourseMembership(users)
        return CourseMembership(users, is_complete=True)

    async def _group(self, course: str) -> frozenset[str]:
        """Return the members of a course's group; none if there is no such group."""
        answer = await self._hub.get(f"/groups/{quote(course, safe='')}")
        body = json_body(answer)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return frozenset()
        try:
            return frozenset(body["users"])
        except (KeyError, TypeError) as error:
            raise HubMisunderstood(answer, "a group and its users") from error

    async def _users_in_default(self) -> frozenset[str]:
        """Return those of the hub's users who are in the default course without its group."""
        users: set[str] = set()
        offset: int | None = 0
        while offset is not None:
            page = {"offset": offset, "limit": PAGE_SIZE}
            answer = await self._hub.get("/users", params=page, headers=PAGINATED)
            body = json_body(answer)
            try:
                users |= {user["name"] for user in body["items"] if self._is_in_default(user)}
                next_page = body["_pagination"]["next"]
                next_offset = int(next_page["offset"]) if next_page else None
            except (KeyError, TypeError, ValueError) as error:
                raise HubMisunderstood(answer, "a page of users with their groups") from error
            if next_offset is not None and next_offset <= offset:
                raise HubMisunderstood(answer, "the page of users after it")
            offset = next_offset
        return frozenset(users)

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
