"""Students of a running lab, over HTTP; whoever asks for one closes it."""

from miglab_bench.harness.student import Student
from miglab_bench.harness.temporary import TemporaryLab


def signed_in(lab: TemporaryLab, name: str) -> Student:
    """Past the login form."""
    return lab.signed_in(name)


def asking(lab: TemporaryLab, name: str, shape: str) -> Student:
    """Signed in, and has asked for a shape on the spawn page."""
    student = signed_in(lab, name)
    student.ask(shape)
    return student


def served(lab: TemporaryLab, name: str, shape: str) -> Student:
    """Has asked for a shape, and a server with it."""
    student = asking(lab, name, shape)
    student.wait_until_ready()
    return student
