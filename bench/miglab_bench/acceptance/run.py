"""What the steps of an acceptance run share: its students, and how to look."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from miglab_api.gpus import SliceState
from miglab_api.reservations import ReservationView
from miglab_api.tickets import TicketView
from miglab_bench.harness.student import CheckFailed, Student
from miglab_bench.harness.temporary import TemporaryLab

STUDENTS = 9
SLICES = 7
CELL = "import os; print(os.environ['MIGLAB_SLICES'])"
AT_ONCE = 3

Result = TypeVar("Result")


@dataclass
class Run:
    """What the steps share.

    Attributes:
        waiting: who waits, first in front.
        tickets: by name, what those who wait were told when they came.
    """

    lab: TemporaryLab
    students: list[Student] = field(default_factory=list)
    waiting: list[Student] = field(default_factory=list)
    tickets: dict[str, TicketView] = field(default_factory=dict)
    reserved: ReservationView | None = None

    def sign_in(self, count: int) -> None:
        """Sign in more students through the login form, until there are ``count`` of them."""
        for number in range(len(self.students) + 1, count + 1):
            self.students.append(self.lab.signed_in(f"student-{number}"))

    @property
    def holding(self) -> list[Student]:
        """The students who hold a slice."""
        leases = self.lab.leases()
        return [student for student in self.students if student.name in leases]

    def student(self, number: int) -> Student:
        """Return the student with that number, from 1."""
        return self.students[number - 1]

    @property
    def is_empty(self) -> bool:
        """Whether nobody holds or waits for anything, and every slice is free."""
        snapshot = self.lab.snapshot()
        states = {slice_.state for gpu in snapshot.gpus for slice_ in gpu.slices}
        return not snapshot.waiting and not self.lab.leases() and states <= {SliceState.FREE}

    def positions(self) -> str:
        """Return the waiting students and their positions, in words."""
        positions = self.lab.positions().items()
        return "waiting: " + (", ".join(f"{user} at {at}" for user, at in positions) or "nobody")


def expect(holds: bool, message: str) -> None:
    """Raise `CheckFailed` with the message unless the condition holds."""
    if not holds:
        raise CheckFailed(message)


def expect_own_slice(run: Run, student: Student) -> None:
    """A cell prints the slices that the ledger says."""
    text = student.run_cell(CELL).strip()
    ledger = ",".join(run.lab.leases()[student.name].uuids)
    expect(text == ledger, f"{student.name} printed {text}, the ledger says {ledger}")


def in_parallel(students: list[Student], action: Callable[[Student], Result]) -> list[Result]:
    """Run an action for several students at once; return the results in their order."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(action, students))
