"""The simulated class: who of it does what, and what folder, token and hub it needs.

Who does what is a function of the courses alone, so that runs are alike.  The demo lab's folder is
made at its first start, and left as it is afterwards.
"""

import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from miglab_hub import lab_secrets
from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.settings import Course

SECONDS_APART = 1.0  # between two arrivals
FOLDER = ".lab-demo"
FILES = ("lab.toml", "deep-learning.csv", "vision.csv")
SERVER = Path(__file__).with_name("student_server.py")
HUB_CONFIG = Path(__file__).with_name("jupyterhub_config.py")
SERVICE = "demo"


@dataclass(frozen=True, slots=True)
class Habit:
    """How a simulated student uses a server, how long, and the pause until the next."""

    name: str
    stays_s: float
    away_s: float


WORKS = Habit("works", 3600.0, 60.0)  # runs something all the time, and stays
IDLES = Habit("idles", 3600.0, 120.0)  # runs something for half a minute, then walks away
VISITS = Habit("visits", 120.0, 45.0)  # works for some minutes, leaves, and comes back
HABITS = (WORKS, VISITS, WORKS, IDLES)


@dataclass(frozen=True, slots=True)
class SimulatedStudent:
    """A simulated student.

    Attributes:
        name: the user's.
        course: in which they ask.
        shape: for what.
        habit: how they use it.
        arrives_s: seconds after the start at which they first ask.
        stays_s: how long they keep a server.
    """

    name: str
    course: str
    shape: str
    habit: Habit
    arrives_s: float
    stays_s: float


def plan_class(courses: Mapping[str, Course]) -> tuple[SimulatedStudent, ...]:
    """Return the class: all members of courses, in the order of lab.toml.

    Of four, three ask for the course's default shape; the fourth takes each of the others in turn.
    A student of two courses works in the first.
    """
    students: dict[str, SimulatedStudent] = {}
    for name, course in courses.items():
        for student in _course_students(name, course, len(students)):
            students.setdefault(student.name, student)
    return tuple(students.values())


def _course_students(name: str, course: Course, before: int) -> Iterator[SimulatedStudent]:
    further_shapes = [shape for shape in course.shapes if shape != course.default] or list(
        course.shapes
    )
    for number, member in enumerate(course.members):
        habit = HABITS[number % len(HABITS)]
        is_other = number % 4 == 2
        shape = (
            further_shapes[number // 4 % len(further_shapes)]
            if is_other
            else course.default or further_shapes[0]
        )
        arrives_s = (before + number) * SECONDS_APART
        stays_s = habit.stays_s + 15.0 * (number % 5)
        yield SimulatedStudent(member, name, shape, habit, arrives_s, stays_s)


# -- its lab ---------------------------------------------------------------------------------------


def make_folder(beside: Path) -> Path:
    """Make the demo lab's folder, unless it is there.

    Args:
        beside: the file beside which it lies: the lab.toml of the lab that is not the demo's.

    Returns:
        The demo's own lab.toml.
    """
    folder = beside.absolute().parent / FOLDER
    if not folder.exists():
        unfinished = folder.with_name(f"{FOLDER}.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        for name in FILES:
            shutil.copyfile(Path(__file__).with_name(name), unfinished / name)
        unfinished.rename(folder)
    return folder / "lab.toml"


def check_fits(settings: Settings) -> None:
    """Check that simulated students can live in this lab.

    Raises:
        StartError: its GPUs are real, or its students' servers are containers.
    """
    if not settings.gpus.simulated or settings.servers.spawner != "local":
        raise StartError(
            f'{settings.file}: simulated students need simulated GPUs and servers.spawner = "local"'
        )


def token_file(settings: Settings) -> Path:
    """Return the file with the hub token that the director uses."""
    return settings.state / "demo.token"


def make_token(settings: Settings) -> None:
    """Make the director's token, before hub and director read it."""
    lab_secrets.make_token(token_file(settings))


def add_class(c: Any, settings: Settings) -> None:
    """Configure the hub: the director gets its token, and simulated students their servers."""
    token = lab_secrets.read(token_file(settings))
    c.JupyterHub.services.append({"name": SERVICE, "api_token": token})
    c.JupyterHub.load_roles.append(
        {"name": "miglab-demo", "scopes": ["servers", "read:users:name"], "services": [SERVICE]}
    )
    habits = {student.name: student.habit for student in plan_class(settings.courses)}
    gpus = str(settings.simulated_state)
    demo_env = {"MIGLAB_DEMO_GPUS": gpus, "MIGLAB_DEMO_HUB": version("jupyterhub")}

    def simulate(spawner: Any) -> None:
        if habit := habits.get(spawner.user.name):
            spawner.cmd = [sys.executable, str(SERVER)]
            student_env = {"MIGLAB_DEMO_HABIT": habit.name}
            spawner.environment = {**spawner.environment, **demo_env, **student_env}

    c.MIGLocalSpawner.pre_spawn_hook = simulate
