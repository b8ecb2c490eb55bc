"""LTI 1.3 sign-in in which each launch says course and role; needs requirements/sign-in.txt.

The learning platform's context becomes the course (a JupyterHub group), and its roles decide
between students, assistants and instructors (`miglab_pool.course_roles`).
"""

import re
from collections.abc import Mapping
from typing import Any

from ltiauthenticator.lti13.auth import (  # type: ignore[import-untyped]
    LTI13Authenticator,
)
from traitlets import Dict, default

from miglab_pool.course_roles import ASSISTANTS, INSTRUCTORS

CONTEXT = "https://purl.imsglobal.org/spec/lti/claim/context"
ROLES = "https://purl.imsglobal.org/spec/lti/claim/roles"
MEMBERSHIP = "http://purl.imsglobal.org/vocab/lis/v2/membership"
ASSISTANT = f"{MEMBERSHIP}/Instructor#TeachingAssistant"
INSTRUCTOR = f"{MEMBERSHIP}#Instructor"
LEARNER = f"{MEMBERSHIP}#Learner"


def course_of(claims: Mapping[str, Any], courses: Mapping[str, str]) -> str:
    """Return the course's group; empty if the launch names no course of the lab.

    Args:
        claims: the launch's.
        courses: the course of each context's id.  If it is empty, the context's label is the
            course, as letters, digits, dots and dashes; not one that reads as a course's staff.
    """
    context = claims.get(CONTEXT) or {}
    if courses:
        return courses.get(str(context.get("id")), "")
    label = str(context.get("label") or context.get("id") or "")
    name = re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.")
    return "" if name.endswith((ASSISTANTS, INSTRUCTORS)) else name


def groups_after(
    before: set[str], claims: Mapping[str, Any], courses: Mapping[str, str]
) -> set[str]:
    """Return the person's groups after a launch, which changes its own course alone."""
    course = course_of(claims, courses)
    if not course:
        return before
    course_groups = {course, course + ASSISTANTS, course + INSTRUCTORS}
    return (before - course_groups) | {_group(course, set(claims.get(ROLES) or ()))}


def _group(course: str, roles: set[str]) -> str:
    if ASSISTANT in roles:  # platforms send Instructor beside it
        return course + ASSISTANTS
    return course + INSTRUCTORS if INSTRUCTOR in roles else course


class CourseLTIAuthenticator(LTI13Authenticator):  # type: ignore[misc]  # base is untyped
    """``authentication.class = "miglab_hub.lti.CourseLTIAuthenticator"``, with manage_groups."""

    courses = Dict(
        help="""Course of the lab for each course of the platform, by the platform's own id.

        A launch from any other course then changes nobody's groups.  If it is empty, a course's
        label on the platform is its name in the lab, so whoever may label courses there decides
        who is in which course here.
        """,
        config=True,
    )

    @default("allow_all")  # type: ignore[untyped-decorator]  # traitlets is untyped
    def _the_platform_decides(self) -> bool:
        return True

    async def authenticate(self, handler: Any, data: dict[str, Any] | None = None) -> Any:
        """Return the person of a launch, with their groups."""
        account = await super().authenticate(handler, data)
        user = handler.find_user(self.normalize_username(account["name"]))
        before = {group.name for group in user.groups} if user else set()
        return {**account, "groups": sorted(groups_after(before, data or {}, self.courses))}
