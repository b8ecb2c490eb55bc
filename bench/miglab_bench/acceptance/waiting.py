"""Steps: seven slices for nine students; those in the queue see position and estimated wait."""

from functools import partial

from miglab_api.wording import estimated_wait
from miglab_bench.acceptance.run import (
    SHAPE,
    SLICES,
    STUDENTS,
    Run,
    expect,
    expect_own_slice,
    in_parallel,
)
from miglab_bench.harness.student import Student, wait_for

RESTING = 2  # so many of those who hold a slice compute nothing


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
    """Each runs a cell that prints the slice that the ledger says; five compute on."""
    holding = run.holding
    in_parallel(holding, partial(expect_own_slice, run))
    in_parallel(holding[RESTING:], Student.compute_on)
    return f"{len(holding)} cells printed their own slice; {len(holding) - RESTING} compute on"


def two_wait(run: Run) -> str:
    """The eighth and the ninth wait, with positions 1 and 2 and a likely wait."""
    said = []
    for place, student in enumerate(run.students[SLICES:], 1):
        student.ask(SHAPE)
        said.append(wait_in_queue(run, student, place))
    expected = {student.name: place for place, student in enumerate(run.waiting, 1)}
    expect(run.lab.positions() == expected, f"places: {run.lab.positions()}")
    return "; ".join(said)


def wait_in_queue(run: Run, student: Student, place: int) -> str:
    """Wait until somebody who has asked is in the queue, and knows for how long; in words."""
    name = student.name
    wait_for(lambda: run.lab.positions().get(name) == place, f"{name} in the queue at {place}")
    wait_for(lambda: run.lab.tickets()[name].estimate is not None, f"an estimate for {name}")
    run.tickets[name] = run.lab.tickets()[name]
    run.waiting.append(student)
    estimate = run.tickets[name].estimate
    assert estimate is not None
    is_range = 0 <= estimate.low_s <= estimate.likely_s <= estimate.high_s
    expect(is_range, f"the wait of {name} is said to be {estimate}")
    return f"{name} at {place}, {estimated_wait(estimate)}"


def waited(run: Run, student: Student) -> str:
    """How long somebody waited for the lease that is now there, which was foretold; in words."""
    ticket, lease = run.tickets[student.name], run.lab.leases()[student.name]
    expect(lease.ticket == ticket.id, f"lease {lease.id} is of another place than {ticket.id}")
    waited_s, said = lease.granted_at - ticket.created_at, ticket.estimate
    assert said is not None
    expect(said.low_s <= waited_s <= said.high_s, f"waited {waited_s:.0f} s, foretold {said}")
    return f"{student.name} waited {waited_s:.0f} s"


def survives_kill(run: Run) -> str:
    """Hub and pool are killed and started again: every lease and every place is still right."""
    before, places = _held(run), run.lab.positions()
    run.lab.kill("hub", "pool")
    expect(_held(run) == before, f"leases before {before}, after {_held(run)}")
    expect(run.lab.positions() == places, f"places before {places}, after {run.lab.positions()}")
    last = run.waiting[0]
    last.ask(SHAPE)
    wait_for(lambda: run.lab.positions() == places, f"{last.name} back at place 1")
    for student in run.holding:
        wait_for(student.is_ready, f"the hub to know the server of {student.name} again")
    return f"{len(before)} leases unchanged; {run.positions()}"


def all_leave(run: Run) -> str:
    """All leave, and the GPU is empty."""
    in_parallel(run.holding, Student.leave)
    wait_for(lambda: run.is_empty, "the GPU to be empty")
    expect(not run.lab.servers(), f"servers still run: {run.lab.servers()}")
    broken = run.lab.broken_invariants()
    expect(not broken, f"invariants: {broken}")
    return "no lease, nobody waits, no slice in use; the ledger's invariants hold"


def _held(run: Run) -> dict[str, tuple[int, tuple[str, ...]]]:
    return {user: (lease.id, lease.uuids) for user, lease in run.lab.leases().items()}
