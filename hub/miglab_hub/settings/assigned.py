"""What the courses' tables say together: names that clash, and which GPUs are whose.  Pure."""

from collections.abc import Iterable, Mapping

from miglab_pool.model.course_roles import ASSISTANTS, INSTRUCTORS
from miglab_pool.settings import Course, Gpus


def check_names(courses: Iterable[str]) -> None:
    """Refuse a course whose group would make its members another course's staff.

    Raises:
        ValueError: naming both.
    """
    known = set(courses)
    for name in sorted(known):
        for ending in (INSTRUCTORS, ASSISTANTS):
            if name + ending in known:
                raise ValueError(
                    f'courses: "{name}{ending}" is the hub group of the {ending[1:]} of "{name}", '
                    "so its students would be just that: give that course another name"
                )


def assigned_gpus(courses: Mapping[str, Course], gpus: Gpus) -> dict[str, str]:
    """The course of each assigned GPU, by UUID or by index as text.

    Raises:
        ValueError: there is no such GPU, or it is assigned to two courses.
    """
    found: dict[str, str] = {}
    for name, course in courses.items():
        for given in course.gpus:
            key = _key(name, given, gpus)
            if key in found:
                other = f'"{found[key]}"' if found[key] != name else "the same course"
                raise ValueError(f"courses.{name}.gpus: GPU {given} is assigned to {other} already")
            found[key] = name
    return found


def _key(course: str, given: int | str, gpus: Gpus) -> str:
    """A real GPU's UUID; a simulated one's index, as it has no UUID before it is made."""
    where = f"courses.{course}.gpus: {given!r}"
    if gpus.simulated and not isinstance(given, int):
        raise ValueError(f"{where}: simulated GPUs are named by their index, from 0")
    if gpus.simulated and given not in range(gpus.count):
        raise ValueError(f"{where}: there is none, only 0 to {gpus.count - 1}")
    if not gpus.simulated and given not in gpus.uuids:
        raise ValueError(f"{where}: not among gpus.uuids; real GPUs are named by their UUID")
    return str(given)
