"""Course and role from an LTI launch's claims."""

from typing import Any

import pytest

from miglab_hub.lti import ASSISTANT, CONTEXT, INSTRUCTOR, LEARNER, ROLES, groups_after


def launch(label: str, *roles: str) -> dict[str, Any]:
    return {CONTEXT: {"id": "c1", "label": label}, ROLES: list(roles)}


@pytest.mark.parametrize(
    ("claims", "groups"),
    [
        (launch("Vision", LEARNER), {"vision"}),
        (launch("ML 101 (2026)", INSTRUCTOR), {"ml-101-2026-instructors"}),
        (launch("Vision", INSTRUCTOR, ASSISTANT), {"vision-assistants"}),
        (launch("Vision"), {"vision"}),
        ({CONTEXT: {"id": "C7"}, ROLES: [LEARNER]}, {"c7"}),
        (launch("Vision instructors", LEARNER), set()),
        (launch("vision-assistants", INSTRUCTOR), set()),
        ({ROLES: [INSTRUCTOR]}, set()),
        ({}, set()),
    ],
)
def test_the_group_of_a_launch(claims: dict[str, Any], groups: set[str]) -> None:
    """An unknown role is a student's; without a course there is no group."""
    assert groups_after(set(), claims, {}) == groups


def test_a_launch_speaks_for_its_own_course_alone() -> None:
    """Another course stays; a role that was lost in this one goes."""
    before = {"vision-instructors", "ml", "ml-assistants"}
    assert groups_after(before, launch("ML", LEARNER), {}) == {"vision-instructors", "ml"}
    assert groups_after(before, {}, {}) == before


def test_where_courses_are_named_by_id_a_label_is_nothing() -> None:
    """A teacher of another course cannot take a course over by calling the own one the same."""
    mislabelled = launch("Anything", INSTRUCTOR)
    assert groups_after(set(), mislabelled, {"c1": "vision"}) == {"vision-instructors"}
    assert groups_after({"ml"}, launch("Vision", INSTRUCTOR), {"c9": "vision"}) == {"ml"}
