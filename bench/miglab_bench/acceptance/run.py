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
        """Let more students sign in through the login form, until there are so many."""
        for number in range(len(self.students) + 1, count + 1):
            self.students.append(self.lab.signed_in(f"student-{number}"))

    @property
    def holding(self) -> list[Student]:
        """Those who hold a slice."""
        held = self.lab.leases()
        return [student for student in self.students if student.name in held]

    def student(self, number: int) -> Student:
        """The one with that number, from 1."""
        return self.students[number - 1]

    @property
    def is_empty(self) -> bool:
        """Whether nobody holds or waits for anything, and every slice is free."""
        snapshot = self.lab.snapshot()
        states = {each.state for gpu in snapshot.gpus for each in gpu.slices}
        return not snapshot.waiting and not self.lab.leases() and states <= {SliceState.FREE}

    def positions(self) -> str:
        """Who waits where, in words."""
        found = self.lab.positions().items()
        return "waiting: " + (", ".join(f"{user} at {at}" for user, at in found) or "nobody")


def expect(holds: bool, seen: str) -> None:
    """Raise `CheckFailed` with what was seen unless it holds."""
    if not holds:
        raise CheckFailed(seen)


def expect_own_slice(run: Run, student: Student) -> None:
    """A cell prints the slices that the ledger says."""
    text = student.run_cell(CELL).strip()
    ledger = ",".join(run.lab.leases()[student.name].uuids)
    expect(text == ledger, f"{student.name} printed {text}, the ledger says {ledger}")


def in_parallel(students: list[Student], do: Callable[[Student], Result]) -> list[Result]:
    """The same for several students at once, in their order."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(do, students))
