"""Steps: seven slices for nine students.

Those in the queue see position and estimated wait.  Of those who compute nothing, one says "I am
still here", and one is reclaimed for the next in the queue.  Another starts without a GPU, keeps
the position, and moves to the slice.
"""

from functools import partial

from miglab_api.leases import LeaseState, LeaseView, WarningKind
from miglab_api.wording import estimated_wait
from miglab_bench.acceptance.run import (
    SLICES,
    STUDENTS,
    Run,
    expect,
    expect_own_slice,
    in_parallel,
)
from miglab_bench.harness.pool_operator import SHAPE
from miglab_bench.harness.student import Student, wait_for

STAYS, GOES = 1, 2  # who hold a slice and compute nothing, by number
RESTING = 2  # so many of those who hold a slice
LEAVING = 3  # who stops and makes room
SHAPE_CELL = "import os; print(os.environ['MIGLAB_SHAPE'])"


def sign_in(run: Run) -> str:
    """Nine students sign in through the login form."""
    run.sign_in(STUDENTS)
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


def idle_are_warned(run: Run) -> str:
    """Those who compute nothing while others wait are warned; nobody who computes is."""
    idle = {run.student(number).name for number in (STAYS, GOES)}
    wait_for(
        lambda: idle <= _in_state(run, LeaseState.WARNED).keys(),
        f"{' and '.join(sorted(idle))} to be warned",
    )
    warned = _in_state(run, LeaseState.WARNED)
    expect(warned.keys() == idle, f"warned: {sorted(warned)}")
    lease = warned[run.student(GOES).name]
    assert lease.warning is not None
    expect(lease.warning.kind is WarningKind.IDLE, f"warned about: {lease.warning}")
    for number in (STAYS, GOES):
        wait_for(run.student(number).is_warned, "the warning in JupyterLab")
    left_s = lease.warning.reclaim_at - lease.warning.at
    return f"2 of {len(run.holding)} warned, {left_s:.0f} s before: {lease.warning.reason}"


def still_here_keeps_it(run: Run) -> str:
    """One says "I am still here" in JupyterLab, and is not warned any more."""
    student = run.student(STAYS)
    left = student.lease()["warning"]["keepalives_left"]
    student.keepalive()
    lease = run.lab.leases()[student.name]
    expect(lease.state is LeaseState.RUNNING and lease.warning is None, f"the lease: {lease}")
    return f"{student.name} keeps {lease.shape}; may say so {left - 1} times more"


def next_is_served(run: Run) -> str:
    """The other's slice is reclaimed, which its hub page explains; the next in the queue has it."""
    leaving, served = run.student(GOES), run.waiting.pop(0)
    wait_for(lambda: leaving.name not in run.lab.leases(), f"{leaving.name}'s slice to be free")
    wait_for(leaving.has_no_server, f"the server of {leaving.name} to stop")
    news = leaving.news()
    expect("reclaimed: Nothing has happened on it" in news, f"the hub page says: {news}")
    expect(run.student(STAYS).name in run.lab.leases(), "who said to be there lost the slice")
    served.wait_until_ready()
    expect_own_slice(run, served)
    served.compute_on()
    return f"{leaving.name} reads: {news}; {waited(run, served)}; {run.positions()}"


def starts_on_cpu(run: Run) -> str:
    """The last in the queue starts without a GPU; JupyterLab shows the same position."""
    student = run.waiting[-1]
    before = run.tickets[student.name]
    student.start_alternative("cpu")
    student.wait_until_ready()
    text = student.run_cell(SHAPE_CELL).strip()
    expect(text == "cpu", f"{student.name}'s server has {text}")
    wait_for(lambda: student.lease()["ticket"] is not None, "the position in JupyterLab")
    shown = student.lease()["ticket"]
    is_kept = shown["id"] == before.id and shown["state"] == "waiting"
    expect(is_kept and student.name not in run.lab.leases(), f"JupyterLab shows {shown}")
    return f"{student.name} runs on CPU, still at {shown['position']} of {shown['waiting']}"


def moves_to_the_slice(run: Run) -> str:
    """One stops; the slice is offered in JupyterLab, and one click restarts the server with it."""
    leaving, served = run.student(LEAVING), run.waiting.pop(0)
    leaving.leave()
    wait_for(served.is_offered, "the offer in JupyterLab")
    left_s = served.lease()["ticket"]["left_s"]
    served.move()
    wait_for(
        lambda: served.name in _in_state(run, LeaseState.RUNNING),
        f"a server with a slice for {served.name}",
    )
    served.wait_until_ready()
    expect_own_slice(run, served)
    served.compute_on()
    offer = f"offered for {left_s:.0f} s"
    return f"{leaving.name} left; {offer}; {waited(run, served)}; {run.positions()}"


def one_comes_back(run: Run) -> str:
    """Who has left asks again, and waits again."""
    back = run.student(LEAVING)
    back.ask(SHAPE)
    return wait_in_queue(run, back, 1)


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


def _in_state(run: Run, state: LeaseState) -> dict[str, LeaseView]:
    return {user: lease for user, lease in run.lab.leases().items() if lease.state is state}
