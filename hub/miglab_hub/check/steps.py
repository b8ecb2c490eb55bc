"""The steps of the acceptance run, in order.  Each returns what it saw, or raises `CheckFailed`."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from miglab_hub.check.student import CheckFailed, Student, wait_for
from miglab_hub.check.temporary import TemporaryLab
from miglab_spawner.messages import SliceState

SHAPE = "1g.5gb"
STUDENTS = 9
SLICES = 7
CELL = "import os; print(os.environ['MIGLAB_SLICES'])"
AT_ONCE = 3

Result = TypeVar("Result")


@dataclass
class Run:
    """What the steps share."""

    lab: TemporaryLab
    students: list[Student] = field(default_factory=list)
    waiting: list[Student] = field(default_factory=list)

    @property
    def holding(self) -> list[Student]:
        """Those who hold a slice."""
        held = self.lab.leases()
        return [student for student in self.students if student.name in held]


def sign_in(run: Run) -> str:
    """Nine students sign in through the login form."""
    url, password = run.lab.settings.public_url, run.lab.password
    for number in range(1, STUDENTS + 1):
        student = Student(url, f"student-{number}", password)
        run.students.append(student)
        student.sign_in()
    return f"{STUDENTS} students signed in"


def seven_get_slices(run: Run) -> str:
    """Seven ask, and hold seven different slices."""
    first = run.students[:SLICES]
    in_parallel(first, lambda student: student.ask(SHAPE))
    wait_for(lambda: len(run.lab.leases()) == SLICES, f"{SLICES} leases")
    in_parallel(first, Student.wait_until_ready)
    uuids = [uuid for lease in run.lab.leases().values() for uuid in lease.uuids]
    expect(len(set(uuids)) == len(uuids) == SLICES, f"slices leased: {uuids}")
    return f"{SLICES} leases, {len(set(uuids))} different slices"


def cells_print_slices(run: Run) -> str:
    """Each runs a cell that prints the slice that the ledger says."""
    leases = run.lab.leases()
    holding = run.holding
    printed = in_parallel(holding, lambda student: student.run_cell(CELL).strip())
    for student, text in zip(holding, printed, strict=True):
        ledger = ",".join(leases[student.name].uuids)
        expect(text == ledger, f"{student.name} printed {text}, the ledger says {ledger}")
    return f"{len(printed)} cells printed their own slice"


def two_wait(run: Run) -> str:
    """The eighth and the ninth wait, with positions 1 and 2."""
    run.waiting = run.students[SLICES:]
    for place, student in enumerate(run.waiting, 1):
        student.ask(SHAPE)
        wait_for(partial(_waiting_are, run, place), f"{student.name} in the line")
    expected = {student.name: place for place, student in enumerate(run.waiting, 1)}
    expect(run.lab.places() == expected, f"places: {run.lab.places()}")
    return _places(run)


def first_is_served(run: Run) -> str:
    """One stops, and the first in line gets a slice; the second moves up."""
    leaving, served = run.holding[0], run.waiting.pop(0)
    leaving.leave()
    served.wait_until_ready()
    expect(leaving.name not in run.lab.leases(), f"{leaving.name} still holds a lease")
    text = served.run_cell(CELL).strip()
    ledger = ",".join(run.lab.leases()[served.name].uuids)
    expect(text == ledger, f"{served.name} printed {text}, the ledger says {ledger}")
    expect(run.lab.places() == {run.waiting[0].name: 1}, f"places: {run.lab.places()}")
    return f"{leaving.name} left, {served.name} was served; {_places(run)}"


def survives_kill(run: Run) -> str:
    """Hub and pool are killed and started again: every lease and every place is still right."""
    before, places = _held(run), run.lab.places()
    run.lab.kill("hub", "pool")
    expect(_held(run) == before, f"leases before {before}, after {_held(run)}")
    expect(run.lab.places() == places, f"places before {places}, after {run.lab.places()}")
    last = run.waiting[0]
    last.ask(SHAPE)
    wait_for(lambda: run.lab.places() == places, f"{last.name} back at place 1")
    for student in run.holding:
        wait_for(student.is_ready, f"the hub to know the server of {student.name} again")
    return f"{len(before)} leases unchanged; {_places(run)}"


def all_leave(run: Run) -> str:
    """All leave (the last one after being served), and the GPU is empty."""
    last = run.waiting.pop()
    in_parallel(run.holding, Student.leave)
    last.wait_until_ready()
    last.leave()
    wait_for(lambda: _is_empty(run), "the GPU to be empty")
    expect(not run.lab.servers(), f"servers still run: {run.lab.servers()}")
    return "no lease, nobody waits, no slice in use"


STEPS: tuple[tuple[str, Callable[[Run], str]], ...] = (
    ("nine students sign in", sign_in),
    ("seven get seven different slices", seven_get_slices),
    ("each cell prints its own slice", cells_print_slices),
    ("two wait with positions 1 and 2", two_wait),
    ("one stops, the first in line is served", first_is_served),
    ("hub and pool killed: every lease and place is right", survives_kill),
    ("all leave and the GPU is empty", all_leave),
)


def expect(holds: bool, seen: str) -> None:
    """Raise `CheckFailed` with what was seen unless it holds."""
    if not holds:
        raise CheckFailed(seen)


def in_parallel(students: list[Student], do: Callable[[Student], Result]) -> list[Result]:
    """The same for several students at once, in their order."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(do, students))


def _held(run: Run) -> dict[str, tuple[int, tuple[str, ...]]]:
    return {user: (lease.id, lease.uuids) for user, lease in run.lab.leases().items()}


def _waiting_are(run: Run, count: int) -> bool:
    return len(run.lab.places()) == count


def _places(run: Run) -> str:
    return "waiting: " + ", ".join(f"{user} at {at}" for user, at in run.lab.places().items())


def _is_empty(run: Run) -> bool:
    snapshot = run.lab.snapshot()
    states = {each.state for gpu in snapshot.gpus for each in gpu.slices}
    return not snapshot.waiting and not run.lab.leases() and states <= {SliceState.FREE}
