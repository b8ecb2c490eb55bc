"""Which courses and roles a person has, by lab.toml and by the hub's groups.  Pure.

A student is in each course whose group they are in, and without one in the default course; other
groups are the hub's own affair.

A role comes from lab.toml (and the rosters it names), or from a hub group: ``NAME-instructors`` and
``NAME-assistants`` for the course ``NAME``, so that the claims of LTI and OAuth work.  Names in
lab.toml are never put into these groups: the hub keeps a group's members until somebody removes
them, and who is struck off in lab.toml is to lose the role at the next start.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

INSTRUCTORS = "-instructors"
ASSISTANTS = "-assistants"


def student_courses(
    groups: Iterable[str], courses: Collection[str], default_course: str
) -> frozenset[str]:
    """Return the courses of a student.

    Args:
        groups: the hub groups that the student is in.
        courses: every course of the lab.
        default_course: the course of students who are in no other.
    """
    return frozenset(group for group in groups if group in courses) or frozenset({default_course})


@dataclass(frozen=True, slots=True)
class CourseStaff:
    """Who teaches one course, by lab.toml."""

    instructors: frozenset[str] = frozenset()
    assistants: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RoleBook:
    """The lab's courses and who teaches them.

    Attributes:
        courses: every course of the lab, with its staff; no other group is a course.
        instructors: those who instruct every course, by lab.toml.
        admins: those who steer the whole pool, by lab.toml.
        by_groups: whether hub groups give roles; not where one password opens every account that
            lab.toml does not name as staff's.
    """

    courses: Mapping[str, CourseStaff] = field(default_factory=lambda: MappingProxyType({}))
    instructors: frozenset[str] = frozenset()
    admins: frozenset[str] = frozenset()
    by_groups: bool = True

    def courses_instructed(
        self, name: str, groups: Iterable[str], *, in_all: bool
    ) -> frozenset[str]:
        """Return the courses that a person instructs.

        Args:
            name: the hub's name of the person; empty for what is no person.
            groups: the hub groups that the person is in.
            in_all: whether a scope of the hub's lets the person instruct every course.
        """
        if in_all or name in self.instructors:
            return frozenset(self.courses)
        by_settings = {
            course for course, staff in self.courses.items() if name in staff.instructors
        }
        return frozenset(by_settings | self._courses_by_group(groups, INSTRUCTORS))

    def courses_assisted(self, name: str, groups: Iterable[str]) -> frozenset[str]:
        """Return the courses that a person assists in."""
        by_settings = {course for course, staff in self.courses.items() if name in staff.assistants}
        return frozenset(by_settings | self._courses_by_group(groups, ASSISTANTS))

    def _courses_by_group(self, groups: Iterable[str], ending: str) -> set[str]:
        if not self.by_groups:
            return set()
        courses = {group.removesuffix(ending) for group in groups if group.endswith(ending)}
        return courses & self.courses.keys()
